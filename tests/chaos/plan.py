"""The plan of a run: which faults, in which order, with which parameters. Pure; a function of the seed.

Faults are dealt from shuffled decks that contain each kind as often as its ``cards`` say, so a run of a few
dozen trials has all of them. Every round depends only on the seed and its own number, so one round can be
repeated without the others.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from tests.chaos.kinds import KINDS, LASTING, MEANWHILE, Kind
from tests.support.faults.dealing import deal, pick

#: Trials on one cluster before everything is read and checked, and a new cluster is started. A round on
#: machines of this size has every kind.
ROUND_TRIALS = 30
#: Rounds with odd numbers run on separate machines, where the network can be cut. The second round of a run
#: is the first of them, so two rounds have every kind.
MACHINES_EVERY = 2
#: Numbers of broker groups, which rounds take in turn; the seed determines the order. Six rounds have all of
#: them, on machines and without.
GROUPS = (1, 2, 3)
#: In two rounds of four, the second and the third, two instances share a slow database and have no fence.
#: Twelve rounds combine that with every number of groups, on machines and without.
SLOW_DATABASE = (1, 2)
SLOW_DATABASE_EVERY = 4
#: Share of lasting faults during which another fault strikes a process.
MEANWHILE_SHARE = 0.4
#: Share of faults that strike before the cluster has recovered from the previous one.
OVERLAP_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Fault:
    """One trial. ``target`` picks the victim (modulo how many there are), ``group`` the broker group.

    ``before_s``: undisturbed work before it. ``seconds``: its duration, if the driver decides it.
    ``delay_s``: of slow links, each way. ``overlaps``: the next fault does not wait for the recovery.
    ``meanwhile``: another fault, on a process, that strikes during this one, ``before_s`` after its start.
    """

    number: int
    kind: Kind
    target: int
    group: int
    before_s: float
    seconds: float
    delay_s: float
    overlaps: bool
    meanwhile: Fault | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """Trials on one cluster. ``machines``: each replica on its own (simulated) machine, and faults of all
    kinds; otherwise only faults on processes. ``slow_database``: the two instances that share an app wait
    long for its database, and have no fence."""

    seed: int
    number: int
    machines: bool
    groups: int
    faults: tuple[Fault, ...]
    slow_database: bool = False


def rounds(
    seed: int, trials: int, per_round: int, kinds: Collection[Kind], groups: int | None = None
) -> list[Round]:
    """The rounds of a whole run. ``kinds``: the kinds to draw from. ``groups``: number of broker groups of
    every round; None: in turn."""
    count = -(-trials // per_round)
    sizes = [min(per_round, trials - number * per_round) for number in range(count)]
    return [plan_round(seed, number, size, kinds, groups) for number, size in enumerate(sizes)]


def groups_of(seed: int, number: int) -> int:
    """Number of broker groups of a round."""
    order = random.Random(f"{seed}/groups").sample(GROUPS, len(GROUPS))
    return order[number % len(order)]


def plan_round(
    seed: int, number: int, size: int, kinds: Collection[Kind], groups: int | None = None
) -> Round:
    """Plan round ``number`` of the run with this seed."""
    drawn = [kind for kind in Kind if kind in kinds]
    ordinary = [kind for kind in drawn if not KINDS[kind].machines]
    machines = len(ordinary) < len(drawn) and (not ordinary or number % MACHINES_EVERY == MACHINES_EVERY - 1)
    rng = random.Random(f"{seed}/{number}")
    dealt = list(islice(deal(rng, cards(drawn if machines else ordinary)), size))
    second = [kind for kind in MEANWHILE if kind in ordinary]
    faults = tuple(_fault(rng, n, kind, second) for n, kind in enumerate(dealt))
    return Round(
        seed,
        number,
        machines,
        groups or groups_of(seed, number),
        faults,
        number % SLOW_DATABASE_EVERY in SLOW_DATABASE,
    )


def only(plan: Round, trial: int | None) -> Round:
    """The round with only this trial, on its own cluster; None: the whole round. Raises ValueError."""
    if trial is None:
        return plan
    if not 0 <= trial < len(plan.faults):
        raise ValueError(f"round {plan.number} has trials 0 to {len(plan.faults) - 1}, and no {trial}")
    return replace(plan, faults=(plan.faults[trial],))


def cards(kinds: Collection[Kind]) -> dict[Kind, int]:
    """How many of each kind are in a deck."""
    return {kind: KINDS[kind].cards for kind in kinds}


def _fault(rng: random.Random, number: int, kind: Kind, second: Sequence[Kind]) -> Fault:
    """Draw a fault of this kind. ``second``: the kinds that may strike during a lasting one."""
    first = _alone(rng, number, kind)
    if kind not in LASTING or not second or rng.random() >= MEANWHILE_SHARE:
        return first
    also = _alone(rng, number, pick(rng, cards(second)))
    return replace(first, meanwhile=replace(also, overlaps=False))


def _alone(rng: random.Random, number: int, kind: Kind) -> Fault:
    return Fault(
        number=number,
        kind=kind,
        target=rng.randrange(1 << 16),
        group=rng.randrange(1 << 16),
        before_s=round(rng.uniform(0.3, 1.5), 2),
        seconds=round(rng.uniform(*KINDS[kind].seconds), 2),
        delay_s=round(rng.uniform(0.5, 3.0), 2) if kind is Kind.SLOW_LINKS else 0.0,
        overlaps=rng.random() < OVERLAP_SHARE,
    )
