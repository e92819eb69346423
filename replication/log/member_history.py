"""Which configuration is in force at which index: from its entry on, and gone if that entry is cut off.

A configuration takes effect as soon as its entry is in the log, committed or not (Raft thesis, section 4.1):
the leader that appended it already counts majorities by it, and so must all who hold the entry. So the log
notes each one as it is added, forgets it when it is cut off, and finds those in its tail again when it is
opened. What was in force before the first entry comes from the newest snapshot, or is the group's first
configuration.

Belongs to the loop thread. Configurations are few: retention removes the old ones with their segments. The
log does not interpret an entry; it is decoded when somebody asks for it.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from functools import lru_cache

from escrowmq.replication.format.membership import Members, decode_members

_END = 1 << 63
_decoded = lru_cache(maxsize=64)(decode_members)


class MemberHistory:
    """See the module's docstring. ``edits`` grows whenever the answer of ``current`` may have changed."""

    def __init__(self) -> None:
        self.edits = 0
        self._base: tuple[int, Members | bytes] | None = None
        self._commands: dict[int, bytes] = {}
        self._indexes: list[int] = []  # of ``_commands``, in order

    # ---------------------------------------------------------------- what is
    @property
    def current(self) -> Members | None:
        """The configuration in force; None: the group's first configuration is not known yet. Raises
        UnknownVersion or CorruptLog for an entry that this software cannot read, as do all others here."""
        return self.dated(_END)[1]

    @property
    def newest_index(self) -> int:
        """Index of the entry that holds the configuration in force; 0: it is the group's first one."""
        return self.dated(_END)[0]

    def at(self, index: int) -> Members | None:
        """The configuration that was in force when entry ``index`` was the last one."""
        return self.dated(index)[1]

    def dated(self, index: int) -> tuple[int, Members | None]:
        """As ``at``, with the index of the entry that holds it."""
        count, base = bisect_right(self._indexes, index), self._base
        if count:
            found = self._indexes[count - 1]
            if base is None or not found < base[0] <= index:
                return found, _decoded(self._commands[found])
        return (0, None) if base is None else (base[0], _members(base[1]))

    def said(self, index: int) -> tuple[int, bytes] | None:
        """As ``dated``, undecoded, for a snapshot at ``index``; None: no entry holds one, so the group's
        first configuration is still in force."""
        found = self.dated(index)[0]
        command = self._commands.get(found)
        if command is None and self._base is not None and self._base[0] == found > 0:
            command = self._base[1] if isinstance(self._base[1], bytes) else None
        return None if command is None else (found, command)

    def command(self, index: int) -> bytes | None:
        """The command of entry ``index``, if that is a configuration."""
        return self._commands.get(index)

    def since(self, index: int) -> list[Members]:
        """The configuration in force at ``index``, and all later ones, in order."""
        first = self.at(index)
        return ([] if first is None else [first]) + [
            _decoded(self._commands[i]) for i in self._indexes if i > index
        ]

    def between(self, first: int, last: int) -> list[tuple[int, bytes]]:
        """The configurations of entries ``first`` to ``last``, for the sidecar of their segment."""
        return [(i, self._commands[i]) for i in self._indexes if first <= i <= last]

    # ---------------------------------------------------------------- what happens
    def begin(self, index: int, members: Members | bytes) -> None:
        """What was in force at ``index``: from a snapshot, or (index 0) the group's first configuration. The
        newest one counts.

        Entries before it stay known: the sidecar of their segment must name them, since a start that finds
        this snapshot damaged uses the one before it.
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
        """Entries after ``last`` were cut off: forget their configurations."""
        if self._indexes and self._indexes[-1] > last:
            self._forget([i for i in self._indexes if i > last])

    def cut_before(self, first: int) -> None:
        """Retention removed the entries before ``first``: the newest of their configurations still counts."""
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
