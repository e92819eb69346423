"""Sets of offsets as ranges: what goes into requests, and what brokers keep."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence


def merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same offsets as sorted ranges ``(first, last)`` with gaps between them."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            if last > found[-1][1]:
                found[-1] = found[-1][0], last
        else:
            found.append((first, last))
    return found


def ranges_of(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """Single offsets as sorted ranges."""
    return merged((offset, offset) for offset in offsets)


def flat(ranges: Iterable[tuple[int, int]]) -> list[int]:
    """``[first, last, first, last, ...]``, as requests have them."""
    return [end for pair in ranges for end in pair]


def pairs(flat_ranges: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The opposite of ``flat``."""
    return zip(flat_ranges[::2], flat_ranges[1::2], strict=True)
