"""Result codes are part of the protocol with clients: each keeps its one meaning forever."""

from __future__ import annotations

from escrowmq.replication.model import ResultCode

NUMBERS = {
    "OK": 0, "PARTIAL": 1, "DUPLICATE": 2, "UNKNOWN_TOPIC": 3, "BAD_PARTITION": 4, "TX_CONFLICT": 5,
    "UNKNOWN_TX": 6, "TOO_MANY_OPEN": 7, "OUT_OF_SEQUENCE": 8, "FENCED": 9, "TOPIC_EXISTS": 10,
    "MALFORMED": 11, "TOO_LARGE": 13, "RETRY": 14, "STALE": 15, "TOO_MANY_IDS": 16, "NOT_PREPARED": 17,
    "OTHER_TOPIC": 18, "UNKNOWN_TIMER": 19, "OUT_OF_RANGE": 20, "TOO_MANY_SCHEDULED": 21,
    "LEASE_LOST": 22, "GROUP_KIND": 23, "UNKNOWN_SHARE": 24, "TOO_MANY_SHARES": 25,
    "OFFSETS_MOVED": 26, "OFFSETS_PENDING": 27,
    "OUT_OF_STEP": 30, "CLAIM_OPEN": 31, "TOO_MANY_CLAIMS": 32,
}  # fmt: skip
SPENT = {12}  # STALE_MEMBER, reserved once and never sent


def test_every_number_keeps_its_meaning() -> None:
    assert {code.name: int(code) for code in ResultCode} == NUMBERS


def test_a_spent_number_is_never_given_out_again() -> None:
    assert not SPENT & set(NUMBERS.values())
