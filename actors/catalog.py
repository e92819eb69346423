"""What a client knows of the topics: partitions and settings, asked of a leader once and kept.

A leader is asked, since a follower may not have applied a topic that was created a moment ago. What a
broker refuses is forgotten here, so a topic that was deleted and created anew is learnt anew.
"""

from __future__ import annotations

from collections.abc import KeysView, Sequence
from concurrent.futures import Future
from dataclasses import fields
from typing import Any

from escrowmq.actors.router import Router, result_of
from escrowmq.replication.errors import UnknownTopic
from escrowmq.replication.model import TopicInfo

_FIELDS = tuple(field.name for field in fields(TopicInfo))


class TopicCatalog:
    """Topics by name. Thread-safe: the one dict is replaced or changed by single operations only."""

    def __init__(self, router: Router, timeout_s: float = 30.0) -> None:
        self._router, self._timeout_s = router, timeout_s
        self._topics: dict[str, TopicInfo] = {}

    def known(self, topic: str) -> TopicInfo | None:
        """The topic as last heard of, without asking."""
        return self._topics.get(topic)

    def names(self) -> KeysView[str]:
        """The topics heard of."""
        return self._topics.keys()

    def partitions(self, topic: str) -> int:
        """Number of partitions; asks a leader if the topic is not known yet. Raises UnknownTopic."""
        info = self._topics.get(topic)
        if info is None:
            self.learn(result_of(self.ask(), self._timeout_s))
            info = self._topics.get(topic)
            if info is None:
                raise UnknownTopic(topic)
        return info.partitions

    def ask(self) -> Future[Any]:
        """Ask for all topics; give the answer to :meth:`learn`."""
        return self._router.leader_call(0, "topics", True, timeout_s=self._timeout_s)

    def learn(self, answer: Sequence[dict[str, Any]]) -> None:
        """Take a leader's list of topics."""
        self._topics = {
            entry["name"]: TopicInfo(**{name: entry[name] for name in _FIELDS if name in entry})
            for entry in answer
        }

    def forget(self, topic: str) -> None:
        """The broker does not know it as we do: ask again next time."""
        self._topics.pop(topic, None)
