"""Handlers that an inbox lets handle each record once: what ``run(handler, inbox=...)`` makes of them.

A handler then gets the record and a database transaction, which is committed before the record is settled. A
record that comes again, because its settling was lost, is settled without the handler.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Protocol

from escrowmq.actors.client.handler_check import check_handler
from escrowmq.replication.errors import ConfigError


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
    check_handler(handler, awaits=awaited)
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
