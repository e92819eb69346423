"""The units in which a batch of transactions is sent: blocks of simple ones, and single plans.

Both are prepared, then decided, and remember per transaction only what deviates from success. They report to
their run (bulk.py) from the router's thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from escrowmq.actors.client.failures import Failure
from escrowmq.actors.producer import across_groups as flows
from escrowmq.actors.producer.blocks import Column, DecisionBlock, Outcome, Placed, PrepareBlock, Problems
from escrowmq.actors.producer.collected import Collected, add_rows
from escrowmq.actors.producer.core import ProducerCore
from escrowmq.actors.producer.delayed_blocks import LaterColumns, add_later, digest_with
from escrowmq.actors.producer.delayed_messages import Later
from escrowmq.actors.producer.encoder import TxPlan, crc32c, digest_of
from escrowmq.actors.producer.results import TransactionResult, decided, prepare_problem, prepared, unprepared
from escrowmq.replication.errors import (
    EscrowMQError,
    OutcomeUnknown,
    TooManyOpenTransactions,
    TransactionConflict,
)
from escrowmq.replication.model import TransactionState

COMMITTED, ROLLBACK, UNKNOWN = TransactionState.COMMITTED, TransactionState.ROLLBACK, TransactionState.UNKNOWN
Report = Callable[["BulkUnit"], None]


class BulkUnit(ABC):
    """Some transactions of a batch. ``exceptions``: position in the unit -> result, for the settled ones.

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

    def open_places(self) -> Sequence[int]:
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

    def refuse(self, place: int, problem: EscrowMQError | TransactionState) -> None:
        """The transaction is not prepared: settled before, or an error. Nothing of this attempt will be
        read."""
        tx_id = self.tx_ids[place]
        if isinstance(problem, TransactionState):
            self.exceptions[place] = TransactionResult(tx_id, problem)
            return
        topic = getattr(problem, "topic", None)
        if topic is not None:
            self.core.catalog.forget(topic)
        state = UNKNOWN if isinstance(problem, OutcomeUnknown) else ROLLBACK
        self.exceptions[place] = TransactionResult(tx_id, state, problem)

    def leave(self, place: int) -> None:
        """The transaction is left to the check, although the callback decided."""
        self._undecided(place, OutcomeUnknown(self.tx_ids[place]))

    def newest_of(self, commit: bool, places: Sequence[int]) -> Sequence[int]:
        """The condition of a rollback of ``places``: see DecisionBlock."""
        return [self.newest[place] for place in places] if self.newest and not commit else ()

    def settled(self, places: Sequence[int], outcome: Outcome) -> None:
        """Takes the answer to a decision on ``places``."""
        if isinstance(outcome, Failure):
            for place in places:
                self._undecided(place, OutcomeUnknown(self.tx_ids[place]))
            return
        for i, problem in outcome.items():
            tx_id = self.tx_ids[places[i]]
            error = decided(tx_id, {0: problem})
            assert error is not None
            self._undecided(places[i], error)

    def _undecided(self, place: int, error: EscrowMQError) -> None:
        state = TransactionState(error.recorded_state) if isinstance(error, TransactionConflict) else UNKNOWN
        self.exceptions[place] = TransactionResult(self.tx_ids[place], state, error)

    @abstractmethod
    def prepare(self, done: Report) -> None:
        """Sends the transactions; room must have been reserved."""

    @abstractmethod
    def decide(self, commit: bool, places: Sequence[int], done: Report) -> None:
        """Sends the decision on ``places``."""


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
            for place, tx_id in enumerate(self.tx_ids):
                self.refuse(place, unprepared(tx_id, tx_id in self._given, outcome))
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
        for place, (code, info) in problems.items():
            tx_id = self.tx_ids[place]
            if perhaps_open and flows.may_be_open(code):
                if tx_id in self._given:
                    failure = flows.left_open_failure((code, info))
                    self.refuse(place, unprepared(tx_id, True, failure))
                    continue
                ours.append(tx_id)
            self.refuse(place, prepare_problem(tx_id, code, info))
        if ours:
            self.core.enqueue(self.gid, DecisionBlock(False, ours))

    def take_apart(self, places: list[int]) -> BlockUnit:
        """Moves the transactions at ``places`` to a new unit, to be prepared again."""
        assert self._block is not None
        again = BlockUnit(
            self.core, self.gid, self._block.select(places), [self.indexes[i] for i in places], self._given
        )
        gone = set(places)
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
            place
            for place, result in self.exceptions.items()
            if isinstance(result.error, TooManyOpenTransactions)
        ]

    def forget_rows(self) -> None:
        """After prepare: frees the messages, which the broker now has."""
        self._block = None

    def decide(self, commit: bool, places: Sequence[int], done: Report) -> None:
        """See BulkUnit."""
        everyone = len(places) == len(self.tx_ids)
        newest = self.newest_of(commit, places)
        ids = self.tx_ids if everyone else [self.tx_ids[i] for i in places]
        block = DecisionBlock(commit, ids, newest_index=newest)

        def finished(outcome: Outcome) -> None:
            self.settled(places, outcome)
            done(self)

        block.done = finished
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

        flows.prepare(self.core, self._plan, finished, self._limit_wait_s)

    def decide(self, commit: bool, places: Sequence[int], done: Report) -> None:
        """See BulkUnit."""

        def finished(outcome: Outcome) -> None:
            self.settled(places, outcome)
            done(self)

        newest, index = self.newest_of(commit, places), self._plan.home_index
        flows.settle(self.core, self.tx_ids[0], self._groups, commit, finished, index, newest)


class BlockBuilder(Collected):
    """Collects simple transactions of one group and home topic into columns."""

    __slots__ = ("_columns", "_digests", "_later", "gid")

    def __init__(self, gid: int, home_topic: str) -> None:
        super().__init__(home_topic)
        self.gid = gid
        self._digests: list[int] = []
        self._columns: dict[tuple[str, int], Column] = {}
        self._later: LaterColumns = {}

    def add(
        self,
        tx_id: str,
        query_id: str,
        placed: Sequence[Placed],
        size: int,
        index: int,
        later: Sequence[Later] = (),
    ) -> None:
        """Adds a transaction."""
        place = self.note(tx_id, query_id, size, index)
        add_rows(self._columns, place, placed)
        single = len(placed) == 1
        digest = crc32c(placed[0][2]) if single else digest_of([row for _, _, row in placed])
        if later:
            add_later(self._later, place, later)
            digest = digest_with(digest, later)
        self._digests.append(digest)

    def unit(self, core: ProducerCore, timeout_ms: int, given: set[str]) -> BlockUnit:
        """Everything collected, as a unit."""
        block = PrepareBlock(
            self.home_topic,
            -1,
            timeout_ms,
            0,
            self.tx_ids,
            self.query_ids,
            self._digests,
            self._columns,
            self.size,
            bool(self.ids),
        )
        block.later = self._later
        core.encoder.pack_block(block)
        return BlockUnit(core, self.gid, block, self.indexes, given)
