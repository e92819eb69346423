"""Sums over blocks of runs, against a look at every run."""

from __future__ import annotations

import random
from array import array

import pytest

from escrowmq.replication.errors import CorruptLog
from escrowmq.replication.state import stored_runs
from escrowmq.replication.state.index import PartitionIndex
from escrowmq.replication.state.stored_runs import (
    COLUMNS,
    RUN_BYTES,
    KeptBlocks,
    RunTable,
    encode_runs,
    open_runs,
)
from tests.support.stored_bytes import StoredBytes, stored


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_runs, "BLOCK", 4)


def test_what_a_table_answers_is_what_a_look_at_every_run_gives() -> None:
    rng = random.Random(3)
    for _ in range(300):
        rows = rng.randint(1, 40)
        indexes = [rng.randint(1, 50) for _ in range(rows)]
        sizes = [rng.randint(1, 9) for _ in range(rows)]
        one = array("Q", [1] * rows)
        columns = (array("Q", range(rows)), array("Q", indexes), one, array("Q", sizes), one, one)
        times = array("Q", sorted(rng.randint(1, 60) for _ in range(rows)))
        columns = (*columns[:5], times)
        on_the_heap = RunTable(columns)
        on_the_heap.sum_up(rng.randrange(12))  # some of the blocks, or all
        ((_, in_a_file),) = stored({7: columns})
        row, bound, limit = rng.randrange(rows), rng.randint(0, 62), rng.randint(0, 200)
        for table in (on_the_heap, in_a_file):
            assert (len(table), table.base, table.end, table.low) == (rows, 0, rows, min(indexes))
            assert table.lowest_from(row) == min(indexes[row:])
            below = [at + 1 for at, index in enumerate(indexes) if index < bound]
            assert table.end_of_below(bound) == (below[-1] if below else None)
            first = min(at for at in range(rows + 1) if sum(sizes[at:]) <= limit)
            assert table.fitting(limit) == (first, sum(sizes[first:]))
            assert table.size() == sum(sizes)
            assert table.row_of(row) == table.base_of(row) == row
            assert table.offset_at(bound) == next((at for at in range(rows) if times[at] >= bound), None)
            some = table.rows(row, 9)
            assert 1 <= len(some[0]) <= 9
            assert [[*c] for c in some] == [[*c[row : row + len(some[0])]] for c in columns]
        assert on_the_heap.unsummed() == 0


@pytest.mark.parametrize("seed", range(40))
def test_retention_of_a_partition_is_what_a_look_at_every_run_gives(seed: int) -> None:
    rng, index = random.Random(seed), PartitionIndex()
    runs: list[tuple[int, int, int, int, int]] = []  # offset, entry, bytes, messages, time
    entry = 10
    for _ in range(120):
        entry += rng.randrange(3)
        kind = rng.randrange(12)
        if kind == 0 and (sealed := index.seal()) is not None:
            if rng.random() < 0.5:
                index.adopt(dict(stored({1: sealed}))[1])
            elif rng.random() < 0.5:
                index.unseal(sealed)
        elif kind == 1:
            index.trim(rng.randint(index.start, index.end))
        elif kind == 2:
            index.sum_up(rng.randrange(5))
        else:
            entry_index, size, count = entry - rng.choice((0, 0, 0, 7)), rng.randint(1, 9), rng.randint(1, 3)
            base = index.append(entry_index, rng.randrange(1 << 40), size, count, entry)
            runs.append((base, entry_index, size, count, entry))
        start = index.start
        live = [run for run in runs if run[0] + run[3] > start]
        assert index.oldest_log_index() == min((run[1] for run in live), default=None)
        limit, at = rng.randrange(60), rng.randrange(entry + 2)
        fits = [r[0] for n, r in enumerate(runs) if sum(run[2] for run in runs[n:]) <= limit]
        assert index.start_for_bytes(limit) == max(min(fits, default=index.end), start)
        later = [run[0] for run in live if run[4] >= at]
        assert index.offset_at_time(at) == max(min(later, default=index.end), start)
    bound = rng.randrange(entry)
    gone = [run[0] + run[3] for run in runs if run[1] < bound]
    expected = max(index.start, max(gone, default=0))
    index.forget_before(bound)
    assert index.start == expected


@pytest.mark.parametrize("rows", [1, 3, 4, 5, 11])
def test_what_a_disk_has_lost_since_the_file_was_opened_is_not_taken_for_runs(rows: int) -> None:
    columns = tuple(array("Q", range(1, rows + 1)) for _ in range(COLUMNS))
    data = b"".join(encode_runs({7: columns}))
    begin = len(data) - RUN_BYTES * rows
    for damaged in range(begin, len(data), 8):
        file = StoredBytes(data)
        table = open_runs(file, KeptBlocks(0)).table(0)
        assert joined(table) == list(zip(*columns, strict=True))
        file.data = file.data[:damaged] + bytes(8) + file.data[damaged + 8 :]
        with pytest.raises(CorruptLog, match="not what it was when the file was opened"):
            joined(table)
        with pytest.raises(CorruptLog, match="not what it was when the file was opened"):
            table.file.read_table(0)


def joined(table: stored_runs.StoredTable) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    while len(found) < len(table):
        found += zip(*table.rows(len(found), len(table)), strict=True)
    return found
