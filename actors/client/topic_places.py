"""Which broker group hosts a partition, as far as topics are known; shared by all parts of a client.

A topic says where it begins (``TopicInfo.first_group``), so a client must have heard of it before it can
send to it or read it. The last known place stays, even while a topic is asked for again: a topic moves
only if it is deleted and created again, and a caller that asks the wrong group is told that there is no such
partition.
"""

from __future__ import annotations

from collections.abc import Iterable

from escrowmq.replication.errors import UnknownTopic
from escrowmq.replication.model import TopicInfo, first_group, group_of


class TopicPlaces:
    """The places of one client. Thread-safe: the only dict is changed by single operations. It holds a number
    for each topic that the client has heard of."""

    def __init__(self, groups: int) -> None:
        self._groups = groups
        self._firsts: dict[str, int] = {}

    def hear(self, topics: Iterable[TopicInfo]) -> None:
        """A leader has reported these topics."""
        self._firsts.update({topic.name: first_group(topic) for topic in topics})

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
