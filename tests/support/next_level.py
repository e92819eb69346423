"""A format level more than there is, as a later version will have it: in it the operation CUT needs it."""

from __future__ import annotations

import pytest

from escrowmq.replication.calling.answers import LevelReport
from escrowmq.replication.format import ops
from escrowmq.replication.host import running_replica
from escrowmq.replication.replica import replica
from escrowmq.replication.state import machine, snapshot
from tests.support.single import Single

TODAY = machine.LEVEL_MAX
NEXT = TODAY + 1
#: What a replica tells that knows the next level, or does not know it, and has not reached it.
NEW, OLD = LevelReport(NEXT, TODAY), LevelReport(TODAY, TODAY)
#: What one tells that has reached it.
REACHED = LevelReport(NEXT, NEXT)


def know_the_next_level(patch: pytest.MonkeyPatch, highest: int = NEXT) -> None:
    """All replicas of this process are of the version that knows it. ``highest``: TODAY takes it from them
    again."""
    for module in (machine, snapshot, replica, running_replica):
        patch.setattr(module, "LEVEL_MAX", highest)
    patch.setattr(ops.Cut, "LEVEL", highest)


def raise_level(single: Single) -> None:
    """As if every replica of the cluster had told its leader that it knows the next level."""
    single.replica.raise_level([NEW])
    single.send()
