"""How soon single messages to many partitions are read: ``python -m benchmarks.many_partitions``.

One producer sends 40 messages a second, at random times and with a new key each, to a topic of one broker
group; one consumer polls. Times are from the message's acknowledgement until ``poll`` has returned it.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import escrowmq
from benchmarks.around_database.measuring import Reader
from benchmarks.around_database.ways import body_of
from benchmarks.measure import Latencies
from escrowmq import Message

if TYPE_CHECKING:
    from escrowmq import Cluster

PER_S, SEED = 40.0, 1
PARTITIONS = (1, 4, 16, 64)


def measure(cluster: Cluster, partitions: int, messages: int) -> Latencies:
    """A topic of so many partitions, and so many messages."""
    topic = f"partitions-{partitions}"
    cluster.admin.create_topic(topic, partitions=partitions)
    reader, acknowledged = Reader(cluster, topic), dict[int, float]()
    with cluster.producer(app="bench-partitions") as producer:

        def send() -> int:
            rng = random.Random(SEED)
            for number in range(1, messages + 1):
                producer.send(Message(topic, body_of(number), key=b"%d" % number)).result()
                acknowledged[number] = time.perf_counter()
                time.sleep(rng.expovariate(PER_S))
            time.sleep(1.0)  # for the reader's thread, whose poll is shorter
            return messages

        reader.beside(send)
    reader.close()
    found = Latencies()
    found.extend([reader.read[number] - when for number, when in acknowledged.items()])
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--messages", type=int, default=400)
    chosen = parser.parse_args()
    print("| partitions | p50 | p99 | max | load average |\n|---:|---:|---:|---:|---:|")
    with (
        tempfile.TemporaryDirectory() as folder,
        escrowmq.start_local(groups=1, replicas=3, data_dir=Path(folder)) as cluster,
    ):
        for partitions in PARTITIONS:
            found = measure(cluster, partitions, chosen.messages).summary()
            times = " | ".join(f"{found[name]:.1f} ms" for name in ("p50_ms", "p99_ms", "max_ms"))
            print(f"| {partitions} | {times} | {os.getloadavg()[0]:.0f} |", flush=True)


if __name__ == "__main__":
    main()
