"""What a client knows of the topics that it uses: partitions and settings, asked of a leader once and kept.

A leader is asked, since a follower may not have applied a topic that was created a moment ago. What a
broker refuses is forgotten here, so a topic that was deleted and created again is learnt again. Topics are
altered while they are used, too: who goes by a setting lets the catalog ask again now and then, in one
question that names only the topics whose settings somebody went by since the answer before. However many
want to know, one question is under way at a time, and it names the topics of all that wait: a thousand
coroutines that start together would else ask a thousand times, and the leader of a busy group would be busy
with that alone. A client that keeps asking gets them all in one answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from escrowmq.actors.client.router import result_of
from escrowmq.actors.client.turns import Turns
from escrowmq.replication.errors import Unavailable, UnknownTopic
from escrowmq.replication.model import TopicInfo

#: Names of one question, below what a broker takes; more, and all topics are asked for.
NAMES_MAX = 1_000
#: After so many within ``QUESTIONS_S``, all topics are asked for until that time is over: a producer
#: that begins to use 5,000 topics would else ask 5,000 times.
QUESTIONS_BY_NAME = 100
QUESTIONS_S = 60.0

#: Age at which a setting that may have been altered is asked for again, by those who go by it.
FRESH_S = 60.0
#: When to ask again after an answer that makes no sense.
NO_SENSE_S = 1.0

Waiting = tuple[Future[None], frozenset[str]]


class _Heard:
    """A topic as last heard of. ``since``: when somebody first went by its settings after that."""

    __slots__ = ("info", "since")

    def __init__(self, info: TopicInfo) -> None:
        self.info = info
        self.since: float | None = None


class TopicCatalog:
    """Topics by name. Thread-safe: the one dict is replaced or changed by single operations only."""

    def __init__(
        self, router: Turns, timeout_s: float = 30.0, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._router, self._timeout_s, self._clock = router, timeout_s, clock
        self._topics: dict[str, _Heard] = {}
        self._lock = threading.Lock()
        self._questions, self._counted_from = 0, clock()
        self._asking: list[Waiting] = []  # who waits for the answer that is under way
        self._next: list[Waiting] = []  # who came later: that answer may be older than their topic

    def known(self, topic: str) -> TopicInfo | None:
        """The topic as last heard of, without asking."""
        heard = self._topics.get(topic)
        return None if heard is None else heard.info

    def fresh(self, topic: str, now: float) -> TopicInfo | None:
        """As ``known``; with an answer that is older than ``FRESH_S``, a new one is asked for meanwhile."""
        heard = self._topics.get(topic)
        if heard is None:
            return None
        if heard.since is None:
            heard.since = now
        elif now - heard.since >= FRESH_S:
            self._freshen(now)
        return heard.info

    def _freshen(self, now: float) -> None:
        """Ask for all that somebody went by. Nobody waits for it; if it fails, again in a while."""
        used = [(name, heard) for name, heard in self._topics.copy().items() if heard.since is not None]
        for _, heard in used:
            heard.since = now
        self.ask([name for name, _ in used])

    def unknown(self, topics: Iterable[str]) -> set[str]:
        """Those that were not heard of, without asking."""
        return {topic for topic in topics if topic not in self._topics}

    def partitions(self, topic: str) -> int:
        """Number of partitions; asks a leader if the topic is not known yet. Raises UnknownTopic."""
        info = self.known(topic)
        if info is None:
            self.learn((topic,))
            info = self.known(topic)
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
        now = self._clock()
        if now - self._counted_from >= QUESTIONS_S:
            self._questions, self._counted_from = 0, now
        self._questions += 1
        everything = len(names) > NAMES_MAX or self._questions > QUESTIONS_BY_NAME
        # A broker of an earlier version takes names for "ask the leader", and answers with all topics.
        what = True if everything else names
        try:
            asked = self._router.leader_call(0, "topics", what, timeout_s=self._timeout_s)
        except Exception as error:  # closed, mostly; whatever it is, it is told to those who wait
            failed: Future[Any] = Future()
            failed.set_exception(error)
            asked = failed
        asked.add_done_callback(lambda answer: self._answered(answer, names))

    def _answered(self, asked: Future[Any], names: Sequence[str]) -> None:
        error = self._take(names, asked)
        # From here on, whoever comes asks anew: this must happen whatever the answer was.
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

    def _take(self, names: Sequence[str], asked: Future[Any]) -> BaseException | None:
        """Take the answer over, all of it or nothing; why it cannot be, whatever it is. Raises nothing."""
        if asked.cancelled():
            return Unavailable("the question for topics was cancelled", NO_SENSE_S)
        error = asked.exception()
        if error is not None:
            return error
        answer = asked.result()
        try:
            found = {topic.name: _Heard(topic) for topic in answer}
        except (TypeError, AttributeError):  # such as the status of a broker of another version
            return Unavailable(f"asked for topics, a broker answered {answer!r:.200}", NO_SENSE_S)
        self._router.places.hear(answer)  # first: whoever finds a topic known asks for its place next
        self._topics.update(found)
        for name in names:
            if name not in found:
                self._topics.pop(name, None)
        return None

    def forget(self, topic: str) -> None:
        """The broker does not know it as we do: ask again next time."""
        self._topics.pop(topic, None)
