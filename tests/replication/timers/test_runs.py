"""Several sorted runs are read as one, in order and whole, at a cost that does not grow with their number."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from escrowmq.replication.timers.record import FIRST_KEY, KEY_BYTES, RECORD, RECORD_BYTES, key_bytes
from escrowmq.replication.timers.runs import Chunk, in_order, read_on

BEHIND_ALL = b"\xff" * RECORD_BYTES
#: About as many as a million delayed messages of one second have.
RUNS, EACH = 245, 512


class CountedRun:
    """A run that counts the records that are taken from it."""

    def __init__(self, records: Sequence[bytes]) -> None:
        self._run, self.taken = Chunk(records), 0

    def __len__(self) -> int:
        return len(self._run)

    def row_at(self, bound: bytes) -> int:
        return self._run.row_at(bound)

    def rows(self, begin: int, count: int) -> list[bytes]:
        found = self._run.rows(begin, count)
        self.taken += len(found)
        return found


def records(times: Sequence[int]) -> list[bytes]:
    return sorted(RECORD.pack(time, 0, 7, ordinal, 1, 0, 10) for ordinal, time in enumerate(times))


def shared_out(how: str, rng: random.Random) -> tuple[list[CountedRun], list[bytes]]:
    every = records(range(1, RUNS * EACH + 1))
    if how == "one after the other":  # sent in the order in which they are due
        parts = [every[at : at + EACH] for at in range(0, len(every), EACH)]
    elif how == "over each other":
        parts = [every[n::RUNS] for n in range(RUNS)]
    else:  # one is spread over all of the time, the others follow each other
        parts = [every[::RUNS]]
        rest = [record for n, record in enumerate(every) if n % RUNS]
        parts += [rest[at : at + EACH] for at in range(0, len(rest), EACH)]
    rng.shuffle(parts)
    return [CountedRun(part) for part in parts], every


@pytest.mark.parametrize("how", ["one after the other", "over each other", "both"])
@pytest.mark.parametrize("count", [512, 4_096])
def test_runs_are_read_once_however_they_lie(how: str, count: int) -> None:
    """Of runs one after the other, each slice but the first once was read in vain: a leader released 23
    messages at a time, and a checkpoint of millions took minutes of the interpreter."""
    runs, every = shared_out(how, random.Random(how))
    found = list(in_order(runs, FIRST_KEY, count))
    assert [record for part in found for record in part] == every
    assert sum(run.taken for run in runs) <= 8 * len(every)
    assert len(found) <= 8 * len(every) // count + RUNS


@pytest.mark.parametrize("how", ["one after the other", "over each other", "both"])
def test_one_call_takes_a_bounded_number_of_records(how: str) -> None:
    runs, _ = shared_out(how, random.Random(how))
    taken, calls = 0, 0
    position: bytes | None = FIRST_KEY
    while position is not None:
        _, position = read_on(runs, position, BEHIND_ALL, 512)
        now, calls = sum(run.taken for run in runs), calls + 1
        assert now - taken <= 40 * 512
        taken = now
    assert calls > 5


def test_copies_of_a_key_are_read_together() -> None:
    key = RECORD.pack(5, 0, 7, 1, 0, 0, 0)[:KEY_BYTES]
    copies = sorted(RECORD.pack(5, 0, 7, 1, index, 0, 10) for index in range(1, 2_000))
    assert all(key_bytes(record) == key for record in copies)
    others = records([1, 2, 3, 9, 10])
    runs = [Chunk(copies[n::3]) for n in range(3)] + [Chunk(others)]
    found = list(in_order(runs, FIRST_KEY, 8))
    assert [record for part in found for record in part] == sorted([*copies, *others])
    assert sum(record in copies for part in found for record in part[:1]) <= 1


@pytest.mark.parametrize("seed", range(20))
def test_any_runs_are_read_in_order_and_up_to_a_bound(seed: int) -> None:
    rng = random.Random(seed)
    every = records([rng.randrange(1, 400) for _ in range(rng.randrange(1, 2_000))])
    parts: list[list[bytes]] = [[] for _ in range(rng.randrange(1, 30))]
    for record in every:
        parts[min(rng.randrange(len(parts)), rng.randrange(len(parts)))].append(record)
    runs = [Chunk(part) for part in parts if part]
    after = rng.choice([FIRST_KEY, rng.choice(every)[:KEY_BYTES]])
    before = rng.choice([BEHIND_ALL, rng.choice(every)[:KEY_BYTES]])
    wanted = [record for record in every if after < record[:KEY_BYTES] and record < before]
    got: list[bytes] = []
    position: bytes | None = after
    while position is not None:
        found, position = read_on(runs, position, before, rng.choice([1, 16, 512]))
        assert found or position is None
        got += found
    assert got == wanted
