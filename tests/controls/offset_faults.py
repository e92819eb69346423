"""Planted faults in transactions that move the places of a consumer group."""

from __future__ import annotations

from typing import Any

import pytest

from escrowmq.replication.state.due_queue import DueQueue
from escrowmq.replication.state.held_offsets import HeldOffsets
from escrowmq.replication.state.machine import LEVEL_MAX
from tests.controls.planting import plant
from tests.controls.scenes import ALL_ACROSS, world
from tests.sim.across.scene import KEPT

REACH = KEPT | {"pipelines"}
busy = world(ALL_ACROSS | {"act_every_s": 0.05, "level": LEVEL_MAX, "reach": REACH})


@plant(
    "places-not-compared",
    "processed-twice",
    groups=2,
    chaos_s=8.0,
    within=10,
    conditions=busy,
    start=6,
    long=True,
)
def places_not_compared(patch: pytest.MonkeyPatch) -> None:
    """A transaction is opened although its group is no longer where its work began, or another holds it."""
    patch.setattr(HeldOffsets, "refusal", lambda self, attached: None)
    patch.setattr(HeldOffsets, "hold", lambda self, key, held: self.by_tx.update({key: held}))
    patch.setattr(HeldOffsets, "_let_go", lambda *given: None)


@plant(
    "hold-not-rebuilt",
    *("processed-twice", "state-rebuilt", "output-without-offset", "offset-without-output"),
    groups=2,
    chaos_s=8.0,
    within=20,
    conditions=busy,
)
def hold_not_rebuilt(patch: pytest.MonkeyPatch) -> None:
    """A replica that starts from a snapshot does not know which places open transactions hold."""
    restored = HeldOffsets.hold

    def forgetful(self: HeldOffsets, key: Any, held: Any) -> None:
        if self._offsets:  # a snapshot's places are read before what is held
            return
        restored(self, key, held)

    patch.setattr(HeldOffsets, "hold", forgetful)


@plant(
    "hold-after-rollback",
    "held-for-ever",
    groups=2,
    chaos_s=8.0,
    within=10,
    conditions=busy,
    start=2,
    long=True,
)
def hold_after_rollback(patch: pytest.MonkeyPatch) -> None:
    """What a transaction held stays held after it was rolled back."""
    settled = HeldOffsets.settled

    def commits_only(self: HeldOffsets, app: str, tx_ids: Any, *, committed: bool) -> bool:
        if committed:
            return settled(self, app, tx_ids, committed=True)
        for tx_id in tx_ids:
            self.by_tx.pop((app, tx_id), None)
        return False

    patch.setattr(HeldOffsets, "settled", commits_only)


@plant("time-out-forgotten", "held-for-ever", groups=2, chaos_s=8.0, within=10, conditions=busy, long=True)
def time_out_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The leader does not roll back what nobody is asked about."""
    patch.setattr(DueQueue, "take_expired", lambda *given: {})


@plant(
    "places-not-moved",
    "output-without-offset",
    "processed-twice",
    groups=2,
    chaos_s=8.0,
    conditions=busy,
    start=2,
)
def places_not_moved(patch: pytest.MonkeyPatch) -> None:
    """A commit makes the messages readable, and leaves the group where it was."""
    settled = HeldOffsets.settled

    def rolled_back(self: HeldOffsets, app: str, tx_ids: Any, *, committed: bool) -> bool:
        return settled(self, app, tx_ids, committed=False)

    patch.setattr(HeldOffsets, "settled", rolled_back)
