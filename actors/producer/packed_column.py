"""Compresses the values of encoded rows that are a column. Needs numpy and pyarrow.

Arrow compresses single buffers, not the elements of a column, so there is one call for each value, in Python.
All others stay in Arrow: a column without values to compress costs one comparison of its offsets.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from escrowmq.actors.producer.table_rows import offsets_of


def packed_column(rows: pa.Array, pack: Callable[[bytes], bytes], least: int) -> pa.Array:
    """Encoded rows of type ``binary``, with ``pack`` applied to those of more than ``least`` bytes."""
    long = np.diff(offsets_of(rows)) > least
    count = int(long.sum())
    if not count:
        return rows
    if count == len(rows):
        return pa.array(map(pack, rows.to_pylist()), pa.binary(), size=count)
    made = pa.array(map(pack, rows.take(pa.array(np.flatnonzero(long))).to_pylist()), pa.binary(), size=count)
    return pc.replace_with_mask(rows, pa.array(long), made)
