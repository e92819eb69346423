"""Planted faults in named producers: who is fenced where, and which number is in."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import pytest

from escrowmq.actors.producer.claiming import Ask, Claimed
from escrowmq.actors.producer.encoding.blocks import Outcome
from escrowmq.actors.producer.encoding.encoder import TxPlan
from escrowmq.actors.producer.transactions.numbered import Numbered
from escrowmq.actors.producer.transactions.transaction_base import TransactionBase
from escrowmq.replication.errors import TransactionSettled
from escrowmq.replication.format import ops as build
from escrowmq.replication.format.codec import Op, decode_ops
from escrowmq.replication.format.ops import ROLLBACK, ClaimOp, PrepareExtra, claim_group
from escrowmq.replication.model import ResultCode, TransactionState
from escrowmq.replication.replica.entry_writing import Submission
from escrowmq.replication.replica.replica import Replica
from escrowmq.replication.state.claims import Claims, Overtaken
from escrowmq.replication.state.due_queue import DueQueue
from escrowmq.replication.state.machine import StateMachine
from tests.controls.planting import plant
from tests.controls.scenes import world
from tests.sim.across import named, named_instance

TORN = "torn-across"
WROTE, NUMBERS = "fenced-wrote", ("number-twice", "number-torn", "number-order")


def all_named(patch: pytest.MonkeyPatch) -> None:
    """Named producers in every world, and often replaced."""
    patch.setitem(named.SHARE, "worlds", 1.0)
    patch.setattr(named, "STARTS", 0.12)


@plant("claim-in-one-group", WROTE, "fenced-alive", groups=2, chaos_s=8.0, conditions=all_named, long=True)
def claim_in_one_group(patch: pytest.MonkeyPatch) -> None:
    """A producer that replaces another one claims the name in its own group, and in no other one."""
    steps = named_instance.steps

    def lonely(name: str, groups: int) -> Generator[Ask, Mapping[int, Sequence[Any]], Claimed]:
        asking, home = steps(name, groups), claim_group(name, groups)
        ask = next(asking)
        while True:
            if ask.groups == [home] or ask.epoch == 1:
                answers = yield ask
            else:
                answers = {gid: [int(ResultCode.OK), [ask.epoch, 0]] for gid in ask.groups}
            try:
                ask = asking.send(answers)
            except StopIteration as ended:
                claimed: Claimed = ended.value
                return claimed

    patch.setattr(named_instance, "steps", lonely)


@plant("older-epoch-writes", WROTE, groups=2, chaos_s=8.0, conditions=all_named, long=True)
def older_epoch_writes(patch: pytest.MonkeyPatch) -> None:
    """Plain messages under an earlier claim are stored."""
    patch.setattr(Claims, "fenced", lambda self, producer, epoch, now_ms: None)


@plant("older-epoch-prepares", WROTE, *NUMBERS, groups=2, chaos_s=8.0, conditions=all_named, long=True)
def older_epoch_prepares(patch: pytest.MonkeyPatch) -> None:
    """Transactions under an earlier claim are opened."""
    refusal = Claims.refusal

    def newest(self: Claims, app: str, tx_id: str, claimed: Any, *rest: Any) -> list[object] | None:
        name, epoch, *others = claimed
        known = self.by_name.get(name)
        return refusal(self, app, tx_id, (name, epoch if known is None else known.epoch, *others), *rest)

    patch.setattr(Claims, "refusal", newest)


@plant("epoch-of-two", "same-epoch", WROTE, "fenced-alive", groups=2, chaos_s=8.0, conditions=all_named)
def epoch_of_two(patch: pytest.MonkeyPatch) -> None:
    """A group does not look at who has claimed an epoch, so two producers may have the same one."""
    claim = Claims.claim

    def anybody(self: Claims, meta: ClaimOp, now_ms: int) -> list[object]:
        known = self.by_name.get(meta.name)
        if known is not None and known.epoch == meta.epoch:
            meta = ClaimOp(meta.name, meta.epoch, known.claimant)
        return claim(self, meta, now_ms)

    patch.setattr(Claims, "claim", anybody)


@plant("number-forgotten", *NUMBERS, groups=2, start=41, chaos_s=8.0, conditions=all_named, long=True)
def number_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A claim does not note which number was committed last."""
    settled = Claims.settled

    def rolled_back(self: Claims, app: str, tx_ids: Any, committed: bool) -> None:
        settled(self, app, tx_ids, False)

    patch.setattr(Claims, "settled", rolled_back)


@plant("rolled-back-is-in", "number-lost", groups=2, start=53, chaos_s=8.0, conditions=all_named, long=True)
def rolled_back_is_in(patch: pytest.MonkeyPatch) -> None:
    """A number whose PREPARE was sent twice, and rolled back between the two, is taken for committed."""
    after = Numbered._after_prepare

    def trusting(self: Numbered, plan: TxPlan, outcome: Outcome) -> TransactionState | None:
        try:
            return after(self, plan, outcome)
        except TransactionSettled:
            return TransactionState.ROLLBACK

    patch.setattr(Numbered, "_after_prepare", trusting)


# ------------------------------------------------------------------ what an earlier claimant has left open


