"""Planted faults in clients: what a producer sends again, and under which number."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any

import pytest

from escrowmq.actors.client.failures import Failure
from escrowmq.actors.client.replica_calls import OnAnswer
from escrowmq.actors.producer import batcher
from escrowmq.actors.producer.batcher import BuiltRequest, GroupBatcher
from escrowmq.actors.producer.encoding.blocks import PrepareBlock
from escrowmq.actors.producer.plain.partition_stream import Batch, PartitionStream
from escrowmq.actors.producer.transactions.across_groups import StagedPrepare
from escrowmq.actors.producer.transactions.transaction_base import TransactionBase
from escrowmq.replication.format.codec import decode_ops
from escrowmq.replication.format.operation import OpType
from escrowmq.replication.model import ResultCode
from tests.controls.planting import plant
from tests.controls.scenes import ALL_ACROSS, FORGETFUL, FORGETFUL_OF_PRODUCERS, world
from tests.sim.across import producers
from tests.sim.across.simulation import Part
from tests.sim.across.wire import WAY_S, Wire
from tests.sim.across.workload import AcrossWorkload

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
    start=11,
    often={"disk-full": 60, "group-cut": 40, "hand-over": 40},
    conditions=impatient,
    long=True,
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


# ------------------------------------------------------------------ batches that are refused and come late
REFUSED = 0.4  # share of requests of plain messages that are refused at first
REFUSED_S = (0.5, 3.0)  # for so long, each time
PAUSE_S = 0.05  # that the refusals ask for


def refused_batches(patch: pytest.MonkeyPatch) -> None:
    """Leaders refuse many batches for seconds, and take a copy of a refused one meanwhile. The many producers
    that there are make them forget that soon."""
    scene = {"delivery_timeout_s": 8.0, "late_copies": 0.0, "act_every_s": 0.02, "crowd": False}
    world(FORGETFUL_OF_PRODUCERS | scene)(patch)
    call, taken_at = Wire.call, dict[bytes, float]()  # by request

    def refusing(self: Wire, gid: int, rid: int, method: str, args: tuple[Any, ...], done: OnAnswer) -> None:
        part, now, rng = self._parts[gid], self._world.now, self._of_members
        if method != "submit" or part.calm or part.clients_cut or not _is_refused(args[0]):
            call(self, gid, rid, method, args, done)
            return
        if args[0] not in taken_at:
            refused_s = rng.uniform(*REFUSED_S)
            taken_at[args[0]] = now + refused_s
            self._world.later(refused_s * rng.random(), self._copy_arrives, part, args)
        if now < taken_at[args[0]]:
            self._world.later(2 * WAY_S, done, ("overloaded", PAUSE_S), None)
        else:
            call(self, gid, rid, method, args, done)

    patch.setattr(Wire, "call", refusing)


def _is_refused(request: bytes) -> bool:
    """Whether it is a request of the refused share: plain messages only, of which a copy may come late."""
    plain = all(op.type == OpType.MESSAGE for op in decode_ops(request))
    return plain and zlib.crc32(request) % 100 < 100 * REFUSED


@plant(
    *("refused-sending-not-counted", "duplicate", "wrong-place"),
    groups=2,
    start=6,
    chaos_s=10.0,
    conditions=refused_batches,
)
def refused_sending_not_counted(patch: pytest.MonkeyPatch) -> None:
    """A batch that was refused and is sent again counts as sent once, although a copy of the refused one may
    have been stored and forgotten."""
    answered = GroupBatcher.answered

    def as_sent_once(
        self: GroupBatcher, request: BuiltRequest, outcome: Any, repeated: bool, sendings: int = 1
    ) -> None:
        answered(self, request, outcome, repeated)

    patch.setattr(GroupBatcher, "answered", as_sent_once)


# ------------------------------------------------------------------ PREPAREs that are sent again
SLOW_S = (1.0, 4.0)  # until a PREPARE without an answer gets through a second time
UNANSWERED = 0.3  # share of PREPAREs whose answer is lost
OPERATED = 0.5  # share of the clients' actions at which an operator commits something


def lose_answers(patch: pytest.MonkeyPatch, slow_s: tuple[float, float]) -> None:
    """Many PREPAREs get no answer, and get through a second time only after so long."""
    call, (early, late) = Wire.call, slow_s
    cut_until: dict[bytes, float] = {}  # by request

    def unheard(self: Wire, gid: int, rid: int, method: str, args: tuple[Any, ...], done: OnAnswer) -> None:
        now = self._world.now
        lost = method == "submit" and not self._parts[gid].calm and _is_lost(args[0])
        if not lost or now >= cut_until.get(args[0], math.inf):
            call(self, gid, rid, method, args, done)
        elif args[0] not in cut_until:
            cut_until[args[0]] = now + early + (late - early) * self._of_members.random()
            call(self, gid, rid, method, args, lambda answer, error: None)

    patch.setattr(Wire, "call", unheard)


def unanswered_prepares(patch: pytest.MonkeyPatch) -> None:
    """Many PREPAREs get no answer, and are sent again only seconds later. Operators commit what is open
    meanwhile, and it is forgotten soon."""
    scene = {"delivery_timeout_s": 8.0, "late_copies": 0.0, "act_every_s": 0.02, "crowd": False}
    world(FORGETFUL | scene)(patch)
    lose_answers(patch, SLOW_S)
    act = AcrossWorkload.act_at_random

    def with_operators(self: AcrossWorkload) -> None:
        act(self)
        opened = [tx for tx in self._open_at_home() if tx.whole and not tx.prepared and not tx.asked]
        if opened and self._rng.random() < OPERATED:
            self.operator.decide(self._rng.choice(opened), "COMMITTED")

    patch.setattr(AcrossWorkload, "act_at_random", with_operators)


def _is_lost(request: bytes) -> bool:
    """Whether it is a PREPARE of the share without an answer."""
    prepares = any(op.type == OpType.PREPARE for op in decode_ops(request))
    return prepares and zlib.crc32(request) % 100 < 100 * UNANSWERED


@plant(
    *("refused-prepare-sent-again", "committed-twice", "duplicate", "both-decided"),
    groups=2,
    start=6,
    chaos_s=10.0,
    conditions=unanswered_prepares,
    long=True,
)
def refused_prepare_sent_again(patch: pytest.MonkeyPatch) -> None:
    """A PREPARE that is refused as stale is sent anew, although an earlier attempt without an answer may have
    opened its transaction."""
    finish = batcher.finish_prepared

    def forgetful(
        blocks: Sequence[PrepareBlock], result: Sequence[Any], heard_ms: int, repeated: bool = False
    ) -> list[PrepareBlock]:
        return finish(blocks, result, heard_ms)

    patch.setattr(batcher, "finish_prepared", forgetful)


def many_run_twice(patch: pytest.MonkeyPatch) -> None:
    """Most transactions have ids of the application, and run in two processes at once. Many of their PREPAREs
    are sent again, when the other process has taken the transaction up."""
    scene = {"delivery_timeout_s": 3.0, "late_copies": 0.0, "act_every_s": 0.02, "crowd": False}
    world(ALL_ACROSS | scene)(patch)
    patch.setattr(producers, "GIVEN", 0.9)
    patch.setattr(producers, "TWICE", 0.9)
    lose_answers(patch, (0.1, 0.5))


@plant(
    *("refused-rolls-back-another", "invented-decision", "fence-split", "both-decided"),
    groups=2,
    start=40,
    conditions=many_run_twice,
    long=True,
)
def refused_rolls_back_another(patch: pytest.MonkeyPatch) -> None:
    """A producer whose PREPARE home refuses rolls the transaction back by its id, although another process
    has it open and may be running its local transaction."""
    patch.setattr(StagedPrepare, "refused_by_home", lambda self, i: False)


def run_twice(patch: pytest.MonkeyPatch) -> None:
    """Most ids are the application's, and two processes often run one at the same time."""
    world(ALL_ACROSS | {"fence": False, "act_every_s": 0.05})(patch)
    patch.setattr(producers, "GIVEN", 0.9)
    patch.setattr(producers, "TWICE", 0.6)
    patch.setattr(producers, "SHARED", 0.0)
    patch.setattr(producers, "BULK", 0.0)


@plant(
    "repetition-rolls-back",
    "invented-decision",
    "lost-write",
    "torn",
    groups=2,
    within=60,
    conditions=run_twice,
    start=2,
    long=True,
)
def repetition_rolls_back(patch: pytest.MonkeyPatch) -> None:
    """An exception of a later run of an id rolls back what an earlier run has committed in its database."""
    patch.setattr(TransactionBase, "_may_roll_back", lambda tx: True)
