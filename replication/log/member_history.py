"""Which configuration holds at which index of the log: in force from its entry on, gone when that is cut off.

A configuration counts from the moment its entry is in the log, committed or not (Raft thesis, section 4.1):
the leader that appended it already counts by it, and so must all who hold the entry. So the log notes each
one as it is added, forgets it when it is cut off, and finds those of its tail again when it is opened. What
held before the first entry is told by the newest snapshot, or is the configuration of the group's beginning.

Belongs to the loop thread. Configurations are few: retention takes the old ones with their segments. The log
does not judge what an entry says; it is decoded when somebody asks.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from functools import lru_cache

from escrowmq.replication.format.membership import Members, decode_members

_END = 1 << 63
_decoded = lru_cache(maxsize=64)(decode_members)


class MemberHistory:
    """See the module's text. ``edits`` grows whenever what ``current`` answers may have changed."""

    def __init__(self) -> None:
        self.edits = 0
        self._base: tuple[int, Members | bytes] | None = None
        self._commands: dict[int, bytes] = {}
        self._indexes: list[int] = []  # of ``_commands``, in order

    # ---------------------------------------------------------------- what is
    @property
    def current(self) -> Members | None:
        """The configuration in force; None: nobody has said yet what the group began with. Raises
        UnknownVersion or CorruptLog for an entry that this software cannot read, as all others here do."""
        return self.dated(_END)[1]

    @property
    def newest_index(self) -> int:
        """Index of the entry that holds the configuration in force; 0: it is that of the beginning."""
        return self.dated(_END)[0]

    def at(self, index: int) -> Members | None:
        """The configuration that held when entry ``index`` was the last one."""
        return self.dated(index)[1]

    def dated(self, index: int) -> tuple[int, Members | None]:
        """As ``at``, with the index of the entry that says so."""
        place, base = bisect_right(self._indexes, index), self._base
        if place:
            found = self._indexes[place - 1]
            if base is None or not found < base[0] <= index:
                return found, _decoded(self._commands[found])
        return (0, None) if base is None else (base[0], _members(base[1]))

    def said(self, index: int) -> tuple[int, bytes] | None:
        """As ``dated``, in the words of the log, for a snapshot at ``index``; None: no entry has said
        anything, so that it is still as in the group's beginning."""
        found = self.dated(index)[0]
        command = self._commands.get(found)
        if command is None and self._base is not None and self._base[0] == found > 0:
            command = self._base[1] if isinstance(self._base[1], bytes) else None
        return None if command is None else (found, command)

    def command(self, index: int) -> bytes | None:
        """Entry ``index``, if it is a configuration."""
        return self._commands.get(index)

    def since(self, index: int) -> list[Members]:
        """The configuration that held at ``index``, and all after it, in their order."""
        first = self.at(index)
        return ([] if first is None else [first]) + [
            _decoded(self._commands[i]) for i in self._indexes if i > index
        ]

    def between(self, first: int, last: int) -> list[tuple[int, bytes]]:
        """The configurations of entries ``first`` to ``last``, for the sidecar of their segment."""
        return [(i, self._commands[i]) for i in self._indexes if first <= i <= last]

    # ---------------------------------------------------------------- what happens
    def begin(self, index: int, members: Members | bytes) -> None:
        """What held at ``index``: of a snapshot, or (index 0) of the group's beginning. The newest counts.

        Entries before it stay known: the sidecar of their segment is to name them, since a start that finds
        this snapshot damaged takes the one before it.
        """
        if self._base is None or index > self._base[0]:
            self._base = index, members
            self.edits += 1

    def note(self, index: int, command: bytes) -> None:
        """Entry ``index`` is a configuration."""
        if index not in self._commands:
            insort(self._indexes, index)
        self._commands[index] = command
        self.edits += 1

    def cut_after(self, last: int) -> None:
        """Entries after ``last`` were cut off: what they said never was."""
        if self._indexes and self._indexes[-1] > last:
            self._forget([i for i in self._indexes if i > last])

    def cut_before(self, first: int) -> None:
        """Retention took the entries before ``first``: the newest of their configurations still holds."""
        if self._indexes and self._indexes[0] < first:
            gone = [i for i in self._indexes if i < first]
            self.begin(gone[-1], self._commands[gone[-1]])
            self._forget(gone)

    def _forget(self, indexes: list[int]) -> None:
        for index in indexes:
            del self._commands[index]
        self._indexes = sorted(self._commands)
        self.edits += 1


def _members(said: Members | bytes) -> Members:
    return said if isinstance(said, Members) else _decoded(said)
