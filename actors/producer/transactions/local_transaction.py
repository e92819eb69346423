"""Calling the application's local transaction, and what its return value means.

The rule is in one place, since everything depends on it: returning means commit, raising means roll back, and
a callback that does not know says so.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from types import CodeType, FunctionType, MethodType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from escrowmq.feedback.database.producing import Ask, Guard
from escrowmq.replication.errors import InvalidDecision, InvalidMessage, OutcomeUnknown
from escrowmq.replication.model import Message, TransactionState

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
        for guard, asked in to_ask.values():
            states = guard.states([tx_ids[at] for at in asked])
            found.update(
                (at, state) for at, state in zip(asked, states, strict=True) if state is not wanted(at)
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


# ------------------------------------------------------------------------------------------------------------
# Finds callbacks that cannot be right, by their types, before anything is sent.
#
# A callback that returns no valid decision leaves its transaction to the check, since by then it has run.
# Most such mistakes show earlier: in the function's return annotation, or in its kind. If the type reveals
# nothing, the callback is accepted, and its return value is judged (local_transaction.py).

#: What most functions declare as their return type, if anything: no further check is needed.
_USUAL = ("", None, "None", bool, "bool", TransactionState, "TransactionState")
#: How many evaluated annotations are remembered: an application has some dozens of callbacks.
EVALUATED_MAX = 1_000
_EVALUATED: dict[tuple[CodeType, str], Any] = {}
_SEEN = (FunctionType, MethodType, type)
_NOT_RUN = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR | inspect.CO_COROUTINE
#: One sample of each type that a decision can have; and what a callback for many may return besides.
_SAMPLES: tuple[object, ...] = (None, True, TransactionState.COMMITTED)
_SAMPLES_OF_MANY: tuple[object, ...] = (*_SAMPLES, [], ())


def check_callable(
    local_transaction: object, *, awaits: bool = False, many: bool = False, also: tuple[object, ...] = ()
) -> None:
    """Raises InvalidMessage for a callback that cannot be called, would not run, or by its type returns no
    decision. This happens before anything is sent: after the local transaction it would be too late.

    ``awaits``: what it returns is awaited. ``many``: it decides a whole batch. ``also``: samples of what it
    may return besides.
    """
    if not callable(local_transaction):
        raise InvalidMessage(f"local_transaction must be callable, not {local_transaction!r:.80}")
    function = _function_of(local_transaction)
    if function is None:
        return
    flags = function.__code__.co_flags
    if flags & _NOT_RUN and not (awaits and flags & (inspect.CO_COROUTINE | inspect.CO_ITERABLE_COROUTINE)):
        if flags & inspect.CO_COROUTINE:
            raise InvalidMessage(
                f"local_transaction {function.__qualname__!r} is a coroutine function, which a blocking "
                "producer does not await; use producer.aio, or pass a plain function"
            )
        raise InvalidMessage(
            f"local_transaction {function.__qualname__!r} is a generator function: calling it runs "
            "none of it; return a decision instead of yielding"
        )
    if (returned := function.__annotations__.get("return", "")) in _USUAL or hasattr(function, "__wrapped__"):
        return  # (a decorated function has the annotations of what it wraps, and may return something else)
    kind = _evaluated(function, returned) if type(returned) is str else returned
    if not _may_be_decision(kind, awaits=awaits, samples=(_SAMPLES_OF_MANY if many else _SAMPLES) + also):
        raise InvalidMessage(
            f"local_transaction {function.__qualname__!r} returns {returned!r}, which is not a decision; "
            "it must return None, a bool or a TransactionState" + (", or one for each" if many else "")
        )


def _function_of(called: Any) -> FunctionType | None:
    """The Python function that runs when this object is called, if that can be determined."""
    if type(called) is FunctionType:  # nearly always
        return called
    while isinstance(called, functools.partial):
        called = called.func
    if not isinstance(called, _SEEN):
        called = inspect.getattr_static(type(called), "__call__", None)
    if isinstance(called, MethodType):
        called = called.__func__
    return called if isinstance(called, FunctionType) else None


def _evaluated(function: FunctionType, annotation: str) -> Any:
    """What an annotation in quotes means; Any if that cannot be determined. Cached, as it takes 50 us."""
    key = function.__code__, annotation
    kind = _EVALUATED.get(key)
    if kind is None:
        kind = _evaluated_now(function, annotation)
        if len(_EVALUATED) < EVALUATED_MAX:
            _EVALUATED[key] = kind
    return kind


def _evaluated_now(function: FunctionType, annotation: str) -> Any:
    alone = FunctionType(function.__code__, function.__globals__, closure=function.__closure__)
    alone.__annotations__ = {"return": annotation}
    try:
        return inspect.get_annotations(alone, eval_str=True)["return"]
    except Exception:  # the application's expression, e.g. a name that only type checkers import
        return Any


def _may_be_decision(kind: Any, *, awaits: bool, samples: tuple[object, ...]) -> bool:
    """Whether a value of this type can be one of the samples. If the type reveals nothing, it can."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType, Annotated):
        kinds = arguments[:1] if origin is Annotated else arguments
        return any(_may_be_decision(one, awaits=awaits, samples=samples) for one in kinds)
    if origin is Literal:
        return any(value is None or type(value) in (bool, TransactionState) for value in arguments)
    plain = origin or kind
    if plain is None or not isinstance(plain, type):
        return True
    if awaits and issubclass(plain, Awaitable):
        return not arguments or _may_be_decision(arguments[-1], awaits=False, samples=samples)
    try:
        return any(isinstance(sample, plain) for sample in samples)
    except TypeError:  # a protocol that cannot be checked at run time
        return True


