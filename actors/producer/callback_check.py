"""Finds callbacks that cannot be right, by their types, before anything is sent.

A callback that returns no valid decision leaves its transaction to the check, since by then it has run. Most
such mistakes show earlier: in the function's return annotation, or in its kind. If the type reveals nothing,
the callback is accepted, and its return value is judged (local_transaction.py).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable
from types import CodeType, FunctionType, MethodType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from escrowmq.replication.errors import InvalidMessage
from escrowmq.replication.model import TransactionState

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
