"""Recent log entries in memory, from which they are written, sent to followers and applied.

Bounded, except that an entry that is not on disk yet is never evicted: no other place has it.
Any thread may look entries up; only the loop thread changes them.
"""

from __future__ import annotations

from collections.abc import Callable


class EntryCache:
    """Commands by log index, the oldest evicted first."""

    __slots__ = ("_bytes", "_bytes_max", "_entries", "_low", "get")

    def __init__(self, bytes_max: int, next_index: int) -> None:
        self._entries: dict[int, bytes] = {}
        self._bytes, self._bytes_max = 0, bytes_max
        self._low = next_index  # no entry below it is held
        self.get: Callable[[int], bytes | None] = self._entries.get

    def put(self, index: int, command: bytes, durable: int) -> None:
        """Hold the newest entry; if needed, evict entries up to ``durable``."""
        self._entries[index] = command
        self._bytes += len(command)
        if self._bytes > self._bytes_max:
            self.shrink(durable)

    def shrink(self, durable: int) -> None:
        """Evict down to the limit, but nothing after ``durable``."""
        index = self._low
        while self._bytes > self._bytes_max and index <= durable:
            self._forget(index)
            index += 1
        self._low = index

    def cut_after(self, keep: int, last: int) -> None:
        """Forget entries keep + 1 to last (a conflict)."""
        for index in range(max(keep + 1, self._low), last + 1):
            self._forget(index)
        self._low = min(self._low, keep + 1)

    def cut_before(self, first: int) -> None:
        """Forget entries before ``first`` (retention)."""
        for index in range(self._low, first):
            self._forget(index)
        self._low = max(self._low, first)

    def restart_at(self, next_index: int) -> None:
        """The log is empty and continues at ``next_index``."""
        assert not self._entries
        self._low = next_index

    def _forget(self, index: int) -> None:
        command = self._entries.pop(index, None)
        if command is not None:
            self._bytes -= len(command)