def all_alone(patch: pytest.MonkeyPatch) -> None:
    """The same; they live longer, and most of their transactions have no local one."""
    all_named(patch)
    patch.setattr(named, "STARTS", 0.04)
    patch.setattr(named, "PAUSES", 0.06)
    world({"tables": None, "act_every_s": 0.05})(patch)
    patch.setitem(named.ALONE, "share", 1.0)
    patch.setitem(named.ALONE, "hangs", 0.5)


def as_time_runs_out(patch: pytest.MonkeyPatch) -> None:
    """Their producers decide when the time-out is about to pass."""
    all_alone(patch)
    patch.setattr(named_instance, "TIMEOUTS_S", (None,))
    patch.setattr(named_instance, "TAKES_S", (0.45,))


@plant("claim-ends-nothing", "overtaken-open", groups=2, chaos_s=8.0, conditions=all_alone, long=True)
def claim_ends_nothing(patch: pytest.MonkeyPatch) -> None:
    """What a claim has overtaken, and nobody is asked about, stays open until its time-out."""
    patch.setattr(Overtaken, "take", lambda *given: {})


@plant(
    "overtaken-not-rebuilt",
    *("overtaken-open", "state-rebuilt", "state-differs"),
    groups=2,
    chaos_s=8.0,
    conditions=all_alone,
)
def overtaken_not_rebuilt(patch: pytest.MonkeyPatch) -> None:
    """A replica that starts from a snapshot does not know which open transactions are under which claim."""
    restore = Claims.restore

    def numbered(self: Claims, claims: Sequence[Any], opened: Sequence[tuple[Any, Any]]) -> None:
        restore(self, claims, [row for row in opened if row[1][2]])

    patch.setattr(Claims, "restore", numbered)


@plant("claim-ends-local-ones", "invented-decision", groups=2, start=4, chaos_s=8.0, conditions=all_alone)
def claim_ends_local_ones(patch: pytest.MonkeyPatch) -> None:
    """A claim also rolls back transactions whose local one may have taken place."""
    opened = Claims.opened

    def all_of_them(self: Claims, app: str, tx_ids: Sequence[str], claimed: Any, *, alone: bool) -> None:
        opened(self, app, tx_ids, claimed, alone=True)

    patch.setattr(Claims, "opened", all_of_them)


@plant("claim-ends-a-branch", TORN, groups=2, chaos_s=8.0, conditions=all_alone, start=22, long=True)
def claim_ends_a_branch(patch: pytest.MonkeyPatch) -> None:
    """A group rolls back a branch that a claim has overtaken there, while its home may commit it."""
    _branches_know(patch)
    prepare = StateMachine._prepare

    def noting(self: StateMachine, index: int, op: Op, attached: Sequence[Op]) -> Any:
        result = prepare(self, index, op, attached)
        app, extra = op.meta.app, op.meta.extra
        opened = self.transactions.look(app).open
        if op.meta.home_group >= 0 and extra.on_timeout and extra.claim:
            there = [tx_id for tx_id in op.meta.tx_ids if tx_id in opened]
            self.claims.opened(app, there, extra.claim, alone=True)
        return result

    patch.setattr(StateMachine, "_prepare", noting)


@plant(
    "time-out-ends-a-branch", TORN, groups=2, start=20, chaos_s=8.0, conditions=as_time_runs_out, long=True
)
def time_out_ends_a_branch(patch: pytest.MonkeyPatch) -> None:
    """A group rolls back a branch whose time has passed there, while its home may commit it."""
    _branches_know(patch)
    enqueue = DueQueue._enqueue

    def by_itself(self: DueQueue, app: str, tx_ids: Iterable[str], now_ms: int) -> int:
        ids, opened = list(tx_ids), self._table.look(app).open
        alone = [t for t in ids if (app, t) in self._table.unattended and opened[t].home_group >= 0]
        self.expired.extend((app, tx_id) for tx_id in alone)
        return enqueue(self, app, [tx_id for tx_id in ids if tx_id not in alone], now_ms)

    patch.setattr(DueQueue, "_enqueue", by_itself)


def _branches_know(patch: pytest.MonkeyPatch) -> None:
    """Branches are told that there is no local transaction, and leaders decide those that they find."""
    made, roll_back = TransactionBase._made_plan, Replica._roll_back
    problem = PrepareExtra.problem

    def telling(self: TransactionBase, *given: Any) -> TxPlan:
        plan = made(self, *given)
        for blocks in (plan.parts or {}).values() if not self._local else ():
            blocks[0].on_timeout = ROLLBACK
        return plan

    def deciding(self: Replica, found: Mapping[str, Mapping[str, int]], by: str) -> None:
        for app, newest in found.items():
            opened = self.state.transactions.look(app).open
            for tx_id in newest:
                home_group, home_index = opened[tx_id].home_group, opened[tx_id].home_index
                if home_group >= 0:
                    frame = build.rollback(app, [tx_id], by, [home_index], home_group)
                    self.admission.offer(Submission(frame, decode_ops(frame), lambda status: None))
        roll_back(self, found, by)  # does nothing to branches

    def tolerant(self: PrepareExtra, transactions: int, home_group: int) -> str | None:
        extra = msgspec.structs.replace(self, on_timeout="") if home_group >= 0 else self
        return problem(extra, transactions, home_group)

    patch.setattr(TransactionBase, "_made_plan", telling)
    patch.setattr(PrepareExtra, "problem", tolerant)
    patch.setattr(Replica, "_roll_back", deciding)
