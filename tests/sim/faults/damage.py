"""Damage to data at rest: bits that flip in the log, in snapshots, run files and the vote file; sectors that
read as zeros; snapshots and run files that end early.

The log is damaged on any replica and at any place, under two conditions. First, a sound copy of every
committed entry that is damaged somewhere stays on a replica that has not lost its disk; one copy is enough.
Retention may remove it as long as a majority does not need a copy of a leader's state. Second, a checksum
must be able to tell the damage from a torn write, so only bytes before the batch of an entry that is
committed and durable here are damaged. Damage to the very last batch, with nothing sound behind it, looks
like a torn tail (see docs/log-format.md); a replica that forgets its last acknowledged entry and then votes
is one failure more than this fault stands for. Votes and states are damaged, and disks lost, on a minority at
a time: no software recovers what a majority has forgotten.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from escrowmq.replication.errors import OffsetGone
from escrowmq.replication.format.entry import HEADER_SIZE, MAGIC, read_entry, scan
from escrowmq.replication.format.segment_format import (
    FILE_HEADER_SIZE,
    first_of_name,
    log_name,
    sidecar_name,
)
from escrowmq.replication.host.repair import has_history
from escrowmq.replication.log.recovery import segment_firsts
from escrowmq.replication.log.vote import NAME as VOTE_FILE
from escrowmq.replication.log.vote import SLOT_POSITIONS
from escrowmq.replication.replica.damage import STATE_FILES
from tests.sim.environment.disk import SECTOR
from tests.sim.faults.unfound import has_damaged_state, has_damaged_vote

if TYPE_CHECKING:
    from tests.sim.group.replica import SimReplica
    from tests.sim.group.simulation import Simulation

SLOT_BYTES = 132
#: Entries (index, term) of a log, and the entry before which a state has everything.
Kept = tuple[AbstractSet[tuple[int, int]], int]
NOTHING: Kept = (frozenset(), 0)


def flip_in_log(sim: Simulation, victim: SimReplica, rng: random.Random) -> bool:
    """Flip one bit of a log file or a sidecar; False if nothing there is safe to damage."""
    if (file := _safe_file(victim, rng)) is None:
        return False
    name, size = file
    at, mask = rng.randrange(size), 1 << rng.randrange(8)
    if not _others_have(sim, victim, name, at, at + 1):
        return False
    victim.disk.flip(name, at, mask)
    return True


def tear_log(sim: Simulation, victim: SimReplica, rng: random.Random) -> bool:
    """Make some sectors of a log file or a sidecar read as zeros; False if none is safe to damage."""
    if (file := _safe_file(victim, rng)) is None:
        return False
    name, size = file
    begin = rng.randrange(size) // SECTOR * SECTOR
    end = min(begin + SECTOR * rng.choice((1, 1, 8)), size)
    if not _others_have(sim, victim, name, begin, end):
        return False
    victim.disk.lose(name, begin, end)
    return True


def _safe_file(victim: SimReplica, rng: random.Random) -> tuple[str, int] | None:
    """A file of the log, and up to where damage is not mistaken for a torn end; None if there is none."""
    journal, disk = victim.journal, victim.disk
    sure = min(journal.durable_index, victim.node.commit_index)
    if not journal.first_index <= sure:
        return None
    segments = [s for s in journal.segments() if s.first <= sure]
    newest = segments.pop()
    ranges = [(s.name, disk.size_of(s.name)) for s in segments if disk.exists(s.name)]
    ranges += [(n, disk.size_of(n)) for s in segments if disk.exists(n := sidecar_name(s.first))]
    batch_at = _batch_position(disk.peek(newest.name), newest.first, sure)
    if batch_at:
        ranges += [(newest.name, batch_at)] * (2 if segments else 1)
    return rng.choice(ranges) if ranges else None


def _others_have(sim: Simulation, victim: SimReplica, name: str, begin: int, end: int) -> bool:
    """Whether each sound entry in these bytes of a log file is sound on another replica."""
    if not name.endswith(".log"):
        return True
    hit = _entries_in(victim.disk.peek(name), begin, end)
    if not hit:
        return True
    others = [sound_entries(r) for r in sim.replicas if r is not victim]
    return all(any(_proves(victim, entry, held) for held in others) for entry in hit)


def _proves(victim: SimReplica, entry: tuple[int, int], held: AbstractSet[tuple[int, int]]) -> bool:
    """Whether these entries of another log mend this one of the victim's, provably: where the next entry is
    of a later term, it must be there as well (replication/log/holes.py). If only a log without it is left,
    the replica needs a copy from a leader."""
    index, term = entry
    after = victim.journal.term_at(index + 1) if index < victim.journal.durable_index else term
    return entry in held and (after in (term, None) or (index + 1, after) in held)


def _entries_in(data: bytes, begin: int, end: int) -> set[tuple[int, int]]:
    """Index and term of the sound entries that these bytes of a log file belong to."""
    view, found = memoryview(data), set[tuple[int, int]]()
    first = _entry_at(data, begin)
    if first is not None:
        found.add(first)
    last = end + len(MAGIC) - 1  # where a MAGIC that begins before ``end`` ends at the latest
    at = data.find(MAGIC, begin, last)
    while at >= 0:
        header = read_entry(view, at)
        if header is not None:
            found.add((header.index, header.term))
        at = data.find(MAGIC, at + 1, last)
    return found


def _entry_at(data: bytes, at: int) -> tuple[int, int] | None:
    """Index and term of the sound entry that byte ``at`` of a log file belongs to, if there is one."""
    view, begin = memoryview(data), data.rfind(MAGIC, 0, at + len(MAGIC))
    while begin >= 0:
        header = read_entry(view, begin)
        if header is not None:
            inside = at < begin + HEADER_SIZE + header.size
            return (header.index, header.term) if inside else None
        begin = data.rfind(MAGIC, 0, begin)
    return None


def knows_less(replica: SimReplica) -> bool:
    """Whether the replica knows less than it promised, or soon will. Of two processes with one number each
    may be the one that some peer has recorded, and then both end: another one begins with an empty disk."""
    if replica.learner or replica.spoilt or replica.given_up > 0 or replica.doubled or replica.superseded:
        return True
    # Without any file of a log it starts as one that has lost it, if it was a member before.
    nothing = not (has_history(replica.disk) or segment_firsts(replica.disk))
    return nothing and not replica.is_new and bool(replica.sim.checker.acknowledged)


def sound_entries(replica: SimReplica) -> set[tuple[int, int]]:
    """(index, term) of all entries that are sound and durable on a replica that knows what it promised, and
    that is not being removed: its process ends soon, and nobody mends from it any more."""
    return set() if knows_less(replica) or _may_be_removed(replica) else sound_on_disk(replica)


def _may_be_removed(replica: SimReplica) -> bool:
    """Whether a configuration that may be in force is without this replica."""
    sim = replica.sim
    return sim.operators.begun > 0 and any(replica.name not in one.voters for one in sim.configurations())


def sound_on_disk(replica: SimReplica) -> set[tuple[int, int]]:
    """(index, term) of all entries that are sound and durable on the replica's disk."""
    found: set[tuple[int, int]] = set()
    for name, data in replica.disk.durable_files().items():
        if first_of_name(name) is None:
            continue
        view, at = memoryview(data), data.find(MAGIC)
        while at >= 0:
            header = read_entry(view, at)
            if header is not None:
                found.add((header.index, header.term))
                at += HEADER_SIZE + header.size - 1
            at = data.find(MAGIC, at + 1)
    return found


