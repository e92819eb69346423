"""Planted faults in how damage is mended: which entries are taken from which replica, and which replica
leads or leaves meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from escrowmq.replication.errors import CorruptLog
from escrowmq.replication.host import repair
from escrowmq.replication.host.repair import Mender
from escrowmq.replication.host.restoring import Restoring
from escrowmq.replication.log import holes
from escrowmq.replication.log import journal as journals
from escrowmq.replication.log.holes import Hole, StoredEntry, fitting
from escrowmq.replication.log.journal import SegmentJournal
from escrowmq.replication.raft.node import RaftNode
from tests.controls.planting import plant
from tests.controls.raft_faults import LOST, STUCK
from tests.controls.schism import damage_where_logs_differ, nobody_gives_entries
from tests.sim.group.repair import SimRestoring

#: Damage everywhere, and frequent restarts, so that replicas read it.
DAMAGE = {"flip-log": 60, "roll": 40, "power-cut": 40, "kill": 30}


@plant("leaves-for-a-flipped-bit", *STUCK, within=40, workload="raw", often=DAMAGE, start=1)
def leaves_for_a_flipped_bit(patch: pytest.MonkeyPatch) -> None:
    """A replica that finds a damaged entry stops, and must catch up before it votes again: with two such
    replicas of three, the group has no leader."""

    def leave(self: Mender) -> float | None:
        raise CorruptLog("an entry is damaged")

    patch.setattr(Mender, "round", leave)
    patch.setattr(SimRestoring, "_mend", lambda self: False)
    patch.setattr(Restoring, "_has_forgotten_nothing", lambda self: False)


@plant(
    "mends-without-a-look-at-terms",
    *LOST,
    "CorruptLog",
    workload="raw",
    within=40,
    often={"partition": 60, "kill": 20},
    conditions=damage_where_logs_differ,
    start=2,
)
def mends_without_a_look_at_terms(patch: pytest.MonkeyPatch) -> None:
    """An entry of another replica replaces ours because it has the same index, whatever its term."""

    def careless(hole: Hole, entries: list[StoredEntry], term_of: Any) -> list[StoredEntry] | None:
        inside = [entry for entry in entries if hole.first <= entry.index <= hole.last]
        return inside if len(inside) == hole.last - hole.first + 1 else None

    patch.setattr(journals, "fitting", careless)
    patch.setattr(repair, "fitting", careless)


@plant("mended-by-the-same-entry-only", *STUCK, within=5, workload="broker", start=155)
def mended_by_the_same_entry_only(patch: pytest.MonkeyPatch) -> None:
    """A hole is mended only from a log that also has an entry after it, or one whose term is known: a log
    that ends with the hole's last entry cannot help, even where no other log can."""

    def strict(hole: Hole, entries: list[StoredEntry], term_of: Any) -> list[StoredEntry] | None:
        found = fitting(hole, entries, term_of)
        same = any(entry.index >= hole.last and entry.term == term_of(entry.index) for entry in entries)
        return found if same else None

    patch.setattr(journals, "fitting", strict)
    patch.setattr(repair, "fitting", strict)


@plant(
    "campaigns-with-damage",
    "unfit-candidate",
    workload="raw",
    within=40,
    start=17,
    often=DAMAGE,
    conditions=nobody_gives_entries,
)
def campaigns_with_damage(patch: pytest.MonkeyPatch) -> None:
    """A replica stands for election although it cannot apply its log, so it could not work as a leader."""
    patch.setattr(RaftNode, "can_apply", property(lambda self: True))


@plant(
    "scrubbing-passes-over-damage",
    "unmended",
    *STUCK,
    within=40,
    workload="raw",
    often={"flip-log": 60},
    start=7,
)
def scrubbing_passes_over_damage(patch: pytest.MonkeyPatch) -> None:
    """Scrubbing reads all entries from time to time, but does not record those that fail their checksum."""
    verify = SegmentJournal.verify

    def shrug(self: SegmentJournal, index: int, bytes_max: int, *, cold: bool = False) -> tuple[int, int]:
        before = {hole.first for hole in self.holes.all()}
        result = verify(self, index, bytes_max, cold=cold)
        for hole in self.holes.all():
            if hole.first not in before:
                self.holes.forget(hole)
        return result

    patch.setattr(SegmentJournal, "verify", shrug)


@plant(
    "damage-is-left-as-it-is", "unmended", *STUCK, within=40, workload="raw", often=DAMAGE, start=6, long=True
)
def damage_is_left_as_it_is(patch: pytest.MonkeyPatch) -> None:
    """A replica keeps its damaged entries and never mends them."""
    patch.setattr(Mender, "round", lambda self: None)


@plant(
    *("failed-mend-believed", "unmended", *LOST, *STUCK),
    workload="raw",
    within=60,
    start=97,
    often={"flip-log": 80, "failed-fsync": 100, "roll": 0, "power-cut": 0},
)
def failed_mend_believed(patch: pytest.MonkeyPatch) -> None:
    """An entry that was mended stays as it is in the page cache if the sync fails, so that the next process
    takes its disk for a sound copy."""
    patch.setattr(holes, "_damage_again", lambda *_: None)
