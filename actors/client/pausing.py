"""Failures that are not the message's: what a handler needs is away. ``run`` waits then, and counts no
attempt.

What is to be waited for is said by the application (``pause_on``), and by the inbox, which knows its
database. A handler often raises an error of its own for that, so an error counts with everything that led to
it. A message that ends the database whenever it is handled looks the same, and waits for ever: the log and
the statistics tell so.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias

from escrowmq.replication.calling.patience import Backoff
from escrowmq.replication.errors import ConfigError

#: Classes of exceptions, or a function that is given one.
PauseOn: TypeAlias = type[BaseException] | Sequence[type[BaseException]] | Callable[[BaseException], bool]
#: Says of one error whether to wait.
Concerns: TypeAlias = Callable[[BaseException], bool]

#: The first pause is over before a database that was restarted takes connections, the longest is what a
#: handler is late at most once it is back.
PAUSES = Backoff(first_s=0.5, longest_s=30.0)
#: Errors of a chain or a group that are looked at: a chain may be made without end.
ERRORS_MAX = 100
#: How often the log says that the same consumer waits.
TELL_S = 30.0


def pause_on(given: object, inbox: object = None) -> Concerns:
    """Whether an error of a handler, or one that it wraps, is to be waited out. Raises ConfigError."""
    asked = [_asked(given)]
    away = getattr(inbox, "is_away", None)
    if callable(away):
        asked.append(away)

    def concerns(failure: BaseException) -> bool:
        return any(says(error) for error in errors_of(failure) for says in asked)

    return concerns


def _asked(given: Any) -> Concerns:
    if isinstance(given, type) and issubclass(given, BaseException):
        given = (given,)
    if isinstance(given, list | tuple | set | frozenset):
        kinds = tuple(given)
        if all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
            return lambda error: isinstance(error, kinds)
    elif callable(given) and not isinstance(given, type) and not inspect.iscoroutinefunction(given):
        says = given
        return lambda error: bool(says(error))
    raise ConfigError(
        "pause_on is exception classes, such as (ConnectionError, TimeoutError), or a plain function that "
        f"says of an exception whether to wait, not {given!r:.80}"
    )


def errors_of(failure: BaseException) -> Iterator[BaseException]:
    """An error, what it was raised from or while handling, and the members of groups."""
    waiting, seen = [failure], set[int]()
    while waiting and len(seen) < ERRORS_MAX:
        error = waiting.pop()
        if id(error) in seen:
            continue
        seen.add(id(error))
        yield error
        if isinstance(error, BaseExceptionGroup):
            waiting += error.exceptions
        if error.__cause__ is not None:
            waiting.append(error.__cause__)
        elif error.__context__ is not None and not error.__suppress_context__:
            waiting.append(error.__context__)


class Gate:
    """Keeps all handlers of one ``run`` from more messages for a while, longer each time. Not thread-safe."""

    def __init__(self) -> None:
        self._pauses, self._until = 0, float("-inf")
        self._told_at = float("-inf")

    def shut(self, now: float) -> float | None:
        """A handler could not work now. The pause, if it begins with this one: those that were at work when
        it began fail, too."""
        if now < self._until:
            return None
        pause_s = PAUSES.pause_s(self._pauses)
        self._pauses, self._until = self._pauses + 1, now + pause_s
        return pause_s

    def tells(self, now: float) -> bool:
        """Whether the log is to say so again."""
        if now < self._told_at + TELL_S:
            return False
        self._told_at = now
        return True

    def left_s(self, now: float) -> float:
        """How long it stays shut."""
        return max(self._until - now, 0.0)

    def open(self) -> bool:
        """A handler has worked. Whether it was shut before."""
        was, self._pauses = self._pauses > 0, 0
        self._until = self._told_at = float("-inf")
        return was


# ------------------------------------------------------------------------------------------------------------
# Finds handlers that cannot be right before they get a message.
#
# A handler that returns has handled its message. One that is a coroutine function returns at once, and
# without ``.aio`` nobody runs it: all messages would count as handled. One that cannot be called, or not with
# what ``run`` gives it, would make all of them dead letters.


def check_handler(handler: Any, *, awaits: bool = False, arguments: Sequence[str] = ("record",)) -> None:
    """Raises ConfigError. ``awaits``: what it returns is awaited; ``arguments``: what it is called with."""
    if not callable(handler):
        raise ConfigError(f"handler must be callable, not {handler!r:.80}")
    _check_arguments(handler, arguments)
    while isinstance(handler, functools.partial):
        handler = handler.func
    called = handler if inspect.isroutine(handler) else getattr(type(handler), "__call__", handler)  # noqa: B004
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise ConfigError(
            f"handler {handler!r:.80} is a generator function: calling it runs none of it; do not yield"
        )
    if inspect.iscoroutinefunction(called) and not awaits:
        raise ConfigError(
            f"handler {handler!r:.80} is a coroutine function, which a blocking consumer does not await; use "
            "consumer.aio.run, or pass a plain function"
        )


def _check_arguments(handler: Any, arguments: Sequence[str]) -> None:
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):  # of a function in C, which may not tell
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        hint = "" if len(arguments) > 1 else "; with inbox=, it is called with a database as well"
        raise ConfigError(
            f"handler {handler!r:.80} cannot be called as handler({', '.join(arguments)}): {error}{hint}"
        ) from error


def check_returned(returned: Any) -> None:
    """Raises TypeError if a handler that nobody awaits has returned a coroutine."""
    if inspect.iscoroutine(returned):
        returned.close()
        raise TypeError("the handler returned a coroutine, which nobody awaits; use consumer.aio.run")


# ------------------------------------------------------------------------------------------------------------
# Handlers that an inbox lets handle each record once: what ``run(handler, inbox=...)`` makes of them.
#
# A handler then gets the record and a database transaction, which is committed before the record is settled.
# A record that comes again, because its settling was lost, is settled without the handler.


class HandlesOnce(Protocol):
    """An inbox of ``escrowmq.integrations``."""

    group: str

    def handler(self, work: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
        """``work(record, db)`` as a handler of a record, or as a coroutine function if ``work`` is one."""


def once(
    handler: Callable[..., Any], inbox: HandlesOnce | None, group: str | None, *, awaited: bool
) -> Callable[[Any], Any]:
    """The handler of a record that ``run`` calls, or awaits. Raises ConfigError for another group's inbox,
    and for a handler or an inbox of the other kind: a coroutine that nobody awaits would be taken for done.
    """
    check_handler(handler, awaits=awaited, arguments=("record",) if inbox is None else ("record", "db"))
    if inbox is None:
        return handler
    if not callable(getattr(inbox, "handler", None)):
        raise ConfigError(f"inbox must be an Inbox of escrowmq.integrations, not {type(inbox).__name__}")
    if inbox.group != group:
        raise ConfigError(
            f"the inbox is that of group {inbox.group!r}, and this is group {group!r}: they must be the "
            "same, since the inbox's rows go when the group is past them"
        )
    made = inbox.handler(handler)
    if inspect.iscoroutinefunction(made) is not awaited:
        raise ConfigError("give `run` an Inbox, and `aio.run` an AsyncInbox")
    return made
