"""The crash points of a transaction (SPEC, section 2), each at every byte at which the power can fail.

The log is written by a real replica over real files. For each length of the last write that may have reached
the disk, a copy of the files is cut there and a replica is started on it. The right-hand column of the table
states what must follow; the test names repeat its left-hand column.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import encode_row
from tests.support.requests import prepare
from tests.support.single import Single


def newest_log(path: Path) -> Path:
    return max(path.glob("*.log"))


class Scene:
    """A replica's files before and after one step, and restarts on everything in between."""

    def __init__(self, path: Path, before: Callable[[Single], None], step: Callable[[Single], None]) -> None:
        self.path = path
        single = Single(path / "whole")
        single.topic(partitions=2)
        before(single)
        self.start_size = newest_log(path / "whole").stat().st_size
        step(single)
        self.end_size = newest_log(path / "whole").stat().st_size
        single.close()

    def restarts(self, *, whole: bool = False) -> Iterator[Single]:
        """A replica for each length of the last write: all partial ones, or (``whole``) the complete one."""
        sizes = [self.end_size] if whole else range(self.start_size, self.end_size)
        assert self.end_size > self.start_size
        for size in sizes:
            copy = self.path / "cut"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(self.path / "whole", copy)
            with newest_log(copy).open("r+b") as file:
                file.truncate(size)
            single = Single(copy)
            yield single
            single.close()


def open_ids(single: Single) -> list[str]:
    return list(single.state.transactions.app("app").open)


def due_checks(single: Single) -> list[str]:
    """What is handed out to be checked a while later."""
    now_ms = single.now_ms + 100_000
    single.replica.on_timer(now_ms)
    return [tx_id for tx_id, _ in single.state.due.lock("app", "t", 10, "test", 1_000, now_ms)]


def decide_by_check(single: Single, decision: bytes) -> None:
    """What feedback does once the producer of the app has answered."""
    assert single.submit(decision) == [[0]]


def test_before_prepare_is_durable_nothing_happened(tmp_path: Path) -> None:
    scene = Scene(tmp_path, lambda s: None, lambda s: s.submit(prepare(["a", "b"])) and None)
    for single in scene.restarts():
        assert open_ids(single) == [] and single.texts() == []
        assert single.submit(prepare(["a", "b"])) == [[0]], "the client's retry starts again"


def test_prepare_durable_but_only_some_messages_is_open_and_the_check_rolls_back(tmp_path: Path) -> None:
    rows = [encode_row(None, b"second", None, "a")]
    later = ops.prepare("app", "t", ["a"], None, 0, 1, [2], -1, 1) + ops.pre_message(
        "t", 1, [0], [len(rows[0])], rows
    )
    scene = Scene(tmp_path, lambda s: s.submit(prepare(["a"])) and None, lambda s: s.submit(later) and None)
    for single in scene.restarts():
        assert open_ids(single) == ["a"] and single.texts() == single.texts(1) == []
        decide_by_check(single, ops.rollback("app", ["a"], by="feedback"))
        assert open_ids(single) == [] and single.texts() == single.texts(1) == []


@pytest.mark.parametrize("committed", [True, False])
def test_all_messages_durable_is_open_and_the_check_decides_either_way(
    tmp_path: Path, committed: bool
) -> None:
    scene = Scene(tmp_path, lambda s: None, lambda s: s.submit(prepare(["a", "b"])) and None)
    (single,) = scene.restarts(whole=True)
    single = Single(tmp_path / "cut")
    assert open_ids(single) == ["a", "b"] and single.texts() == []
    decide = ops.commit if committed else ops.rollback
    decide_by_check(single, decide("app", ["a", "b"], by="feedback"))
    assert single.texts() == (["a", "b"] if committed else [])
    single.close()


def test_during_commit_it_is_all_or_nothing_over_partitions(tmp_path: Path) -> None:
    def both_partitions(single: Single) -> None:
        rows = [encode_row(None, str(i).encode(), None, "a") for i in range(4)]
        single.submit(
            ops.prepare("app", "t", ["a"], None, 0, 0, [1], -1, 2),
            ops.pre_message("t", 0, [0, 0], [len(r) for r in rows[:2]], rows[:2]),
            ops.pre_message("t", 1, [0, 0], [len(r) for r in rows[2:]], rows[2:]),
        )

    scene = Scene(tmp_path, both_partitions, lambda s: s.submit(ops.commit("app", ["a"])) and None)
    for single in scene.restarts():
        assert open_ids(single) == ["a"] and single.texts() == single.texts(1) == []
        decide_by_check(single, ops.commit("app", ["a"], by="feedback"))
        assert single.texts() == single.texts(1) == ["a", "a"]
    for single in scene.restarts(whole=True):
        assert open_ids(single) == [] and single.texts() == single.texts(1) == ["a", "a"]


def test_commit_durable_and_ack_lost_is_done_and_a_repetition_gets_the_recorded_outcome(
    tmp_path: Path,
) -> None:
    scene = Scene(
        tmp_path,
        lambda s: s.submit(prepare(["a"])) and None,
        lambda s: s.submit(ops.commit("app", ["a"])) and None,
    )
    for single in scene.restarts(whole=True):
        assert due_checks(single) == [], "no check follows"
        assert single.submit(ops.commit("app", ["a"])) == [[0]]
        assert single.texts() == ["a"]


def test_before_rollback_is_durable_it_is_checked_again_and_after_it_is_done(tmp_path: Path) -> None:
    scene = Scene(
        tmp_path,
        lambda s: s.submit(prepare(["a"])) and None,
        lambda s: s.submit(ops.rollback("app", ["a"])) and None,
    )
    for single in scene.restarts():
        assert open_ids(single) == ["a"]
    assert due_checks(single) == ["a"]
    for single in scene.restarts(whole=True):
        assert open_ids(single) == [] and single.texts() == []
        assert due_checks(single) == []
