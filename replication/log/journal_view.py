"""The journal as the list of (command, index, term) that pysyncobj expects. A body is read only when it is
asked for: pysyncobj asks for the index or term of log[-1] and log[0] all the time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, overload


class EntrySource(Protocol):
    """What a view needs from the journal."""

    def read(self, index: int) -> bytes: ...

    def term_at(self, index: int) -> int | None: ...


class Entry:
    """One entry; behaves like the tuple (command, index, term)."""

    __slots__ = ("_index", "_log")

    def __init__(self, log: EntrySource, index: int) -> None:
        self._log, self._index = log, index

    def __getitem__(self, field: int) -> bytes | int | None:
        if field == 0:
            return self._log.read(self._index)
        if field == 1:
            return self._index
        if field == 2:
            return self._log.term_at(self._index)
        raise IndexError(field)

    def __iter__(self) -> Iterator[bytes | int | None]:
        return iter((self[0], self[1], self[2]))

    def __len__(self) -> int:
        return 3

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, tuple | list | Entry):
            return NotImplemented
        return len(other) == 3 and all(self[k] == other[k] for k in (1, 2, 0))

    __hash__ = None  # type: ignore[assignment]  # like a list: equal to unhashable things

    def __repr__(self) -> str:
        return f"Entry(index={self._index}, term={self._log.term_at(self._index)})"


class EntryRange:
    """Entries [first, end), as a read-only sequence."""

    __slots__ = ("_end", "_first", "_log")

    def __init__(self, log: EntrySource, first: int, end: int) -> None:
        self._log, self._first, self._end = log, first, max(first, end)

    def __len__(self) -> int:
        return self._end - self._first

    @overload
    def __getitem__(self, item: int) -> Entry: ...

    @overload
    def __getitem__(self, item: slice) -> EntryRange: ...

    def __getitem__(self, item: int | slice) -> Entry | EntryRange:
        if isinstance(item, slice):
            start, stop, step = item.indices(len(self))
            assert step == 1, "pysyncobj takes plain slices only"
            return EntryRange(self._log, self._first + start, self._first + stop)
        position = item + len(self) if item < 0 else item
        if not 0 <= position < len(self):
            raise IndexError(item)
        return Entry(self._log, self._first + position)

    def __iter__(self) -> Iterator[Entry]:
        for index in range(self._first, self._end):
            yield Entry(self._log, index)
