"""Topics and their partitions as replicated state.

Every hosted partition of a topic gets a *slot*, a small integer that is never reused.
References of open transactions name slots, so a topic that was deleted and created again
under the same name can never receive messages prepared for the old one.

Clients and operators name topics, and their requests may arrive late. So each topic has an id, which group 0
assigns and the other groups receive, and requests name the id of the topic that they mean. Later topics have
higher ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace

from escrowmq.replication.errors import UnknownVersion
from escrowmq.replication.format.settings import ALTERABLE, UNSTATED, settings_problem
from escrowmq.replication.model import BY_NAME, NO_ID, ResultCode, TopicInfo, first_group, group_of
from escrowmq.replication.state.index import Cuts, PartitionIndex

# ------------------------------------------------------------------ topics


class Partition:
    """One partition hosted by this group."""

    __slots__ = ("index", "number", "slot", "topic", "topic_id")

    def __init__(self, slot: int, topic: str, number: int, index: PartitionIndex, topic_id: int) -> None:
        self.slot, self.topic, self.number, self.index = slot, topic, number, index
        self.topic_id = topic_id


def is_another(topic_id: int, wanted: int) -> bool:
    """Whether an operation that names the topic ``wanted`` means another than this one; ``NO_ID`` means
    whichever has the name."""
    return wanted not in (NO_ID, topic_id)


class Topic:
    """A topic's settings, and those of its partitions that this group hosts, by number. ``altered``: the
    number of its newest alteration, or of another topic's before it was created; 0: none."""

    __slots__ = ("altered", "info", "partitions")

    def __init__(self, info: TopicInfo, partitions: dict[int, Partition], altered: int = 0) -> None:
        self.info, self.partitions, self.altered = info, partitions, altered


