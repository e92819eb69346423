"""Parses many values with one call, although some may be bad.

A batch that fails is halved until the bad values are alone. So good data cost one call, and the cost of bad
data grows with their number.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pyarrow as pa

#: Exceptions that parsers raise for malformed bytes.
BAD = (pa.ArrowException, msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError, OSError)


def halved(
    count: int, parse: Callable[[int, int], pa.Array], type: pa.DataType
) -> tuple[pa.Array, list[int]]:
    """Parse all values: (parsed values, positions of those that cannot be parsed and are null).

    ``parse(at, size)`` returns the values ``[at, at + size)``, or raises one of ``BAD`` if any of them is
    bad.
    """
    done: list[pa.Array] = []
    bad: list[int] = []
    waiting = [(0, count)] if count else []
    while waiting:
        at, size = waiting.pop()
        try:
            done.append(parse(at, size))
        except BAD:
            if size == 1:
                bad.append(at)
                done.append(pa.nulls(1, type))
            else:
                half = size // 2
                waiting += [(at + half, size - half), (at, half)]
    return pa.concat_arrays(done) if done else pa.nulls(0, type), bad
