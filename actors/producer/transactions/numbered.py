"""Numbered transactions of a named producer: each number is committed once, whoever sends it again, and
however late.

A claim has one numbered transaction open at most. What an earlier call, or an earlier producer of the name,
has left open is rolled back, and the number is sent again: if that one was committed meanwhile, the broker
says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from escrowmq.actors.client.failures import Failure
from escrowmq.actors.client.router import result_of
from escrowmq.actors.producer.claiming import Claimed
from escrowmq.actors.producer.core import ProducerCore
from escrowmq.actors.producer.encoding.blocks import Outcome
from escrowmq.actors.producer.encoding.encoder import CANNOT_ENCODE, TxPlan, check_message
from escrowmq.actors.producer.transactions.transaction import Transaction
from escrowmq.replication.delivery_times import AT_ONCE, delivery_time
from escrowmq.replication.errors import InvalidMessage, OutcomeUnknown, OutOfStep, TransactionSettled
from escrowmq.replication.format import ops
from escrowmq.replication.format.ops import DIGEST_BYTES, claim_group
from escrowmq.replication.limits import NUMBER_MAX
from escrowmq.replication.model import Message, ResultCode, TransactionState

_encode = msgspec.msgpack.Encoder().encode


class LeftOpen(Exception):
    """Another numbered transaction of the claim is open."""

    def __init__(self, app: str, tx_id: str) -> None:
        super().__init__(app, tx_id)
        self.app, self.tx_id = app, tx_id


class Numbered(Transaction):
    """One attempt at a number. Its home is the claim's group, also if none of its messages goes there."""

    __slots__ = ("_claimed", "_digest", "_number")

    def __init__(self, core: ProducerCore, claimed: Claimed, number: int, digest: bytes) -> None:
        super().__init__(core, f"{claimed.name}.{number}", None, None, False, local=False)
        self._claimed, self._number, self._digest = claimed, number, digest

    def _made_plan(self, home_group: int | None = None) -> TxPlan:
        home = claim_group(self._claimed.name, self._core.info.groups)
        plan = super()._made_plan(home)
        assert plan.parts is not None
        for block in plan.parts[home]:
            block.numbered = self._number, self._digest
        return plan

    def _after_prepare(self, plan: TxPlan, outcome: Outcome) -> TransactionState | None:
        if not isinstance(outcome, Failure) and outcome:
            code, info = outcome[0]
            if code == ResultCode.OUT_OF_STEP:
                self._not_prepared()
                raise OutOfStep(self._claimed.name, self._number, info)
            if code == ResultCode.CLAIM_OPEN:
                self._not_prepared()
                raise LeftOpen(*info)
        settled = super()._after_prepare(plan, outcome)
        if settled is TransactionState.ROLLBACK:
            # Its PREPARE was sent twice, and between the two somebody rolled it back as one that was left.
            raise TransactionSettled(self.tx_id, settled.value)
        return settled

    def commits_now(self) -> bool:
        """Prepares and commits it; False: the number was committed before."""
        if self._prepare() is not None:
            return False
        self.commit()
        return True


def send(core: ProducerCore, number: int, messages: Sequence[Message], digest: bytes | None) -> bool:
    """See ``Producer.send_numbered``. One call at a time."""
    claimed = core.claimed
    if claimed is None:
        raise InvalidMessage("only a producer with a transactional_id sends numbered transactions")
    if type(number) is not int or not 0 < number <= NUMBER_MAX:
        raise InvalidMessage(f"number must be an int of 1 to {NUMBER_MAX}, not {number!r:.80}")
    if digest is None:
        digest = digest_of(messages, core.encoder.serialize)
    elif type(digest) is not bytes or len(digest) != DIGEST_BYTES:
        raise InvalidMessage(f"digest must be {DIGEST_BYTES} bytes, not {digest!r:.80}")
    deadline = core.clock() + core.config.delivery_timeout_s
    while True:
        attempt = Numbered(core, claimed, number, digest)
        attempt.send(*messages)
        try:
            is_new = attempt.commits_now()
        except LeftOpen as left:
            roll_back(core, claimed, left)
        except TransactionSettled:
            pass  # somebody rolled it back: if that was the next producer of the name, this one is fenced
        else:
            core.claimed = claimed._replace(number=max(number, claimed.number))
            return is_new
        if core.clock() >= deadline:
            raise OutcomeUnknown(attempt.query_id)


def roll_back(core: ProducerCore, claimed: Claimed, left: LeftOpen) -> None:
    """Settle what was left. Whatever is answered: the next attempt finds out whether it is still open, or was
    committed."""
    timeout_s = core.config.delivery_timeout_s
    home = claim_group(claimed.name, core.info.groups)
    result_of(core.router.submit(home, ops.rollback(left.app, [left.tx_id]), timeout_s), timeout_s)


def digest_of(messages: Sequence[Message], serialize: Callable[[Any], bytes] | None = None) -> bytes:
    """Stands for the messages, whichever attempt or process sends them. Raises what ``serialize`` does."""
    digest = hashlib.sha256()
    for message in messages:
        check_message(message)
        delayed = message.delay_s is not None or message.deliver_at is not None
        time_ms = delivery_time(message.delay_s, message.deliver_at) if delayed else AT_ONCE
        value = message.value if serialize is None else serialize(message.value)
        headers = sorted(message.headers.items())
        try:
            digest.update(_encode((message.topic, message.partition, message.key, value, headers, time_ms)))
        except CANNOT_ENCODE as error:
            raise InvalidMessage(f"message to {message.topic!r} cannot be encoded: {error}") from error
    return digest.digest()[:DIGEST_BYTES]
