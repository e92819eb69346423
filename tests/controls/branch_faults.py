"""Planted faults in transactions over several groups: which group is asked, which decides, when each may
forget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from escrowmq.actors.producer.transactions.across_groups import StagedPrepare
from escrowmq.replication.format import ops as build
from escrowmq.replication.format.ops import BY_HOME, PrepareExtra
from escrowmq.replication.replica.branches import Branch, Branches, decision
from escrowmq.replication.state.decided import Undone
from escrowmq.replication.state.open_tx import OpenTx
from escrowmq.replication.state.transactions import ROLLED_BACK
from tests.controls.planting import plant
from tests.controls.scenes import ALL_ACROSS, all_across, world
from tests.sim.across import producers
from tests.sim.across.workload import AcrossWorkload

APART = ("torn-across", "branch-against-home")
OPEN = ("orphan-branch", "unresolved")


@plant(
    "done-when-told", *APART, "lost-write", groups=2, start=9, chaos_s=10.0, conditions=all_across, long=True
)
def done_when_told(patch: pytest.MonkeyPatch) -> None:
    """TX_DONE is written when a branch is told what home has decided, and not when the branch has carried it
    out."""
    push = Branches._push

    def early(self: Branches, gid: int, rows: Sequence[Undone]) -> None:
        frames = [build.done(row.app, [row.tx_id], [row.home_index], gid) for row in rows]
        self._links.write(b"".join(frames), lambda _: None)
        push(self, gid, rows)

    patch.setattr(Branches, "_push", early)


@plant("home-prepared-last", *OPEN, *APART, groups=2, chaos_s=10.0, conditions=all_across, start=1, long=True)
def home_prepared_last(patch: pytest.MonkeyPatch) -> None:
    """Branches are prepared before home, so a branch may be open that home does not know."""
    made = StagedPrepare.__init__

    def init(self: StagedPrepare, *args: Any) -> None:
        made(self, *args)
        at_home = [stage for stage in self._stages if stage[0][0] == self.home]
        self._stages = [stage for stage in self._stages if stage[0][0] != self.home] + at_home

    def take(self: StagedPrepare, block: Any, chosen: Sequence[int], refused: Any) -> None:
        self._at_home.update(i for n, i in enumerate(chosen) if n not in refused)

    patch.setattr(StagedPrepare, "__init__", init)
    patch.setattr(StagedPrepare, "_take_home", take)  # home's index comes too late for the branches
    problem = PrepareExtra.problem

    def tolerant(self: PrepareExtra, transactions: int, home_group: int) -> str | None:
        told = self if home_group < 0 else replace(self, home_index=[1] * transactions)
        return problem(told, transactions, home_group)

    patch.setattr(PrepareExtra, "problem", tolerant)  # they do without it


@plant(
    *("decided-before-all-prepared", *APART, *OPEN, "lost-write", "torn"),
    groups=2,
    conditions=all_across,
    start=3,
    long=True,
)
def decided_before_all_prepared(patch: pytest.MonkeyPatch) -> None:
    """A producer treats a transaction as prepared once home is prepared, while its branches are under way."""
    next_stage = StagedPrepare.next_stage

    def impatient(self: StagedPrepare) -> None:
        if not self._stages or self._stages[0][0][0] == self.home:
            next_stage(self)
            return
        ended, self._ended = self._ended, lambda staged: None
        next_stage(self)
        ended(self)

    patch.setattr(StagedPrepare, "next_stage", impatient)


@plant(
    "branch-decides-by-itself",
    *APART,
    "lost-write",
    "invented-decision",
    groups=2,
    start=8,
    conditions=all_across,
)
def branch_decides_by_itself(patch: pytest.MonkeyPatch) -> None:
    """A group rolls back a branch that has been open for too long without asking its home group."""

    def alone(self: Branches, home: int, found: Sequence[Branch]) -> None:
        self._asking[home] = object()
        frames = [
            decision(app, ROLLED_BACK, [tx_id], f"{BY_HOME}{home}", [record.home_index], home)
            for app, tx_id, record in found
        ]
        self._write_decisions(home, frames, len(found))

    patch.setattr(Branches, "_ask", alone)


def homes_of_one_index(patch: pytest.MonkeyPatch) -> None:
    """Two processes often give one id to different transactions, and begin them when the logs of the two home
    groups are equally long."""
    world(ALL_ACROSS | {"fence": False, "act_every_s": 0.1, "late_copies": 0.0})(patch)
    patch.setattr(producers, "SHARED", 0.3)
    patch.setattr(producers, "BULK", 0.0)
    patch.setattr(AcrossWorkload, "start_together", _when_equally_long)


def _when_equally_long(
    clients: AcrossWorkload, homes: Sequence[int], starts: Sequence[Callable[[], None]], tries: int = 100
) -> None:
    leaders = [clients.leader(gid) for gid in homes]
    lengths = [leader.replica.journal.last_index for leader in leaders if leader is not None]
    if tries == 0 or (len(lengths) == len(homes) and len(set(lengths)) == 1):
        for start in starts:
            start()
        return
    if len(lengths) == len(homes):
        shorter = homes[lengths.index(min(lengths))]
        filler = build.group_offsets("filler", "t", {0: 0})
        clients.desks[shorter].call(filler, lambda results: None, lambda: True)
    clients.later(0.02, _when_equally_long, clients, homes, starts, tries - 1)


@plant(
    *("home-group-not-in-identity", *APART, "lost-write", "torn"),
    groups=3,
    within=60,
    chaos_s=10.0,
    conditions=homes_of_one_index,
    start=4,
    long=True,
)
def home_group_not_in_identity(patch: pytest.MonkeyPatch) -> None:
    """A transaction is identified by its id and the index of home's record, without the group whose log has
    that index."""
    patch.setattr(OpenTx, "is_under", lambda self, home_group, home_index: self.home_record == home_index)
