"""Rows with the headers of brokers: what is kept of a message, whatever its sender wrote."""

from __future__ import annotations

import pytest

from escrowmq.replication.format.codec import decode_rows, encode_row
from escrowmq.replication.format.forwarded import (
    ATTEMPT,
    FIRST_FAILED,
    ORIGIN,
    REPLY_TO,
    UNDECODABLE,
    UNDECODABLE_BYTES_MAX,
    History,
    Origin,
    decode_row,
    history,
    origin_text,
    split_rows,
    with_headers,
)
from escrowmq.replication.format.packing import pack_row

ORIGINAL = Origin("orders", 3, 17, 1_700_000_000_123)


def forwarded(row: bytes, *, of_leader: bool = True, **added: str) -> bytes:
    return with_headers(row, decode_row(row), added, of_leader=of_leader)


def test_rows_are_cut_apart_where_they_end() -> None:
    rows = [encode_row(b"k", b"v" * n, {"h": b"1"}, None) for n in (0, 300, 70_000)]
    assert split_rows(b"".join(rows), 3) == rows
    rubbish = b"\xc1" * 10
    assert split_rows(rubbish, 3) == [rubbish] * 3
    assert split_rows(b"".join(rows), 2) == [b"".join(rows)] * 2, "they are not two"
    assert len(split_rows(b"\xc1" * (UNDECODABLE_BYTES_MAX + 9), 1)[0]) == UNDECODABLE_BYTES_MAX


def test_a_copy_keeps_what_its_sender_wrote() -> None:
    row = encode_row(b"k", b"v", {"mine": b"1", REPLY_TO: b"shop", ATTEMPT: b"9"}, "tx")
    (found,) = decode_rows(forwarded(row, **{ORIGIN: origin_text(ORIGINAL)}), 1)
    headers = {"mine": b"1", REPLY_TO: b"shop", ORIGIN: b"orders/3/17/1700000000123"}
    assert found == (b"k", b"v", headers, "tx")


def test_a_compressed_value_stays_compressed() -> None:
    row = pack_row(encode_row(None, b"v" * 5_000, None, None), "zstd", None, 100)
    copy = forwarded(row, **{"escrowmq-by": "me"})
    assert len(copy) < 200
    assert decode_rows(copy, 1) == [(None, b"v" * 5_000, {"escrowmq-by": b"me"}, None)]


@pytest.mark.parametrize("row", [b"\xc1", b"", b"\x93\xc0\xc0\xc0", b"\x94\x01\x02\x03\x04"])
def test_what_is_no_row_becomes_a_value(row: bytes) -> None:
    copy = forwarded(row)
    assert decode_rows(copy, 1) == [(None, row, {UNDECODABLE: b"1"}, None)]
    again = forwarded(copy)
    assert again == copy, "it is a row now, and keeps the mark"


def test_the_mark_of_what_is_no_row_counts_only_if_a_leader_has_set_it() -> None:
    row = encode_row(b"k", b"v", {UNDECODABLE: b"1", "mine": b"1"}, None)
    assert decode_rows(forwarded(row, of_leader=False), 1) == [(b"k", b"v", {"mine": b"1"}, None)]
    assert decode_rows(forwarded(row), 1) == [(b"k", b"v", {UNDECODABLE: b"1", "mine": b"1"}, None)]


def test_what_headers_say_is_read_back() -> None:
    headers = {ORIGIN: origin_text(ORIGINAL).encode(), ATTEMPT: b"3", FIRST_FAILED: b"55"}
    assert history(headers) == History(ORIGINAL, 3, 55)
    assert history(None) == history({}) == History(None, 1, -1)


@pytest.mark.parametrize("text", [b"", b"x", b"-1", b"9" * 30, b"a/b/c/d", b"/", b"t/1/2/3/4"])
def test_headers_that_make_no_sense_count_as_not_there(text: bytes) -> None:
    assert history({ORIGIN: text, ATTEMPT: text, FIRST_FAILED: text}) == History(None, 1, -1)
