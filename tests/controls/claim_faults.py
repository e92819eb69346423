"""Planted faults in named producers: who is fenced where, and which number is in."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

import pytest

from escrowmq.actors.producer.blocks import Outcome
from escrowmq.actors.producer.claiming import Ask, Claimed
from escrowmq.actors.producer.encoder import TxPlan
from escrowmq.actors.producer.numbered import Numbered
from escrowmq.replication.errors import TransactionSettled
from escrowmq.replication.format.claim_ops import claim_group
from escrowmq.replication.model import ResultCode, TransactionState
from escrowmq.replication.state.claims import Claims
from escrowmq.replication.state.machine import LEVEL_MAX
from tests.controls.planting import plant
from tests.sim.across import named, scene

WROTE, NUMBERS = "fenced-wrote", ("number-twice", "number-torn", "number-order")


def all_named(patch: pytest.MonkeyPatch) -> None:
    """Named producers in every world, from the start, and often replaced."""
    patch.setitem(named.SHARE, "worlds", 1.0)
    patch.setattr(named, "STARTS", 0.12)
    patch.setattr(scene, "draw_level", lambda rng, lowest: (LEVEL_MAX, None))


@plant("claim-in-one-group", WROTE, "fenced-alive", groups=2, chaos_s=8.0, conditions=all_named)
def claim_in_one_group(patch: pytest.MonkeyPatch) -> None:
    """A producer that replaces another one claims the name in its own group, and in no other one."""
    steps = named.steps

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

    patch.setattr(named, "steps", lonely)


@plant("older-epoch-writes", WROTE, groups=2, chaos_s=8.0, conditions=all_named)
def older_epoch_writes(patch: pytest.MonkeyPatch) -> None:
    """Plain messages under an earlier claim are stored."""
    patch.setattr(Claims, "fenced", lambda self, producer, epoch, now_ms: None)


@plant("older-epoch-prepares", WROTE, *NUMBERS, groups=2, chaos_s=8.0, conditions=all_named)
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

    def anybody(self: Claims, meta: tuple[str, int, str], now_ms: int) -> list[object]:
        name, epoch, claimant = meta
        known = self.by_name.get(name)
        if known is not None and known.epoch == epoch:
            claimant = known.claimant
        return claim(self, (name, epoch, claimant), now_ms)

    patch.setattr(Claims, "claim", anybody)


@plant("number-forgotten", *NUMBERS, groups=2, start=6, chaos_s=8.0, conditions=all_named)
def number_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A claim does not note which number was committed last."""
    settled = Claims.settled

    def rolled_back(self: Claims, app: str, tx_ids: Any, committed: bool) -> None:
        settled(self, app, tx_ids, False)

    patch.setattr(Claims, "settled", rolled_back)


@plant("rolled-back-is-in", "number-lost", groups=2, start=8, chaos_s=8.0, conditions=all_named)
def rolled_back_is_in(patch: pytest.MonkeyPatch) -> None:
    """A number whose PREPARE was sent twice, and rolled back between the two, is taken for committed."""
    after = Numbered._after_prepare

    def trusting(self: Numbered, plan: TxPlan, outcome: Outcome) -> TransactionState | None:
        try:
            return after(self, plan, outcome)
        except TransactionSettled:
            return TransactionState.ROLLBACK

    patch.setattr(Numbered, "_after_prepare", trusting)
