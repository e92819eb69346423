"""What clients decode: rows that another client wrote, options of the Spark source, addresses."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import strategies as st

from escrowmq.actors.consumer.records import Chunk, trim_runs
from escrowmq.cluster.address import parse_address
from escrowmq.replication.errors import EscrowMQError
from escrowmq.replication.format.codec import decode_rows, encode_row
from escrowmq.replication.format.packing import pack_row
from escrowmq.replication.model import ConsumerRecord
from escrowmq.spark_integration.source.options import OPTIONS, parse_options
from tests.fuzz.engine import Target, drawn, examine, fuzz
from tests.support.packed import METHOD_NAMES, PACKED_ROWS
from tests.support.requests import ROWS

BLOB, PACKED = b"".join(ROWS), b"".join(PACKED_ROWS)


def rows(data: bytes) -> None:
    for count in (1, 3, 0xFFFFFFFF):
        try:
            found = decode_rows(data, count)
        except EscrowMQError:
            continue
        assert len(found) == count


def chunk(data: bytes) -> None:
    whole = Chunk([(7, 3, 1, len(data))], data, 7)
    taken: list[ConsumerRecord] = []
    while len(taken) < 3:
        taken += whole.take("t", 0, 10)
    assert [record.offset for record in taken] == [7, 8, 9]


def trimmed(data: bytes) -> None:
    (run,), part = trim_runs([(7, 3, 1, len(data))], memoryview(data), 8, 9)
    assert run == (8, 1, 1, len(part))
    assert part in data


TARGETS = [
    Target("rows", rows, [BLOB, PACKED]),
    Target("chunk of a fetch", chunk, [BLOB, PACKED]),
    Target("trimmed run", trimmed, [BLOB, PACKED]),
    Target(
        "address", lambda data: parse_address(data.decode(errors="replace")), [b"10.0.0.1:6379", b"[::1]:1"]
    ),
]


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_damaged_bytes_are_refused_with_an_error_of_ours(target: Target) -> None:
    fuzz(target)


headers = st.none() | st.dictionaries(st.text(max_size=9), st.binary(max_size=9), min_size=1, max_size=3)
one_value = st.binary(max_size=50) | st.just(b"z" * 90)
one_row = st.tuples(st.none() | st.binary(max_size=20), one_value, headers, st.none() | st.text())


@drawn(st.lists(one_row, max_size=6))
def test_rows_come_back_as_they_were(
    wanted: list[tuple[bytes | None, bytes, Mapping[str, bytes] | None, str]],
) -> None:
    blob = b"".join(encode_row(*row) for row in wanted)
    assert decode_rows(blob, len(wanted)) == wanted
    for method in METHOD_NAMES:
        packed = b"".join(pack_row(encode_row(*row), method, None, 1) for row in wanted)
        assert decode_rows(packed, len(wanted)) == wanted
        assert len(packed) <= len(blob)


GOOD = {"escrowmq.address": "127.0.0.1:6379", "subscribe": "orders"}
TEXTS = [
    b'{"orders": {"0": 23, "1": -2}}',
    b'{"orders": [0, 1]}',
    b"earliest",
    b"12",
    b"true",
    b"a.*",
    b"orders,b",
]


def options(data: bytes) -> None:
    """Every option with this text as its value; and alone, where it would clash with ``subscribe``."""
    text = data.decode(errors="replace")
    for name in OPTIONS:
        given_options = GOOD | {name: text}
        if name in ("subscribePattern", "assign"):
            del given_options["subscribe"]
        try:
            parse_options(given_options)
        except EscrowMQError as error:
            assert name in str(error) or "subscribe" in str(error) or "address" in str(error), (name, error)


def test_options_are_refused_by_name() -> None:
    target = Target("spark options", options, TEXTS)
    fuzz(target)
    odd = [
        b"[" * 5_000, b'{"a":' * 5_000, b"a{4294967296}", b"(" * 5000, b"9" * 5000, b"[[a]", b"\xd9\xa3",
        b'{"orders": {"0": 1e999}}', b'{"orders": {"' + b"9" * 5000 + b'": 1}}',
    ]  # fmt: skip
    for text in odd:
        examine(target, text)