# ------------------------------------------------------------------------------------------------------------
# What ``send_transactions``, with a list or with a table, and its callback are given: data types only.


@dataclass(frozen=True, slots=True)
class TransactionRequest:
    """One transaction of a batch; ``query_id`` and ``tx_id`` as in ``Producer.transaction``."""

    messages: Message | Sequence[Message]
    query_id: str | None = None
    tx_id: str | None = None


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """A prepared transaction of a batch; ``index``: its position in the batch."""

    tx_id: str
    query_id: str
    index: int
    _guards: Guards | None = field(default=None, repr=False, compare=False)

    @property
    def _guard(self) -> Guard | None:
        """See ``TransactionBase``."""
        return None if self._guards is None else self._guards.of(self.tx_id)

    def _guarded_by(self, guard: Guard) -> bool:
        """See ``TransactionBase``."""
        return self._guards is None or self._guards.add(self.tx_id, guard)


class TransactionColumns(NamedTuple):
    """For ``send_transactions_table``: the names of its columns. None: no row has that part."""

    value: str
    key: str | None
    tx_id: str | None
    query_id: str | None


#: An item of a batch.
Requested = TransactionRequest | tuple[Any, ...] | Message | list[Message]
#: Called with all prepared transactions; returns one decision for all, or a sequence with one for each.
LocalBatch = Callable[[list[PreparedTransaction]], Any]


def unpack(item: Requested) -> tuple[Sequence[Message], str | None, str | None]:
    """(messages, query_id, tx_id) of an item of a batch."""
    query_id: Any = None
    tx_id: Any = None
    messages: Any = item
    if type(item) is tuple:
        if not 1 <= len(item) <= 3:
            raise InvalidMessage("an item of a batch is (messages, query_id) or (messages, query_id, tx_id)")
        messages = item[0]
        query_id = item[1] if len(item) > 1 else None
        tx_id = item[2] if len(item) > 2 else None
    elif isinstance(item, TransactionRequest):
        messages, query_id, tx_id = item.messages, item.query_id, item.tx_id
    if isinstance(messages, Message):
        return (messages,), query_id, tx_id
    if not isinstance(messages, list | tuple) or not messages:
        raise InvalidMessage(f"expected a Message or a non-empty list of them, not {messages!r:.80}")
    return messages, query_id, tx_id
