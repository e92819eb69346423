"""Which broker group hosts a partition, and which topic of its name a topic is: as topics say that were heard
of, for all of a client's parts.

A topic tells where it begins (``TopicInfo.first_group``), so a client has to have heard of it before it can
send or read anything of it. What was heard last stays, also when a topic is asked for again: a topic moves
only if it is deleted and created again, and whoever asks the wrong group is told that there is no such
partition. Then it has another id, too, which what is sent to it names: what arrives late is not taken for
something that was meant for the new one.
"""

from __future__ import annotations

from collections.abc import Iterable

from escrowmq.replication.errors import UnknownTopic
from escrowmq.replication.model import NO_ID, TopicInfo, first_group, group_of


class TopicPlaces:
    """Of one client. Thread-safe: the dicts are changed by single operations only. They hold two numbers for
    each topic that the client has heard of."""

    def __init__(self, groups: int) -> None:
        self._groups = groups
        self._firsts: dict[str, int] = {}
        self._ids: dict[str, int] = {}

    def hear(self, topics: Iterable[TopicInfo]) -> None:
        """These topics are as a leader has told."""
        topics = list(topics)
        self._firsts.update({topic.name: first_group(topic) for topic in topics})
        self._ids.update({topic.name: topic.topic_id for topic in topics})

    def hear_id(self, topic: str, topic_id: int) -> None:
        """A broker has told that the topic has this id by now."""
        self._ids[topic] = topic_id

    def id_of(self, topic: str) -> int:
        """The topic's id, as last heard of; ``NO_ID`` where nobody has told one."""
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
