"""A producer's transactions without any waiting: beside the blocking and the asyncio interface, the third one
over ``TransactionBase``. An answer is a call, at its own virtual time."""

from __future__ import annotations

from collections.abc import Callable

from escrowmq.actors.client.group_work import GroupWork
from escrowmq.actors.producer.encoding.blocks import Outcome
from escrowmq.actors.producer.encoding.encoder import TxPlan
from escrowmq.actors.producer.transactions.numbered import Numbered
from escrowmq.actors.producer.transactions.transaction_base import Phase, TransactionBase
from escrowmq.replication.model import Message, TransactionState


class SteppedTransaction(TransactionBase):
    """Its steps: ``add``, ``plan``, ``start_prepare``, ``after_prepare``, ``start_decision``,
    ``after_decision``."""

    __slots__ = ()

    def add(self, messages: list[Message], work: GroupWork | None = None) -> None:
        """The content, and what is consumed with it."""
        self._add(messages)
        if work is not None:
            self._work = work

    def has_own_id(self) -> None:
        """The producer has made its id, although this names it."""
        self._given_id = False

    def plan(self) -> TxPlan | None:
        """What is to be prepared, once room is reserved for it; None: there is no room, and this ends."""
        plan = self._plan()
        assert plan is not None
        if not self._core.try_reserve(plan.size):
            self._not_prepared()
            return None
        return plan

    def start_prepare(self, plan: TxPlan, prepared: Callable[[Outcome], None]) -> None:
        self._start_prepare(plan, prepared)

    def after_prepare(self, plan: TxPlan, outcome: Outcome) -> TransactionState | None:
        """See ``TransactionBase``: None: prepared; a state: settled before; otherwise raises the reason."""
        return self._after_prepare(plan, outcome)

    def must_roll_back(self, error: Exception) -> bool:
        """After this error in the local transaction."""
        return self._must_roll_back(error)

    def commits_one_way(self) -> bool:
        """Send a commit whose answer nobody waits for; False: this one's answer is needed."""
        self._one_way_commit = True
        return self._needs_no_answer(True)

    def start_decision(self, commit: bool, decided: Callable[[Outcome], None]) -> None:
        """Something was prepared, so there is something to decide."""
        if not self._start_decision(commit, decided):
            raise AssertionError("a transaction without messages was prepared")

    def after_decision(self, outcome: Outcome) -> None:
        self._after_decision(outcome)
        assert self._phase is Phase.DECIDED


class SteppedNumbered(SteppedTransaction, Numbered):
    """A numbered batch, likewise."""

    __slots__ = ()