class TopicTable:
    """All topics by name, all live partitions by slot. ``version`` rises with every change of a topic;
    ``altered`` is the highest known number of an alteration of any topic; ``last_id``, in group 0, the id
    that was assigned last."""

    def __init__(self, gid: int, groups: int) -> None:
        self.gid, self.groups = gid, groups
        self.cuts = Cuts()
        self.version = self.altered = 0
        self.last_id = NO_ID
        self.topics: dict[str, Topic] = {}
        self.slots: dict[int, Partition] = {}
        self.next_slot = 0

    def create(
        self,
        name: str,
        settings: Mapping[str, object],
        first: int = BY_NAME,
        topic_id: int = NO_ID,
    ) -> list[object]:
        """Apply CREATE_TOPIC; the same settings again are no error. ``first``: the group of partition 0.

        ``topic_id``: the id that group 0 has assigned; group 0 itself assigns one. The result contains the
        id. Call ``is_left_over`` before.
        """
        problem = settings_problem(name, settings)
        if problem is not None:
            return [int(ResultCode.MALFORMED), problem]
        info = TopicInfo(name, **{**UNSTATED, **settings}, first_group=first)  # type: ignore[arg-type]
        known = self.topics.get(name)
        if known is not None:
            return self._exists(known.info, info, topic_id)
        if self.gid == 0:
            self.last_id = topic_id = self.last_id + 1
        info = replace(info, topic_id=topic_id)
        begin = first_group(info)
        partitions: dict[int, Partition] = {}
        for number in range(info.partitions):
            if group_of(begin, number, self.groups) == self.gid:
                self.next_slot += 1
                partitions[number] = self.partition(self.next_slot, name, number, topic_id=info.topic_id)
        self.topics[name] = Topic(info, partitions, self.altered)
        self.version += 1
        return [int(ResultCode.OK), topic_id]

    def _exists(self, known: TopicInfo, info: TopicInfo, topic_id: int) -> list[object]:
        if self.gid > 0 and topic_id != known.topic_id:
            return [int(ResultCode.OTHER_TOPIC), known.topic_id]
        if known == info:
            return [int(ResultCode.DUPLICATE), known.topic_id]
        return [int(ResultCode.TOPIC_EXISTS), asdict(known)]

    def is_left_over(self, name: str, topic_id: int) -> bool:
        """Whether the topic of this name is older than the one with ``topic_id``, which group 0 has reported:
        then its deletion was interrupted here."""
        topic = self.topics.get(name)
        return topic is not None and self.gid > 0 and topic.info.topic_id < topic_id

    def alter(
        self, index: int, name: str, settings: Mapping[str, int | str], number: int, topic_id: int
    ) -> list[object]:
        """Apply ALTER_TOPIC of entry ``index``; the result has the settings in force, the number of the
        newest alteration, and the topic's id.

        ``topic_id``: the id of the topic that is meant; any other topic is left unchanged. ``NO_ID``: any
        topic of that name.

        ``number`` puts the alterations of a topic into the same order in all groups, however late one
        arrives. In group 0, which decides, it is the number of the newest alteration that the sender knows:
        if there is a newer one, the result is RETRY; otherwise this one gets the entry's index as its number.
        In the other groups it is the number that group 0 assigned: an alteration that is not newer than the
        one in force is answered DUPLICATE.

        Admission has checked the values: a limit that is checked here, too, could never change, because
        replicas with older software would keep the old one. Raises UnknownVersion for a name that this
        software does not know, as for an unknown operation.
        """
        unknown = sorted(settings.keys() - ALTERABLE)
        if unknown:
            raise UnknownVersion(f"topic setting {unknown[0]!r} is not known here as alterable; upgrade")
        topic = self.topics.get(name)
        if topic is None:
            return [int(ResultCode.UNKNOWN_TOPIC)]
        if is_another(topic.info.topic_id, topic_id):
            return [int(ResultCode.OTHER_TOPIC), topic.info.topic_id]
        code = ResultCode.OK
        if self.gid == 0:
            code = ResultCode.OK if number == topic.altered else ResultCode.RETRY
            number = index
        elif number <= topic.altered:
            code = ResultCode.DUPLICATE
        if code == ResultCode.OK:
            topic.info = replace(topic.info, **settings)  # type: ignore[arg-type]
            self.version += 1
            topic.altered = number
            self.altered = max(self.altered, number)
        return [int(code), [topic.info.settings(), topic.altered, topic.info.topic_id]]

    def partition(self, slot: int, topic: str, number: int, *bounds: int, topic_id: int = NO_ID) -> Partition:
        """A partition of a new topic, or one of a snapshot with its start, end and newest time."""
        start, end, last_time_ms = bounds or (0, 0, 0)
        index = PartitionIndex(start, end, last_time_ms, self.cuts)
        partition = Partition(slot, topic, number, index, topic_id)
        self.slots[slot] = partition
        return partition

    def is_meant(self, name: str, topic_id: int) -> bool:
        """Whether a deletion of the topic with that id applies to the topic that has this name now. In groups
        other than group 0 it also applies to earlier topics that an interrupted deletion left there."""
        topic = self.topics.get(name)
        if topic is None or topic_id == NO_ID:
            return topic is not None
        return topic.info.topic_id == topic_id if self.gid == 0 else topic.info.topic_id <= topic_id

    def refusal_of_deletion(self, name: str, topic_id: int) -> list[object] | None:
        """Why a deletion that names an id does nothing, or None. Contains the id of the present topic or, in
        group 0 if there is none, the id that was assigned last: later topics get higher ones."""
        topic = self.topics.get(name)
        if topic is None:
            return [int(ResultCode.UNKNOWN_TOPIC), self.last_id]
        if not self.is_meant(name, topic_id):
            return [int(ResultCode.OTHER_TOPIC), topic.info.topic_id]
        return None

    def delete(self, name: str) -> list[object]:
        """Apply DELETE_TOPIC: deletes its partitions' slots; references to these are dropped later."""
        topic = self.topics.pop(name, None)
        if topic is None:
            return [int(ResultCode.UNKNOWN_TOPIC)]
        self.version += 1
        for partition in topic.partitions.values():
            del self.slots[partition.slot]
        return [int(ResultCode.OK)]

    def find(self, name: str, number: int) -> Partition | int:
        """The partition, or the ResultCode that says why there is none here."""
        topic = self.topics.get(name)
        if topic is None:
            return ResultCode.UNKNOWN_TOPIC
        partition = topic.partitions.get(number)
        return ResultCode.BAD_PARTITION if partition is None else partition
