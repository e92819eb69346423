"""A log file that is read in windows is judged as one that is read at once."""

from __future__ import annotations

import random

import pytest

from escrowmq.replication.errors import CorruptLog
from escrowmq.replication.format.entry import encode_header, scan
from escrowmq.replication.format.segment_format import FILE_HEADER_SIZE, Read, encode_file_header, walk


def written(rng: random.Random, count: int) -> bytes:
    parts, term = [encode_file_header(5)], 1
    for index in range(5, 5 + count):
        term += rng.random() < 0.2
        command = rng.randbytes(rng.choice((0, 1, 30, 200, 900)))
        parts += [encode_header(command, index, term, 0), command]
    return b"".join(parts)


def reader(data: bytes, most: list[int]) -> Read:
    def read(pos: int, size: int) -> bytes:
        most.append(size)
        return data[pos : pos + size]

    return read


def judged(data: bytes, window: int) -> tuple[object, ...]:
    most = [0]
    try:
        found = walk(reader(data, most), len(data), 5, window)
    except CorruptLog as error:
        return ("corrupt", str(error))
    finally:
        assert max(most) <= window, "no more memory than that"
    return found.last, found.end, found.problem


def at_once(data: bytes) -> tuple[object, ...]:
    try:
        found = scan(memoryview(data), FILE_HEADER_SIZE, 5)
    except CorruptLog as error:
        return ("corrupt", str(error))
    count = len(found.positions) - 1
    last = (found.terms[-1][1], 4 + count) if count else None
    return last, found.end, found.problem


@pytest.mark.parametrize("seed", range(60))
def test_windows_of_any_size_find_the_same(seed: int) -> None:
    rng = random.Random(seed)
    data = bytearray(written(rng, rng.randrange(12)))
    kind = rng.randrange(4)
    if kind == 1 and len(data) > FILE_HEADER_SIZE:
        data[rng.randrange(FILE_HEADER_SIZE, len(data))] ^= 1 << rng.randrange(8)
    elif kind == 2:
        del data[rng.randrange(FILE_HEADER_SIZE, len(data) + 1) :]
    elif kind == 3:
        data += rng.randbytes(rng.randrange(1, 99))
    for window in (32, 33, 64, 250, 1_000, 1 << 20):
        assert judged(bytes(data), window) == at_once(bytes(data)), (seed, window)


def test_an_entry_in_the_wrong_place_is_corruption_whether_short_or_long() -> None:
    for size in (3, 500):
        first, second = bytes(size), bytes(size)
        data = b"".join(
            [
                encode_file_header(5),
                encode_header(first, 5, 2, 0),
                first,
                encode_header(second, 7, 2, 0),
                second,
            ]
        )
        assert judged(data, 64) == at_once(data)
        assert judged(data, 64)[0] == "corrupt"
