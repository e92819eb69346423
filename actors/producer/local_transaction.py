"""Calling the application's local transaction, and what its return value means.

The rule is in one place, since everything depends on it: returning means commit, raising means roll back, and
a callback that does not know says so.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from concurrent.futures import CancelledError
from types import FunctionType, MethodType
from typing import Any

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
