"""The pairs of app and topic in one feedback process: created, working, asleep, dropped.

A pair that has checks on hand is working and is told of its producers' polls; one that has none is asleep,
and makes room for others when the table is full. A pair that raises is dropped, as if its own process had
died.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Protocol

from escrowmq.feedback.asking.app_producers import AppProducers, PollAdmission
from escrowmq.feedback.asking.due_watch import Pair
from escrowmq.feedback.asking.group_feedback import Way
from escrowmq.feedback.asking.topic_feedback import Host, TopicFeedback

log = logging.getLogger(__name__)

#: Pairs forgotten per tick.
FORGET_PER_TICK = 200
#: A pair that raised is created again after this.
MADE_ANEW_S = 1.0


class Keeper(Host, Protocol):
    """The process that holds the table."""

    def belongs_here(self, pair: Pair) -> bool: ...
    def want(self, gid: int, pair: Pair) -> None:
        """Something is due at this group, and the pair may have room."""

    def look_anew(self, pair: Pair) -> None:
        """Ask every group for it: a leader would not repeat what it has named before."""


class PairTable:
    """One event loop."""

    def __init__(self, keeper: Keeper, admission: PollAdmission, way: Way) -> None:
        self._keeper, self._poll_admission, self._way = keeper, admission, way
        self._config, self._counts = way.config, admission.counts
        self._pairs: dict[Pair, TopicFeedback] = {}
        self._working: dict[TopicFeedback, None] = {}  # those that have deadlines
        self._asleep: OrderedDict[TopicFeedback, None] = OrderedDict()  # the longest asleep first
        self._has_slot = asyncio.Event()
        self._has_slot.set()
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._pairs)

    def __iter__(self) -> Iterator[TopicFeedback]:
        return iter(self._pairs.values())

    def get(self, app: str, topic: str) -> TopicFeedback | None:
        return self._pairs.get((app, topic))

    @property
    def full(self) -> bool:
        return len(self._pairs) >= self._config.pairs_max

    @property
    def at_work(self) -> int:
        """How many have checks on hand."""
        return len(self._working)

    def works(self, pair: TopicFeedback) -> bool:
        return pair in self._working

    async def free_slots(self) -> int:
        """Waits until further pairs may be here; returns how many. Meanwhile the leader keeps what is due."""
        while self._asleep and self.full:
            self.drop(next(iter(self._asleep)))
        if self.full:
            self._counts["pairs_full"] += 1
            text = "%d apps and topics have checks here: further ones wait"
            self._poll_admission.say("pairs_full", text, len(self._pairs))
            self._has_slot.clear()
            await self._has_slot.wait()
        return max(self._config.pairs_max - len(self._pairs), 1)

    def host(self, app: str, topic: str) -> TopicFeedback | None:
        """The pair, created if there is none yet; None: it does not belong here."""
        pair = self._pairs.get((app, topic))
        if pair is None and self._keeper.belongs_here((app, topic)):
            producers = self._poll_admission.app(app)
            pair = TopicFeedback(app, topic, self._way, self._keeper, producers.owners)
            self._pairs[app, topic] = producers.hosted[topic] = pair
        return pair

    def review(self, pair: TopicFeedback) -> None:
        """Called after any event of the pair: update whether it works or sleeps, and lock what is due."""
        key = pair.app, pair.topic
        if self._pairs.get(key) is not pair:
            return
        producers = self._poll_admission.app(pair.app)
        if pair.working:
            self.wake(pair, producers)
        else:
            self._sleep(pair, producers)
        for gid in producers.due.get(pair.topic, ()):
            self._keeper.want(gid, key)

    def _sleep(self, pair: TopicFeedback, producers: AppProducers) -> None:
        """It has nothing on hand, and is not told of polls."""
        self._working.pop(pair, None)
        producers.awake.pop(pair, None)
        if pair not in self._asleep:
            pair.idle_since = self._keeper.now()
            self._asleep[pair] = None
            self._has_slot.set()

    def wake(self, pair: TopicFeedback, producers: AppProducers) -> None:
        """It has checks on hand from now on, and is told of polls; it has not been told of earlier ones."""
        if pair in self._working:
            return
        self._asleep.pop(pair, None)
        self._working[pair] = None
        producers.awake[pair] = None
        online = producers.online(self._config.silent_s)
        pair.forget_but({present.instance for present in online})
        for present in online:
            parked = present.poll is not None
            seen = self._keeper.now() if parked else present.last_seen
            pair.arrive(present.instance, present.room, (), seen, parked=parked, fence=present.fence)

    def guarded(self, pair: TopicFeedback, do: Callable[..., Any], *args: Any) -> Any:
        """Call ``do``; an exception ends this pair, and nothing else."""
        try:
            return do(*args)
        except Exception:
            self._counts["errors"] += 1
            log.exception(
                "feedback of app %r, topic %r failed and is created again; its checks come back in %g s",
                pair.app,
                pair.topic,
                self._config.lock_lease_s,
            )
            self.drop(pair)
            key = pair.app, pair.topic
            asyncio.get_running_loop().call_later(MADE_ANEW_S, self._keeper.look_anew, key)
            return None

    def drop(self, pair: TopicFeedback) -> None:
        """Remove the pair. Its leases end by themselves."""
        if self._pairs.get((pair.app, pair.topic)) is pair:
            del self._pairs[pair.app, pair.topic]
        self._working.pop(pair, None)
        self._asleep.pop(pair, None)
        producers = self._poll_admission.apps.get(pair.app)
        if producers is not None and producers.hosted.get(pair.topic) is pair:
            del producers.hosted[pair.topic]
            producers.awake.pop(pair, None)
        if pair.working:
            closing = asyncio.ensure_future(pair.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        self._has_slot.set()

    def tick(self) -> None:
        """Deadlines of all working pairs."""
        for pair in list(self._working):
            self.guarded(pair, pair.tick)
            self.review(pair)

    def forget_before(self, before: float) -> None:
        """Forget some of those that have had nothing to do since then (seconds of the event loop)."""
        for pair in list(islice(self._asleep, FORGET_PER_TICK)):
            if pair.idle_since >= before:
                break
            self.drop(pair)

    async def close(self) -> None:
        """Drop all, and wait for what was under way."""
        for pair in list(self._pairs.values()):
            self.drop(pair)
        await asyncio.gather(*self._closing, return_exceptions=True)
