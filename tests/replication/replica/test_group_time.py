"""The time that leaders write into entries: that of the group's clocks, whichever of them is wrong."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from escrowmq.replication.raft.replicator import GroupClock, PeerProgress, lower_median
from escrowmq.replication.replica.replica import GroupTime
from tests.support.fed_state import FedState
from tests.support.stage import Stage, our_group

DAY_MS = 86_400_000
NOW_MS = 1_700_000_000_000


class Told:
    """Clocks that say what a test wants."""

    def __init__(self) -> None:
        self.leading, self.passed_ms = True, 0
        self.others: list[int] = []
        self.voters = 3

    def lower_median_ms(self, own_ms: int) -> int | None:
        return lower_median([own_ms, *self.others], self.voters)

    def monotonic_ms(self) -> int:
        return self.passed_ms


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def time(told: Told) -> GroupTime:
    found = GroupTime(FedState().state)
    found.clocks = told
    return found


@pytest.mark.parametrize(
    ("known", "voters", "median"),
    [
        ([5], 1, 5),
        ([5, 9], 2, 5),
        ([5], 2, None),
        ([5, 9, 7], 3, 7),
        ([5, 9], 3, 5),
        ([5], 3, None),
        ([9, 9, 9, 1, 1], 5, 9),
        ([9, 9, 9, 1], 5, 9),
        ([9, 9, 1, 1], 5, 1),
        ([9, 9, 5], 5, 5),
        ([9, 9], 5, None),
    ],
)
def test_what_is_not_known_counts_as_behind(known: list[int], voters: int, median: int | None) -> None:
    assert lower_median(known, voters) == median


@pytest.mark.parametrize("own", [-DAY_MS, DAY_MS])
def test_one_wrong_clock_decides_nothing(time: GroupTime, told: Told, own: int) -> None:
    told.others = [NOW_MS, NOW_MS + 3]
    assert time.at(NOW_MS + own) == (NOW_MS if own < 0 else NOW_MS + 3)
    if own > 0:
        time.clocks = None  # planted: the leader's own clock
        assert time.at(NOW_MS + own) == NOW_MS + own


def test_a_leader_whose_clock_is_ahead_is_not_early_beside_one_other(time: GroupTime, told: Told) -> None:
    told.others = [NOW_MS]
    assert time.at(NOW_MS + DAY_MS) == NOW_MS


def test_it_never_falls_and_never_stands_still(time: GroupTime, told: Told) -> None:
    told.others = [NOW_MS, NOW_MS]
    assert time.at(NOW_MS) == NOW_MS
    told.others, told.passed_ms = [NOW_MS - DAY_MS] * 2, 400
    assert time.at(NOW_MS) == NOW_MS + 200, "at half speed"
    told.passed_ms += DAY_MS
    assert time.at(NOW_MS + 9 * DAY_MS) == NOW_MS + 700, "a machine that was halted does not know how long"
    told.others = []
    told.passed_ms += 100
    assert time.at(NOW_MS + 9 * DAY_MS) == NOW_MS + 750, "too few are known"
    told.others = [NOW_MS + 2_000, NOW_MS + 2_000]
    assert time.at(NOW_MS) == NOW_MS + 2_000


def test_a_follower_whose_clock_is_ahead_keeps_none_of_it_when_it_leads(time: GroupTime, told: Told) -> None:
    told.leading = False
    assert time.at(NOW_MS + DAY_MS) == NOW_MS + DAY_MS
    told.leading, told.others = True, [NOW_MS, NOW_MS]
    assert time.at(NOW_MS + DAY_MS) == NOW_MS


def test_what_was_told_goes_on_for_a_second() -> None:
    now = 100.0
    progress = {"r1": PeerProgress(1), "r2": PeerProgress(1)}
    circle = our_group().members["r0"].raft._circle
    clocks = GroupClock(circle, lambda: True, lambda: progress, lambda: now)
    assert clocks.lower_median_ms(NOW_MS) is None
    clocks.heard(progress["r1"], NOW_MS - 10)
    assert clocks.lower_median_ms(NOW_MS) == NOW_MS - 10
    now += 0.5
    assert clocks.lower_median_ms(NOW_MS + 900) == NOW_MS + 490
    now += DAY_MS
    assert clocks.lower_median_ms(NOW_MS + DAY_MS) == NOW_MS + 990


@pytest.fixture
def stage() -> Iterator[Stage]:
    yield our_group()


def test_acknowledgements_tell_the_clocks_of_replicas_that_may(stage: Stage) -> None:
    leader = stage.elect("r0").raft
    stage.run(0.5)
    assert leader.clocks.lower_median_ms(NOW_MS) is None, "nobody tells"
    for name, ms in (("r1", NOW_MS + DAY_MS), ("r2", NOW_MS - 5)):
        stage.members[name].raft.clocks.tell = lambda ms=ms: ms
    stage.run(0.5)
    found = leader.clocks.lower_median_ms(NOW_MS + 2 * DAY_MS)
    assert found is not None and DAY_MS <= found - NOW_MS < DAY_MS + 1_001
