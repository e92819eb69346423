"""What a client knows of the topics that it uses: partitions and settings, asked of a leader once and kept.

A leader is asked, since a follower may not yet have applied a topic that was created a moment ago. A topic
that a broker refuses is forgotten here, so one that was deleted and created again is learnt again. Topics can
also be altered while they are used: callers that depend on a setting make the catalog ask again from time to
time, in one question that names only the topics whose settings were used since the previous answer. However
many callers wait, only one question is under way at a time, and it names the topics of all that wait.
Otherwise a thousand coroutines that start together would ask a thousand times, and the leader of a busy group
would be busy with that alone. A client that keeps asking gets all topics in one answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from escrowmq.actors.client.client_loop import ClientLoop
from escrowmq.actors.client.router import result_of
from escrowmq.replication.errors import Unavailable, UnknownTopic
from escrowmq.replication.model import TopicInfo

#: Names in one question, below a broker's limit; with more, all topics are asked for.
NAMES_MAX = 1_000
#: After this many questions within ``QUESTIONS_S``, all topics are asked for until that time is over:
#: otherwise a producer that starts to use 5,000 topics would ask 5,000 times.
QUESTIONS_BY_NAME = 100
QUESTIONS_S = 60.0

#: Age at which a setting that may have been altered is asked for again, if it is still used.
FRESH_S = 60.0
#: When to ask again after an invalid answer.
NO_SENSE_S = 1.0

Waiting = tuple[Future[None], frozenset[str]]


class _Heard:
    """A topic as last heard of. ``since``: when its settings were first used after that."""

    __slots__ = ("info", "since")

    def __init__(self, info: TopicInfo) -> None:
        self.info = info
        self.since: float | None = None


class TopicCatalog:
    """Topics by name. Thread-safe: the one dict is changed by single operations only."""

    def __init__(
        self, router: ClientLoop, timeout_s: float = 30.0, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._router, self._timeout_s, self._clock = router, timeout_s, clock
        self._topics: dict[str, _Heard] = {}
        router.placement.describe(self)
        self._lock = threading.Lock()
        self._questions, self._counted_from = 0, clock()
        self._asking: list[Waiting] = []  # callers that wait for the answer under way
        self._next: list[Waiting] = []  # callers that came later: that answer may be older than their topic

    def known(self, topic: str) -> TopicInfo | None:
        """The topic as last heard of, without asking."""
        heard = self._topics.get(topic)
        return None if heard is None else heard.info

    def fresh(self, topic: str, now: float) -> TopicInfo | None:
        """As ``known``; if the answer is older than ``FRESH_S``, a new one is requested in the background."""
        heard = self._topics.get(topic)
        if heard is None:
            return None
        if heard.since is None:
            heard.since = now
        elif now - heard.since >= FRESH_S:
            self._freshen(now)
        return heard.info

    def _freshen(self, now: float) -> None:
        """Ask for all topics in use. Nothing waits for the answer; if it fails, the next attempt is in a
        while."""
        used = [(name, heard) for name, heard in self._topics.copy().items() if heard.since is not None]
        for _, heard in used:
            heard.since = now
        self.ask([name for name, _ in used])

    def unknown(self, topics: Iterable[str]) -> set[str]:
        """Those that are not known, without asking."""
        return {topic for topic in topics if topic not in self._topics}

    def partitions(self, topic: str) -> int:
        """Number of partitions; asks a leader if the topic is not known yet. Raises UnknownTopic."""
        heard = self._topics.get(topic)  # for every message, so without a further call
        if heard is None:
            self.learn((topic,))
            heard = self._topics.get(topic)
            if heard is None:
                raise UnknownTopic(topic)
        return heard.info.partitions

    def learn(self, topics: Iterable[str]) -> None:
        """Ask for these topics and wait; afterwards those that exist are known."""
        result_of(self.ask(topics), 2 * self._timeout_s)

    def ask(self, topics: Iterable[str]) -> Future[None]:
        """Ask for the present state of these topics; they are known here before the future is done.

        The future belongs to the caller. It is answered by a question that is sent after this call: by the
        next one, if one is already under way.
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
        now = self._clock()
        if now - self._counted_from >= QUESTIONS_S:
            self._questions, self._counted_from = 0, now
        self._questions += 1
        everything = len(names) > NAMES_MAX or self._questions > QUESTIONS_BY_NAME
        what = True if everything else names
        try:
            asked = self._router.leader_call(0, "topics", what, timeout_s=self._timeout_s)
        except Exception as error:  # usually closed; whatever it is, those who wait get it
            failed: Future[Any] = Future()
            failed.set_exception(error)
            asked = failed
        asked.add_done_callback(lambda answer: self._answered(answer, names))

    def _answered(self, asked: Future[Any], names: Sequence[str]) -> None:
        error = self._take(names, asked)
        # New callers from here on ask again: this must happen whatever the answer was.
        with self._lock:
            waiting, self._asking, self._next = self._asking, self._next, []
            more = bool(self._asking)
        if more:
            self._send()
        for future, _ in waiting:
            if not future.set_running_or_notify_cancel():  # its caller no longer waits
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

    def _take(self, names: Sequence[str], asked: Future[Any]) -> BaseException | None:
        """Adopt the answer, all of it or nothing; returns why it cannot be adopted. Raises nothing."""
        if asked.cancelled():
            return Unavailable("the question for topics was cancelled", NO_SENSE_S)
        error = asked.exception()
        if error is not None:
            return error
        answer = asked.result()
        try:
            found = {topic.name: _Heard(topic) for topic in answer}
        except (TypeError, AttributeError):
            return Unavailable(f"asked for topics, a broker answered {answer!r:.200}", NO_SENSE_S)
        self._router.placement.hear(
            answer
        )  # first: a caller that finds a topic known asks for its group next
        self._topics.update(found)
        for name in names:
            if name not in found:
                self._topics.pop(name, None)
        return None

    def forget(self, topic: str) -> None:
        """The broker does not know the topic as we do: ask again next time."""
        self._topics.pop(topic, None)

    def forget_all(self) -> None:
        """See :class:`~escrowmq.actors.client.topic_placement.Describes`."""
        self._topics.clear()
