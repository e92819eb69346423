"""The plan of a run of kill trials: what is killed, at which step of which epoch. A function of the seed.

A trial is one query over a few files, each of which is an epoch. Its strikes are dealt from shuffled decks
that hold every pair of a victim and a step once, so some dozens of trials have had all of them.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from tests.support.faults.dealing import deal
from tests.support.faults.tables import Cells, Grid


class Victim(enum.Enum):
    """What dies. A ``ZOMBIE`` is a driver whose committing process survives and continues after a while, when
    another driver may have taken over."""

    DRIVER = "driver"
    ZOMBIE = "zombie"
    WORKER = "worker"
    RAISE = "raise"  # nothing dies: the code at this step raises
    LEADER = "leader"  # of a broker group


class Step(enum.Enum):
    """Where in an epoch: two steps of a task, then those of the driver."""

    SENDING = "sending"  # some chunks of a task are prepared, others are not
    FINISHED = "finished"  # all of a task's are, and Spark does not know
    PREPARED = "prepared"  # all tasks are done
    VERIFIED = "verified"  # before the intent is written
    INTENT = "intent"  # after it
    COMMIT_SENT = "commit sent"  # without waiting for the answer
    COMMITTED = "committed"  # before leftovers are rolled back
    RETURNING = "returning"  # before Spark's own commit log


TASK_STEPS = (Step.SENDING, Step.FINISHED)
_STEPS: dict[Victim, tuple[Step, ...]] = {
    Victim.DRIVER: tuple(Step),
    Victim.ZOMBIE: (Step.PREPARED, Step.VERIFIED, Step.INTENT, Step.COMMITTED),
    Victim.WORKER: (
        Step.SENDING,
        Step.FINISHED,
        Step.VERIFIED,
        Step.INTENT,
        Step.COMMIT_SENT,
        Step.RETURNING,
    ),
    Victim.RAISE: (Step.SENDING, Step.FINISHED, Step.VERIFIED, Step.INTENT, Step.COMMITTED),
    Victim.LEADER: (Step.SENDING, Step.PREPARED, Step.INTENT, Step.COMMIT_SENT),
}
DECK = tuple((victim, step) for victim, steps in _STEPS.items() for step in steps)
CARDS = dict.fromkeys(DECK, 1)


def grid(struck: Cells) -> Grid:
    """Victims by step."""
    possible = {(step.value, victim.value) for victim, step in DECK}
    return Grid([victim.value for victim in Victim], [step.value for step in Step], struck, possible)


@dataclass(frozen=True, slots=True)
class Strike:
    """One kill. ``number`` is its place in the trial; ``pause_s``: until a zombie goes on."""

    number: int
    victim: Victim
    step: Step
    epoch: int
    pause_s: float


@dataclass(frozen=True, slots=True)
class Trial:
    """``rows`` of each epoch. ``totals``: the query reads a topic, and keeps running totals by key; as many
    rows in each epoch, and enough to change all totals."""

    number: int
    seed: int
    groups: int
    rows: tuple[int, ...]
    strikes: tuple[Strike, ...]
    totals: bool = False


def trials(seed: int, count: int) -> list[Trial]:
    """Kill trials: one strike each, sometimes two."""
    dealt = deal(random.Random(f"{seed}/deck"), CARDS)
    return [_trial(seed, number, islice(dealt, 1)) for number in range(count)]


def _trial(seed: int, number: int, dealt: Iterator[tuple[Victim, Step]]) -> Trial:
    rng = random.Random(f"{seed}/{number}")
    rows = tuple(rng.choice((8, 40, 300)) for _ in range(rng.randint(2, 4)))
    chosen = [*dealt]
    if rng.random() < 0.2:
        chosen.append(rng.choice(DECK))
    epochs = rng.sample(range(len(rows)), len(chosen))
    strikes = tuple(
        Strike(place, victim, step, epoch, rng.choice((0.5, 5.0, 15.0)))
        for place, ((victim, step), epoch) in enumerate(zip(chosen, epochs, strict=True))
    )
    return Trial(number, seed, 1 + number % 2, rows, strikes)


def long_trial(seed: int, epochs: int, kills: int) -> Trial:
    """Source, aggregation, sink over many epochs, with kills at random ones."""
    rng = random.Random(f"{seed}/long")
    dealt = deal(rng, CARDS)
    strikes = tuple(
        Strike(place, *next(dealt), epoch, rng.choice((0.5, 5.0)))
        for place, epoch in enumerate(sorted(rng.sample(range(epochs), kills)))
    )
    return Trial(-1, seed, 2, (rng.choice((8, 20, 60)),) * epochs, strikes, totals=True)
