"""Taking over a new assignment, and which of the application's handlers must be called before or after it.

A partition is given up in this order: the handler is called while the member still holds the partition and
may commit in it, then the assignment is applied, and only then does the coordinator learn of it. So a handler
that commits does so before any other member continues there. A partition that is already gone (the session
expired, or the member stopped polling, and another member may read it) is *lost*: it takes no commit.

State only, without thread, clock or network. Every method runs under the consumer's lock; the handlers
themselves are called by ``poll`` and ``close``, without it, one at a time. A handler is never called twice
for the same change, even if it raises.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from escrowmq.actors.client.consumer_groups import TopicPartition
from escrowmq.actors.client.uncancellable import cancellations
from escrowmq.actors.consumer.membership_thread import Membership
from escrowmq.actors.consumer.positions import Positions
from escrowmq.replication.errors import ConfigError, EscrowMQError

#: Takes the partitions concerned, in order. May be a coroutine function with the asyncio interface.
Handler: TypeAlias = Callable[[list[TopicPartition]], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handlers:
    """The application's handlers; see :meth:`Consumer.subscribe`."""

    on_assign: Handler | None = None
    on_revoke: Handler | None = None
    on_lost: Handler | None = None

    def updated(self, newer: Handlers) -> Handlers:
        """The handlers of ``newer``, and these where it has none."""
        return Handlers(
            on_assign=newer.on_assign or self.on_assign,
            on_revoke=newer.on_revoke or self.on_revoke,
            on_lost=newer.on_lost or self.on_lost,
        )


@dataclass(frozen=True, slots=True)
class HandlerCall:
    """A call that is due. ``name``: the handler's name in the API."""

    name: str
    handler: Handler
    partitions: list[TopicPartition]


class Rebalance:
    """The changes of assignment of one consumer with a group."""

    def __init__(
        self,
        positions: Positions,
        membership: Membership,
        apply: Callable[[frozenset[TopicPartition], frozenset[TopicPartition]], None],
    ) -> None:
        """``apply(wanted, kept)`` makes ``wanted`` the assignment; reading of ``kept`` continues where it
        is."""
        self._positions, self._membership, self._apply = positions, membership, apply
        self.handlers = Handlers()
        #: Partitions that the application has been told are given up, but that are still assigned.
        self._told: frozenset[TopicPartition] = frozenset()
        #: Partitions that are assigned, but that the application has not been told about yet.
        self._fresh: frozenset[TopicPartition] = frozenset()
        #: The caller that is running a handler now.
        self.caller: object | None = None

    def next(self, caller: object) -> HandlerCall | None:
        """The handler that ``caller`` must call now, and then report with ``done``. Applies the assignment as
        soon as no handler must be called before that."""
        assert self.caller is None
        offer = self._membership.offer
        if offer is not None:
            held = frozenset(self._positions.assigned())
            kept = (held if offer.kept is None else held & offer.kept) & offer.partitions
            if (call := self._leaving(held - kept)) is not None:
                self.caller = caller
                return call
            kept -= self._told
            self._membership.take_over()
            self._apply(offer.partitions, kept)
            self._told = frozenset()
            self._fresh = (self._fresh & kept) | (offer.partitions - kept)
        on_assign = self.handlers.on_assign
        if not self._fresh or on_assign is None:
            self._fresh = frozenset()
            return None
        self.caller = caller
        return HandlerCall("on_assign", on_assign, sorted(self._fresh))

    def last(self, caller: object) -> HandlerCall | None:
        """As ``next``, before the consumer leaves its group: concerns everything that it still holds."""
        assert self.caller is None
        call = self._leaving(frozenset(self._positions.assigned()))
        if call is not None:
            self.caller = caller
        return call

    def done(self, call: HandlerCall) -> None:
        """The handler has returned, or raised."""
        self.caller = None
        if call.name == "on_assign":
            self._fresh -= frozenset(call.partitions)
        else:
            self._told |= frozenset(call.partitions)

    def _leaving(self, gone: frozenset[TopicPartition]) -> HandlerCall | None:
        """The first handler to call for partitions that go away; lost ones come first."""
        gone -= self._told | self._fresh
        offer, handlers = self._membership.offer, self.handlers
        lost = frozenset[TopicPartition]() if offer is None or offer.held is None else gone - offer.held
        # As in Kafka if on_lost is missing: the cleaning up in on_revoke is needed in either case.
        for name, handler, partitions in (
            ("on_lost", handlers.on_lost or handlers.on_revoke, lost),
            ("on_revoke", handlers.on_revoke, gone - lost),
        ):
            if handler is not None and partitions:
                return HandlerCall(name, handler, sorted(partitions))
        return None


# ------------------------------------------------------------------------------------------------------------
# Calls the application's handlers for an assignment: in the application's thread, without a lock, one at a
# time.
#
# ``rebalance.py`` decides which handler is due. This module makes sure that other threads that poll get no
# record until the handler has returned, that a handler does not poll, and that a call is never repeated,
# however it ends.


class RebalanceCallbacks:
    """Calls the handlers of one consumer that has a group."""

    def __init__(
        self, take_over: Rebalance, condition: threading.Condition, closed: Callable[[], bool], wait_s: float
    ) -> None:
        """``wait_s``: how long ``leaving`` waits for a handler that another thread is running."""
        self._take_over, self._condition = take_over, condition
        self._closed, self._wait_s = closed, wait_s

    def busy(self, caller: object) -> bool:
        """Whether another caller is running a handler. Call it under the lock. Raises EscrowMQError when
        called from within a handler."""
        calling = self._take_over.caller
        if calling is not None and calling == caller:
            raise EscrowMQError(
                "poll was called by on_assign, on_revoke or on_lost: a handler may commit, seek and pause, "
                "but must return before the next poll"
            )
        return calling is not None

    def call(self, call: HandlerCall) -> None:
        """Calls the handler. Raises what it raises."""
        try:
            answer = call.handler(list(call.partitions))
            if inspect.isawaitable(answer):
                if inspect.iscoroutine(answer):
                    answer.close()
                raise ConfigError(f"{call.name} is a coroutine function: poll and close with consumer.aio")
        finally:
            self.done(call)

    async def call_async(self, call: HandlerCall) -> None:
        """As ``call``; if the handler returns an awaitable, it is awaited."""
        before = cancellations()
        try:
            answer = call.handler(list(call.partitions))
            if inspect.isawaitable(answer):
                await answer
        except asyncio.CancelledError as error:
            if cancellations() > before:
                raise
            raise EscrowMQError(
                f"{call.name} raised the cancellation of something that it awaited"
            ) from error
        finally:
            self.done(call)

    def done(self, call: HandlerCall) -> None:
        """A handler has returned or raised."""
        with self._condition:
            self._take_over.done(call)
            self._condition.notify_all()

    def leaving(self, caller: object) -> HandlerCall | None:
        """The handler that ``caller`` must call before the consumer is closed; ask again until None. Waits
        for one that another thread is running, but only for ``wait_s``."""
        if self._closed():
            return None
        take_over = self._take_over
        with self._condition:
            if take_over.caller is not None and take_over.caller == caller:
                return None  # a handler is closing its own consumer
            if not self._condition.wait_for(lambda: take_over.caller is None, self._wait_s):
                return None
            return None if self._closed() else take_over.last(caller)
