"""What the logs of all groups say about how messages became readable, noted as the entries are applied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from escrowmq.replication.format.codec import Op
from escrowmq.replication.format.operation import OpType

_SENT, _RELEASED = frozenset({OpType.MESSAGE}), frozenset({OpType.RELEASE})
_OF_INTEREST = frozenset({OpType.MESSAGE, OpType.RELEASE, OpType.COMMIT})


class Commit(NamedTuple):
    """A COMMIT in the log, which may have been refused."""

    app: str
    tx_ids: frozenset[str]
    by: str


@dataclass(slots=True)
class Entry:
    """What an entry may have made readable."""

    time_ms: int
    kinds: frozenset[OpType]
    commits: list[Commit] = field(default_factory=list)

    @property
    def sends(self) -> bool:
        """Whether it has plain messages."""
        return bool(self.kinds & _SENT)

    @property
    def releases(self) -> bool:
        """Whether it makes delayed messages readable."""
        return bool(self.kinds & _RELEASED)


class LogModel:
    """The entries by group and index."""

    def __init__(self) -> None:
        self._entries: dict[tuple[int, int], Entry] = {}

    def heard(self, gid: int, index: int, now_ms: int, ops: Sequence[Op]) -> None:
        """A replica applies this entry."""
        kinds = frozenset(op.type for op in ops) & _OF_INTEREST
        if kinds:
            commits = [
                Commit(op.meta.app, frozenset(op.meta.tx_ids), op.meta.by)
                for op in ops
                if op.type == OpType.COMMIT
            ]
            self._entries[gid, index] = Entry(now_ms, kinds, commits)

    def at(self, gid: int, index: int) -> Entry | None:
        """None: it makes nothing readable."""
        return self._entries.get((gid, index))

    def committing(self, gid: int, tx_id: str, time_ms: int, first: int, last: int) -> list[int]:
        """The entries of ``[first, last]`` with this time and a COMMIT of a transaction of this id."""
        return [
            index
            for (group, index), entry in self._entries.items()
            if group == gid
            and first <= index <= last
            and entry.time_ms == time_ms
            and any(tx_id in commit.tx_ids for commit in entry.commits)
        ]
