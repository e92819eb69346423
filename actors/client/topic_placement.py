"""The broker group of each partition and the id of each topic, as last reported, for all of a client's parts.

A topic's description says in which group it begins (``TopicInfo.first_group``), so a client must get the
description before it sends or reads. The last description stays in force while a new one is requested: a
topic moves only if it is deleted and created again, and the wrong group answers that it has no such
partition. A topic that was created again also has another id. Requests name the id, so one that arrives late
has no effect on the new topic.

A client may hear of short-lived topics for years, so what it heard of longest ago is forgotten, together with
its description. Whoever needs it after that gets the description once more.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final, Protocol
from weakref import WeakSet

from escrowmq.replication.errors import UnknownTopic
from escrowmq.replication.model import NO_ID, TopicInfo, first_group, group_of

#: Topics that a client keeps, or as many as the cluster has, if those are more.
TOPICS_KEPT: Final = 100_000
#: In place of the group in which a topic begins: only its id was told.
_NO_GROUP: Final = -1
#: By topic: the group in which it begins, and its id.
_Topics = dict[str, tuple[int, int]]


class Describes(Protocol):
    """What keeps descriptions of topics."""

    def forget_all(self) -> None:
        """Forget all of them: a topic without one is heard of before it is used."""


class TopicPlacement:
    """The topics of one client. Thread-safe: its dicts are changed by single operations only."""

    def __init__(self, groups: int, topics_kept: int = TOPICS_KEPT) -> None:
        self._groups, self._half = groups, max(topics_kept // 2, 1)
        # What was heard or used since the last turn, and what was so before: the next turn forgets that.
        self._kept: tuple[_Topics, _Topics] = {}, {}
        self._described: WeakSet[Describes] = WeakSet()
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """How many are kept at present. Not ``len``: it is true without any topic, too."""
        return len(self._kept[0].keys() | self._kept[1].keys())

    def describe(self, described: Describes) -> None:
        """Descriptions must not outlive what is kept here: callers that have one take the group for known."""
        with self._lock:
            self._described.add(described)

    def hear(self, topics: Iterable[TopicInfo]) -> None:
        """Takes descriptions of topics from a leader."""
        self._keep({topic.name: (first_group(topic), topic.topic_id) for topic in topics})

    def hear_id(self, topic: str, topic_id: int) -> None:
        """Takes a topic's present id from a broker's answer."""
        known = self._find(topic)
        self._keep({topic: (_NO_GROUP if known is None else known[0], topic_id)})

    def _keep(self, topics: _Topics) -> None:
        young = self._kept[0]
        young.update(topics)
        if len(young) >= self._half:
            # All of them are kept until the next turn, so none is missing that was heard in this call.
            self._kept = {}, young
            with self._lock:
                described = list(self._described)
            for each in described:
                each.forget_all()

    def _find(self, topic: str) -> tuple[int, int] | None:
        young, older = self._kept  # of one moment: a turn may come in between
        found = young.get(topic)
        if found is None and (found := older.get(topic)) is not None:
            young[topic] = found
        return found

    def id_of(self, topic: str) -> int:
        """The topic's id as last reported; ``NO_ID`` if none was."""
        found = self._find(topic)
        return NO_ID if found is None else found[1]

    def unheard(self, topics: Iterable[str]) -> set[str]:
        """Those that are not known; none in a cluster of one group, where none is needed."""
        return set() if self._groups == 1 else {topic for topic in topics if self._first(topic) < 0}

    def group_of(self, topic: str, partition: int) -> int:
        """The group of a partition. Raises UnknownTopic if the topic is not known."""
        if self._groups == 1:
            return 0
        first = self._first(topic)
        if first < 0:
            raise UnknownTopic(topic)
        return group_of(first, partition, self._groups)

    def _first(self, topic: str) -> int:
        found = self._find(topic)
        return _NO_GROUP if found is None else found[0]
