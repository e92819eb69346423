"""Topics and their partitions as replicated state.

Every hosted partition of a topic gets a *slot*, a small integer that is never reused.
References of open transactions name slots, so a topic that was deleted and created again
under the same name can never receive messages prepared for the old one.

Clients and operators name topics, and their requests may arrive late. So from level 6 on each topic has an
id, which group 0 assigns and the other groups receive, and requests name the id of the topic that they mean.
Later topics have higher ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace

from escrowmq.replication.errors import UnknownVersion
from escrowmq.replication.model import BY_NAME, NO_ID, ResultCode, TopicInfo, first_group, group_of
from escrowmq.replication.state.index import Cuts, PartitionIndex

# ------------------------------------------------------------------ topics

PARTITIONS_MAX = 10_000
#: Format level from which on new topics get ids.
LEVEL_OF_IDS = 6
#: The settings that an entry means if it does not state them. Part of the log's format: they never change,
#: because entries of old clients are always applied with them. Clients state every setting, with their own
#: defaults.
UNSTATED: Mapping[str, int | str] = {
    "partitions": 1,
    "on_check_exhausted": "hold",
    "check_max": 15,
    "transaction_timeout_ms": 6000,
    "retention_ms": 604_800_000,  # seven days
    "retention_bytes": -1,
}

_EARLIER = "this client's version expects it: upgrade the client"

#: What ALTER_TOPIC can change. Not the number of partitions: keys would move, and lose their order.
ALTERABLE = frozenset(UNSTATED.keys() - {"partitions"})


class Partition:
    """One partition hosted by this group."""

    __slots__ = ("index", "number", "slot", "topic", "topic_id")

    def __init__(self, slot: int, topic: str, number: int, index: PartitionIndex, topic_id: int) -> None:
        self.slot, self.topic, self.number, self.index = slot, topic, number, index
        self.topic_id = topic_id


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
        topic_id: int | None = None,
    ) -> list[object]:
        """Apply CREATE_TOPIC; the same settings again are no error. ``first``: the group of partition 0.

        ``topic_id`` (frame version 3): the id that group 0 has assigned; group 0 itself assigns one. The
        result contains the id. Call ``is_left_over`` before.
        """
        problem = settings_problem(name, settings)
        if problem is not None:
            return [int(ResultCode.MALFORMED), problem]
        info = TopicInfo(name, **{**UNSTATED, **settings}, first_group=first)  # type: ignore[arg-type]
        known = self.topics.get(name)
        if known is not None:
            return self._exists(known.info, info, topic_id)
        told: list[object] = []
        if topic_id is not None:
            if self.gid == 0:
                self.last_id = topic_id = self.last_id + 1
            info = replace(info, topic_id=topic_id)
            told = [topic_id]
        begin = first_group(info)
        partitions: dict[int, Partition] = {}
        for number in range(info.partitions):
            if group_of(begin, number, self.groups) == self.gid:
                self.next_slot += 1
                partitions[number] = self.partition(self.next_slot, name, number, topic_id=info.topic_id)
        self.topics[name] = Topic(info, partitions, self.altered)
        self.version += 1
        return [int(ResultCode.OK), *told]

    def _exists(self, known: TopicInfo, info: TopicInfo, topic_id: int | None) -> list[object]:
        if topic_id is not None and self.gid > 0 and topic_id != known.topic_id:
            return [int(ResultCode.OTHER_TOPIC), known.topic_id]
        if topic_id is None and known.topic_id != NO_ID and self.groups > 1:
            # A client of an earlier version would create it without an id in the groups that do not have it
            # yet.
            return [int(ResultCode.MALFORMED), f"topic {known.name!r} exists, with an id: {_EARLIER}"]
        if known == info:
            return [int(ResultCode.DUPLICATE), *([] if topic_id is None else [known.topic_id])]
        if info.first_group == BY_NAME != known.first_group:
            # This client would look for it elsewhere, and would create it elsewhere in the other groups.
            return [int(ResultCode.MALFORMED), f"topic {known.name!r} exists, and not where {_EARLIER}"]
        return [int(ResultCode.TOPIC_EXISTS), asdict(known)]  # earlier versions ignore new names

    def is_left_over(self, name: str, topic_id: int) -> bool:
        """Whether the topic of this name is older than the one with ``topic_id``, which group 0 has reported:
        then its deletion was interrupted here."""
        topic = self.topics.get(name)
        return topic is not None and self.gid > 0 and topic.info.topic_id < topic_id

    def alter(
        self,
        index: int,
        name: str,
        settings: Mapping[str, int | str],
        number: int | None = None,
        topic_id: int | None = None,
    ) -> list[object]:
        """Apply ALTER_TOPIC of entry ``index``; the result has the settings in force.

        ``topic_id`` (frame version 3): the id of the topic that is meant; any other topic is left unchanged.
        -1: any topic of that name. The result contains the id, too.

        ``number`` puts the alterations of a topic into the same order in all groups, however late one
        arrives. In group 0, which decides, it is the number of the newest alteration that the sender knows:
        if there is a newer one, the result is RETRY; otherwise this one gets the entry's index as its number.
        In the other groups it is the number that group 0 assigned: an alteration that is not newer than the
        one in force is answered DUPLICATE. None (frame version 1): unconditional.

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
        if topic_id is not None and topic_id >= NO_ID and topic_id != topic.info.topic_id:
            return [int(ResultCode.OTHER_TOPIC), topic.info.topic_id]
        code = ResultCode.OK
        if number is not None:
            if self.gid == 0:
                code = ResultCode.OK if number == topic.altered else ResultCode.RETRY
                number = index
            elif number <= topic.altered:
                code = ResultCode.DUPLICATE
        if code == ResultCode.OK:
            topic.info = replace(topic.info, **settings)  # type: ignore[arg-type]
            self.version += 1
            if number is not None:
                topic.altered = number
                self.altered = max(self.altered, number)
        info = topic.info.settings()  # clients of earlier versions accept no other names
        if number is None:
            return [int(code), info]
        return [int(code), [info, topic.altered, *([] if topic_id is None else [topic.info.topic_id])]]

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
        if topic is None:
            return False
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


