"""Calling the application's local transaction, and what its return value means.

The rule is in one place, since everything depends on it: returning means commit, raising means roll back, and
a callback that does not know says so.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from types import FunctionType, MethodType
from typing import Any

from escrowmq.feedback.database.producing import Ask, Guard
from escrowmq.replication.errors import InvalidDecision, OutcomeUnknown
from escrowmq.replication.model import TransactionState

#: Returned value -> decision. None is what a function without a return statement returns: it ran to its end,
#: so its work is done, as in a ``with`` block.
_DECISIONS: dict[Any, TransactionState] = {
    None: TransactionState.COMMITTED,
    True: TransactionState.COMMITTED,
    False: TransactionState.ROLLBACK,
    TransactionState.COMMITTED: TransactionState.COMMITTED,
    TransactionState.ROLLBACK: TransactionState.ROLLBACK,
    TransactionState.UNKNOWN: TransactionState.UNKNOWN,
}


def decision_of(returned: Any) -> TransactionState:
    """The decision that a local transaction's return value stands for.

    Raises InvalidDecision for anything but None, a bool, COMMITTED, ROLLBACK or UNKNOWN; by then the local
    transaction has run, so the caller must leave the decision to the check.
    """
    if returned is None or type(returned) is bool or type(returned) is TransactionState:
        decision = _DECISIONS.get(returned)
        if decision is not None:
            return decision
    raise InvalidDecision(
        "a local transaction returns TransactionState.COMMITTED, ROLLBACK or UNKNOWN (or None or True to "
        f"commit, False to roll back), not {returned!r:.80}; the check decides this one"
    )


def leaves_open(error: BaseException) -> bool:
    """Whether an exception out of a local transaction says nothing about its outcome.

    OutcomeUnknown says so itself. An exception that is no ``Exception`` (KeyboardInterrupt, SystemExit, a
    cancelled task) can strike anywhere, even in the middle of a database's commit. A cancelled task that
    another thread waits for is an ``Exception`` there.
    """
    return isinstance(error, OutcomeUnknown | CancelledError) or not isinstance(error, Exception)


def comes_of_open(error: BaseException) -> bool:
    """Whether an exception is one that ``leaves_open``, is a group with one, or was raised from one (as a
    time-out is from the cancellation of what took too long). All that can be known without a fence."""
    look, seen = [error], set[int]()
    while look:
        each = look.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if leaves_open(each):
            return True
        if each.__cause__ is not None:
            look.append(each.__cause__)
        if isinstance(each, BaseExceptionGroup):
            look += each.exceptions
    return False


#: For all transactions of the process: it is held for two assignments.
GUARDING = threading.Lock()


class Guards:
    """The guards of one call of ``send_transactions``: of the fences that its callback enters."""

    def __init__(self) -> None:
        self._by_id: dict[str, Guard] = {}
        self._closed = False

    def add(self, tx_id: str, guard: Guard) -> bool:
        """From now on this one is asked; False: it is too late."""
        with GUARDING:
            if not self._closed:
                self._by_id[tx_id] = guard
            return not self._closed

    def of(self, tx_id: str) -> Guard | None:
        """The one of this transaction."""
        return self._by_id.get(tx_id)

    def close(self) -> None:
        """The transactions are about to be decided."""
        with GUARDING:
            self._closed = True

    def differing(
        self, tx_ids: Sequence[str], wanted: Callable[[int], TransactionState]
    ) -> dict[int, TransactionState]:
        """Of ``tx_ids``, by position, those that are to be decided otherwise than ``wanted``, since the
        database says so, or cannot say. Fences are asked for many at once."""
        to_ask: dict[Ask, tuple[Guard, list[int]]] = {}
        found: dict[int, TransactionState] = {}
        for at, tx_id in enumerate(tx_ids if self._by_id else ()):
            guard = self._by_id.get(tx_id)
            if guard is None or wanted(at) is TransactionState.UNKNOWN:
                continue
            if guard.known is None:
                to_ask.setdefault(guard.ask, (guard, []))[1].append(at)
            elif guard.known is not wanted(at):
                found[at] = guard.known
        for guard, places in to_ask.values():
            states = guard.states([tx_ids[at] for at in places])
            found.update(
                (at, state) for at, state in zip(places, states, strict=True) if state is not wanted(at)
            )
        return found


def call_local(function: Callable[..., Any], tx: Any) -> Any:
    """Calls ``function()``, ``function(tx)`` or ``function(tx_id, query_id)``, by its required arguments.

    Arguments with a default are left alone (``lambda order=order: ...`` uses one to capture a variable).
    """
    count = required_arguments(function)
    if count == 0:
        return function()
    if count == 1:
        return function(tx)
    return function(tx.tx_id, tx.query_id)


def required_arguments(function: Callable[..., Any]) -> int:
    """How many positional arguments a callable requires."""
    if type(function) is FunctionType:  # 0.1 us; inspect.signature takes 10
        return function.__code__.co_argcount - len(function.__defaults__ or ())
    if type(function) is MethodType and type(function.__func__) is FunctionType:
        return required_arguments(function.__func__) - 1
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some built-ins have no signature
        return 0
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(1 for p in parameters if p.kind in positional and p.default is p.empty)
