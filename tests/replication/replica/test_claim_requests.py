"""Requests about claims: what no leader may write into the log is refused, with a text that says why."""

from __future__ import annotations

from typing import Any

import pytest

from escrowmq.replication.errors import InvalidMessage
from escrowmq.replication.format import ops
from escrowmq.replication.format.ops import PrepareExtra
from escrowmq.replication.replica.validation import parse_request

NAME = "outbox.shop.0"
GROUPS = 3
HOME = ops.claim_group(NAME, GROUPS)
ELSEWHERE = (HOME + 1) % GROUPS


def prepare(*claim: Any, tx_ids: tuple[str, ...] = ("x",), home_group: int = -1) -> bytes:
    extra = PrepareExtra(claim=claim, home_index=[5] * len(tx_ids) if home_group >= 0 else [])
    return ops.prepare("app", "t", tx_ids, None, 0, 0, [1] * len(tx_ids), home_group, 0, extra)


def test_what_is_right_is_accepted() -> None:
    number = (NAME, 1, 7, bytes(16))
    for request, gid in (
        (ops.claim(NAME, 1, "a"), HOME),
        (ops.claim(NAME, 3, "a"), ELSEWHERE),
        (prepare(*number), HOME),
        (prepare(*number, home_group=HOME), ELSEWHERE),
        (prepare(NAME, 1, 0, b"", tx_ids=("x", "y")), ELSEWHERE),
    ):
        assert len(parse_request(request, group_and_count=(gid, GROUPS))) == 1


@pytest.mark.parametrize(
    ("request_bytes", "gid", "why"),
    [
        (ops.claim("", 1, "a"), HOME, "1 to 500 characters"),
        (ops.claim("x" * 501, 1, "a"), HOME, "1 to 500 characters"),
        (ops.claim("x/later", 1, "a"), HOME, "must not end in"),
        (ops.claim(NAME, 0, "a"), HOME, "epoch"),
        (ops.claim(NAME, 1 << 31, "a"), HOME, "epoch"),
        (ops.claim(NAME, 1, ""), HOME, "a claimant must have"),
        (prepare(NAME, 0, 0, b""), HOME, "epoch"),
        (ops.message("t", 0, NAME, 1 << 63, 0, [b"row"]), HOME, "epoch"),
        (prepare("", 1, 0, b""), HOME, "1 to 500 characters"),
        (prepare(NAME, 1, -1, b""), HOME, "number"),
        (prepare(NAME, 1, 7, bytes(16), tx_ids=("x", "y")), HOME, "one transaction"),
        (prepare(NAME, 1, 7, bytes(15)), HOME, "16 bytes"),
        (prepare(NAME, 1, 0, bytes(16)), HOME, "16 bytes"),
        (prepare(NAME, 1, 7, bytes(16)), ELSEWHERE, "is home to"),
    ],
)
def test_what_is_wrong_is_refused(request_bytes: bytes, gid: int, why: str) -> None:
    with pytest.raises(InvalidMessage, match=why):
        parse_request(request_bytes, group_and_count=(gid, GROUPS))
