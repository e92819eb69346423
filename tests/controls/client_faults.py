"""Planted faults in clients: which batches a producer sends again, and under which number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from escrowmq.actors.client.failures import Failure
from escrowmq.actors.producer.partition_stream import Batch, PartitionStream
from escrowmq.replication.model import ResultCode
from tests.controls.planting import plant
from tests.controls.scenes import world
from tests.sim.across.simulation import Part
from tests.sim.across.wire import Wire

#: Answers to a batch after which the stream continues its numbers, or starts a new epoch by itself.
GO_ON = (ResultCode.OK, ResultCode.DUPLICATE, ResultCode.STALE, ResultCode.OUT_OF_SEQUENCE)

LOOK_EVERY_S = 0.01
SCENE = {"delivery_timeout_s": 0.3, "late_copies": 0.5, "act_every_s": 0.02, "tables": None, "crowd": False}


def impatient(patch: pytest.MonkeyPatch) -> None:
    """Producers give up early, and copies of their requests wait until there is a leader."""
    world(SCENE)(patch)
    arrives = Wire._copy_arrives

    def waiting(self: Wire, part: Part, args: tuple[Any, ...]) -> None:
        if part.copies_over or any(replica.up and replica.node.ready for replica in part.replicas):
            arrives(self, part, args)
        else:
            self._world.later(LOOK_EVERY_S, waiting, self, part, args)

    patch.setattr(Wire, "_copy_arrives", waiting)


@plant(
    *("refused-number-used-again", "lost-write", "wrong-place"),
    groups=2,
    start=3,
    often={"disk-full": 60, "group-cut": 40, "hand-over": 40},
    conditions=impatient,
)
def refused_number_used_again(patch: pytest.MonkeyPatch) -> None:
    """The next batch of a stream takes the number of a refused batch, although a copy of that one may still
    arrive."""
    finished = PartitionStream.finished

    def same_epoch(
        self: PartitionStream, batch: Batch, outcome: Sequence[Any] | Failure, repeated: bool
    ) -> None:
        epoch, number = self.epoch, self.next_seq
        finished(self, batch, outcome, repeated)
        refused = outcome.nothing_done if isinstance(outcome, Failure) else outcome[0] not in GO_ON
        if refused:
            self.epoch, self.next_seq = epoch, number

    patch.setattr(PartitionStream, "finished", same_epoch)
