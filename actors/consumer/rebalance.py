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

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from escrowmq.actors.client.consumer_groups import TopicPartition
from escrowmq.actors.consumer.membership import Membership
from escrowmq.actors.consumer.positions import Positions

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
