"""Planted faults in transactions that move the offsets of a consumer group."""

from __future__ import annotations

from typing import Any

import pytest

from escrowmq.actors.consumer import arguments, group_work
from escrowmq.actors.consumer.ordered_retries import OrderedRetries
from escrowmq.actors.consumer.positions import PartitionState
from escrowmq.replication.state.due_queue import DueQueue
from escrowmq.replication.state.held_offsets import HeldOffsets
from tests.controls.planting import plant
from tests.controls.scenes import ALL_ACROSS, world
from tests.sim.across.scene import KEPT
from tests.sim.streams import transforming

REACH = KEPT | {"pipelines"}
busy = world(ALL_ACROSS | {"act_every_s": 0.05, "reach": REACH})
#: Groups that nack beside such transactions; their clients do the most.
QUIET = {"act_every_s": 0.3, "across": 0.0, "late_copies": 0.05, "size": 3}
nacking = world(ALL_ACROSS | QUIET | {"reach": KEPT | {"nacking"}})
#: What comes of inputs that a nack and a transaction count differently.
SKIPPED = (
    "offset-without-output",
    "output-without-offset",
    "processed-twice",
    "output-and-letter",
    "dead-early",
)


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
    """A replica that starts from a snapshot does not know which offsets open transactions hold."""
    restored = HeldOffsets.hold

    def forgetful(self: HeldOffsets, key: Any, held: Any) -> None:
        if self._offsets:  # a snapshot's offsets are read before what is held
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


@plant("nack-moves-the-place", *SKIPPED, groups=2, within=10, conditions=nacking)
def nack_moves_the_place(patch: pytest.MonkeyPatch) -> None:
    """A nack counts at once, and commits its record's offset over what a transaction may still give back."""
    patch.setattr(PartitionState, "has_work_before", lambda self, offset: False)


@plant("nack-outlives-the-rollback", *SKIPPED, groups=2, within=10, conditions=nacking, long=True)
def nack_outlives_the_rollback(patch: pytest.MonkeyPatch) -> None:
    """After a rollback the consumer does not go back behind a record that was nacked in the block."""
    back = group_work._go_back

    def waits(core: Any, state: PartitionState) -> None:
        if not state.resume_at:
            back(core, state)

    patch.setattr(group_work, "_go_back", waits)


@plant("nack-in-the-block-passed", *SKIPPED, groups=2, within=10, conditions=nacking, long=True)
def nack_in_the_block_passed(patch: pytest.MonkeyPatch) -> None:
    """A transaction also contains what was nacked between ``send_offsets`` and its PREPARE."""
    suspended = OrderedRetries._suspended

    def unseen(self: OrderedRetries, record: Any) -> Any:
        state = suspended(self, record)
        if state is not None:
            state.nacked_at = None
        return state

    patch.setattr(OrderedRetries, "_suspended", unseen)


@plant("prepared-is-nacked", *SKIPPED, groups=2, within=10, conditions=nacking, long=True)
def prepared_is_nacked(patch: pytest.MonkeyPatch) -> None:
    """A record can be nacked although a transaction that was prepared, or committed, has it."""
    patch.setattr(arguments, "check_not_taken", lambda record, taken: None)


@plant("nacked-waits-unseen", *SKIPPED, groups=2, within=10, conditions=nacking, long=True)
def nacked_waits_unseen(patch: pytest.MonkeyPatch) -> None:
    """Without retries, a transaction is prepared while nacked records wait in the consumer."""
    patch.setattr(group_work, "_check_nothing_waits", lambda core: None)


@plant("concurrent-sends-offsets", "unexpected-answer", groups=2, conditions=nacking, long=True)
def concurrent_sends_offsets(patch: pytest.MonkeyPatch) -> None:
    """A transaction takes the places of a group whose nacked records leave their partitions at once."""
    patch.setattr(group_work, "ConcurrentRetries", ())


def changing(patch: pytest.MonkeyPatch) -> None:
    """Their members poll twice for a block, and others come and go meanwhile."""
    nacking(patch)
    patch.setattr(transforming, "AGAIN", 1.0)
    patch.setattr(transforming, "INSIDE", 0.1)
    patch.setattr(transforming, "KILLED", 0.4)


@plant("lost-is-sent", *SKIPPED, groups=2, within=20, start=11, conditions=changing, long=True)
def lost_is_sent(patch: pytest.MonkeyPatch) -> None:
    """A transaction is prepared with outputs of a partition that a later ``poll`` has lost."""
    patch.setattr(group_work, "_check_nothing_lost", lambda core: None)
