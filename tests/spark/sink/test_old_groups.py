"""What the sink sends to a group that has settled so much that it has begun to forget."""

from __future__ import annotations

import pytest

from escrowmq.replication.format import ops
from escrowmq.replication.replica.validation import parse_request
from escrowmq.spark_integration.sink.link import roll_back_chunks
from escrowmq.spark_integration.sink.task import Rows, _PendingRows, marker
from tests.support.forgetting_group import TOPIC, ForgettingGroup

APP, TIMEOUT_MS, GROUPS = "spark", 60_000, 8


def chunk(tx_id: str, home_group: int, home_index: int | None) -> bytes:
    pending = _PendingRows()
    pending.add(Rows(TOPIC, 0, [5], b"abcde"))
    return pending.request(APP, tx_id, "epoch", TIMEOUT_MS, home_group, home_index)


@pytest.mark.parametrize(("home_group", "home_index"), [(-1, None), (7, 40)], ids=["here", "branch"])
def test_a_chunk_is_opened_by_a_group_that_has_begun_to_forget(
    home_group: int, home_index: int | None
) -> None:
    group = ForgettingGroup()
    group.forget()
    assert group.opens(chunk("c", home_group, home_index))


def test_a_marker_is_opened_by_a_group_that_has_begun_to_forget() -> None:
    group = ForgettingGroup()
    group.forget()
    assert group.opens(marker(APP, TOPIC, "c", "epoch", TIMEOUT_MS, 3))


class Rollbacks:
    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def rollback(self, gid: int, ids: list[str], indexes: list[int], home: int) -> None:
        parse_request(ops.rollback(APP, ids, ops.BY_PRODUCER, indexes, home), group_and_count=(gid, GROUPS))
        self.frames.append(ops.rollback(APP, ids, ops.BY_PRODUCER, indexes, home))


def test_chunks_that_home_has_not_opened_are_rolled_back_beside_those_that_it_has() -> None:
    link = Rollbacks()
    roll_back_chunks(link, 3, {"known": 40, "unknown": -1}, 0)  # type: ignore[arg-type]
    assert len(link.frames) == 2
