"""One transaction of a producer, from its first message to its decision, without any waiting.

States: collecting -> prepared -> decided; from any of them -> left (to the check). Shared by the blocking and
the asyncio interface, which add the waiting. The one rule behind all of it: once the local transaction may
have run, only its own outcome decides.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from escrowmq.actors.client.consumer_groups import TopicPartition
from escrowmq.actors.client.group_work import GroupWork, Reader, Span, work_of
from escrowmq.actors.producer.core import ProducerCore
from escrowmq.actors.producer.encoding.blocks import Encoded, Outcome
from escrowmq.actors.producer.encoding.delayed_messages import Later, Named, by_message, ids_of, named
from escrowmq.actors.producer.encoding.encoder import TxPlan, check_id, check_query_id
from escrowmq.actors.producer.fence_name import FenceName
from escrowmq.actors.producer.transactions import across_groups as across_groups
from escrowmq.actors.producer.transactions.local_transaction import (
    GUARDING,
    comes_of_open,
    decision_of,
    leaves_open,
)
from escrowmq.actors.producer.transactions.offset_blocks import first_block, only_offsets, with_offsets
from escrowmq.actors.producer.transactions.results import TransactionResult, decided, prepared
from escrowmq.feedback.database.producing import Guard
from escrowmq.replication.errors import (
    InvalidDecision,
    InvalidMessage,
    MessageTooLarge,
    OutcomeUnknown,
    TransactionConflict,
    TransactionRunning,
    TransactionSettled,
)
from escrowmq.replication.format.ops import ROLLBACK
from escrowmq.replication.limits import TIMEOUT_MS_MAX
from escrowmq.replication.model import Message, TransactionState

log = logging.getLogger(__name__)

#: No fence may enter any more.
_TOO_LATE = Guard(lambda checks: [TransactionState.UNKNOWN] * len(checks))


class Phase(enum.IntEnum):
    """Where a transaction stands for its producer. (Integers: hashing a plain enum takes 0.3 us in
    Python.)"""

    COLLECTING = 0
    PREPARING = 1
    PREPARED = 2
    DECIDING = 3
    DECIDED = 4
    FAILED = 5  # not prepared: nothing of it will ever be read
    LEFT = 6  # to the check

    @property
    def text(self) -> str:
        """For error messages."""
        return self.name.lower()


_NEXT: dict[Phase, tuple[Phase, ...]] = {
    Phase.COLLECTING: (Phase.PREPARING, Phase.FAILED, Phase.LEFT),
    Phase.PREPARING: (Phase.PREPARED, Phase.FAILED, Phase.LEFT),
    Phase.PREPARED: (Phase.DECIDING, Phase.LEFT),
    Phase.DECIDING: (Phase.DECIDED, Phase.LEFT),
    Phase.DECIDED: (),
    Phase.FAILED: (),
    Phase.LEFT: (),
}


class TransactionBase:
    """What both interfaces share. Not thread-safe: a transaction belongs to one thread or task."""

    __slots__ = (
        "_answer", "_core", "_decision", "_encoded", "_given_id", "_groups", "_home_index", "_later",
        "_local", "_named", "_newest_index", "_one_way_commit", "_phase", "_repeated", "_set_guard", "_size",
        "_taken_up", "_timeout_ms", "_work", "query_id", "tx_id",
    )  # fmt: skip

    def __init__(
        self,
        core: ProducerCore,
        query_id: str | None,
        tx_id: str | None,
        transaction_timeout_s: float | None,
        one_way_commit: bool | None,
        local: bool = True,
    ) -> None:
        core.check_open()
        self._core = core
        self._given_id = tx_id is not None
        self.tx_id = next(core.ids) if tx_id is None else check_id(tx_id)
        """The transaction's id, given or made here. Unique for the app."""
        self.query_id = self.tx_id if query_id is None else check_query_id(query_id)
        """What a check asks the application about."""
        self._timeout_ms = timeout_ms(transaction_timeout_s, core.config.transaction_timeout_s)
        one_way = core.config.one_way_commit if one_way_commit is None else one_way_commit
        self._one_way_commit = one_way
        self._phase, self._local = Phase.COLLECTING, local
        self._work: GroupWork | None = None
        self._decision: TransactionState | None = None
        self._encoded: list[Encoded] = []
        self._later: list[Later] = []  # kept: see schedule_ids
        self._named: list[Named | None] = []  # of each message, see TransactionResult.schedule_ids
        self._size = 0
        self._groups: Sequence[int] = ()  # home group first, once prepared
        self._home_index: int | None = None
        self._repeated, self._newest_index = False, -1  # see TxPlan
        self._answer: Callable[[Outcome], None] | None = None
        self._taken_up: TransactionSettled | None = None
        self._set_guard: Guard | None = None

    # ------------------------------------------------------------ for users

    @property
    def state(self) -> TransactionState:
        """COMMITTED or ROLLBACK once decided here; UNKNOWN when left to the check; otherwise PREPARE."""
        if self._decision is not None and self._phase in (Phase.DECIDED, Phase.FAILED):
            return self._decision
        if self._phase is Phase.FAILED:
            return TransactionState.ROLLBACK
        return TransactionState.UNKNOWN if self._phase is Phase.LEFT else TransactionState.PREPARE

    @property
    def given_id(self) -> bool:
        """Whether the application gave the id, so that another attempt or process may have run it before."""
        return self._given_id

    @property
    def repeated(self) -> bool:
        """After ``prepare``: whether the id was open already, so that another run may have carried out its
        local transaction: an earlier one of this process, one before a restart, or one of another instance.
        Such a transaction can be committed here, but not rolled back: the check decides."""
        return self._repeated

    @property
    def fence(self) -> bytes:
        """The name of the table that its producer's querier answers checks from, as far as it is known."""
        return self._core.fence

    @property
    def schedule_ids(self) -> tuple[str | None, ...]:
        """For each delayed message, in the order in which they were added, the id for ``Producer.cancel``.

        None for one with ``delay_s``, whose time is known only once the transaction is committed. Before that
        nothing can be cancelled.
        """
        return self._ids_of([named(one) for one in self._later])

    def _ids_of(self, messages: Sequence[Named | None]) -> tuple[str | None, ...]:
        return ids_of(self._core.app, self.tx_id, self._core.info.cluster_id, messages)

    @property
    def prepared(self) -> bool:
        """Whether the local transaction may run now: all messages are durable, and nothing is decided."""
        return self._phase is Phase.PREPARED

    @property
    def result(self) -> TransactionResult:
        """Id and state, and the ids of delayed messages."""
        state = self.state
        delayed = bool(self._later) and state is not TransactionState.ROLLBACK
        ids = self._ids_of(self._named) if delayed else ()
        return TransactionResult(self.tx_id, state, schedule_ids=ids)

    def unknown(self) -> None:
        """States that it is not known here whether the local transaction took place: the check will
        decide."""
        if self._phase not in (Phase.DECIDED, Phase.FAILED, Phase.LEFT):
            self._leave()

    @property
    def _guard(self) -> Guard | None:
        """What a fence knows of the local transaction; None: none has entered."""
        return None if self._set_guard is _TOO_LATE else self._set_guard

    def _guarded_by(self, guard: Guard) -> bool:
        """For a fence that has entered the local transaction, in any thread: unless it is known how that has
        ended, the database is asked before this transaction is decided here. False: it is too late."""
        with GUARDING:
            if self._phase is not Phase.PREPARED or self._set_guard is _TOO_LATE:
                return False
            self._set_guard = guard
            return True

    def __del__(self) -> None:
        # Dropped without a decision: its local transaction cannot run any more, so let it be checked.
        if getattr(self, "_phase", None) in (Phase.PREPARING, Phase.PREPARED, Phase.DECIDING):
            self._runs_no_more()

    # ------------------------------------------------------------ steps

    def _runs_no_more(self) -> None:
        """From here on, a check of it goes to the querier. Called once for a planned transaction."""
        if not self._given_id:
            self._core.running.made.discard(self.tx_id)
        elif self._groups:
            self._core.running.end_given(self.tx_id)

    def _to(self, phase: Phase) -> None:
        assert phase in _NEXT[self._phase], f"{self._phase} -> {phase}"
        self._phase = phase
        if phase >= Phase.DECIDED and self._work is not None:
            work, self._work = self._work, None
            work.ended(phase is Phase.DECIDED and self._decision is TransactionState.COMMITTED)

    def _take_work(self, reader: Reader | str, offsets: Mapping[TopicPartition, Span] | None) -> None:
        """See ``Transaction.send_offsets``. May block."""
        if self._phase is not Phase.COLLECTING or self._work is not None:
            raise InvalidMessage(
                f"transaction {self.tx_id!r} is {self._phase.text}: offsets are sent once, before prepare()"
            )
        placement, catalog = self._core.router.placement, self._core.catalog
        self._work = work_of(reader, offsets, placement.id_of, catalog.partitions)

    def _to_name(self) -> FenceName | None:
        """What must find out its fence's name before this transaction can be prepared; None: nothing."""
        naming = self._core.fence_name
        if naming is None or naming.ready or not self._local or self._phase is not Phase.COLLECTING:
            return None
        return naming if self._encoded or self._later or self._work is not None else None

    def _raise_unnamed(self, error: BaseException) -> NoReturn:
        """That attempt has failed, and nothing was prepared here. But an earlier run of an id of the
        application's own may have committed, and now nobody can ask."""
        if not self._given_id:
            raise error
        unknown = OutcomeUnknown(self.tx_id)
        unknown.add_note(f"(this run has prepared nothing, since its fence's table cannot be read: {error})")
        raise unknown from error

    def _add(self, messages: list[Message]) -> None:
        if self._phase is not Phase.COLLECTING:
            raise InvalidMessage(
                f"transaction {self.tx_id!r} is {self._phase.text}: messages are added before prepare()"
            )
        before = len(self._later)
        encoded, size = self._core.encoder.encode(messages, self.tx_id, self._later)
        limit = self._core.config.transaction_bytes_max
        if self._size + size > limit:
            del self._later[before:]
            raise MessageTooLarge(self._size + size, limit)
        self._named += by_message(messages, self._later[before:])
        self._encoded += encoded
        self._size += size

    def _plan(self) -> TxPlan | None:
        """What must be prepared; None if it is prepared, or has no message (then nothing needs a
        decision)."""
        if self._phase is Phase.PREPARED:
            return None
        if self._phase is not Phase.COLLECTING:
            raise InvalidMessage(f"transaction {self.tx_id!r} is {self._phase.text}: it cannot be prepared")
        work = self._work
        if work is not None:
            work.check()
        if not (self._encoded or self._later or (work is not None and work.spans)):
            self._to(Phase.PREPARING)
            self._to(Phase.PREPARED)
            return None
        plan = self._made_plan()
        if self._given_id and not self._core.running.begin_given(self.tx_id):
            raise TransactionRunning(self.tx_id, TransactionState.PREPARE.value)
        self._to(Phase.PREPARING)
        self._encoded = []
        self._groups = plan.groups
        if not self._given_id:
            self._core.running.made.add(self.tx_id)
        return plan

    def _made_plan(self, home_group: int | None = None) -> TxPlan:
        work = self._work
        ids, how = (self.tx_id, self.query_id), (self._timeout_ms, self._given_id)
        if self._encoded or self._later:
            plan = self._core.encoder.plan(*ids, self._encoded, self._size, *how, self._later, home_group)
        else:
            assert work is not None
            plan = only_offsets(*ids, work, work.gid(self._core.info.groups), *how)
        if work is not None:
            with_offsets(plan, work, work.gid(self._core.info.groups))
            self._size = plan.size
        if not self._local:
            first_block(plan).on_timeout = ROLLBACK
        return plan

    def _start_prepare(self, plan: TxPlan, done: Callable[[Outcome], None]) -> None:
        """Sends the PREPARE. Room for the plan's bytes must have been reserved; the answer releases it."""
        self._answer = done
        across_groups.prepare(self._core, plan, self._prepare_answered, self._core.config.open_limit_wait_s)

    def _prepare_answered(self, outcome: Outcome) -> None:
        """Called in the router's thread."""
        self._core.release(self._size)
        answer, self._answer = self._answer, None
        assert answer is not None
        answer(outcome)

    def _not_prepared(self) -> None:
        self._runs_no_more()
        self._to(Phase.FAILED)

    def _after_prepare(self, plan: TxPlan, outcome: Outcome) -> TransactionState | None:
        """None: prepared. A state: the same transaction was settled so before. Otherwise raises the
        reason."""
        problem = prepared(plan, outcome)
        self._home_index = plan.home_index
        plan.note_opened()
        self._repeated, self._newest_index = plan.repeated, plan.newest_index
        if problem is None:
            self._to(Phase.PREPARED)
            return None
        self._runs_no_more()
        if isinstance(problem, TransactionState):
            self._decision = problem
            self._to(Phase.FAILED)
            return problem
        topic = getattr(problem, "topic", None)
        if topic is not None:
            self._core.catalog.forget(topic)
        self._to(Phase.LEFT if isinstance(problem, OutcomeUnknown) else Phase.FAILED)
        raise problem

    def _settled_before(self, recorded: TransactionState) -> TransactionSettled:
        """What ``prepare`` raises so that the local transaction is not run. If it was committed, this
        exception leaves the block, which then ends as if the local transaction had run: see ``_takes_up``."""
        error = TransactionSettled(self.tx_id, recorded.value)
        if recorded is TransactionState.COMMITTED:
            self._taken_up = error
        return error

    def _takes_up(self, error: BaseException | None) -> bool:
        """Whether the exception leaving the block only says that this transaction was committed before."""
        taken_up, self._taken_up = self._taken_up, None  # an error holds its frames, which hold this object
        return error is not None and error is taken_up

    def _commits(self, returned: object) -> bool | None:
        """Whether the local transaction's return value means commit; None: it is left to the check.

        Raises InvalidDecision for an invalid value, and leaves the transaction to the check then too.
        """
        try:
            decision = decision_of(returned)
        except InvalidDecision:
            self.unknown()
            raise
        if decision is TransactionState.UNKNOWN or (
            decision is TransactionState.ROLLBACK and not self._may_roll_back()
        ):
            self.unknown()
            return None
        return decision is TransactionState.COMMITTED

    def _leave(self) -> None:
        self._runs_no_more()
        self._to(Phase.LEFT)

    def _end_failed(self) -> None:
        """The end of the block was refused or interrupted. If nothing was sent, nothing will be: whoever read
        for this transaction must hear of it, too."""
        if self._phase is Phase.COLLECTING:
            self._to(Phase.FAILED)

    def _to_ask(self, commit: bool) -> Guard | None:
        """The guard that must be asked before this decision; None: it agrees, or there is none, and no fence
        enters from here on."""
        if self._phase is not Phase.PREPARED or not self._groups:
            return None
        with GUARDING:
            guard = self._set_guard
            if guard is None:
                self._set_guard = _TOO_LATE
        if guard is None or guard is _TOO_LATE:
            return None
        known = TransactionState.COMMITTED if commit else TransactionState.ROLLBACK
        return None if guard.known is known else guard

    def _as_asked(self, state: TransactionState) -> bool:
        """Whether to commit, after the guard's answer; raises OutcomeUnknown if that is left to the check."""
        if state is TransactionState.UNKNOWN:
            self._leave()
            unknown = OutcomeUnknown(self.tx_id)
            unknown.add_note(
                "(the database transaction with the fence's row has not ended, or the database cannot be "
                "asked; the check asks again)"
            )
            raise unknown
        return state is TransactionState.COMMITTED

    def _start_decision(self, commit: bool, done: Callable[[Outcome], None]) -> bool:
        """Sends the decision; False if there is nothing to send (no message was prepared)."""
        self._to(Phase.DECIDING)
        self._decision = TransactionState.COMMITTED if commit else TransactionState.ROLLBACK
        if not self._groups:
            self._to(Phase.DECIDED)
            return False
        newest = (self._newest_index,) if self._newest_index >= 0 and not commit else ()
        across_groups.settle(self._core, self.tx_id, self._groups, commit, done, self._home_index, newest)
        return True

    def _after_decision(self, outcome: Outcome) -> None:
        self._runs_no_more()
        problem = decided(self.tx_id, outcome)
        if problem is None:
            self._to(Phase.DECIDED)
            return
        if isinstance(problem, TransactionConflict):
            self._decision = TransactionState(problem.recorded_state)
            self._to(Phase.DECIDED)
        else:
            self._to(Phase.LEFT)
        raise problem

    def _needs_no_answer(self, commit: bool) -> bool:
        """True: it was already decided so, or a one-way commit was sent, whose answer is not waited for.

        Raises TransactionSettled if it was decided otherwise, OutcomeUnknown if it is left to the check.
        """
        if self._phase in (Phase.DECIDED, Phase.FAILED):
            if self.state is not (TransactionState.COMMITTED if commit else TransactionState.ROLLBACK):
                raise TransactionSettled(self.tx_id, self.state.value)
            return True
        if self._phase is Phase.PREPARED and not (commit or self._may_roll_back()):
            self._leave()
        if self._phase is not Phase.PREPARED:
            raise OutcomeUnknown(self.tx_id)
        if not (commit and self._one_way_commit):
            return False
        if self._start_decision(True, self._log_one_way):
            self._runs_no_more()  # the check must not find it running
            self._to(Phase.DECIDED)
        return True

    def _may_roll_back(self) -> bool:
        """Whether this run may say that the local transaction did not take place. Not in a repetition: it
        knows of its own local transaction only, and the run before it may have committed its one. (A rollback
        names the newest PREPARE too, so that it fails if a repetition has come since.) But a fence is asked
        before a rollback, and knows of all runs."""
        return not (self._repeated and self._local) or self._guard is not None

    def _must_roll_back(self, error: BaseException) -> bool:
        """After an exception in the local transaction (or around it): whether to roll back."""
        if self._phase is Phase.COLLECTING:
            self._to(Phase.FAILED)  # nothing was sent
        elif self._phase in (Phase.PREPARING, Phase.DECIDING):
            self._leave()  # interrupted while waiting
        elif self._phase is Phase.PREPARED:
            if not self._local and not isinstance(error, Exception):
                self._roll_back_unheard()
            elif not self._may_roll_back():
                error.add_note(repetition(self.tx_id))
                self._leave()
            # A guard knows more than an exception does: see _to_ask.
            elif not (leaves_open(error) if self._guard is not None else comes_of_open(error)):
                return True
            else:
                self._leave()
        return False

    def _roll_back_unheard(self) -> None:
        """Sends the rollback and does not wait for its answer: whoever would wait is being ended. If it is
        lost, the time-out rolls back."""
        if self._start_decision(False, self._log_unheard):
            self._runs_no_more()
            self._to(Phase.DECIDED)

    def _log_unheard(self, outcome: Outcome) -> None:
        if outcome:
            log.warning("rollback of %s: %s; it is rolled back at its time-out", self.tx_id, outcome)

    def _log_one_way(self, outcome: Outcome) -> None:
        if outcome:
            log.warning("one-way commit of %s: %s; the check will decide", self.tx_id, outcome)


def timeout_ms(given_s: object, configured_s: object) -> int:
    """Time to the first check in ms; 0: the topic's setting. Raises InvalidMessage."""
    chosen = configured_s if given_s is None else given_s
    if chosen is None:
        return 0
    longest = TIMEOUT_MS_MAX // 1000  # a broker would refuse more, and whatever is in the same request
    if isinstance(chosen, bool) or not isinstance(chosen, int | float) or not 0 < chosen <= longest:
        raise InvalidMessage(
            f"transaction_timeout_s must be a number of seconds above 0, up to {longest} (ten years), not "
            f"{chosen!r:.80}"
        )
    return max(int(chosen * 1000), 1)


def repetition(tx_id: str) -> str:
    """Note on an application's exception in a run that was not the first."""
    return (
        f"(escrowmq: transaction {tx_id!r} was prepared before, and an earlier run may have committed: so "
        "this exception does not roll it back; the check will decide)"
    )


def unconfirmed(tx_id: str) -> str:
    """Note on an application's exception when its rollback was not answered."""
    return f"(escrowmq: the rollback of transaction {tx_id!r} could not be confirmed; the check will decide)"
