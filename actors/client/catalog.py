"""What a client knows of the topics: partitions and settings, asked of a leader once and kept.

A leader is asked, since a follower may not have applied a topic that was created a moment ago. What a
broker refuses is forgotten here, so a topic that was deleted and created anew is learnt anew. Topics are
altered while they are used, too: who goes by a setting lets the catalog ask again now and then. However many
want to know, one question is under way at a time: a thousand coroutines that start together would else
ask a thousand times, and the leader of a busy group would be busy with that alone.
"""

from __future__ import annotations

import threading
from collections.abc import KeysView, Sequence
from concurrent.futures import Future
from typing import Any

from escrowmq.actors.client.router import result_of
from escrowmq.actors.client.turns import Turns
from escrowmq.replication.errors import EscrowMQError, UnknownTopic
from escrowmq.replication.model import TopicInfo

#: Age at which a setting that may have been altered is asked for again, by those who go by it.
FRESH_S = 60.0


class TopicCatalog:
    """Topics by name. Thread-safe: the one dict is replaced or changed by single operations only."""

    def __init__(self, router: Turns, timeout_s: float = 30.0) -> None:
        self._router, self._timeout_s = router, timeout_s
        self._topics: dict[str, TopicInfo] = {}
        self._freshened: float | None = None
        self._lock = threading.Lock()
        self._asking: list[Future[Any]] = []  # who waits for the answer that is under way
        self._next: list[Future[Any]] = []  # who came later: that answer may be older than their topic

    def known(self, topic: str) -> TopicInfo | None:
        """The topic as last heard of, without asking."""
        return self._topics.get(topic)

    def fresh(self, topic: str, now: float) -> TopicInfo | None:
        """As ``known``; with an answer that is older than ``FRESH_S``, a new one is asked for meanwhile."""
        if self._freshened is None:
            self._freshened = now
        elif now - self._freshened >= FRESH_S:
            self._freshened = now
            self.ask().add_done_callback(self._take)
        return self._topics.get(topic)

    def _take(self, answered: Future[Any]) -> None:
        if not answered.cancelled() and answered.exception() is None:  # else: again in a while
            self.learn(answered.result())

    def names(self) -> KeysView[str]:
        """The topics heard of."""
        return self._topics.keys()

    def partitions(self, topic: str) -> int:
        """Number of partitions; asks a leader if the topic is not known yet. Raises UnknownTopic."""
        info = self._topics.get(topic)
        if info is None:
            self.learn(result_of(self.ask(), 2 * self._timeout_s))
            info = self._topics.get(topic)
            if info is None:
                raise UnknownTopic(topic)
        return info.partitions

    def ask(self) -> Future[Any]:
        """Ask for all topics as they are from now on; give the answer to :meth:`learn`.

        The future is the caller's own. It is answered by a question that is sent after this call: by the
        next one, if one is under way already.
        """
        future: Future[Any] = Future()
        with self._lock:
            self._next.append(future)
            if self._asking:
                return future
            self._asking, self._next = self._next, []
        self._send()
        return future

    def _send(self) -> None:
        try:
            asked = self._router.leader_call(0, "topics", True, timeout_s=self._timeout_s)
        except EscrowMQError as error:  # closed
            failed: Future[Any] = Future()
            failed.set_exception(error)
            asked = failed
        asked.add_done_callback(self._answered)

    def _answered(self, asked: Future[Any]) -> None:
        with self._lock:
            waiting, self._asking, self._next = self._asking, self._next, []
            more = bool(self._asking)
        if more:
            self._send()
        error = asked.exception()
        for future in waiting:
            if not future.set_running_or_notify_cancel():  # its caller does not wait any more
                continue
            if error is None:
                future.set_result(asked.result())
            else:
                future.set_exception(error)

    def learn(self, answer: Sequence[TopicInfo]) -> None:
        """Take a leader's list of topics."""
        self._topics = {topic.name: topic for topic in answer}

    def forget(self, topic: str) -> None:
        """The broker does not know it as we do: ask again next time."""
        self._topics.pop(topic, None)
