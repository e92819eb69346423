"""How soon a branch follows when its leader is killed: ``python -m benchmarks.branch_after_kill``.

Two broker groups of three replicas. A transaction has a message in each; the group of the first one is its
home. Once it is prepared, the leader of the other group is killed (SIGKILL), and the transaction is committed
at once. It is decided when home has it, and the branch's message can be read when that group has another
leader which has been told. In every second trial the producer ends as soon as home's message can be read, so
that home alone can tell the branch. Times are from the kill until a consumer has the message.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from signal import SIGKILL
from typing import TYPE_CHECKING

import escrowmq
from benchmarks.around_database.measuring import Reader
from benchmarks.around_database.ways import body_of
from benchmarks.live.waiting import until
from benchmarks.load.replicas import Replicas, pid_of, send_signal
from benchmarks.measure import Latencies, machine
from escrowmq import EscrowMQError, Message

if TYPE_CHECKING:
    from escrowmq import Cluster

TOPIC, GROUPS, HOME, BRANCH = "branches", 2, 0, 1
#: Longer than anything that a healthy cluster needs here.
PATIENCE_S = 60.0
TOLD, LEFT = "the producer goes on", "the producer ends when home has decided"


class Trials:
    """Kills of the branch group's leader, one after the other."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        cluster.admin.create_topic(TOPIC, partitions=2)
        found = cluster.admin.describe_topic(TOPIC).partitions
        self._places = [next(p.partition for p in found if p.group == gid) for gid in (HOME, BRANCH)]
        self._number = 0
        self._reader = Reader(cluster, TOPIC)
        #: From the kill: until home's message can be read, and the branch's, by what the producer does.
        self.home = Latencies()
        self.branch = {TOLD: Latencies(), LEFT: Latencies()}

    def run(self, count: int) -> None:
        """So many kills."""
        for trial in range(count):
            until(lambda: self._cluster.status().healthy, "all replicas to be healthy")
            self._reader.beside(partial(self._once, (TOLD, LEFT)[trial % 2]))

    def close(self) -> None:
        """The consumer."""
        self._reader.close()

    def _once(self, kind: str) -> int:
        replicas = Replicas(self._cluster, BRANCH)
        # Its app and its name: checks must not decide before the producer.
        producer = self._cluster.producer(app="bench-branches")
        home, branch = self._number + 1, self._number + 2
        self._number += 2
        tx = producer.transaction(transaction_timeout_s=PATIENCE_S)
        with contextlib.suppress(EscrowMQError), tx:  # what the producer that ends says
            for number, partition in zip((home, branch), self._places, strict=True):
                tx.send(Message(TOPIC, body_of(number), partition=partition))
            tx.prepare()
            victim = replicas.leader()
            ending = threading.Thread(target=self._end, args=(producer, home))
            began = time.perf_counter()
            send_signal(pid_of(victim), SIGKILL)
            if kind == LEFT:
                ending.start()
            tx.commit()
        self._seen(home)
        self._seen(branch)
        self.home.add(self._reader.read[home] - began)
        self.branch[kind].add(self._reader.read[branch] - began)
        if kind == LEFT:
            ending.join()
        producer.close()
        replicas.restarted(victim)
        return self._number

    def _end(self, producer: escrowmq.Producer, home: int) -> None:
        self._seen(home)
        producer.close(0.0)

    def _seen(self, number: int) -> None:
        until_s = time.perf_counter() + PATIENCE_S
        while number not in self._reader.read:
            if time.perf_counter() > until_s or self._reader.failed:
                raise AssertionError(f"message {number} cannot be read") from self._reader.failed
            time.sleep(0.0005)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    kills: int = parser.parse_args().kills
    with tempfile.TemporaryDirectory() as folder:
        facts = machine(Path(folder))
        with escrowmq.start_local(groups=GROUPS, replicas=3, data_dir=Path(folder) / "data") as cluster:
            trials = Trials(cluster)
            trials.run(kills)
            trials.close()
    print("| from the kill of the branch group's leader | p50 | max | kills |\n|---|---:|---:|---:|")
    shown = {"home's message can be read": trials.home}
    shown |= {f"the branch's message, {kind}": found for kind, found in trials.branch.items()}
    for name, latency in shown.items():
        found = latency.summary()
        print(f"| {name} | {found['p50_ms']:.0f} ms | {found['max_ms']:.0f} ms | {found['samples']:.0f} |")
    print(f"\n{facts}")


if __name__ == "__main__":
    main()