def alter_problem(name: str, settings: Mapping[str, object]) -> str | None:
    """Why a client's ALTER_TOPIC is refused; None: it is accepted."""
    if "partitions" in settings:
        return "the number of partitions cannot be altered: keys would move to other partitions"
    return settings_problem(name, settings)


def settings_problem(name: str, settings: Mapping[str, object]) -> str | None:
    """Why these settings cannot be applied, or None. Used at admission and again when applied."""
    if not name or len(name) > 200 or not all(c.isalnum() or c in "._-" for c in name):
        return f"topic name {name!r}: 1 to 200 letters, digits, '.', '_' or '-'"
    for key, value in settings.items():
        if key not in UNSTATED:
            return f"unknown topic setting {key!r}; known: {', '.join(sorted(UNSTATED))}"
        wanted = str if key == "on_check_exhausted" else int
        if type(value) is not wanted:
            return f"topic setting {key!r} must be {wanted.__name__}, not {value!r}"
    partitions = settings.get("partitions", 1)
    if not 1 <= partitions <= PARTITIONS_MAX:  # type: ignore[operator]
        return f"partitions must be 1 to {PARTITIONS_MAX}, not {partitions}"
    if settings.get("on_check_exhausted", "hold") not in ("hold", "rollback"):
        return "on_check_exhausted must be 'hold' or 'rollback'"
    for key in ("check_max", "transaction_timeout_ms"):
        if settings.get(key, 1) < 1:  # type: ignore[operator]
            return f"topic setting {key!r} must be at least 1"
    for key in ("retention_ms", "retention_bytes"):
        if settings.get(key, -1) < -1:  # type: ignore[operator]
            return f"topic setting {key!r} must be -1 (unlimited) or more"
    return None