def a_majority_holds(sim: Simulation, entries: dict[int, int]) -> bool:
    """Whether each of the entries (index: term) is kept by a majority of voters, by their disks, whichever
    configuration is in force. Then the group needs no more than that its replicas start.

    A voter keeps an entry that is sound in its log, and one that retention removed if its state is sound.
    Without its vote it elects nobody, whatever it has.
    """
    kept = {replica.name: _kept(replica) for replica in (*sim.retired, *sim.replicas)}

    def keeps(voter: str, item: tuple[int, int]) -> bool:
        found, first = kept.get(voter, NOTHING)
        return item in found or item[0] < first

    return all(
        2 * sum(keeps(voter, item) for voter in members.voters) > len(members.voters)
        for members in sim.configurations()
        for item in entries.items()
    )


def _kept(replica: SimReplica) -> Kept:
    """What the replica has, by its disk, for a group that it takes part in."""
    if has_damaged_vote(replica):
        return NOTHING
    found = sound_on_disk(replica)
    return found, 0 if has_damaged_state(replica) else min((index for index, _ in found), default=0)


def others_have_all(sim: Simulation, victim: SimReplica) -> bool:
    """Whether ``victim`` may be lost, as far as damage on the other replicas is concerned: each entry that is
    damaged on one of them is sound on yet another one.

    Retention may have removed the other copies. Then a replica that starts again needs a copy of a leader's
    state, and counts as lost until it has one.
    """
    others = [replica for replica in sim.replicas if replica is not victim]
    damaged = [replica for replica in others if replica.flipped]
    if not damaged:
        return True
    held = {replica: sound_entries(replica) for replica in others}
    if not sound_entries(victim) <= set().union(*held.values()):
        return False
    return all(
        damaged_entries(one) <= set().union(*(held[other] for other in others if other is not one))
        for one in damaged
    )


