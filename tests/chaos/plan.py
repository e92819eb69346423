"""The plan of a run: which faults, in which order, with which parameters. Pure; a function of the seed.

Faults are dealt from shuffled decks, in which each kind lies as often as its ``cards`` say, so that a
run of a few dozen trials has had all of them. Every round depends on the seed and its own number alone:
one round can be repeated without the others.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from tests.chaos.kinds import KINDS, LASTING, MEANWHILE, Kind
from tests.support.faults.dealing import deal, pick

#: Trials on one cluster before everything is read and checked, and a fresh one is started.
ROUND_TRIALS = 25
#: Rounds of odd numbers run on machines of their own, where the network can be cut: the second round of a run
#: already, so that two rounds have had every kind. Every so many, from the first on, have two broker groups,
#: so that transactions span them.
MACHINES_EVERY = 2
TWO_GROUPS_EVERY = 4
#: Every so many, from the second on, two instances share a slow database and have no fence: on machines of
#: their own and without, with one group and with two.
SLOW_DATABASE_EVERY = 3
#: Share of lasting machine faults during which another one strikes, on a process.
MEANWHILE_SHARE = 0.4
#: Share of faults that strike before the cluster has recovered from the one before.
OVERLAP_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Fault:
    """One trial. ``target`` picks the victim (modulo how many there are), ``group`` the broker group.

    ``before_s``: undisturbed work before it. ``seconds``: how long it lasts, where the driver decides
    that. ``delay_s``: of slow links, each way. ``overlaps``: the next fault does not wait for the recovery.
    ``meanwhile``: another fault, on a process, that strikes while this one lasts, its ``before_s`` after it.
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
    """Trials on one cluster. ``machines``: replicas on (simulated) machines of their own, and faults of all
    kinds; without, only those on processes. ``slow_database``: the two instances that share an app wait long
    for its database, and have no fence."""

    seed: int
    number: int
    machines: bool
    groups: int
    faults: tuple[Fault, ...]
    slow_database: bool = False


def rounds(seed: int, trials: int, per_round: int, kinds: Collection[Kind]) -> list[Round]:
    """The whole run. ``kinds``: those to draw from."""
    count = -(-trials // per_round)
    sizes = [min(per_round, trials - number * per_round) for number in range(count)]
    return [plan_round(seed, number, size, kinds) for number, size in enumerate(sizes)]


def plan_round(seed: int, number: int, size: int, kinds: Collection[Kind]) -> Round:
    """Round ``number`` of the run with that seed."""
    drawn = [kind for kind in Kind if kind in kinds]
    ordinary = [kind for kind in drawn if not KINDS[kind].machines]
    machines = len(ordinary) < len(drawn) and (not ordinary or number % MACHINES_EVERY == MACHINES_EVERY - 1)
    groups = 2 if not machines and number % TWO_GROUPS_EVERY == 0 else 1
    rng = random.Random(f"{seed}/{number}")
    dealt = list(islice(deal(rng, cards(drawn if machines else ordinary)), size))
    second = [kind for kind in MEANWHILE if kind in ordinary]
    faults = tuple(_fault(rng, n, kind, second) for n, kind in enumerate(dealt))
    return Round(seed, number, machines, groups, faults, number % SLOW_DATABASE_EVERY == 1)


def cards(kinds: Collection[Kind]) -> dict[Kind, int]:
    """How many of each lie in a deck."""
    return {kind: KINDS[kind].cards for kind in kinds}


def _fault(rng: random.Random, number: int, kind: Kind, second: Sequence[Kind]) -> Fault:
    """``second``: kinds that may strike while a lasting one lasts."""
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
