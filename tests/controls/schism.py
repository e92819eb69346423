"""Worlds in which damage is hard to mend: the replicas that hold the right entry do not answer, or the one
that answers holds a different entry.

A replica asks for entries over separate calls, which pass where Raft's links are cut. So it also asks a
replica that is cut off and holds entries that no other replica has. Random schedules rarely damage such an
entry elsewhere in the same second, so this module looks for the case: A has a committed entry that is
damaged, B holds a different entry at that index that was never committed, and only B answers.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from escrowmq.replication.host.repair import RANGE_BYTES_MAX
from tests.sim.faults.damage import scrub, sound_entries
from tests.sim.group import maintenance as upkeep
from tests.sim.group.repair import SimPeers
from tests.sim.group.replica import SimReplica
from tests.sim.group.simulation import Simulation

LOOK_EVERY_S = 0.02


def nobody_gives_entries(patch: pytest.MonkeyPatch) -> None:
    """No replica gives entries before the calm, so damage stays until then."""
    entries = SimPeers.entries

    def silent(self: SimPeers, peer: str, first: int, last: int) -> bytes | None:
        return entries(self, peer, first, last) if self._sim.calm else None

    patch.setattr(SimPeers, "entries", silent)


def damage_where_logs_differ(patch: pytest.MonkeyPatch) -> None:
    """Damage committed entries where a replica that is cut off holds different ones; only such replicas
    answer."""
    entries, run = SimPeers.entries, Simulation.run

    def from_the_other_side(self: SimPeers, peer: str, first: int, last: int) -> bytes | None:
        if self._sim.calm:
            return entries(self, peer, first, last)
        source, own = self.named(peer), self._replica
        if not source.up or not own.up or source.journal.term_at(first) == own.journal.term_at(first):
            return None
        return source.journal.stored(first, last, RANGE_BYTES_MAX)

    def divided(self: Simulation) -> object:
        self.world.later(LOOK_EVERY_S, _look, self, self.world.stream("schism"))
        return run(self)

    patch.setattr(upkeep, "MEND_S", 0.001)
    patch.setattr(SimPeers, "entries", from_the_other_side)
    patch.setattr(Simulation, "run", divided)


def _look(sim: Simulation, rng: random.Random) -> None:
    if sim.calm:
        return
    sim.world.later(LOOK_EVERY_S, _look, sim, rng)
    up = [r for r in sim.replicas if r.up and not r.learner]
    pairs = [(a, b) for a in up for b in up if a is not b]
    rng.shuffle(pairs)
    for victim, other in pairs:
        if (difference := _difference(victim, other)) is None:
            continue
        index, term = difference
        if any((index, term) in sound_entries(r) for r in sim.replicas if r not in (victim, other)):
            _damage(sim, victim, index)
            return


def _difference(victim: SimReplica, other: SimReplica) -> tuple[int, int] | None:
    """Index and term of a committed entry of ``victim`` where ``other`` has another one of equal length."""
    ours, theirs = victim.journal, other.journal
    last = min(victim.node.commit_index, ours.durable_index, theirs.durable_index)
    for index in range(last, max(ours.first_index, theirs.first_index), -1):
        term = ours.term_at(index)
        if term == theirs.term_at(index):
            return None  # the logs are equal here, so they are equal before it
        lengths = {len(log.stored(index, index, 1)) for log in (ours, theirs)}  # 0: damaged already
        if term is not None and len(lengths) == 1 and 0 not in lengths:
            return index, term
    return None


def _damage(sim: Simulation, victim: SimReplica, index: int) -> None:
    """Flip one bit of the entry's body; the replica notices at once, and no longer has it in memory."""
    journal: Any = victim.journal
    segment = journal._segment(index)
    opened = journal._reader.open(segment)
    victim.disk.flip(segment.name, opened.positions[index + 1 - segment.first] - 1)
    victim.flipped = True
    sim.happened(f"entry {index} of {victim.name} is damaged, where another replica holds another one")
    for at in [at for at in journal.cache.entries if at <= index]:
        journal.cache._forget(at)
    victim.guarded(lambda: scrub(victim))
    victim.kick()