def may_drop(sim: Simulation, keeper: SimReplica, index: int) -> bool:
    """Whether retention on ``keeper`` may drop the entries before ``index``.

    Not if they have the last sound copies of what is damaged elsewhere, and a majority would then need a copy
    of a leader's state: who could lead has lost what it knew, or cannot be mended any more.
    """
    damaged = [replica for replica in sim.replicas if replica.flipped and not knows_less(replica)]
    if not damaged:
        return True
    held = {replica: sound_entries(replica) for replica in sim.replicas}
    holes = {replica: damaged_entries(replica) for replica in damaged}

    def beyond_mending() -> set[SimReplica]:
        rest = {one: set().union(*(held[other] for other in held if other is not one)) for one in damaged}
        return {one for one in damaged if not holes[one] <= rest[one]}

    before = beyond_mending()
    for entries in (held, holes):
        if keeper in entries:
            entries[keeper] = {entry for entry in entries[keeper] if entry[0] >= index}
    after = beyond_mending()
    lost = len(after) + sum(knows_less(replica) for replica in sim.replicas)
    return after <= before or 2 * lost < len(sim.replicas)


def keep_last_copies(sim: Simulation, keeper: SimReplica) -> None:
    """Let the journal of ``keeper`` drop entries only when it may."""
    journal = keeper.journal
    drop_before = journal.drop_before

    def when_allowed(index: int) -> int:
        return drop_before(index) if may_drop(sim, keeper, index) else journal.first_index

    journal.drop_before = when_allowed  # type: ignore[method-assign]


def damaged_entries(replica: SimReplica) -> set[tuple[int, int]]:
    """(index, term) of all entries that are damaged on the replica's disk, whether it knows or not."""
    journal = replica.journal
    every = range(journal.first_index, journal.durable_index + 1)
    return {(index, journal.term_at(index) or 0) for index in every} - sound_on_disk(replica)


def _batch_position(data: bytes, first: int, index: int) -> int:
    """Position of the batch of entry ``index`` in its segment; 0 if it fills the segment or is damaged."""
    view = memoryview(data)
    positions = scan(view, FILE_HEADER_SIZE, first).positions
    if index - first >= len(positions) - 1:
        return 0
    header = read_entry(view, positions[index - first])
    assert header is not None
    return positions[header.batch_first - first] if header.batch_first > first else 0


def flip_in_state(victim: SimReplica, rng: random.Random) -> bool:
    """Flip one bit of a snapshot or of a file that snapshots name."""
    names = [n for n in victim.disk.names() if n.endswith(STATE_FILES) and victim.disk.size_of(n)]
    if not names:
        return False
    name = rng.choice(names)
    victim.disk.flip(name, rng.randrange(victim.disk.size_of(name)), 1 << rng.randrange(8))
    return True


def tear_state(victim: SimReplica, rng: random.Random) -> bool:
    """Make a sector of a snapshot, or of a file that snapshots name, read as zeros, or the file end early."""
    names = [n for n in victim.disk.names() if n.endswith(STATE_FILES) and victim.disk.size_of(n)]
    if not names:
        return False
    name = rng.choice(names)
    size = victim.disk.size_of(name)
    if rng.random() < 0.5:
        victim.disk.cut_off(name, rng.randrange(size))
    else:
        begin = rng.randrange(size) // SECTOR * SECTOR
        victim.disk.lose(name, begin, min(begin + SECTOR, size))
    return True


def flip_in_vote(victim: SimReplica, rng: random.Random) -> bool:
    """Flip one bit of one slot; the other slot still has the record, unless this fault strikes again."""
    if not victim.disk.exists(VOTE_FILE):
        return False
    at = rng.choice(SLOT_POSITIONS) + rng.randrange(SLOT_BYTES)
    victim.disk.flip(VOTE_FILE, at, 1 << rng.randrange(8))
    return True


def mendable_entries(sim: Simulation, victim: SimReplica) -> list[int]:
    """Entries that are damaged on the victim's disk, whether it knows or not, and sound on another disk."""
    damaged = damaged_entries(victim)
    if not damaged:
        return []
    held = set().union(*(sound_entries(r) for r in sim.replicas if r is not victim))
    return sorted(index for index, term in damaged if (index, term) in held)


def scrub(victim: SimReplica) -> None:
    """Read every entry from the disk, as consumers and peers may at any time, and record damaged entries.
    Raises CorruptLog if more than single entries is damaged."""
    journal = victim.journal
    for info in journal.segments():
        last = min(info.last, journal.durable_index)
        if last >= info.first:
            assert info.name == log_name(info.first)
            if not journal.frame_is_sound(info.first):
                journal.mend_frame(info.first)
            index = info.first
            with contextlib.suppress(OffsetGone):
                while index <= last:
                    index, _ = journal.verify(index, 1 << 20)
