"""Planted faults in transactions over several groups: who is asked, who decides, and who may forget when."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from escrowmq.actors.producer.across_groups import StagedPrepare
from escrowmq.replication.format import ops as build
from escrowmq.replication.replica.branches import Branch, Branches, decision
from escrowmq.replication.state.decided import Undone
from escrowmq.replication.state.transactions import BY_HOME, ROLLED_BACK
from tests.controls.planting import plant
from tests.controls.scenes import ALL_ACROSS, world

APART = ("torn-across", "branch-against-home")
OPEN = ("orphan-branch", "unresolved")


@plant("done-when-told", *APART, "lost-write", groups=2, start=1, chaos_s=10.0, conditions=world(ALL_ACROSS))
def done_when_told(patch: pytest.MonkeyPatch) -> None:
    """TX_DONE is written when a branch is told what home has decided, and not when it has done it."""
    push = Branches._push

    def early(self: Branches, gid: int, rows: Sequence[Undone]) -> None:
        frames = [build.done(row.app, [row.tx_id], [row.home_index], gid) for row in rows]
        self._links.write(b"".join(frames), lambda _: None)
        push(self, gid, rows)

    patch.setattr(Branches, "_push", early)


@plant(
    *("decided-before-all-prepared", *APART, *OPEN, "lost-write", "torn"),
    groups=2,
    conditions=world(ALL_ACROSS),
)
def decided_before_all_prepared(patch: pytest.MonkeyPatch) -> None:
    """A producer takes a transaction for prepared once home is, and its branches are on their way."""
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
    conditions=world(ALL_ACROSS),
)
def branch_decides_by_itself(patch: pytest.MonkeyPatch) -> None:
    """A branch that has been open for too long is rolled back by its own group, which asks nobody."""

    def alone(self: Branches, home: int, found: Sequence[Branch]) -> None:
        self._asking[home] = object()
        frames = [
            decision(app, ROLLED_BACK, [tx_id], f"{BY_HOME}{home}", [record.home_index], home)
            for app, tx_id, record in found
        ]
        self._write_decisions(home, frames)

    patch.setattr(Branches, "_ask", alone)
