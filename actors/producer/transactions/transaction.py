"""One transaction of a producer in a ``with`` block: the blocking interface to ``transaction_base``."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from escrowmq.actors.client.consumer_groups import TopicPartition
from escrowmq.actors.client.group_work import Reader, Span
from escrowmq.actors.client.wakeup import Waiter
from escrowmq.actors.producer.encoding.blocks import Outcome
from escrowmq.actors.producer.transactions.transaction_base import Phase, TransactionBase, unconfirmed
from escrowmq.replication.errors import OutcomeUnknown, TransactionConflict, TransactionSettled
from escrowmq.replication.model import Message, TransactionState

#: Every wait ends at its own deadline; this only guards against a bug that would lose an answer.
GUARD_S = 15.0


class Transaction(TransactionBase):
    """A transaction in a ``with`` block.

    ::

        with producer.transaction(query_id="42") as tx:
            tx.send(Message("orders", b"..."))
            tx.prepare()       # durable, and invisible to everyone
            db.commit()        # the local transaction

    The end of the block commits. An exception rolls back and propagates; but OutcomeUnknown, and an exception
    that is no ``Exception`` (an interrupt), leave the decision to the check, as ``tx.unknown()`` does.
    Without ``prepare()`` the messages are prepared and committed at the end of the block, which is right only
    if there is no local transaction.

    ``prepare`` raises whatever prevents the transaction from being opened: nothing of it will be read, so do
    not run the local transaction. If this same transaction was settled before, it raises TransactionSettled;
    if it was committed, that exception ends at the end of the block, and ``state`` is COMMITTED.
    TransactionIdTaken: the id has other content; TransactionRunning: this producer is running it now. The end
    of the block raises OutcomeUnknown if the decision could not be confirmed (never roll the local
    transaction back because of it), and TransactionSettled if an operator or a check has decided otherwise.
    """

    __slots__ = ()

    def send(self, *messages: Message) -> None:
        """Adds messages. They are checked now and sent by ``prepare``."""
        self._add(list(messages))

    def send_offsets(
        self, reader: Reader | str, offsets: Mapping[TopicPartition, Span] | None = None
    ) -> None:
        """The commit moves a consumer group's committed offsets too: so what is sent, and how far was read
        for it, count together or not at all.

        ``reader``: a consumer with a group, for what its ``poll`` has returned since, in each partition up to
        the lowest record that was nacked. A nack is a part of this transaction, also behind this call, until
        ``prepare``. Unless it is committed, the consumer then polls the same again, and the nacks were none.
        Best called right after ``poll``, before anything can fail. Raises ConfigError for a consumer whose
        group retries with order "concurrent"; InvalidMessage, as ``prepare``, if nacked records wait in a
        consumer without ``retry``. Or the name of a group, with ``offsets``: (topic,
        partition) -> (from, to): the group's committed offset (-1: it has none), and the next one to read.

        Once, before ``prepare``, which raises OffsetsMoved if the group is no longer where the work began,
        OffsetsPending if another open transaction holds its offset, StaleMember if the consumer has lost a
        partition (as this does, if a ``poll`` has noticed it), GroupKindMismatch for a share group.
        """
        self._take_work(reader, offsets)

    def prepare(self) -> None:
        """Makes the messages durable; run the local transaction when this returns."""
        recorded = self._prepare()
        if recorded is not None:
            raise self._settled_before(recorded)

    def _prepare(self) -> TransactionState | None:
        """The recorded state if the same transaction was settled before, otherwise None."""
        if (naming := self._to_name()) is not None:
            try:
                naming.check()
            except Exception as error:
                self._raise_unnamed(error)
        plan = self._plan()
        if plan is None:
            return None
        try:
            self._core.reserve(plan.size)
        except BaseException:  # an interrupt, too
            self._not_prepared()
            raise
        waiter = Waiter()
        self._start_prepare(plan, waiter.done)
        return self._after_prepare(plan, self._wait(waiter))

    def commit(self) -> None:
        """Commits now instead of at the end of the block. Repeating it is harmless."""
        self._decide(True)

    def rollback(self) -> None:
        """Rolls back now: none of the messages will ever be read."""
        if self._phase is Phase.COLLECTING:
            self._to(Phase.FAILED)
            return
        self._decide(False)

    def _decide(self, commit: bool) -> None:
        if self._phase is Phase.COLLECTING:
            self._prepare()  # if it was settled before, that stands: see _needs_no_answer
        guard, wanted = self._to_ask(commit), commit
        if guard is not None:
            try:
                (state,) = guard.states([self.tx_id])
            except BaseException:  # an interrupt
                self._leave()
                raise
            commit = self._as_asked(state)
        self._carry_out(commit)
        if commit is not wanted:
            raise TransactionSettled(self.tx_id, self.state.value)

    def _carry_out(self, commit: bool) -> None:
        if self._needs_no_answer(commit):
            return
        waiter = Waiter()
        if self._start_decision(commit, waiter.done):
            self._after_decision(self._wait(waiter))

    def _wait(self, waiter: Waiter) -> Outcome:
        config = self._core.config
        # Two rounds: a decision in several groups waits for the home group, then for the others.
        try:
            if not waiter.wait(2 * config.delivery_timeout_s + config.open_limit_wait_s + GUARD_S):
                raise OutcomeUnknown(self.tx_id)
        except BaseException:  # an interrupt: nobody will hear the answer
            self._leave()
            raise
        outcome: Outcome = waiter.value
        return outcome

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if self._takes_up(error):
            return True
        if error is None:
            if self._phase in (Phase.COLLECTING, Phase.PREPARED):
                try:
                    self._decide(True)
                except BaseException:
                    self._end_failed()
                    raise
        elif self._must_roll_back(error):
            try:
                self._decide(False)
            except OutcomeUnknown:
                error.add_note(unconfirmed(self.tx_id))
            except TransactionConflict as conflict:
                raise conflict from error
        return False
