"""What a streaming query knows of the log's ends: fresh when asked, for next to nothing while idle.

Spark asks dozens of times a second whether there is anything new. Here one parked call per broker group
stands for all of these questions: it comes back with the news, or after two seconds without. A question
that finds nothing new waits with it for a moment, so a message is noticed milliseconds after its commit and
an idle query costs about one call a second and group. Topics are looked up once a second.

One thread, the query's; blocks for bounded times only: while a query runs for seconds, so that it can be
stopped, and for what it cannot go on without up to PATIENCE_S.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future
from concurrent.futures import wait as wait_for
from typing import Any

from escrowmq.actors.client.consumer_groups import TopicPartition
from escrowmq.actors.client.router import Router, result_of
from escrowmq.actors.consumer.offsets import OffsetReader
from escrowmq.replication.calling.answers import PartitionBounds
from escrowmq.replication.calling.backoff import Backoff
from escrowmq.replication.calling.patience import Answer, Patience, patiently
from escrowmq.replication.errors import OutcomeUnknown, Overloaded, Unavailable, UnknownTopic
from escrowmq.replication.model import ResultCode, TopicInfo
from escrowmq.spark_integration.source.options import Subscription
from escrowmq.spark_integration.source.planning import present_partitions
from escrowmq.spark_integration.source.stream_planning import Bounds, Heads

#: Planning asks two or three small questions; a fail-over takes a second or two.
PLAN_TIMEOUT_S = 30.0
#: A question about news in the running query, which can be stopped in between only.
ASK_TIMEOUT_S = 5.0
#: How long brokers park a question about news. Longer would save nothing worth having.
PARK_S = 2.0
#: How long one ``latestOffset`` of an idle query waits for news: ten turns of the engine a second, not 60.
IDLE_WAIT_S = 0.1
#: New topics and partitions are noticed within this time.
DISCOVERY_S = 1.0
#: Without any answer for this time a query ends with the error; until then, and from its first question on,
#: it waits for the brokers.
PATIENCE_S = 120.0
#: After a refusal.
RETRY = Backoff(first_s=0.05, longest_s=1.0, jitter=0.5)
#: A partition whose topic is listed, but not known to its own group yet: created a moment ago.
SETTLE_S = 5.0
#: What passes: a question that may or may not have been answered is simply asked again.
_REFUSALS = (Unavailable, Overloaded, OutcomeUnknown)


class LeaderCatalog:
    """What planning asks, asked of the leaders: a follower may lag behind what was acknowledged."""

    def __init__(self, router: Router, timeout_s: float, subscription: Subscription) -> None:
        """``subscription``: only its topics are asked for, if it names them."""
        self._router, self._timeout_s = router, timeout_s
        self._what: bool | list[str] = subscription.names or True
        self._offsets = OffsetReader(router)

    def topics(self) -> Mapping[str, int]:
        """Number of partitions by topic."""
        call = self._router.leader_call(0, "topics", self._what, timeout_s=self._timeout_s)
        topics: Sequence[TopicInfo] = result_of(call, self._timeout_s)
        self._router.places.hear(topics)
        return {topic.name: topic.partitions for topic in topics}

    def offsets(self, wanted: Sequence[tuple[str, int, int]]) -> list[int]:
        """See :class:`escrowmq.spark_integration.source.planning.Catalog`. Raises UnknownTopic."""
        found = self._offsets.offsets(wanted, self._timeout_s) if wanted else []
        for offset in found:
            if isinstance(offset, UnknownTopic):
                raise offset
        return [offset for offset in found if isinstance(offset, int)]


class HeadWatch:
    """The bounds of a subscription's partitions. One thread; ``close`` is the router's."""

    def __init__(
        self,
        router: Router,
        subscription: Subscription,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._router, self._subscription = router, subscription
        self._clock, self._pause = clock, pause
        self._catalog = LeaderCatalog(router, PLAN_TIMEOUT_S, subscription)
        self._partitions: list[TopicPartition] = []
        self._heads: dict[TopicPartition, Bounds] = {}
        self._parked: dict[int, tuple[list[TopicPartition], Future[Any]]] = {}
        self._discovered_at = float("-inf")
        self._rng = random.Random()  # jitter only
        self._patience = self._new_patience()

    @property
    def known(self) -> Heads:
        """As last heard of."""
        return self._heads

    def fresh(self) -> Heads:
        """As it is now; waits for brokers that do not answer: see ``patiently``."""

        def ask() -> None:
            self._discover()
            self._ask(list(self._by_group()))

        self.patiently(ask)
        return self._heads

    def patiently(self, ask: Callable[[], Answer]) -> Answer:
        """``ask()``, asked again, more and more slowly, while brokers do not answer; raises their error
        after PATIENCE_S.
        """
        return patiently(ask, self._new_patience(), _REFUSALS, clock=self._clock, sleep=self._pause)

    def _new_patience(self) -> Patience:
        return Patience(PATIENCE_S, RETRY, self._rng)

    def news(self, is_new: Callable[[Heads], bool]) -> Heads:
        """As it is now; waits for a moment if ``is_new`` finds nothing in it.

        While brokers do not answer this gives what was known, more and more slowly, and their error only
        after PATIENCE_S.
        """
        began = self._clock()
        try:
            if self._clock() - self._discovered_at >= DISCOVERY_S:
                self._discover()
            # Whose parked call is still parked has no news; the rest may have had some for long.
            parked = {gid for gid, (_, call) in self._parked.items() if not call.done()}
            self._ask([gid for gid in self._by_group() if gid not in parked])
            if not is_new(self._heads):
                self._wait()
            self._patience.answered()
        except _REFUSALS as error:
            pause_s = self._patience.pause_s(self._clock() - began, error)
            if pause_s is None:
                raise
            self._pause(pause_s)
        return self._heads

    def _discover(self) -> None:
        present = present_partitions(self._subscription, self._catalog.topics())
        self._discovered_at = self._clock()
        if present == self._partitions:
            return
        self._partitions = present
        self._parked.clear()  # answers about another set of partitions are of no use
        self._heads = {which: self._heads[which] for which in present if which in self._heads}

    def _ask(self, gids: list[int]) -> None:
        deadline = self._clock() + SETTLE_S
        while gids:
            groups = self._by_group()
            asked = {gid: self._call(gid, groups[gid], 0.0) for gid in gids if gid in groups}
            for gid, call in asked.items():
                self._parked.pop(gid, None)
                self._take(groups[gid], result_of(call, ASK_TIMEOUT_S))
            if all(which in self._heads for which in self._partitions) or self._clock() > deadline:
                return
            self._pause(0.1)
            self._discover()  # created a moment ago, or deleted
            gids = list(self._by_group())

    def _wait(self) -> None:
        for gid, partitions in self._by_group().items():
            if gid not in self._parked:
                self._parked[gid] = partitions, self._call(gid, partitions, PARK_S)
        if not self._parked:  # a pattern that matches nothing yet
            self._pause(IDLE_WAIT_S)
            return
        wait_for([call for _, call in self._parked.values()], IDLE_WAIT_S, FIRST_COMPLETED)
        for gid in [gid for gid, (_, call) in self._parked.items() if call.done()]:
            partitions, call = self._parked.pop(gid)
            self._take(partitions, result_of(call, ASK_TIMEOUT_S))

    def _by_group(self) -> dict[int, list[TopicPartition]]:
        groups: dict[int, list[TopicPartition]] = {}
        for topic, partition in self._partitions:
            gid = self._router.places.group_of(topic, partition)
            groups.setdefault(gid, []).append((topic, partition))
        return groups

    def _call(self, gid: int, partitions: list[TopicPartition], wait_s: float) -> Future[Any]:
        requests = [(*which, self._heads[which].end if which in self._heads else -1) for which in partitions]
        return self._router.leader_call(
            gid, "watch", requests, wait_s, timeout_s=wait_s + ASK_TIMEOUT_S, patience_s=wait_s
        )

    def _take(self, partitions: list[TopicPartition], answer: PartitionBounds) -> None:
        self._patience.heard()
        for which, code, start, end in zip(partitions, answer.codes, answer.starts, answer.ends, strict=True):
            if code == ResultCode.OK:
                self._heads[which] = Bounds(start, end)
