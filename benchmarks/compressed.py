"""What compressing values costs and saves: ``python -m benchmarks.compressed``.

One broker group of three replicas on this machine, and values like the JSON of an order, about 4 KiB each.
Without compression, with lz4 and with zstd in turns: messages a second until the answers, bytes of requests
and of one replica's log, messages a second of ``poll`` and ``poll_arrow``. The median of the rounds counts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import escrowmq
from escrowmq import Cluster
from escrowmq.replication.format.packing import METHODS

WAYS = (None, *METHODS)
TOPIC = "compressed"
BYTES = 4 << 10
PER_CALL = 500


@dataclass(frozen=True)
class Figures:
    """Of one round; the first field and the last two are messages a second."""

    sent_per_s: float
    request_bytes: float
    log_bytes: float
    polled_per_s: float
    arrow_per_s: float


def values(count: int) -> list[bytes]:
    """Different orders; ids and prices are random, names and words repeat, as they do in practice."""
    rng = random.Random(4)
    words = [f"word{number:03}" for number in range(300)]
    return [_order(rng, words) for _ in range(count)]


def _order(rng: random.Random, words: Sequence[str]) -> bytes:
    items: list[object] = []
    order = {"order": rng.randrange(10**9), "customer": f"{rng.getrandbits(64):016x}", "items": items}
    while len(encoded := json.dumps(order).encode()) < BYTES:
        text = " ".join(rng.choices(words, k=6))
        items.append(
            {"sku": f"SKU-{rng.randrange(10**6):06}", "price": rng.randrange(10**5) / 100, "text": text}
        )
    return encoded


def measure(cluster: Cluster, log: Path, ready: Sequence[bytes], way: str | None, seconds: float) -> Figures:
    """One round: sends for so long, then reads it all twice."""
    before = _sizes(log)
    with cluster.producer("bench", compression=way) as producer:
        producer.send_many(TOPIC, ready[:1]).result(60.0)
        sent, begin = 1, time.perf_counter()
        for start in itertools.cycle(range(0, len(ready), PER_CALL)):
            if time.perf_counter() - begin >= seconds:
                break
            sent += len(producer.send_many(TOPIC, ready[start : start + PER_CALL]))
        assert producer.flush(60.0)
        took = time.perf_counter() - begin
        told = producer.statistics()
    assert (told.messages, told.messages_failed) == (sent, 0)
    # Retention removes older segments meanwhile, so only growth counts.
    grown = sum(size - before.get(file, 0) for file, size in _sizes(log).items())
    rates = [_read(cluster, sent, arrow=arrow) for arrow in (False, True)]
    cluster.admin.delete_topic(TOPIC)
    cluster.admin.create_topic(TOPIC, partitions=4)
    return Figures(sent / took, told.request_bytes / sent, grown / sent, *rates)


def _read(cluster: Cluster, count: int, *, arrow: bool) -> float:
    with cluster.consumer() as consumer:
        consumer.assign([(TOPIC, partition) for partition in range(4)])
        consumer.seek_to_beginning()
        found, begin = 0, time.perf_counter()
        while found < count:
            found += consumer.poll_arrow().num_rows if arrow else len(consumer.poll())
        return count / (time.perf_counter() - begin)


def _sizes(log: Path) -> dict[Path, int]:
    return {file: file.stat().st_size for file in log.rglob("*.log")}


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    ready = values(2_000)
    print(f"{len(ready)} values of {statistics.mean(map(len, ready)):.0f} bytes")
    rounds: dict[str | None, list[Figures]] = {way: [] for way in WAYS}
    with (
        tempfile.TemporaryDirectory() as directory,
        escrowmq.start_local(groups=1, replicas=3, data_dir=directory) as cluster,
    ):
        cluster.admin.create_topic(TOPIC, partitions=4)
        (log, *_) = sorted({file.parent for file in Path(directory).rglob("*.log")})
        for _ in range(options.rounds):
            for way in WAYS:
                rounds[way].append(measure(cluster, log, ready, way, options.seconds))
    for way, found in rounds.items():
        columns = zip(*map(astuple, found), strict=True)
        shown = zip(fields(Figures), map(statistics.median, columns), strict=True)
        print(f"{way or 'none':>5}: " + ", ".join(f"{field.name} {value:,.0f}" for field, value in shown))


if __name__ == "__main__":
    main()
