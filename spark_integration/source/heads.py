"""Tracks the ends of partitions for a streaming query: up to date when asked, at almost no cost while idle.

Spark asks dozens of times per second whether there are new messages. One parked call per broker group answers
all of these questions: it returns when there is news, or after two seconds. A question that finds nothing new
waits for that call for a moment. So a message is noticed milliseconds after its commit, and an idle query
costs about one call per second and group. Topics are looked up once per second.

Only the query's thread uses this. It blocks for bounded times only: for seconds while the query is running,
so that the query can be stopped, and for up to PATIENCE_S for what the query cannot continue without.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future
from concurrent.futures import wait as wait_for
from typing import Any

from escrowmq.actors.admin.stable_cut import stable_cut
from escrowmq.actors.client.consumer_groups import TopicPartition
from escrowmq.actors.client.router import Router, result_of
from escrowmq.actors.consumer.offsets import OffsetReader
from escrowmq.replication.calling.answers import PartitionBounds
from escrowmq.replication.calling.patience import Answer, Backoff, Patience, patiently
from escrowmq.replication.errors import OutcomeUnknown, Overloaded, Unavailable, UnknownTopic
from escrowmq.replication.model import ResultCode, TopicInfo
from escrowmq.spark_integration.source.options import Subscription
from escrowmq.spark_integration.source.planning import Offsets, present_partitions
from escrowmq.spark_integration.source.stream_planning import Bounds, Heads, begin

#: Limit of a call made for planning. Planning makes two or three small calls; a fail-over takes 1 to 2 s.
PLAN_TIMEOUT_S = 30.0
#: Limit of a call for news in a running query, which can be stopped only between calls.
ASK_TIMEOUT_S = 5.0
#: How long brokers park a call for news. A longer time would save almost nothing.
PARK_S = 2.0
#: How long ``latestOffset`` of an idle query waits for news: ten rounds of the engine per second and not 60.
IDLE_WAIT_S = 0.1
#: New topics and partitions are noticed within this time.
DISCOVERY_S = 1.0
#: Cuts that are asked for, one after the other, while topics or partitions come and go.
CUTS_MAX = 5
#: If no answer comes for this time, the query ends with the error; until then, it waits for the brokers, from
#: its first call on.
PATIENCE_S = 120.0
#: Pauses after a refusal.
RETRY = Backoff(first_s=0.05, longest_s=1.0, jitter=0.5)
#: How long to wait for a partition whose topic is listed but not yet known to its own group: it was created
#: a moment ago.
SETTLE_S = 5.0
#: Temporary errors. The calls only read, so they are repeated even after OutcomeUnknown.
_REFUSALS = (Unavailable, Overloaded, OutcomeUnknown)


class LeaderCatalog:
    """The Catalog for planning. It asks the leaders, since followers may lag behind acknowledged messages."""

    def __init__(self, router: Router, timeout_s: float, subscription: Subscription) -> None:
        """``subscription``: if it names its topics, only these are asked for."""
        self._router, self._timeout_s = router, timeout_s
        self._what: bool | list[str] = subscription.names or True
        self._offsets = OffsetReader(router)
        #: Topic -> its id, as of the last ``topics``.
        self.ids: Mapping[str, int] = {}

    def topics(self) -> Mapping[str, int]:
        """Topic -> number of partitions."""
        call = self._router.leader_call(0, "topics", self._what, timeout_s=self._timeout_s)
        topics: Sequence[TopicInfo] = result_of(call, self._timeout_s)
        self._router.placement.hear(topics)
        self.ids = {topic.name: topic.topic_id for topic in topics}
        return {topic.name: topic.partitions for topic in topics}

    def offsets(self, wanted: Sequence[tuple[str, int, int]]) -> list[int]:
        """See :class:`escrowmq.spark_integration.source.planning.Catalog`. Raises UnknownTopic."""
        found = self._offsets.offsets(wanted, self._timeout_s) if wanted else []
        for offset in found:
            if isinstance(offset, UnknownTopic):
                raise offset
        return [offset for offset in found if isinstance(offset, int)]

    def cut(self, topics: Sequence[str]) -> Mapping[TopicPartition, int]:
        """See :class:`escrowmq.spark_integration.source.planning.Catalog`. Raises UnknownTopic,
        Unavailable."""
        return stable_cut(self._router, topics, self._timeout_s)


class SourceHeadWatch:
    """The bounds of a subscription's partitions. For use from one thread. Its owner closes the router."""

    def __init__(
        self,
        router: Router,
        subscription: Subscription,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
        idle_wait_s: float = IDLE_WAIT_S,
        catalog: LeaderCatalog | None = None,
    ) -> None:
        """``catalog``: what leaders say of topics; None: asked through ``router``."""
        self._router, self._subscription = router, subscription
        self._clock, self._pause, self._idle_wait_s = clock, pause, idle_wait_s
        self._catalog = catalog or LeaderCatalog(router, PLAN_TIMEOUT_S, subscription)
        self._partitions: list[TopicPartition] = []
        self._heads: dict[TopicPartition, Bounds] = {}
        self._parked: dict[int, tuple[list[TopicPartition], Future[Any]]] = {}
        self._discovered_at = float("-inf")
        self._rng = random.Random()  # jitter only
        self._patience = self._new_patience()

    @property
    def known(self) -> Heads:
        """The bounds as last reported."""
        return self._heads

    def fresh(self) -> Heads:
        """The present bounds; waits for brokers that do not answer, as ``patiently`` does."""

        def ask() -> None:
            self._discover()
            self._ask(list(self._by_group()))

        self.patiently(ask)
        return self._heads

    def ids_now(self) -> Mapping[str, int]:
        """Topic -> its present id; waits for brokers that do not answer, as ``patiently`` does."""
        self.patiently(self._catalog.topics)
        return self._catalog.ids

    def at_a_cut(self, offsets: Offsets, heads: Heads) -> Heads:
        """The same partitions with their ends at a stable cut; what is not in it ends where ``offsets`` are.
        So nothing of a transaction is read before all of it can be."""
        for _ in range(CUTS_MAX):
            known, cut = self._partitions, self._cut(sorted({topic for topic, _ in heads}))
            # What a transaction below the cut has been sent to was created before it.
            self.patiently(self._discover)
            if self._partitions == known:
                break
            heads = self.fresh()
        return {
            which: Bounds(head.start, cut.get(which, begin(offsets, heads, which)))
            for which, head in heads.items()
        }

    def _cut(self, topics: Sequence[str]) -> Offsets:
        def ask() -> Offsets:
            try:
                return self._catalog.cut(topics) if topics else {}
            except UnknownTopic:  # deleted a moment ago: the next look does not name it
                self._discovered_at = float("-inf")
                return {}

        return self.patiently(ask)

    def patiently(self, ask: Callable[[], Answer]) -> Answer:
        """Call ``ask()``, and again with growing pauses while brokers do not answer.

        Raises their error after PATIENCE_S.
        """
        return patiently(ask, self._new_patience(), _REFUSALS, clock=self._clock, sleep=self._pause)

    def _new_patience(self) -> Patience:
        return Patience(PATIENCE_S, RETRY, self._rng)

    def news(self, is_new: Callable[[Heads], bool]) -> Heads:
        """The present bounds; waits for a moment if ``is_new`` finds nothing new in them.

        While brokers do not answer, it returns the last known bounds after growing pauses; it raises the
        brokers' error only after PATIENCE_S.
        """
        began = self._clock()
        try:
            if self._clock() - self._discovered_at >= DISCOVERY_S:
                self._discover()
            # A group whose call is still parked has no news; the other groups have to be asked.
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
        self._parked.clear()  # their answers are about another set of partitions
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
            self._discover()  # a topic was created a moment ago, or deleted
            gids = list(self._by_group())

    def _wait(self) -> None:
        for gid, partitions in self._by_group().items():
            if gid not in self._parked:
                self._parked[gid] = partitions, self._call(gid, partitions, PARK_S)
        if not self._parked:  # a pattern that matches nothing yet
            self._pause(self._idle_wait_s)
            return
        wait_for([call for _, call in self._parked.values()], self._idle_wait_s, FIRST_COMPLETED)
        for gid in [gid for gid, (_, call) in self._parked.items() if call.done()]:
            partitions, call = self._parked.pop(gid)
            self._take(partitions, result_of(call, ASK_TIMEOUT_S))

    def _by_group(self) -> dict[int, list[TopicPartition]]:
        groups: dict[int, list[TopicPartition]] = {}
        for topic, partition in self._partitions:
            gid = self._router.placement.group_of(topic, partition)
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
