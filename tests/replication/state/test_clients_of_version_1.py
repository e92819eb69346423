"""Producers from before format levels together with newer ones: from level 3 on the older ones may do less.

They state neither their instance nor when a PREPARE was sent. So a late copy of theirs cannot be told from a
new PREPARE, and a branch of theirs has no index in home's log.
"""

from __future__ import annotations

from typing import Any

import pytest

from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import PrepareExtra, encode_row
from escrowmq.replication.host.due_checks import lock_due
from escrowmq.replication.model import ResultCode
from escrowmq.replication.state import machine
from escrowmq.replication.state.open_tx import OpenTx
from tests.support.fed_state import FedState
from tests.support.several_groups import Client, SeveralGroups, late_extra

CONFLICT = [ResultCode.PARTIAL, [[0, ResultCode.TX_CONFLICT, "PREPARE"]]]
REFUSED = [ResultCode.PARTIAL, [[0, ResultCode.MALFORMED, machine.UNTRACKED]]]


class Both(FedState):
    """An app with producers of both versions, and its transaction ``x``."""

    def __init__(self, level: int) -> None:
        super().__init__()
        self.add(*(ops.level(number) for number in range(2, level + 1)))

    def take(self, instance: str | None, *, part: int = 0, home_group: int = -1) -> Any:
        """``instance`` None: a producer of version 1."""
        row = encode_row(None, b"x", None, "x")
        extra = None if instance is None else PrepareExtra(instance=instance, heard_ms=self.now_ms + 1)
        frame = ops.prepare("app", "t", ["x"], None, 6_000, part, [7], home_group, 1, extra)
        (result,) = self.add(frame, ops.pre_message("t", 0, [0], [len(row)], [row]))
        return result

    @property
    def x(self) -> OpenTx:
        record: OpenTx = self.state.transactions.look("app").open["x"]
        return record


def test_a_late_copy_of_version_1_takes_nothing_from_a_known_owner() -> None:
    """The owner was no longer asked whether it runs, and another instance, which saw no row yet, rolled
    back."""
    log = Both(3)
    assert log.take(None) == [0]
    assert log.take("one") == [0], "a newer producer takes up what an older one prepared"
    owned = log.x
    assert owned.instance == "one"
    assert log.take(None) == CONFLICT
    assert log.x == owned, "owner, newest PREPARE and checks are as they were"
    due_ms = owned.due_ms + 1_000
    log.state.due.advance(due_ms)
    (row,) = lock_due(log.state, "app", "t", 10, 4.0, "me", due_ms)
    assert row[6:8] == ("one", owned.newest_index)


def test_below_level_3_it_does_as_replicas_of_the_version_before_apply_it() -> None:
    log = Both(2)
    log.take("one")
    assert log.take(None) == [0] and log.x.instance == ""


def test_with_that_taken_away_the_owner_is_forgotten_at_level_3_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "refusal_of_repeated", lambda level, record, extra: None)
    log = Both(3)
    log.take("one")
    assert log.take(None) == [0] and log.x.instance == ""


def test_producers_of_version_1_repeat_and_go_on_with_what_nobody_owns() -> None:
    log = Both(3)
    assert [log.take(None), log.take(None), log.take(None, part=1)] == [[0]] * 3
    assert len(log.x.digests) == 2
    assert log.add(ops.rollback("app", ["x"])) == [[0]]
    assert log.take(None) == [ResultCode.PARTIAL, [[0, ResultCode.DUPLICATE, "ROLLBACK"]]]


@pytest.mark.parametrize("instance", [None, "one"])
def test_a_branch_that_home_does_not_track_is_refused_from_level_3_on(instance: str | None) -> None:
    below, at = Both(2), Both(3)
    assert below.take(instance, home_group=1) == [0]
    assert at.take(instance, home_group=1) == REFUSED
    assert at.state.transactions.look("app").open == {}


def test_what_was_open_when_level_3_came_goes_on() -> None:
    log = Both(2)
    log.take(None, home_group=1)
    log.add(ops.level(3))
    assert log.take(None, home_group=1) == [0] and log.take(None, part=1, home_group=1) == [0]
    assert log.add(ops.rollback("app", ["x"], "home:1")) == [[0]]


def raised(world: SeveralGroups) -> SeveralGroups:
    for group in world.groups:
        group.single.to_highest_level()
    return world


def test_a_producer_of_version_1_is_told_to_upgrade_and_leaves_nothing_behind() -> None:
    world = raised(SeveralGroups())
    client = Client(world, old=True)
    plan = client.plan("x")
    problems = client.prepare(plan)
    assert isinstance(problems, dict) and problems[0] == (ResultCode.MALFORMED, machine.UNTRACKED)
    world.pass_time(10.0)
    home, branch = world.outcomes("x")
    assert home == "ROLLBACK" and branch in ("UNKNOWN", "ROLLBACK")


def test_newer_producers_go_on_over_several_groups_at_level_3() -> None:
    world = raised(SeveralGroups(3))
    client = Client(world)
    plan = client.plan("x")
    assert client.prepare(plan) == {} and client.settle(plan) == {}
    assert world.outcomes("x") == ["COMMITTED"] * 3
    late = ops.prepare("shop", "orders", ["y"], None, 0, 0, [1], 0, 0, late_extra(7))
    assert world.groups[1].submit(late) == [[0]], "one with a place in home's log is taken, and asks home"
