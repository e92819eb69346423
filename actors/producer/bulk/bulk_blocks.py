"""The units in which a batch of transactions is sent: blocks of simple ones, and single plans.

Both are prepared, then decided, and remember per transaction only what deviates from success. They report to
their run (bulk.py) from the router's thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial

from escrowmq.actors.client.failures import Failure
from escrowmq.actors.producer.core import ProducerCore
from escrowmq.actors.producer.encoding.blocks import (
    Content,
    DecisionBlock,
    Encoded,
    Outcome,
    PrepareBlock,
    Problems,
    digest_of,
)
from escrowmq.actors.producer.encoding.delayed_messages import Later
from escrowmq.actors.producer.encoding.encoder import TxPlan
from escrowmq.actors.producer.transactions import across_groups
from escrowmq.actors.producer.transactions.results import (
    TransactionResult,
    decided,
    prepare_problem,
    prepared,
    unprepared,
)
from escrowmq.replication.errors import (
    EscrowMQError,
    OutcomeUnknown,
    TooManyOpenTransactions,
    TransactionConflict,
)
from escrowmq.replication.model import ResultCode, TransactionState

COMMITTED, ROLLBACK, UNKNOWN = TransactionState.COMMITTED, TransactionState.ROLLBACK, TransactionState.UNKNOWN
Report = Callable[["BulkUnit"], None]


class BulkUnit(ABC):
    """Some transactions of a batch. ``exceptions``: position in the unit -> result, for the settled ones.

    ``i``: such a position. ``chosen``: several of them, to which outcomes refer by their order.
    A transaction without an exception is open once prepared, and decided as requested once decided.
    """

    def __init__(
        self, core: ProducerCore, tx_ids: list[str], query_ids: list[str], indexes: list[int]
    ) -> None:
        self.windowed = True  # counts against its run's calls in flight
        self.core, self.tx_ids, self.query_ids, self.indexes = core, tx_ids, query_ids, indexes
        self.exceptions: dict[int, TransactionResult] = {}
        self.wanted: dict[int, TransactionState] = {}  # only where it differs from COMMITTED
        #: Positions of ids that the application gave and that were open before: not rolled back from here.
        #: And for each transaction the log index of its PREPARE at home, if that has told it.
        self.repeated: set[int] = set()
        self.newest: Sequence[int] = ()

    def still_open(self) -> Sequence[int]:
        """Positions of the transactions that are prepared and undecided."""
        if not self.exceptions:
            return range(len(self.tx_ids))
        return [i for i in range(len(self.tx_ids)) if i not in self.exceptions]

    def results(self) -> list[TransactionResult]:
        """One result per transaction, in order; call it only when everything is decided."""
        if not self.exceptions and not self.wanted:
            return [TransactionResult(tx_id, COMMITTED) for tx_id in self.tx_ids]
        return [
            self.exceptions.get(i) or TransactionResult(tx_id, self.wanted.get(i, COMMITTED))
            for i, tx_id in enumerate(self.tx_ids)
        ]

    def refuse(self, i: int, problem: EscrowMQError | TransactionState) -> None:
        """The transaction is not prepared: settled before, or an error. Nothing of this attempt will be
        read."""
        tx_id = self.tx_ids[i]
        if isinstance(problem, TransactionState):
            self.exceptions[i] = TransactionResult(tx_id, problem)
            return
        topic = getattr(problem, "topic", None)
        if topic is not None:
            self.core.catalog.forget(topic)
        state = UNKNOWN if isinstance(problem, OutcomeUnknown) else ROLLBACK
        self.exceptions[i] = TransactionResult(tx_id, state, problem)

    def leave(self, i: int) -> None:
        """The transaction is left to the check, although the callback decided."""
        self._undecided(i, OutcomeUnknown(self.tx_ids[i]))

    def newest_of(self, commit: bool, chosen: Sequence[int]) -> Sequence[int]:
        """The condition of a rollback of ``chosen``: see DecisionBlock."""
        return [self.newest[i] for i in chosen] if self.newest and not commit else ()

    def _settled(self, chosen: Sequence[int], done: Report, outcome: Outcome) -> None:
        """Takes the answer to a decision on ``chosen``."""
        if isinstance(outcome, Failure):
            for i in chosen:
                self.leave(i)
        else:
            for n, problem in outcome.items():
                i = chosen[n]
                error = decided(self.tx_ids[i], {0: problem})
                assert error is not None
                self._undecided(i, error)
        done(self)

    def _undecided(self, i: int, error: EscrowMQError) -> None:
        state = TransactionState(error.recorded_state) if isinstance(error, TransactionConflict) else UNKNOWN
        self.exceptions[i] = TransactionResult(self.tx_ids[i], state, error)

    @abstractmethod
    def prepare(self, done: Report) -> None:
        """Sends the transactions; room must have been reserved."""

    @abstractmethod
    def decide(self, commit: bool, chosen: Sequence[int], done: Report) -> None:
        """Sends the decision on ``chosen``."""


class BlockUnit(BulkUnit):
    """Simple transactions: one group, one part, one home topic. ``given``: ids that the caller chose."""

    def __init__(
        self, core: ProducerCore, gid: int, block: PrepareBlock, indexes: list[int], given: set[str]
    ) -> None:
        super().__init__(core, list(block.tx_ids), list(block.query_ids), indexes)
        self.gid, self.size, self._given = gid, block.size, given
        self._block: PrepareBlock | None = block

    def prepare(self, done: Report) -> None:
        """See BulkUnit."""
        block = self._block
        assert block is not None
        block.done = lambda outcome: self._prepared(outcome, done)
        self.core.enqueue(self.gid, block)

    def _prepared(self, outcome: Outcome, done: Report) -> None:
        self.core.release(self.size)
        if isinstance(outcome, Failure):
            for i, tx_id in enumerate(self.tx_ids):
                self.refuse(i, unprepared(tx_id, tx_id in self._given, outcome))
            ours = [tx_id for tx_id in self.tx_ids if tx_id not in self._given]
            if ours:  # perhaps open, and these ids will never be used again
                self.core.enqueue(self.gid, DecisionBlock(False, ours))
        else:
            self._refused(outcome)
            if self._block is not None and self._block.opened_at:
                self.newest = self._block.newest_at
                self.repeated = {i for i in self._block.repeated() if self.tx_ids[i] in self._given}
        done(self)

    def _refused(self, problems: Problems) -> None:
        perhaps_open = self._block is not None and self._block.perhaps_open
        ours: list[str] = []
        for i, (code, info) in problems.items():
            tx_id = self.tx_ids[i]
            if perhaps_open and across_groups.may_be_open(code):
                if tx_id in self._given:
                    failure = across_groups.left_open_failure((code, info))
                    self.refuse(i, unprepared(tx_id, True, failure))
                    continue
                ours.append(tx_id)
            self.refuse(i, prepare_problem(tx_id, code, info))
        if ours:
            self.core.enqueue(self.gid, DecisionBlock(False, ours))

    def take_apart(self, chosen: list[int]) -> BlockUnit:
        """Moves the transactions at ``chosen`` to a new unit, to be prepared again."""
        assert self._block is not None
        again = BlockUnit(
            self.core, self.gid, self._block.select(chosen), [self.indexes[i] for i in chosen], self._given
        )
        gone = set(chosen)
        kept = [i for i in range(len(self.tx_ids)) if i not in gone]
        self.exceptions = {
            new: self.exceptions[old] for new, old in enumerate(kept) if old in self.exceptions
        }
        if self.newest:
            self.newest = [self.newest[i] for i in kept]
            self.repeated = {new for new, old in enumerate(kept) if old in self.repeated}
        self.tx_ids = [self.tx_ids[i] for i in kept]
        self.query_ids = [self.query_ids[i] for i in kept]
        self.indexes = [self.indexes[i] for i in kept]
        return again

    def over_limit(self) -> list[int]:
        """Positions of the transactions that found the limit of open transactions reached."""
        return [
            i for i, result in self.exceptions.items() if isinstance(result.error, TooManyOpenTransactions)
        ]

    def forget_rows(self) -> None:
        """After prepare: frees the messages, which the broker now has."""
        self._block = None

    def decide(self, commit: bool, chosen: Sequence[int], done: Report) -> None:
        """See BulkUnit."""
        everyone = len(chosen) == len(self.tx_ids)
        newest = self.newest_of(commit, chosen)
        ids = self.tx_ids if everyone else [self.tx_ids[i] for i in chosen]
        block = DecisionBlock(commit, ids, newest_index=newest)
        block.done = partial(self._settled, chosen, done)
        self.core.enqueue(self.gid, block)


class PlanUnit(BulkUnit):
    """One transaction over several groups or in several parts."""

    def __init__(self, core: ProducerCore, plan: TxPlan, index: int, limit_wait_s: float) -> None:
        super().__init__(core, [plan.tx_id], [plan.query_id], [index])
        self.size, self._plan, self._limit_wait_s = plan.size, plan, limit_wait_s
        self._groups = plan.groups

    def prepare(self, done: Report) -> None:
        """See BulkUnit."""

        def finished(outcome: Outcome) -> None:
            self.core.release(self.size)
            problem = prepared(self._plan, outcome)
            if problem is not None:
                self.refuse(0, problem)
            self._plan.note_opened()
            if self._plan.newest_index >= 0:
                self.newest, self.repeated = (self._plan.newest_index,), {0} if self._plan.repeated else set()
            self._plan.parts = self._plan.single = None
            done(self)

        across_groups.prepare(self.core, self._plan, finished, self._limit_wait_s)

    def decide(self, commit: bool, chosen: Sequence[int], done: Report) -> None:
        """See BulkUnit."""
        newest, index = self.newest_of(commit, chosen), self._plan.home_index
        settled = partial(self._settled, chosen, done)
        across_groups.settle(self.core, self.tx_ids[0], self._groups, commit, settled, index, newest)


# ------------------------------------------------------------------------------------------------------------
# Many transactions over the same broker groups as one unit, with one block per group instead of one plan per
# transaction.
#
# The steps are those of one transaction (across_groups.py), taken for all of them at once: home's block, then
# the branches' blocks in parallel; likewise for the decision. A transaction that is refused on the way is
# left out of the next step and rolled back, and the others continue.


class SpreadUnit(BulkUnit):
    """Transactions with one part in each of the same groups, and with one home topic. ``given``: ids that the
    caller chose."""

    def __init__(
        self,
        core: ProducerCore,
        groups: Sequence[int],
        blocks: dict[int, PrepareBlock],
        indexes: list[int],
        given: set[str],
        limit_wait_s: float,
    ) -> None:
        home = blocks[groups[0]]
        super().__init__(core, list(home.tx_ids), list(home.query_ids), indexes)
        self.size = sum(block.size for block in blocks.values())
        self._groups, self._given, self._limit_wait_s = groups, given, limit_wait_s
        self._blocks: dict[int, PrepareBlock] | None = blocks
        self._home_index: list[int] | None = None

    def prepare(self, done: Report) -> None:
        """See BulkUnit."""
        assert self._blocks is not None
        parts = {gid: [block] for gid, block in self._blocks.items()}
        self._blocks = None
        staged = across_groups.StagedPrepare(
            self.core, self._groups, parts, self._limit_wait_s, partial(self._prepared, done)
        )
        staged.next_stage()

    def _prepared(self, done: Report, staged: across_groups.StagedPrepare) -> None:
        self.core.release(self.size)
        if staged.tracked:
            self._home_index = staged.home_index
        if any(tx_id in self._given for tx_id in self.tx_ids):
            self.newest = staged.newest_index
            self.repeated = {i for i in staged.repeated if self.tx_ids[i] in self._given}
        named: list[int] = []  # to roll back under home's index
        careful: list[int] = []  # the same, unless someone has continued it: ids that the caller chose
        bare: list[int] = []  # to roll back by id alone, which only this producer uses
        for i, tx_id in enumerate(self.tx_ids):
            problem, opened = staged.problems.get(i), staged.home_index[i] >= 0
            if problem is not None:
                given = tx_id in self._given
                if given and staged.left_open(i):
                    self.refuse(i, unprepared(tx_id, given, across_groups.left_open_failure(problem)))
                    continue
                self.refuse(i, prepare_problem(tx_id, *problem, opened=opened))
                if opened:
                    (careful if given else named).append(i)
                elif not (
                    staged.tracked
                    or problem[0] in across_groups.NOT_OURS
                    or (given and staged.refused_by_home(i))
                ):
                    bare.append(i)
            elif staged.failure is not None:
                given = tx_id in self._given
                nothing_done = staged.failure.nothing_done and not staged.any_prepared
                self.refuse(i, unprepared(tx_id, given and not nothing_done, staged.failure))
                if not given and not nothing_done:
                    (named if opened else bare).append(i)
        for chosen in (named, careful, bare):
            if chosen:
                ids = [self.tx_ids[i] for i in chosen]
                index = None if chosen is bare else [staged.home_index[i] for i in chosen]
                newest = [staged.newest_index[i] for i in chosen] if chosen is careful else ()
                finished = partial(self._undone, done, careful) if chosen is careful else _ignore
                across_groups.settle_many(
                    self.core, ids, list(staged.touched), False, finished, index, newest
                )
        if not careful:
            done(self)

    def _undone(self, done: Report, chosen: Sequence[int], outcome: Outcome) -> None:
        """The rollback of these, whose ids the caller chose, has ended: as for one transaction."""
        for n, i in enumerate(chosen):
            if isinstance(outcome, Failure):
                unknown = not outcome.nothing_done
            else:
                unknown = n in outcome and outcome[n][0] == ResultCode.RETRY
            if unknown:
                self.refuse(i, OutcomeUnknown(self.tx_ids[i]))
        done(self)

    def decide(self, commit: bool, chosen: Sequence[int], done: Report) -> None:
        """See BulkUnit."""
        known = self._home_index
        index = None if known is None else [known[i] for i in chosen]
        ids = [self.tx_ids[i] for i in chosen]
        newest = self.newest_of(commit, chosen) if index is not None else ()
        settled = partial(self._settled, chosen, done)
        across_groups.settle_many(self.core, ids, self._groups, commit, settled, index, newest)


def _ignore(_: Outcome) -> None:
    """The ``done`` of rollbacks whose outcome is ignored."""


class BlockBuilder:
    """Collects transactions over the same groups (home first) and with the same home topic, each with one
    part in each of the groups."""

    __slots__ = ("_contents", "_groups", "_home_topic", "ids", "indexes", "query_ids", "size", "tx_ids")

    def __init__(self, groups: Sequence[int], home_topic: str) -> None:
        self._groups, self._home_topic = groups, home_topic
        self.tx_ids: list[str] = []
        self.query_ids: list[str] = []
        self.indexes: list[int] = []  # positions in the caller's batch
        self.ids: set[str] = set()  # given ids only: generated ones never repeat
        self.size = 0
        self._contents = {gid: Content() for gid in groups}

    def add(
        self,
        tx_id: str,
        query_id: str,
        encoded: Sequence[Encoded],
        size: int,
        index: int,
        group_of: Callable[[str, int], int],
        later: Sequence[Later] = (),
    ) -> None:
        """Adds a transaction of ``size`` bytes; ``group_of``: see ``Encoder``."""
        self.tx_ids.append(tx_id)
        self.query_ids.append(query_id)
        self.indexes.append(index)
        self.size += size
        home = self._contents[self._groups[0]]
        if len(self._groups) == 1:
            home.add(encoded, later)
            return
        parts: dict[int, tuple[list[Encoded], list[Later]]] = {gid: ([], []) for gid in self._groups}
        for message in encoded:
            parts[group_of(message[0], message[1])][0].append(message)
        for delayed in later:
            parts[group_of(delayed.topic, delayed.partition)][1].append(delayed)
        for gid, part in parts.items():
            self._contents[gid].add(*part)
        # The digest that the home group remembers with the id covers all of its content, in all groups.
        home.digests[-1] = digest_of(encoded, later)

    def unit(
        self, core: ProducerCore, timeout_ms: int, given: set[str], limit_wait_s: float
    ) -> BlockUnit | SpreadUnit:
        """Everything collected, as a unit."""
        home, *others = self._groups
        ids = self.tx_ids, self.query_ids, bool(self.ids)
        blocks: dict[int, PrepareBlock] = {}
        for gid, content in self._contents.items():
            home_group = -1 if gid == home else home
            blocks[gid] = content.block(self._home_topic, home_group, timeout_ms, 0, *ids)
            core.encoder.pack_block(blocks[gid])
        if not others:
            return BlockUnit(core, home, blocks[home], self.indexes, given)
        blocks[home].participants = tuple(sorted(others))
        return SpreadUnit(core, self._groups, blocks, self.indexes, given, limit_wait_s)
