"""What a transaction is told about the offsets of a consumer group that it commits: the work behind it.

A consumer makes one of what its ``poll`` has returned; an application that reads otherwise, of offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from escrowmq.actors.client.call_arguments import group_problem
from escrowmq.actors.client.consumer_groups import TopicPartition, coordinator_group
from escrowmq.replication.errors import InvalidMessage, UnknownTopic
from escrowmq.replication.format.ops import NONE_YET, pre_offsets
from escrowmq.replication.limits import MOVED_OFFSETS_MAX, NUMBER_MAX

#: Where the work began, and where it ends: the group's committed offset (``NONE_YET``: it has none), and the
#: next one.
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class GroupWork:
    """``ids``: those of the topics that were read. ``check`` raises StaleMember if the reader has lost a
    partition. ``ended`` hears, once, whether the transaction was committed."""

    group: str
    spans: Mapping[TopicPartition, Span]
    ids: Mapping[str, int]
    check: Callable[[], None] = lambda: None
    ended: Callable[[bool], None] = lambda committed: None

    def frames(self) -> tuple[bytes, ...]:
        """Its PRE_OFFSETS: one for each topic."""
        by_topic: dict[str, dict[int, Span]] = {}
        for (topic, partition), span in sorted(self.spans.items()):
            by_topic.setdefault(topic, {})[partition] = span
        return tuple(pre_offsets(self.group, topic, by, self.ids[topic]) for topic, by in by_topic.items())

    def gid(self, groups: int) -> int:
        """The broker group whose log has these offsets."""
        return coordinator_group(self.group, groups)

    @property
    def topic(self) -> str:
        """One that was read."""
        return min(topic for topic, _ in self.spans)


class Reader(Protocol):
    """A consumer, for ``Transaction.send_offsets``."""

    def group_work(self) -> GroupWork: ...


def work_of(
    reader: Reader | str,
    offsets: Mapping[TopicPartition, Span] | None,
    id_of: Callable[[str], int],
    partitions: Callable[[str], int],
) -> GroupWork:
    """Of a consumer, or of a group and its ``offsets``. ``partitions(topic)`` raises UnknownTopic."""
    if offsets is not None:
        return _given_work(reader, offsets, id_of, partitions)
    make = getattr(reader, "group_work", None)
    if make is None:
        raise InvalidMessage(
            f"send_offsets takes a consumer with poll, or a group and its offsets, not {reader!r:.80}"
        )
    work: GroupWork = make()
    return work


def _given_work(
    group: object,
    spans: object,
    id_of: Callable[[str], int],
    partitions: Callable[[str], int],
) -> GroupWork:
    if (problem := group_problem(group)) is not None:
        raise InvalidMessage(problem)
    if not isinstance(spans, Mapping) or not 0 < len(spans) <= MOVED_OFFSETS_MAX:
        raise InvalidMessage(f"offsets are a dict of 1 to {MOVED_OFFSETS_MAX} (topic, partition): (from, to)")
    for tp, span in spans.items():
        _check(tp, span)
        topic, partition = tp
        if partition >= (count := partitions(topic)):
            raise UnknownTopic(topic, partition, count)
    return GroupWork(str(group), dict(spans), {topic: id_of(topic) for topic, _ in spans})


def _check(tp: object, span: object) -> None:
    numbers: tuple[object, ...] = ()
    if isinstance(tp, tuple) and isinstance(span, tuple) and len(tp) == len(span) == 2:
        numbers = tp[1], *span
    if not numbers or type(tp[0]) is not str or not all(type(n) is int for n in numbers):  # type: ignore[index]
        raise InvalidMessage(f"offsets are (topic, partition): (from, to), not {tp!r}: {span!r}")
    partition, begin, end = numbers
    if not (partition >= 0 and NONE_YET <= begin <= end <= NUMBER_MAX and end >= 0):  # type: ignore[operator]
        raise InvalidMessage(
            f"{tp!r}: {begin} to {end} goes backwards, or is no offset; the first one is what the group "
            f"has committed, {NONE_YET} if nothing"
        )
