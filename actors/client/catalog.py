"""What a client knows of the topics that it uses: partitions and settings, asked of a leader once and kept.

A leader is asked, since a follower may not have applied a topic that was created a moment ago. What a
broker refuses is forgotten here, so a topic that was deleted and created again is learnt again. Topics are
altered while they are used, too: who goes by a setting lets the catalog ask again now and then. However many
want to know, one question is under way at a time, and it names the topics of all that wait: a thousand
coroutines that start together would else ask a thousand times, and the leader of a busy group would be busy
with that alone. A client that keeps asking gets them all in one answer.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from escrowmq.actors.client.router import result_of
from escrowmq.actors.client.turns import Turns
from escrowmq.replication.errors import EscrowMQError, UnknownTopic
from escrowmq.replication.model import TopicInfo

#: Names of one question, below what a broker takes; more, and all topics are asked for.
NAMES_MAX = 1_000
#: After so many questions all topics are asked for: a producer of 5,000 topics would else ask 5,000 times.
QUESTIONS_BY_NAME = 100

#: Age at which a setting that may have been altered is asked for again, by those who go by it.
FRESH_S = 60.0

Waiting = tuple[Future[None], frozenset[str]]


class TopicCatalog:
    """Topics by name. Thread-safe: the one dict is replaced or changed by single operations only."""

    def __init__(self, router: Turns, timeout_s: float = 30.0) -> None:
        self._router, self._timeout_s = router, timeout_s
        self._topics: dict[str, TopicInfo] = {}
        self._freshened: float | None = None
        self._lock = threading.Lock()
        self._questions = 0
        self._asking: list[Waiting] = []  # who waits for the answer that is under way
        self._next: list[Waiting] = []  # who came later: that answer may be older than their topic

    def known(self, topic: str) -> TopicInfo | None:
        """The topic as last heard of, without asking."""
        return self._topics.get(topic)

    def fresh(self, topic: str, now: float) -> TopicInfo | None:
        """As ``known``; with an answer that is older than ``FRESH_S``, a new one is asked for meanwhile."""
        if self._freshened is None:
            self._freshened = now
        elif now - self._freshened >= FRESH_S:
            self._freshened = now
            self.ask(list(self._topics))  # nobody waits for it; if it fails, again in a while
        return self._topics.get(topic)

    def unknown(self, topics: Iterable[str]) -> set[str]:
        """Those that were not heard of, without asking."""
        return {topic for topic in topics if topic not in self._topics}

    def partitions(self, topic: str) -> int:
        """Number of partitions; asks a leader if the topic is not known yet. Raises UnknownTopic."""
        info = self._topics.get(topic)
        if info is None:
            self.learn((topic,))
            info = self._topics.get(topic)
            if info is None:
                raise UnknownTopic(topic)
        return info.partitions

    def learn(self, topics: Iterable[str]) -> None:
        """Ask for these topics and wait; afterwards those are known that there are."""
        result_of(self.ask(topics), 2 * self._timeout_s)

    def ask(self, topics: Iterable[str]) -> Future[None]:
        """Ask for these topics as they are from now on; they are known here before the future is done.

        The future is the caller's own. It is answered by a question that is sent after this call: by the
        next one, if one is under way already.
        """
        future: Future[None] = Future()
        names = frozenset(topics)
        if not names:
            future.set_result(None)
            return future
        with self._lock:
            self._next.append((future, names))
            if self._asking:
                return future
            self._asking, self._next = self._next, []
        self._send()
        return future

    def _send(self) -> None:
        names = sorted(frozenset[str]().union(*(names for _, names in self._asking)))
        self._questions += 1
        everything = len(names) > NAMES_MAX or self._questions > QUESTIONS_BY_NAME
        # A broker of an earlier version takes names for "ask the leader", and answers with all topics.
        what = True if everything else names
        try:
            asked = self._router.leader_call(0, "topics", what, timeout_s=self._timeout_s)
        except EscrowMQError as error:  # closed
            failed: Future[Any] = Future()
            failed.set_exception(error)
            asked = failed
        asked.add_done_callback(lambda answer: self._answered(answer, names))

    def _answered(self, asked: Future[Any], names: Sequence[str]) -> None:
        error = asked.exception()
        if error is None:
            self._take(names, asked.result())
        with self._lock:
            waiting, self._asking, self._next = self._asking, self._next, []
            more = bool(self._asking)
        if more:
            self._send()
        for future, _ in waiting:
            if not future.set_running_or_notify_cancel():  # its caller does not wait any more
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

    def _take(self, names: Sequence[str], answer: Sequence[TopicInfo]) -> None:
        found = {topic.name: topic for topic in answer}
        self._topics.update(found)
        for name in names:
            if name not in found:
                self._topics.pop(name, None)

    def forget(self, topic: str) -> None:
        """The broker does not know it as we do: ask again next time."""
        self._topics.pop(topic, None)
