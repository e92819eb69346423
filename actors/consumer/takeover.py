"""Taking over a new assignment, and which of the application's handlers has to be called before or after it.

A partition is given up in this order: the handler is called while the member still holds the partition and
may commit in it, then the assignment is applied, and only then does the coordinator hear of it. So a handler
that commits does so before anybody else reads on. A partition that is gone already (the session expired, or
the member stopped polling, and it may have another reader) is *lost*: nothing can be committed there any
more.

State only, without thread, clock or network. Every method runs under the consumer's lock; the handlers
themselves are called by ``poll`` and ``close``, without it, one at a time. Never calls a handler twice for
the same change: one that raises has been told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from escrowmq.actors.client.consumer_groups import TopicPartition
from escrowmq.actors.consumer.membership import Membership
from escrowmq.actors.consumer.positions import Positions

#: Takes the partitions that it is about, in order. A coroutine function with the asyncio face.
Handler: TypeAlias = Callable[[list[TopicPartition]], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handlers:
    """What the application wants to be told; see :meth:`Consumer.subscribe`."""

    on_assign: Handler | None = None
    on_revoke: Handler | None = None
    on_lost: Handler | None = None

    def updated(self, newer: Handlers) -> Handlers:
        """Those of ``newer``, and these where it has none."""
        return Handlers(
            on_assign=newer.on_assign or self.on_assign,
            on_revoke=newer.on_revoke or self.on_revoke,
            on_lost=newer.on_lost or self.on_lost,
        )


@dataclass(frozen=True, slots=True)
class HandlerCall:
    """One call that is due. ``name``: what the application calls this handler."""

    name: str
    handler: Handler
    partitions: list[TopicPartition]


class TakeOver:
    """Of one consumer with a group."""

    def __init__(
        self,
        positions: Positions,
        membership: Membership,
        apply: Callable[[frozenset[TopicPartition], frozenset[TopicPartition]], None],
    ) -> None:
        """``apply(wanted, kept)`` makes ``wanted`` the assignment; reading of ``kept`` goes on where it
        is."""
        self._positions, self._membership, self._apply = positions, membership, apply
        self.handlers = Handlers()
        #: Given up as far as the application knows, though not yet in fact.
        self._told: frozenset[TopicPartition] = frozenset()
        #: Assigned, and the application does not know it yet.
        self._fresh: frozenset[TopicPartition] = frozenset()
        #: Who is calling a handler now.
        self.caller: object | None = None

    def next(self, caller: object) -> HandlerCall | None:
        """The handler to be called now, by ``caller``, who then tells ``done``. Applies the assignment as
        soon as nobody has to be told of it first."""
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
        """As ``next``, before the consumer leaves its group: about all that it still holds."""
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
        """Whom to tell first of partitions that go; what was lost goes first."""
        gone -= self._told | self._fresh
        offer, handlers = self._membership.offer, self.handlers
        lost = frozenset[TopicPartition]() if offer is None or offer.held is None else gone - offer.held
        # As in Kafka, where on_lost is absent: what on_revoke cleans up has to be cleaned up either way.
        for name, handler, partitions in (
            ("on_lost", handlers.on_lost or handlers.on_revoke, lost),
            ("on_revoke", handlers.on_revoke, gone - lost),
        ):
            if handler is not None and partitions:
                return HandlerCall(name, handler, sorted(partitions))
        return None
