"""All planted faults by name."""

from __future__ import annotations

from tests.controls import (
    branch_faults,
    claim_faults,
    client_faults,
    cut_faults,
    disk_faults,
    feedback_faults,
    fence_faults,
    finding_faults,
    ghost_faults,
    group_faults,
    inquiry_faults,
    member_faults,
    mending_faults,
    offset_faults,
    outbox_faults,
    raft_faults,
    redrive_faults,
    round_faults,
    share_faults,
    state_faults,
    timer_faults,
    topic_faults,
)
from tests.controls.planting import PLANTED, Planted

MODULES = (
    raft_faults,
    member_faults,
    ghost_faults,
    disk_faults,
    mending_faults,
    state_faults,
    branch_faults,
    inquiry_faults,
    client_faults,
    cut_faults,
    feedback_faults,
    fence_faults,
    topic_faults,
    timer_faults,
    share_faults,
    redrive_faults,
    group_faults,
    offset_faults,
    round_faults,
    finding_faults,
    claim_faults,
    outbox_faults,
)

__all__ = ["MODULES", "PLANTED", "Planted"]
