"""Taking a snapshot of the state while entries continue to be applied.

A ``Capture`` is the whole state after one index, although it is assembled in many steps: the thread that
applies entries also sends heartbeats, and visiting 200,000 partitions takes longer than an election
time-out. Small or immutable parts are taken at the start. Partitions are cut (cuts.py) and consumer
groups held (group_offsets.py) at that moment: one that changes before the capture has visited it keeps
its old value for the capture.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from escrowmq.replication.format.timer_ops import LEVEL_OF_TIMERS
from escrowmq.replication.state.index import Columns
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.snapshot import BOUNDS, Snapshot
from escrowmq.replication.state.topics import Partition


class Capture:
    """The state after its last applied entry, which has ``term``. In the applying thread; one at a time, and
    each must be completed."""

    def __init__(self, state: StateMachine, term: int, run_files: Iterable[str]) -> None:
        """``run_files``: the files that hold the runs before ``tables``."""
        topics = list(state.topics.topics.values())
        apps = state.transactions.apps.items()
        self._tables: dict[int, Columns] = {}
        self._bounds = array("q")
        self._visits = self._visit([topic.partitions for topic in topics])
        self._done = False
        self.snapshot = Snapshot(
            state.applied_index,
            term,
            _meta(state, run_files),
            [(topic.info, len(topic.partitions)) for topic in topics],
            self._bounds,
            state.group_offsets.hold(),
            [(app, table.open.hold()) for app, table in apps if table.open],
            [
                (app, age, copy)
                for app, table in apps
                for age, copy in enumerate(table.settled.copy())
                if copy
            ],
            [
                (app, age, copy)
                for app, table in apps
                if table.given
                for age, copy in enumerate(table.given.copy())
            ],
            [(app, table.decided.copy()) for app, table in apps if table.decided],
            list(enumerate(state.producers.copy())),
            self._tables,
            state.transactions.lives.copy(),
            state.timers.store.freeze(),
            state.shares.hold(),
            list(state.shares.groups.items()),
            list(state.attempts.items()),
            list(state.claims.by_name.items()),
            state.claims.rows(),
            list(state.held.by_tx.items()),
            list(state.transactions.unattended),
            list(state.letters.by_tx.items()),
        )
        state.topics.cuts.cut()

    @property
    def run_files(self) -> list[str]:
        """Run files that the snapshot names; the writer of the snapshot adds that of ``tables``."""
        files: list[str] = self.snapshot.meta["run_files"]
        return files

    def step(self, partitions: int) -> bool:
        """Visit up to ``partitions`` more; returns whether all are visited and the snapshot is complete."""
        for _ in islice(self._visits, partitions):
            pass
        return self._done

    def _visit(self, topics: list[dict[int, Partition]]) -> Iterator[None]:
        for partitions in topics:
            for partition in partitions.values():
                start, end, last_time_ms, runs = partition.index.at_cut()
                self._bounds.extend((partition.slot, partition.number, start, end, last_time_ms))
                if runs is not None:
                    self._tables[partition.slot] = runs
                yield
        assert len(self._bounds) == BOUNDS * sum(len(partitions) for partitions in topics)
        self._done = True


def capture(state: StateMachine, term: int, run_files: Iterable[str]) -> Snapshot:
    """A snapshot in one step, for callers that hold up no other work."""
    taken = Capture(state, term, run_files)
    while not taken.step(1 << 20):
        pass
    return taken.snapshot


def release(state: StateMachine, snapshot: Snapshot) -> None:
    """The snapshot is no longer read. In the applying thread."""
    for _ in release_steps(state, snapshot):
        pass


def release_steps(state: StateMachine, snapshot: Snapshot) -> Iterator[None]:
    """As ``release``, app by app; the same state must not be held again before this has ended."""
    state.group_offsets.release()
    state.shares.release()
    for app, _ in snapshot.open:
        state.transactions.release(app)
        yield


def _meta(state: StateMachine, run_files: Iterable[str]) -> dict[str, Any]:
    """The file's first chunk. Topics, their first groups and ids, and group offsets are large, so they are
    added when it is written."""
    meta = {
        "gid": state.gid,
        "groups": state.groups,
        "now_ms": state.now_ms,
        "first_index": state.first_index,
        "next_slot": state.topics.next_slot,
        "topics": [],
        "group_offsets": [],
        "audit": list(state.transactions.audit),
        "run_files": list(run_files),
    }
    if state.level > 1:
        meta["level"], meta["settings"] = state.level, state.settings.values()
        meta["forgotten_ms"], meta["turned_ms"] = state.forgotten_ms, state.turned_ms
        given = state.transactions.given
        meta["given"] = [given.turned_ms, given.forgotten_ms, given.age_ms]
    if state.level > 2:
        meta["producers"] = [state.producers.turned_ms, state.producers.forgotten_ms]
        if state.topics.altered:
            numbers = {name: topic.altered for name, topic in state.topics.topics.items() if topic.altered}
            meta["altered"] = [state.topics.altered, numbers]
    if state.level > 3:
        meta["first_groups"] = {}
    if state.level > 5:
        meta["topic_ids"], meta["last_topic_id"] = {}, state.topics.last_id
        deleted = state.deleted_groups
        meta["deleted_groups"] = [deleted.floor, dict(deleted.generations)]
    if state.level >= LEVEL_OF_TIMERS:
        meta["timers"] = [state.timers.released, state.timers.counts.freeze()]
        meta["cancelled"] = list(map(b"".join, state.timers.cancelled.copy()))
    if state.members is not None:
        meta["members"] = list(state.members)
    return meta
