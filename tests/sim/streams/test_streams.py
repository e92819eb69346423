"""The product's own consumers in virtual time: they handle everything, and a skipped message is noticed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest

from escrowmq.actors.consumer.membership_thread import Membership
from escrowmq.actors.consumer.positions import Positions
from tests.sim.across.scene import KEPT
from tests.sim.across.simulation import ManyGroups
from tests.sim.running.runner import WORKLOADS
from tests.sim.running.schedules import carry_out, chosen_faults, made

REACH = KEPT | {"streams"}
SEEDS = (312, 318)
PLANTED_SEED = 318
#: And those in which further planted faults show.
INTERRUPTED_SEED, AWAY_SEED = 334, 353
CHAOS_S = 15.0
pytestmark = pytest.mark.timeout(600)


@cache
def sound(seed: int) -> tuple[str | None, Counter[str]]:
    """What a schedule did without a planted fault: several tests look at it."""
    return run(seed)


def run(seed: int) -> tuple[str | None, Counter[str]]:
    groups = 2 + seed % 2
    faults = chosen_faults(seed, CHAOS_S, None, None, groups)
    simulation = made(
        seed, workload=WORKLOADS["broker"], groups=groups, faults=faults, reach=REACH, chaos_s=CHAOS_S
    )
    assert isinstance(simulation, ManyGroups)
    broken = carry_out(simulation)
    assert simulation.workload.streams is not None
    return broken, simulation.workload.streams.done


def whole(seeds: Iterable[int]) -> Counter[str]:
    done: Counter[str] = Counter()
    for seed in seeds:
        broken, of_one = sound(seed)
        assert broken is None, (
            f"{broken}: python -m tests.sim --seed {seed} --groups {2 + seed % 2} --reach streams "
            f"--chaos {CHAOS_S:g}"
        )
        done += of_one
    return done


def test_members_handle_each_message_whatever_happens() -> None:
    done = whole(SEEDS)
    assert done["given"] > 10 and done["commits"] > 5, done
    assert done["unsubscribed"] and done["interrupted"], done


def test_one_seed_is_one_schedule() -> None:
    assert run(PLANTED_SEED)[1] == sound(PLANTED_SEED)[1]


def test_planted_a_member_that_begins_one_message_further(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = Positions.resolve

    def further(self: Positions, tp: Any, epoch: int, offset: int, *rest: Any) -> None:
        resolve(self, tp, epoch, offset + (offset == 0), *rest)

    monkeypatch.setattr(Positions, "resolve", further)
    assert "which no member was given" in str(run(PLANTED_SEED)[0])


def test_planted_a_poll_that_is_interrupted_forgets_what_it_has_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Positions, "hand_out", lambda self, limit, take: self._hand_out(limit, take, {}))
    assert "which no member was given" in str(run(INTERRUPTED_SEED)[0])


def test_planted_a_member_keeps_its_partitions_without_a_subscription(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def keeps(self: Membership, topics: tuple[str, ...], held: Any = frozenset()) -> None:
        self.topics, self.joined = (*topics, *self.own_topics) if topics else (), False

    monkeypatch.setattr(Membership, "subscribe", keeps)
    assert "is subscribed to nothing, and is given" in str(run(AWAY_SEED)[0])
