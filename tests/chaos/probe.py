"""The probe: one client whose next transaction after a fault shows how long the cluster was away.

Also the operator, who looks at the open transactions now and then and decides those without a querier.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from escrowmq import Cluster, EscrowMQError, Message, OpenTransaction, TransactionState
from tests.chaos.deployment import Stuck
from tests.chaos.producer import ORPHANS
from tests.chaos.recording import Recorded
from tests.history.events import Sent, body

PROBES = "probes"
TOPIC = "probes"
#: A cluster with a live majority that acknowledges nothing for this time is broken.
PATIENCE_S = 90.0
#: Pause between two transactions that look for gaps: short enough to see every gap, without much load.
GAP_PAUSE_S = 0.01
#: Apps whose transactions the operator decides.
OPERATED = (ORPHANS, PROBES)


class Probe:
    """One producer with all settings at their defaults. Single-threaded."""

    def __init__(self, cluster: Cluster, recorded: Recorded, number: int) -> None:
        self._producer = cluster.producer(app=PROBES)
        self._recorded, self._number, self._count = recorded, number, 0
        found = cluster.admin.describe_topic(TOPIC).partitions
        self._partition_of = {place.group: place.partition for place in found}

    def until_acknowledged(self, gid: int, since: int) -> float:
        """Seconds from ``since`` (ns) to the acknowledgement of a transaction that begins now."""
        deadline = time.monotonic() + PATIENCE_S
        while not self._transaction(gid):
            if time.monotonic() >= deadline:
                raise Stuck(f"no transaction of group {gid} was acknowledged for {PATIENCE_S:g} s")
            time.sleep(0.02)
        return (time.monotonic_ns() - since) / 1e9

    def longest_gap(self, gid: int, since: int, going_on: Callable[[], bool]) -> float:
        """The longest time (seconds) between two successive acknowledgements, while something goes on."""
        return longest_gap(lambda last: self.until_acknowledged(gid, last), since, going_on)

    def _transaction(self, gid: int) -> bool:
        self._count += 1
        identity = f"probe-{self._number}-{self._count}"
        partition = self._partition_of[gid]
        with self._producer.transaction() as tx:
            tx.send(Message(TOPIC, body(identity, 200), partition=partition))
            op = self._recorded.prepare(PROBES, tx.tx_id, [Sent(identity, TOPIC, partition, None)])
            if self._recorded.prepared(op, tx.prepare, (PROBES, tx.tx_id)) != "ok":
                return False
            return self._recorded.decide(PROBES, tx.tx_id, TransactionState.COMMITTED, tx.commit)

    def close(self) -> None:
        self._producer.close()


def longest_gap(next_acknowledged: Callable[[int], float], since: int, going_on: Callable[[], bool]) -> float:
    """The longest gap (seconds) between acknowledgements from ``since`` (ns) on, until nothing goes on.

    ``next_acknowledged``: waits for the next one, and returns the seconds from the given time to it.
    """
    longest, last, more = 0.0, since, True
    while more:
        more = going_on()  # asked first, so a gap that begins before the end is measured to its own end
        gap = next_acknowledged(last)
        longest, last = max(longest, gap), last + round(gap * 1e9)
        time.sleep(GAP_PAUSE_S)
    return longest


class Operator:
    """A thread that lists open transactions and decides some of those of ``OPERATED``."""

    def __init__(self, cluster: Cluster, recorded: Recorded, seed: int) -> None:
        self._admin, self._recorded, self._rng = cluster.admin, recorded, random.Random(seed)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="operator", daemon=True)
        self.listed = self.decided = 0
        self._thread.start()

    def _run(self) -> None:
        while not self._ending.wait(self._rng.uniform(0.5, 2.0)):
            self.decide_some(0.5)

    def decide_some(self, share: float) -> list[OpenTransaction]:
        """Decide this share of the operator's transactions; returns all open transactions."""
        try:
            found = self._admin.list_transactions()
            self.listed += 1
            for open_one in found:
                if open_one.app in OPERATED and self._rng.random() < share:
                    self._decide(open_one)
        except EscrowMQError:
            return []
        return found

    def _decide(self, open_one: OpenTransaction) -> None:
        commit = self._rng.random() < 0.5
        outcome = TransactionState.COMMITTED if commit else TransactionState.ROLLBACK

        def resolve() -> None:
            self._admin.resolve_transaction(open_one.tx_id, outcome, app=open_one.app, by="chaos")

        self._recorded.decide(open_one.app, open_one.tx_id, outcome, resolve, by="operator")
        self.decided += 1

    def end(self) -> None:
        """Stop; after this the operator decides nothing."""
        self._ending.set()
        self._thread.join(60.0)
