"""Transactions over several broker groups or in several parts, step by step; without threads or Ray.

Prepare: the home group first, part by part; then the other groups, whose branches name home's record (its log
index, which home's answer gives). Decide: the home group first, since its record *is* the decision; then the
others, which follow it; then home is told which of them have done so. Whatever this client leaves unfinished,
the groups' leaders complete (replica/branches.py): home tells its branches, and an undecided branch asks
home. What fails on the way is rolled back where that is safe. A transaction with one part in one group takes
a shortcut through the same functions: one block, and no other object.

The same steps handle one transaction, or hundreds that go to the same groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from escrowmq.actors.client.failures import Failure, FailureKind
from escrowmq.actors.producer.encoding.block_answers import worst_of
from escrowmq.actors.producer.encoding.blocks import (
    Block,
    DecisionBlock,
    DoneBlock,
    InquireBlock,
    Outcome,
    PrepareBlock,
    Problems,
)
from escrowmq.actors.producer.encoding.encoder import TxPlan
from escrowmq.replication.model import ResultCode

#: Pause before a transaction that found the limit of open transactions reached tries again.
LIMIT_RETRY_S = 0.1
#: How long a branch waits until an older transaction with its id is rolled back there. The branch's group
#: asks the older one's home every two seconds.
OLDER_WAIT_S = 10.0
#: Someone else's transaction has this id: nothing of it may be touched.
NOT_OURS = (ResultCode.TX_CONFLICT, ResultCode.DUPLICATE)
#: A PREPARE that is refused so has opened nothing, and no earlier copy of it has left anything open.
OPENED_NOTHING = (*NOT_OURS, ResultCode.STALE, ResultCode.TOO_MANY_IDS)
#: Refusals of a branch that may pass: it can be prepared a little later.
PASSING = (
    ResultCode.STALE, ResultCode.TOO_MANY_OPEN, ResultCode.TOO_MANY_IDS, ResultCode.TOO_MANY_SCHEDULED,
    ResultCode.RETRY,
)  # fmt: skip
OnOutcome = Callable[[Outcome], None]


class Sender(Protocol):
    """What the steps need from a producer."""

    def enqueue(self, gid: int, block: Block) -> None: ...
    def call_later(self, delay_s: float, work: Callable[[], None]) -> None: ...
    def clock(self) -> float: ...
    def timeout_s(self, block: PrepareBlock) -> float: ...


def prepare(sender: Sender, plan: TxPlan, done: OnOutcome, limit_wait_s: float = 0.0) -> None:
    """Makes all of a transaction's messages durable; calls ``done({})`` when they are.

    ``done({0: (code, info)})``: refused, nothing of it stays open. ``done(Failure)``: no answer; a
    transaction with a generated id is then rolled back. One with the caller's own id is never rolled back
    behind the caller's back: the caller can come back with the id, be told "prepared", and run its local
    transaction, and then a rollback still under way would win. So what is prepared stays open until the
    caller comes back or the check asks, and the failure is UNKNOWN unless nothing was done at all. The same
    holds if a branch refuses for a reason that may pass, or if home already had the transaction open: someone
    else may be running its local transaction.
    """
    if plan.single is None:
        assert plan.parts is not None
        one = _OnePrepare(sender, plan, done)
        StagedPrepare(sender, plan.groups, plan.parts, limit_wait_s, one.ended).next_stage()
    elif plan.given_id:
        prepare_block(sender, plan.groups[0], plan.single, done, limit_wait_s)
    else:
        whole = _Whole(sender, plan.groups[0], plan.tx_id, done)
        prepare_block(sender, plan.groups[0], plan.single, whole.answered, limit_wait_s)


class _Whole:
    """A transaction in one block, with a generated id, which will never be used again.

    Does not keep the plan: that would be a cycle (plan, block, callback, plan), which only the garbage
    collector can free.
    """

    __slots__ = ("_done", "_gid", "_sender", "_tx_id")

    def __init__(self, sender: Sender, gid: int, tx_id: str, done: OnOutcome) -> None:
        self._sender, self._gid, self._tx_id, self._done = sender, gid, tx_id, done

    def answered(self, outcome: Outcome) -> None:
        """Rolls back if there was no answer: the transaction may be open. So it may be if another producer
        claimed the name before it was sent again."""
        fenced = not isinstance(outcome, Failure) and outcome and outcome[0][0] == ResultCode.FENCED
        if fenced or (isinstance(outcome, Failure) and not outcome.nothing_done):
            self._sender.enqueue(self._gid, DecisionBlock(False, (self._tx_id,)))
        self._done(outcome)


def prepare_block(
    sender: Sender, gid: int, block: PrepareBlock, done: OnOutcome, limit_wait_s: float = 0.0
) -> None:
    """Prepares one block. Transactions beyond the limit of open ones try again for ``limit_wait_s``, branches
    that must wait for an older one with their id for OLDER_WAIT_S."""
    block.done = done
    if limit_wait_s > 0 or block.home_index:
        _Again(sender, gid, block, done, limit_wait_s).watch(block, range(len(block.tx_ids)))
    sender.enqueue(gid, block)


class _Again:
    """Retries those transactions of a block that only have to wait."""

    def __init__(
        self, sender: Sender, gid: int, block: PrepareBlock, done: OnOutcome, limit_wait_s: float
    ) -> None:
        self._sender, self._gid, self._block, self._done = sender, gid, block, done
        now = sender.clock()
        self._until = {ResultCode.TOO_MANY_OPEN: now + limit_wait_s, ResultCode.RETRY: now + OLDER_WAIT_S}
        self._stale_until = now + OLDER_WAIT_S
        self._problems: Problems = {}
        self._failures: list[Failure] = []
        self._left = 0  # pieces and inquiries under way
        self._any_prepared = False

    def watch(self, block: PrepareBlock, chosen: Sequence[int]) -> None:
        """Makes ``block``, whose transactions are at the positions ``chosen`` in the whole block, report
        here."""
        self._left += 1
        block.done = lambda outcome: self._tried(block, chosen, outcome)

    def _tried(self, block: PrepareBlock, chosen: Sequence[int], outcome: Outcome) -> None:
        if isinstance(outcome, Failure):
            self._failures.append(outcome)
            self._ended_one()
            return
        self._any_prepared |= len(outcome) < len(chosen)
        self._block.perhaps_open |= block.perhaps_open
        if block is not self._block:
            self._block.take_opened(block, chosen)
        now = self._sender.clock()
        waiting, stale = [], []
        for n, problem in outcome.items():
            i, code = chosen[n], ResultCode(problem[0])
            if code is ResultCode.STALE and self._block.home_index and now < self._stale_until:
                stale.append(i)
            elif now < self._until.get(code, now):
                waiting.append(i)
            else:
                self._problems[i] = problem
        if waiting:
            again = self._block.select(sorted(waiting))
            self.watch(again, sorted(waiting))
            self._sender.call_later(LIMIT_RETRY_S, lambda: self._sender.enqueue(self._gid, again))
        if stale:
            heard_ms: int = min(outcome[n][1] for n in outcome if chosen[n] in stale)
            self._ask_home(sorted(stale), heard_ms)
        self._ended_one()

    def _ask_home(self, chosen: list[int], heard_ms: int) -> None:
        """The branch group has forgotten transactions since this client last heard from it (or the client
        never did). Branches may be sent again if home, asked after that refusal, still has them open: a
        branch is settled after home has decided, so none of these was settled before ``heard_ms``. A later
        time must not be sent."""
        whole = self._block
        question = InquireBlock([whole.tx_ids[i] for i in chosen], [whole.home_index[i] for i in chosen])
        question.done = partial(self._home_said, chosen, heard_ms)
        self._left += 1
        self._sender.enqueue(whole.home_group, question)

    def _home_said(self, chosen: list[int], heard_ms: int, outcome: Outcome) -> None:
        if isinstance(outcome, Failure):
            self._problems.update((i, (ResultCode.STALE, None)) for i in chosen)
        else:
            self._problems.update((chosen[n], problem) for n, problem in outcome.items())
            still = [i for n, i in enumerate(chosen) if n not in outcome]
            if still:
                again = self._block.select(still)
                again.heard_ms = heard_ms
                self.watch(again, still)
                self._sender.enqueue(self._gid, again)
        self._ended_one()

    def _ended_one(self) -> None:
        self._left -= 1
        if self._left:
            return
        failures = self._failures
        self._done(worst_of(failures, prepared=self._any_prepared) if failures else self._problems)


class StagedPrepare:
    """Prepares transactions that go to the same groups, in stages: home part by part, then the other groups
    in parallel, also part by part. What one stage refuses is left out of the next.

    Results, to be read in ``ended``: ``problems`` by position, and ``failure`` if a stage had no answer; then
    all transactions without a problem may be open, in every group of ``touched``. ``home_index``: for each,
    -1 unless home has opened the transaction, and ``newest_index``: its newest PREPARE there. ``tracked``:
    home has told that, of transactions with branches, so it makes sure that they follow.
    """

    def __init__(
        self,
        sender: Sender,
        groups: Sequence[int],
        parts: dict[int, list[PrepareBlock]],
        limit_wait_s: float,
        ended: Callable[[StagedPrepare], None],
    ) -> None:
        self._sender, self._limit_wait_s, self._ended = sender, limit_wait_s, ended
        self.home, others = groups[0], groups[1:]
        self._stages = [[(self.home, block)] for block in parts[self.home]]
        for number in range(max((len(parts[gid]) for gid in others), default=0)):
            self._stages.append([(gid, parts[gid][number]) for gid in others if number < len(parts[gid])])
        first = parts[self.home][0]
        self.tx_ids, self.tracked = first.tx_ids, False
        self.home_index = [-1] * len(self.tx_ids)
        self.newest_index = [-1] * len(self.tx_ids)
        self.repeated: set[int] = set()  # positions of transactions that home already had open
        self._perhaps_open: set[int] = set()  # those that home refused, after an attempt without an answer
        self._at_home: set[int] = set()  # those that home has open
        self.problems: Problems = {}
        self.failure: Failure | None = None
        self.touched: dict[int, None] = {}
        self.any_prepared = False
        self._half_timeout_s = sender.timeout_s(first) / 2
        self._began = sender.clock()
        self._left = 0

    def accepted(self) -> list[int]:
        """Positions of the transactions that nothing has refused."""
        return [i for i in range(len(self.tx_ids)) if i not in self.problems]

    def left_open(self, i: int) -> bool:
        """Whether a refused transaction with the application's own id is left open, for the next caller with
        that id or for the check. A rollback would use up the id because of a refusal that may pass, or take
        it from someone else. It may also be open if home has refused it, but had not answered an earlier
        attempt."""
        code, _ = self.problems[i]
        if i not in self._at_home:
            return i in self._perhaps_open and may_be_open(code)
        return code in PASSING or i in self.repeated

    def refused_by_home(self, i: int) -> bool:
        """Whether home has refused this attempt's first PREPARE, so that nothing of this attempt is open.

        What is open under an id of the application then is another attempt's. That one may be running its
        local transaction, so it must not be rolled back.
        """
        return i not in self._at_home and self.home_index[i] < 0

    def next_stage(self) -> None:
        """Sends the next stage, or finishes."""
        accepted = self.accepted()
        if not accepted or self.failure is not None:
            self._ended(self)
            return
        if not self._stages:
            self._look_at_home(accepted)
            return
        stage = self._stages.pop(0)
        self._left = len(stage)
        for gid, whole in stage:
            self.touched[gid] = None
            block = whole if len(accepted) == len(self.tx_ids) else whole.select(accepted)
            if gid != self.home:
                block.home_index = [self.home_index[i] for i in accepted]
            answered = partial(self._answered, gid, block, accepted)
            prepare_block(self._sender, gid, block, answered, self._limit_wait_s)

    def _answered(self, gid: int, block: PrepareBlock, chosen: Sequence[int], outcome: Outcome) -> None:
        self._left -= 1
        if isinstance(outcome, Failure):
            if self.failure is None or self.failure.nothing_done:  # an unknown outcome is the worst
                self.failure = outcome
        else:
            self.any_prepared |= len(outcome) < len(chosen)
            for n, problem in outcome.items():
                self.problems.setdefault(chosen[n], problem)
            if gid == self.home:
                self._take_home(block, chosen, outcome)
        if self._left == 0:
            self.next_stage()

    def _take_home(self, block: PrepareBlock, chosen: Sequence[int], refused: Problems) -> None:
        self._at_home.update(i for n, i in enumerate(chosen) if n not in refused)
        if block.perhaps_open:
            self._perhaps_open.update(chosen[n] for n in refused)
        if not block.opened_at:
            return
        tracked = bool(block.participants)  # otherwise home tells this only because the ids are given
        self.tracked |= tracked
        if block.part == 0:
            self.repeated.update(chosen[n] for n in block.repeated())
        for n, i in enumerate(chosen):
            if block.opened_at[n] < 0:
                continue
            self.newest_index[i] = block.newest_at[n]
            if tracked:
                self.home_index[i] = block.opened_at[n]

    def _look_at_home(self, chosen: list[int]) -> None:
        """Everything is prepared. If that took long, a check may have decided meanwhile, and then branches
        that arrived later are rolled back: so home is asked, through its log."""
        if not self.tracked or self._sender.clock() - self._began < self._half_timeout_s:
            self._ended(self)
            return
        question = InquireBlock([self.tx_ids[i] for i in chosen], [self.home_index[i] for i in chosen])
        question.done = partial(self._looked, chosen)
        self._sender.enqueue(self.home, question)

    def _looked(self, chosen: list[int], outcome: Outcome) -> None:
        if isinstance(outcome, Failure):
            self.failure = Failure(FailureKind.UNKNOWN, outcome.detail, outcome.retry_after_s)
        else:
            self.problems.update((chosen[n], problem) for n, problem in outcome.items())
            self._at_home.difference_update(chosen[n] for n in outcome)
        self._ended(self)


class _OnePrepare:
    """Ends one transaction after its stages."""

    def __init__(self, sender: Sender, plan: TxPlan, done: OnOutcome) -> None:
        self._sender, self._plan, self._done = sender, plan, done

    def ended(self, staged: StagedPrepare) -> None:
        """Tells the caller, and rolls back where that is right."""
        plan, sender, done, failure = self._plan, self._sender, self._done, staged.failure
        index = staged.home_index[0]
        plan.home_index = index if index >= 0 else None
        if plan.given_id:
            plan.repeated, plan.newest_index = bool(staged.repeated), staged.newest_index[0]
        gids = list(staged.touched)
        if failure is not None and not staged.problems:
            if staged.any_prepared or not failure.nothing_done:
                if plan.given_id:
                    failure = Failure(FailureKind.UNKNOWN, failure.detail, failure.retry_after_s)
                else:  # the deadline has passed: the rollback is sent, but not waited for
                    settle(sender, plan.tx_id, gids, False, lambda _: None, plan.home_index)
            done(failure)
        elif not staged.problems:
            done({})
        elif plan.given_id and plan.home_index is None and staged.left_open(0):
            done(left_open_failure(staged.problems[0]))
        elif plan.home_index is None and (
            staged.problems[0][0] in NOT_OURS or (plan.given_id and staged.refused_by_home(0))
        ):
            done(staged.problems)
        elif plan.given_id and staged.left_open(0):
            done(left_open_failure(staged.problems[0]))
        else:
            # Home's record is ours, by its index; so roll back even if a branch says the id is another's.
            told = partial(self._refused, staged.problems)
            newest = (plan.newest_index,) if plan.newest_index >= 0 else ()
            settle(sender, plan.tx_id, gids, False, told, plan.home_index, newest)

    def _refused(self, refusal: Outcome, undone: Outcome) -> None:
        """The rollback has ended."""
        if not self._plan.given_id:
            self._done(refusal)
        elif isinstance(undone, Failure):
            self._done(refusal if undone.nothing_done else undone)
        else:  # RETRY: someone else has continued the transaction
            taken_up = undone and undone[0][0] == ResultCode.RETRY
            self._done(left_open_failure(undone[0]) if taken_up else refusal)


def may_be_open(code: int) -> bool:
    """Whether a transaction may be open although home has refused it so, if home had not answered an earlier
    attempt: then that one may have opened it."""
    return code not in OPENED_NOTHING


def left_open_failure(problem: tuple[int, Any]) -> Failure:
    """The outcome of a transaction that was refused but stays open."""
    return Failure(FailureKind.UNKNOWN, f"it stays open; a group refuses it: {ResultCode(problem[0]).name}")


def settle(
    sender: Sender,
    tx_id: str,
    gids: Sequence[int],
    commit: bool,
    done: OnOutcome,
    home_index: int | None = None,
    newest_index: Sequence[int] = (),
) -> None:
    """Commits or rolls back one transaction; see :func:`settle_many`."""
    indexes = None if home_index is None else (home_index,)
    settle_many(sender, (tx_id,), gids, commit, done, indexes, newest_index)


def settle_many(
    sender: Sender,
    tx_ids: Sequence[str],
    gids: Sequence[int],
    commit: bool,
    done: OnOutcome,
    home_index: Sequence[int] | None = None,
    newest_index: Sequence[int] = (),
) -> None:
    """Commits or rolls back transactions over the same groups; ``gids[0]`` is the home group, whose answer
    ``done`` gets. ``home_index``: for each, where home opened it; None: there are no branches.
    ``newest_index``: see DecisionBlock; it is home's.

    The other groups are told afterwards and waited for, but their answers change nothing: the decision is
    made. Home learns which of them have carried it out, and tells the rest itself.
    """
    home = DecisionBlock(commit, tx_ids, home_index, newest_index=newest_index)
    home.done = done if home_index is None else _Settled(sender, home, gids, done).decided
    sender.enqueue(gids[0], home)


class _Settled:
    """What follows home's decision: tells the branches, then home."""

    def __init__(self, sender: Sender, home: DecisionBlock, gids: Sequence[int], done: OnOutcome) -> None:
        self._sender, self._block, self._gids, self._done = sender, home, gids, done
        self._told: Outcome = {}
        self._left = len(gids) - 1

    def decided(self, outcome: Outcome) -> None:
        """Takes home's answer. Branches are not told of a decision that home refused or may not have made.
        Nor of one that home had made before: the branches may have carried it out and forgotten it, and what
        is open there now would be a late copy. Home tells the branches that have not done it."""
        block, self._told = self._block, outcome
        if not isinstance(outcome, Failure):
            self._told = {i: said for i, said in outcome.items() if said[0] != ResultCode.DUPLICATE}
        if isinstance(outcome, Failure) or len(outcome) == len(block.tx_ids) or self._left == 0:
            self._done(self._told)
            return
        carried_out = [i for i in range(len(block.tx_ids)) if i not in outcome]
        for gid in self._gids[1:]:
            branch = block if not outcome else block.select(carried_out)
            branch = DecisionBlock(branch.commit, branch.tx_ids, branch.home_index, self._gids[0])
            branch.done = partial(self._branch_done, gid, branch)
            self._sender.enqueue(gid, branch)

    def _branch_done(self, gid: int, branch: DecisionBlock, outcome: Outcome) -> None:
        if not isinstance(outcome, Failure):
            undone = {i for i, (code, _) in outcome.items() if code != ResultCode.DUPLICATE}
            done = [i for i in range(len(branch.tx_ids)) if i not in undone]
            if done:
                followed = branch if not undone else branch.select(done)
                assert followed.home_index is not None
                self._sender.enqueue(self._gids[0], DoneBlock(followed.tx_ids, followed.home_index, gid))
        self._left -= 1
        if self._left == 0:
            self._done(self._told)
