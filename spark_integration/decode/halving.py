"""Parsing many values by one call, although some may be bad.

A batch that fails is halved until the bad ones stand alone: so good data cost one call, and bad data cost
more the more there are.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pyarrow as pa

#: What parsers raise for bytes that are not what they should be.
BAD = (pa.ArrowException, msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError, OSError)


def halved(
    count: int, parse: Callable[[int, int], pa.Array], type: pa.DataType
) -> tuple[pa.Array, list[int]]:
    """(all values parsed, places of those that cannot be, which are null).

    ``parse(at, size)`` gives the values ``[at, at + size)``, or raises one of ``BAD`` if any of them is bad.
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
