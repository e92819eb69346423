"""What the ledger takes for prepared and for decided. What was refused is in the log too."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import encode_command, encode_row
from escrowmq.replication.format.ops import PrepareExtra
from escrowmq.replication.model import ResultCode
from escrowmq.replication.state.machine import Result, StateMachine
from tests.history.events import Sent
from tests.sim.across import ledger
from tests.sim.across.ledger import AcrossLedger, AcrossTx
from tests.sim.environment.world import World
from tests.support.places import by_name

REFUSED_AS_STALE = [ResultCode.PARTIAL, [[0, ResultCode.STALE, None]]]


class Heard:
    """One of two groups, whose ledger hears every entry; and a transaction ``x``."""

    def __init__(self, gid: int, parts_in: dict[int, int]) -> None:
        self.gid, self.state = gid, StateMachine(gid, 2)
        self.ledger = AcrossLedger(World(0), 2)
        self.x = AcrossTx("mute", "x", [Sent("x.0", "t", 0)], sum(parts_in.values()), "p")
        self.ledger.add(self.x, parts_in)
        self.index, self.now_ms = 1, 1_000
        self.state.apply(1, b"")
        self.add(ops.create_topic("t", {"partitions": 2}))
        self.partition = next(number for number in range(2) if by_name("t", number, 2) == gid)

    def add(self, *frames: bytes) -> Sequence[Result]:
        self.index, self.now_ms = self.index + 1, self.now_ms + 1_000
        command = encode_command(frames, len(frames), self.now_ms)
        results = self.state.apply(self.index, command)
        self.ledger.heard(self.gid, self.index, command, results)
        return results

    def prepare(self, part: int, extra: PrepareExtra, home: int = -1) -> Result:
        row = encode_row(None, b"x", None, "x")
        frame = ops.prepare("mute", "t", ["x"], None, 6_000, part, [7], home, 1, extra)
        (result,) = self.add(frame, ops.pre_message("t", self.partition, [0], [len(row)], [row]))
        return result


def begun_by_another() -> Heard:
    """The first part is of another producer. So the second one, whose producer had heard only of what was
    before, is refused as stale."""
    group = Heard(0, {0: 2})
    heard_ms = group.now_ms
    assert group.prepare(0, PrepareExtra("q", parts=2, heard_ms=heard_ms)) == [0]
    assert group.prepare(1, PrepareExtra("p", parts=2, heard_ms=heard_ms)) == REFUSED_AS_STALE
    return group


def test_a_refused_part_is_not_prepared_and_one_that_is_sent_again_is() -> None:
    """A simulated operator committed the first part alone: seed 2500024 over two groups."""
    group = begun_by_another()
    assert group.x.here == {(0, 0)} and not group.x.whole
    assert group.prepare(1, PrepareExtra("p", parts=2, heard_ms=group.now_ms)) == [0]
    assert group.x.whole


def test_a_branch_that_was_refused_is_not_prepared() -> None:
    """Seed 20124 over two groups."""
    group = Heard(1, {0: 1, 1: 1})
    group.state.forgotten_ms = group.now_ms
    extra = PrepareExtra("p", home_index=[3], heard_ms=group.now_ms)
    assert group.prepare(0, extra, home=0) == REFUSED_AS_STALE
    assert group.x.here == set()


def test_what_a_deleted_topic_refuses_as_a_whole_is_not_prepared() -> None:
    group = Heard(0, {0: 1})
    group.add(ops.delete_topic("t"))
    assert group.prepare(0, PrepareExtra())[0] == ResultCode.UNKNOWN_TOPIC
    assert group.x.here == set()


def test_what_a_check_may_not_roll_back_any_more_is_not_decided() -> None:
    group = Heard(0, {0: 1})
    for _ in range(2):
        assert group.prepare(0, PrepareExtra("p", given=True, heard_ms=group.now_ms))[0] == 0
    newest = group.index
    (result,) = group.add(ops.rollback("mute", ["x"], "check", newest_index=[newest - 1]))
    assert result == [ResultCode.PARTIAL, [[0, ResultCode.RETRY, None]]]
    assert group.x.ended_in == {} and not group.x.decided
    group.add(ops.rollback("mute", ["x"], "check", newest_index=[newest]))
    assert group.x.ended_in == {0: False} and group.x.decided


def test_with_the_log_taken_for_the_truth_it_counts_as_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "accepted", lambda op, result: op.meta.tx_ids)
    assert begun_by_another().x.whole
