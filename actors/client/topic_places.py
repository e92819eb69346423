"""The broker group of each partition and the id of each topic, as last reported, for all of a client's parts.

A topic's description says in which group it begins (``TopicInfo.first_group``), so a client must get the
description before it sends or reads. The last description stays in force while a new one is requested: a
topic moves only if it is deleted and created again, and the wrong group answers that it has no such
partition. A topic that was created again also has another id. Requests name the id, so one that arrives late
has no effect on the new topic.
"""

from __future__ import annotations

from collections.abc import Iterable

from escrowmq.replication.errors import UnknownTopic
from escrowmq.replication.model import NO_ID, TopicInfo, first_group, group_of


class TopicPlaces:
    """The topics of one client. Thread-safe: the dicts are changed by single operations only. They hold two
    numbers for each topic that the client has heard of."""

    def __init__(self, groups: int) -> None:
        self._groups = groups
        self._firsts: dict[str, int] = {}
        self._ids: dict[str, int] = {}

    def hear(self, topics: Iterable[TopicInfo]) -> None:
        """Takes descriptions of topics from a leader."""
        topics = list(topics)
        self._firsts.update({topic.name: first_group(topic) for topic in topics})
        self._ids.update({topic.name: topic.topic_id for topic in topics})

    def hear_id(self, topic: str, topic_id: int) -> None:
        """Takes a topic's present id from a broker's answer."""
        self._ids[topic] = topic_id

    def id_of(self, topic: str) -> int:
        """The topic's id as last reported; ``NO_ID`` if none was."""
        return self._ids.get(topic, NO_ID)

    def unheard(self, topics: Iterable[str]) -> set[str]:
        """Those that are not known; none in a cluster of one group, where no place is needed."""
        return set() if self._groups == 1 else {topic for topic in topics if topic not in self._firsts}

    def group_of(self, topic: str, partition: int) -> int:
        """The group of a partition. Raises UnknownTopic if the topic is not known."""
        if self._groups == 1:
            return 0
        first = self._firsts.get(topic)
        if first is None:
            raise UnknownTopic(topic)
        return group_of(first, partition, self._groups)
