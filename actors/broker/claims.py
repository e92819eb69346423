"""Which partitions a member that joins may go on reading, of those that it claims to read.

A claim counts if nobody was given the partition since the member was, not even the member itself: if it has
not heard of that, it stands where it was before others may have read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from escrowmq.actors.client.consumer_groups import TopicPartition
from escrowmq.replication.model import NO_ID
from escrowmq.replication.state.topics import Topic


class Given(NamedTuple):
    """To whom a partition was given last in a term; ``topic``: the one that it belonged to then.
    ``generation``: under which, or if it was claimed, the one in the claim (-1: none)."""

    member: str
    topic: object
    generation: int


def valid_claims(
    last_given: Mapping[TopicPartition, Given],
    member: str,
    claims: Iterable[TopicPartition],
    which: Callable[[str], object],
    ids: Mapping[str, int],
    generation: int,
) -> frozenset[TopicPartition]:
    """The claims that count. ``generation``: the one under which the member reads; -1: it did not tell, then
    nobody else may have been given the partition. ``which``: the present topic of a name, and ``ids``: those
    of the topics that the member reads. A claim to a partition of an earlier topic is void: within a term
    ``last_given`` tells, and after a fail-over ``ids``."""
    valid = set()
    for tp in claims:
        topic, told = which(tp[0]), ids.get(tp[0])
        last = last_given.get(tp)
        if last is not None and (last.member != member or last.topic is not topic):
            continue
        if last is not None and -1 < generation < last.generation:
            continue
        if told is None or told == id_of(topic):
            valid.add(tp)
    return frozenset(valid)


def id_of(topic: object) -> int:
    """The id of a topic as ``which`` returns it; ``NO_ID`` if there is no topic."""
    return topic.info.topic_id if isinstance(topic, Topic) else NO_ID
