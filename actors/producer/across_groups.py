"""Transactions over several broker groups or in several parts, step by step; without threads or Ray.

Prepare: the home group first, part by part; then the other groups. Decide: the home group first, since
its record *is* the decision; then the others, which follow it (and which feedback leads after it, should
this client die in between). What fails on the way is rolled back where that is safe. A transaction with
one part in one group takes the short way through the same functions: one block, no object beside it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from escrowmq.actors.client.failures import Failure, FailureKind
from escrowmq.actors.producer.blocks import Block, DecisionBlock, Outcome, PrepareBlock
from escrowmq.actors.producer.encoder import TxPlan
from escrowmq.replication.model import ResultCode

log = logging.getLogger(__name__)

#: How often a transaction that found the limit of open transactions reached tries again.
LIMIT_RETRY_S = 0.1
#: Someone else's transaction has this id: nothing of it may be touched.
_NOT_OURS = (ResultCode.TX_CONFLICT, ResultCode.DUPLICATE)
OnOutcome = Callable[[Outcome], None]


class Sender(Protocol):
    """What preparing and settling need of a producer."""

    def enqueue(self, gid: int, block: Block) -> None: ...
    def call_later(self, delay_s: float, work: Callable[[], None]) -> None: ...
    def clock(self) -> float: ...


def prepare(sender: Sender, plan: TxPlan, done: OnOutcome, limit_wait_s: float = 0.0) -> None:
    """Make all of a transaction's messages durable; ``done({})`` when they are.

    ``done({0: (code, info)})``: refused, nothing of it stays open. ``done(Failure)``: no answer; with a
    generated id it is being rolled back. A caller's own id is never rolled back behind the caller's back:
    the caller can come back with it, be told "prepared", and run its local transaction, and then a roll-back
    that was still under way would win. So what is prepared stays open until the caller comes back or the
    check asks, and the failure is UNKNOWN unless nothing was done at all.
    """
    if plan.single is None:
        _StagedPrepare(sender, plan, done, limit_wait_s).next_stage()
    elif plan.given_id:
        prepare_block(sender, plan.groups[0], plan.single, done, limit_wait_s)
    else:
        whole = _Whole(sender, plan.groups[0], plan.tx_id, done)
        prepare_block(sender, plan.groups[0], plan.single, whole.answered, limit_wait_s)


class _Whole:
    """A transaction in one block under an id that nobody will ask for again.

    Keeps no plan: that would be a cycle (plan, block, callback, plan), and cycles are left to the collector.
    """

    __slots__ = ("_done", "_gid", "_sender", "_tx_id")

    def __init__(self, sender: Sender, gid: int, tx_id: str, done: OnOutcome) -> None:
        self._sender, self._gid, self._tx_id, self._done = sender, gid, tx_id, done

    def answered(self, outcome: Outcome) -> None:
        """Without an answer it may be open: roll back."""
        if isinstance(outcome, Failure) and not outcome.nothing_done:
            self._sender.enqueue(self._gid, DecisionBlock(False, (self._tx_id,)))
        self._done(outcome)


def prepare_block(
    sender: Sender, gid: int, block: PrepareBlock, done: OnOutcome, limit_wait_s: float = 0.0
) -> None:
    """Prepare one block; transactions beyond the limit of open ones try again for ``limit_wait_s``."""
    block.done = done
    if limit_wait_s > 0:
        _LimitWait(sender, gid, block, done, sender.clock() + limit_wait_s).watch(
            block, range(len(block.tx_ids))
        )
    sender.enqueue(gid, block)


class _LimitWait:
    """Tries those transactions of a block again that found the limit of open transactions reached."""

    def __init__(self, sender: Sender, gid: int, block: PrepareBlock, done: OnOutcome, until: float) -> None:
        self._sender, self._gid, self._block, self._done, self._until = sender, gid, block, done, until
        self._problems: dict[int, tuple[int, object]] = {}

    def watch(self, block: PrepareBlock, places: Sequence[int]) -> None:
        """Have ``block``, whose transactions stand at ``places`` of the whole, report here."""
        block.done = lambda outcome: self._tried(places, outcome)

    def _tried(self, places: Sequence[int], outcome: Outcome) -> None:
        if isinstance(outcome, Failure):
            self._done(outcome)
            return
        self._problems.update((places[i], problem) for i, problem in outcome.items())
        full = [i for i, problem in self._problems.items() if problem[0] == ResultCode.TOO_MANY_OPEN]
        if not full or self._sender.clock() >= self._until:
            self._done(self._problems)
            return
        for i in full:
            del self._problems[i]
        again = self._block.select(sorted(full))
        self.watch(again, sorted(full))
        self._sender.call_later(LIMIT_RETRY_S, lambda: self._sender.enqueue(self._gid, again))


class _StagedPrepare:
    """Prepare in stages: home group part by part, then the others, part by part side by side."""

    def __init__(self, sender: Sender, plan: TxPlan, done: OnOutcome, limit_wait_s: float) -> None:
        self._sender, self._plan, self._done, self._limit_wait_s = sender, plan, done, limit_wait_s
        parts, others = plan.parts, plan.groups[1:]
        assert parts is not None
        self._stages = [[(plan.groups[0], block)] for block in parts[plan.groups[0]]]
        for number in range(max((len(parts[gid]) for gid in others), default=0)):
            self._stages.append([(gid, parts[gid][number]) for gid in others if number < len(parts[gid])])
        self._touched: dict[int, None] = {}
        self._any_prepared = False
        self._left = 0
        self._worst: Outcome = {}

    def next_stage(self) -> None:
        """Send the next stage, or finish."""
        if not self._stages:
            self._done({})
            return
        stage = self._stages.pop(0)
        self._left = len(stage)
        for gid, block in stage:
            self._touched[gid] = None
            prepare_block(self._sender, gid, block, self._block_done, self._limit_wait_s)

    def _block_done(self, outcome: Outcome) -> None:
        self._left -= 1
        self._any_prepared |= not outcome
        if outcome and not (isinstance(self._worst, Failure) and not self._worst.nothing_done):
            self._worst = outcome  # a Failure is always true; an unknown one is the worst
        if self._left == 0:
            if self._worst:
                self._undo(self._worst)
            else:
                self.next_stage()

    def _undo(self, outcome: Outcome) -> None:
        tx_id, gids, done = self._plan.tx_id, list(self._touched), self._done
        if isinstance(outcome, Failure):
            if self._any_prepared or not outcome.nothing_done:
                if self._plan.given_id:
                    outcome = Failure(FailureKind.UNKNOWN, outcome.detail, outcome.retry_after_s)
                else:  # the deadline has passed: the roll-back is sent, not waited for
                    settle(self._sender, tx_id, gids, False, lambda _: None)
            done(outcome)
        elif outcome[0][0] in _NOT_OURS:
            done(outcome)
        else:
            settle(self._sender, tx_id, gids, False, lambda undone: done(self._refused(outcome, undone)))

    def _refused(self, refusal: Outcome, undone: Outcome) -> Outcome:
        """What the caller is told of a refusal once the roll-back has ended."""
        may_be_under_way = isinstance(undone, Failure) and not undone.nothing_done
        return undone if may_be_under_way and self._plan.given_id else refusal


def settle(sender: Sender, tx_id: str, gids: Sequence[int], commit: bool, done: OnOutcome) -> None:
    """Commit or roll back; ``gids[0]`` is the home group. ``done`` gets the home group's answer.

    The other groups are told after it and waited for, but whatever they say changes nothing: the
    decision is made, and feedback brings it to any group that missed it.
    """
    home = DecisionBlock(commit, (tx_id,))
    others = gids[1:]
    if not others:
        home.done = done
    else:
        home.done = lambda outcome: _settle_others(sender, tx_id, others, commit, done, outcome)
    sender.enqueue(gids[0], home)


def _settle_others(
    sender: Sender, tx_id: str, others: Sequence[int], commit: bool, done: OnOutcome, decided: Outcome
) -> None:
    if decided:  # refused or unknown: the home group's record decides, feedback will ask for it
        done(decided)
        return
    left = len(others)

    def one_done(outcome: Outcome) -> None:
        nonlocal left
        if outcome:
            log.warning("transaction %s is decided; a branch will follow by its check (%s)", tx_id, outcome)
        left -= 1
        if left == 0:
            done({})

    for gid in others:
        branch = DecisionBlock(commit, (tx_id,))
        branch.done = one_done
        sender.enqueue(gid, branch)
