"""Simulated consumers: polls at any replica, stable cuts over all partitions, offsets of a group.

A replica may be deposed, behind, or recovering: what it serves must still be committed, and at its final
offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from escrowmq.replication.format import ops
from escrowmq.replication.model import ResultCode
from escrowmq.replication.replica.fetching import FetchResult
from tests.history.events import Recorder
from tests.sim.clients.desk import Desk
from tests.sim.clients.ledger import Ledger
from tests.sim.clients.producers import PARTITIONS
from tests.sim.environment.world import Violation
from tests.sim.group.broker_app import BrokerApplication, ids_of
from tests.sim.group.replica import SimReplica

POLL_BYTES = (1, 500, 20_000)


class Consumer:
    """One reader, alone in its group."""

    def __init__(
        self, name: str, desk: Desk, ledger: Ledger, partitions: Sequence[tuple[str, int]] = PARTITIONS
    ) -> None:
        self.name, self._partitions = name, partitions
        self._desk, self._recorder = desk, ledger.recorder
        self._rng = desk.world.stream(f"consumer-{name}")
        self._positions = dict.fromkeys(partitions, 0)
        self._cut_positions = dict.fromkeys(partitions, 0)
        self._cuts = 0
        self._committing = False

    def poll(self) -> None:
        """Continue reading one partition, at any replica."""
        replicas = self._desk.replicas()
        if not replicas:
            return
        _, app = self._rng.choice(replicas)
        tp = self._rng.choice(self._partitions)
        position = self._positions[tp]
        result = app.fetch(*tp, position, self._rng.choice(POLL_BYTES))
        if result is None or result[2] == ResultCode.UNKNOWN_TOPIC:
            return
        if result[2] == ResultCode.OUT_OF_RANGE:
            if position < result[3]:  # retention was faster
                self._positions[tp] = result[3]
                self._recorder.read(self.name, *tp, [], start=result[3])
            return  # otherwise this replica is behind the one read before
        records = ids_of(result, position)
        if records:
            self._recorder.read(self.name, *tp, records)
            self._positions[tp] = records[-1][0] + 1

    def cut(self) -> None:
        """Read everything new in all partitions, at one replica at one instant."""
        replicas = self._desk.replicas()
        if not replicas:
            return
        _, app = self._rng.choice(replicas)
        self._cuts += 1
        read: list[tuple[tuple[str, int], int, int, list[tuple[int, str]]]] = []
        for tp in self._partitions:
            part = read_all(app, tp, self._cut_positions[tp])
            if part is None:
                return
            read.append((tp, *part))
        for tp, start, end, records in read:
            name = f"{self.name}-{self._cuts}"
            self._recorder.read(f"{self.name}-cuts", *tp, records, start=start, end=end, cut=name)
            self._cut_positions[tp] = end

    def commit_offsets(self) -> None:
        """Commit the group's offset in one partition."""
        if self._committing:
            return
        tp = self._rng.choice(self._partitions)
        offset = self._positions[tp]
        op = self._recorder.invoke(
            "offset-commit", group=self.name, topic=tp[0], partition=tp[1], offset=offset
        )
        self._committing = True

        def committed(results: list[Any]) -> None:
            if results[0][0] != ResultCode.OK:
                raise Violation(f"an offset commit was answered {results[0]}", "unexpected-answer")
            self._committing = False
            self._recorder.ok(op)

        self._desk.call(ops.group_offsets(self.name, tp[0], {tp[1]: offset}), committed, lambda: True)

    def check_offsets(self, app: BrokerApplication) -> None:
        """Check the offsets with which the group would continue."""
        offsets = app.replica.state.group_offsets.get(self.name, {})
        for topic, number in self._partitions:
            op = self._recorder.invoke("offset-fetch", group=self.name, topic=topic, partition=number)
            self._recorder.ok(op, offset=offsets.get(topic, {}).get(number, -1))


def read_all(
    app: BrokerApplication, tp: tuple[str, int], position: int, *, settled: bool = False
) -> tuple[int, int, list[tuple[int, str]]] | None:
    """(start, end, records) of a partition from ``position``, or from where retention left it.

    None if the replica has ended, or has removed from its log what its state does not know to be removed yet:
    after a restart from a snapshot, it applies retention again; if all is ``settled``, it has finished that.
    A replica that is behind ``position`` returns nothing: its end equals its start.
    """
    records: list[tuple[int, str]] = []
    start = at = position
    while True:
        result: FetchResult | None = app.fetch(*tp, at)
        if result is None or result[2] == ResultCode.UNKNOWN_TOPIC:
            return None
        _, _, code, low, end, _, _ = result
        if code == ResultCode.OUT_OF_RANGE:
            if low <= at < end and not settled:
                return None
            if at >= low or records:
                return start, max(at, start), records
            start = at = low
            continue
        got = ids_of(result, at)
        if not got:
            return start, max(end, start), records
        records += got
        at = records[-1][0] + 1


def read_finally(
    replicas: Sequence[tuple[SimReplica, BrokerApplication]],
    recorder: Recorder,
    attempt: int,
    partitions: Sequence[tuple[str, int]] = PARTITIONS,
) -> bool:
    """Read everything from every replica: all must have the same records, start and end.

    (The history cannot tell a replica that lacks the end from one that is behind.) False: a replica found
    damage while it was read, and has ended.
    """
    bounds: dict[tuple[str, int], tuple[str, int, int]] = {}
    for replica, app in replicas:
        name = f"final-{replica.name}"
        for tp in partitions:
            part = read_all(app, tp, 0, settled=True)
            if part is None:
                return False
            start, end, records = part
            recorder.read(name, *tp, records, start=start, end=end, cut=f"{name}-{attempt}")
            other, *known = bounds.setdefault(tp, (replica.name, start, end))
            if known != [start, end]:
                raise Violation(
                    f"{tp} in the end: {other} has {known[0]}..{known[1]}, {replica.name} {start}..{end}",
                    "final-reads-differ",
                )
    return True
