"""Planted faults in clients: what a producer sends again, and under which number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from escrowmq.actors.client.failures import Failure
from escrowmq.actors.producer.partition_stream import Batch, PartitionStream
from escrowmq.replication.model import ResultCode
from tests.controls.planting import plant
from tests.controls.scenes import world

#: Answers to a batch after which the stream goes on with its number, or begins anew by itself.
GO_ON = (ResultCode.OK, ResultCode.DUPLICATE, ResultCode.STALE, ResultCode.OUT_OF_SEQUENCE)

#: Producers give up soon, and copies of what they sent arrive when they have.
impatient = world({"delivery_timeout_s": 1.0, "late_copies": 0.3, "act_every_s": 0.02, "tables": None})


@plant(
    *("refused-number-used-again", "lost-write", "wrong-place"),
    groups=2,
    start=3,
    often={"group-cut": 40, "partition": 40},
    conditions=impatient,
)
def refused_number_used_again(patch: pytest.MonkeyPatch) -> None:
    """The next batch of a stream takes the number of one that was refused, of which a copy may arrive yet."""
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
