"""Applies operations on topics: creation, alteration, deletion, trimming.

An operation that names an id does nothing to another topic of that name; its result is ``OTHER_TOPIC``.
"""

from __future__ import annotations

from typing import Any

from escrowmq.replication.format.codec import Op
from escrowmq.replication.format.ops import AlterTopic, CreateTopic, DeleteTopic, Trim
from escrowmq.replication.model import ResultCode
from escrowmq.replication.state.dedup import ProducerMemory
from escrowmq.replication.state.group_offsets import Attempts, GroupOffsets
from escrowmq.replication.state.held_letters import HeldLetters
from escrowmq.replication.state.held_offsets import HeldOffsets
from escrowmq.replication.state.shares import Shares
from escrowmq.replication.state.timers import Timers
from escrowmq.replication.state.topics import Partition, TopicTable, is_another

Result = list[Any]


class TopicOperations:
    """Changes the tables of one group's state."""

    def __init__(
        self,
        topics: TopicTable,
        producers: ProducerMemory,
        letters: HeldLetters,
        group_offsets: GroupOffsets,
        held: HeldOffsets,
        attempts: Attempts,
        shares: Shares,
        timers: Timers,
    ) -> None:
        self._topics, self._producers, self._group_offsets = topics, producers, group_offsets
        self._held, self._attempts, self._shares, self._timers = held, attempts, shares, timers
        self._letters = letters

    def create(self, index: int, op: Op) -> Result:
        """CREATE_TOPIC. Replaces an earlier topic whose deletion was interrupted in this group."""
        meta: CreateTopic = op.meta
        if self._topics.is_left_over(meta.name, meta.topic_id):
            self._delete(meta.name)
        return self._topics.create(meta.name, meta.settings, meta.first_group, meta.topic_id)

    def alter(self, index: int, op: Op) -> Result:
        """ALTER_TOPIC."""
        meta: AlterTopic = op.meta
        return self._topics.alter(index, meta.name, meta.settings, meta.number, meta.topic_id)

    def delete(self, index: int, op: Op) -> Result:
        """DELETE_TOPIC: also deletes everything kept about its partitions, and the groups' offsets in it."""
        meta: DeleteTopic = op.meta
        refusal = self._topics.refusal_of_deletion(meta.name, meta.topic_id)
        return self._delete(meta.name) if refusal is None else refusal

    def _delete(self, name: str) -> Result:
        topic = self._topics.topics.get(name)
        if topic is not None:
            dead = {p.slot for p in topic.partitions.values()}
            self._producers.discard_where(lambda key: key[1] in dead)
            self._group_offsets.drop_topic(name)
            self._held.drop_topic(name)
            self._attempts.drop_topic(name)
            self._letters.drop_slots(dead)
            self._shares.drop_slots(dead)
            self._timers.counts.forget(dead)
        return self._topics.delete(name)

    def trim(self, index: int, op: Op) -> Result:
        """TRIM: trims the partitions that this group hosts."""
        meta: Trim = op.meta
        topic = self._topics.topics.get(meta.topic)
        if topic is None:
            return [int(ResultCode.UNKNOWN_TOPIC)]
        if is_another(topic.info.topic_id, meta.topic_id):
            return [int(ResultCode.OTHER_TOPIC), topic.info.topic_id]
        it = iter(meta.starts)
        for number, start in zip(it, it, strict=True):
            partition = self._topics.find(meta.topic, number)
            if isinstance(partition, Partition):
                partition.index.trim(start)
        return [int(ResultCode.OK)]
