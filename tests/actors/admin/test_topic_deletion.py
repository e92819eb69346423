"""Deleting, altering and trimming the topic that is meant, over several groups.

The broker groups are the replicated states themselves, without the replicas around them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from escrowmq.actors.admin.topic_creation import (
    PartitionTrim,
    alter_topic,
    carry_out,
    create_topic,
    delete_topic,
)
from escrowmq.replication.errors import TopicRecreated, UnknownTopic
from escrowmq.replication.format.codec import decode_ops
from escrowmq.replication.model import TopicInfo
from escrowmq.replication.state.machine import StateMachine

GROUPS = 3
PARTITIONS = 3


class CutShort(Exception):
    """The operator died."""


class Cluster:
    """The state of every broker group; requests are kept, so that copies can arrive later."""

    def __init__(self) -> None:
        self.states = [StateMachine(gid, GROUPS) for gid in range(GROUPS)]
        self.sent: list[tuple[int, bytes]] = []
        #: What happens before the request of this number, once.
        self.before: dict[int, Callable[[], Any]] = {}

    def do(self, gid: int, request: bytes) -> tuple[int, Any]:
        state, found = self.states[gid], decode_ops(request)
        (result,) = state.apply_ops(state.applied_index + 1, state.now_ms + 1, found)
        return result[0], result[1] if len(result) > 1 else None

    def submit(self, gid: int, request: bytes) -> tuple[int, Any]:
        self.before.pop(len(self.sent), lambda: None)()
        self.sent.append((gid, request))
        return self.do(gid, request)

    def create(self, partitions: int = PARTITIONS) -> TopicInfo:
        return create_topic(self.submit, GROUPS, "t", partitions, {})

    def delete(self) -> None:
        known = self.states[0].topics.topics.get("t")
        delete_topic(self.submit, GROUPS, "t", None if known is None else known.info.topic_id)

    def cut_short(self, after: int) -> None:
        """The next operator dies after so many requests."""
        self.before[len(self.sent) + after] = self.die

    @staticmethod
    def die() -> None:
        raise CutShort

    def ids(self) -> list[int | None]:
        found = [state.topics.topics.get("t") for state in self.states]
        return [None if topic is None else topic.info.topic_id for topic in found]

    def arrive_again(self, since: int, until: int) -> None:
        for gid, request in self.sent[since:until]:
            self.do(gid, request)


def test_every_group_has_the_id_that_group_0_gave() -> None:
    cluster = Cluster()
    assert cluster.create().topic_id == 1 and cluster.ids() == [1, 1, 1]
    assert cluster.create().topic_id == 1, "created again it is the same"
    cluster.delete()
    assert cluster.create().topic_id == 2 and cluster.ids() == [2, 2, 2]


def test_copies_of_a_deletion_do_nothing_to_the_topic_that_is_created_again() -> None:
    cluster = Cluster()
    cluster.create()
    begun = len(cluster.sent)
    cluster.delete()
    ended = len(cluster.sent)
    cluster.create()
    cluster.arrive_again(begun, ended)
    assert cluster.ids() == [2, 2, 2]


@pytest.mark.parametrize("groups", [1, 2])
def test_a_deletion_that_was_cut_short_is_repeated_or_made_good_by_the_next_creation(groups: int) -> None:
    cluster = Cluster()
    cluster.create()
    cluster.cut_short(groups)
    with pytest.raises(CutShort):
        cluster.delete()
    assert cluster.ids() == [None] * groups + [1] * (GROUPS - groups)
    begun = len(cluster.sent)
    cluster.delete()
    assert cluster.ids() == [None] * GROUPS
    ended = len(cluster.sent)
    cluster.create()
    cluster.arrive_again(begun, ended)
    assert cluster.ids() == [2, 2, 2]
    cluster.cut_short(groups)
    with pytest.raises(CutShort):
        cluster.delete()
    assert cluster.create().topic_id == 3 and cluster.ids() == [3, 3, 3]


def test_a_topic_that_no_group_has_is_unknown() -> None:
    cluster = Cluster()
    with pytest.raises(UnknownTopic):
        cluster.delete()


def test_one_that_is_created_while_none_is_to_be_deleted_stays() -> None:
    cluster = Cluster()
    cluster.before[0] = cluster.create
    with pytest.raises(UnknownTopic):
        delete_topic(cluster.submit, GROUPS, "t", None)
    assert cluster.ids() == [1, 1, 1]


def test_copies_of_an_alteration_do_nothing_to_the_topic_that_is_created_again() -> None:
    cluster = Cluster()
    cluster.create()
    begun = len(cluster.sent)
    assert alter_topic(cluster.submit, GROUPS, "t", {"check_max": 3}).topic_id == 1
    ended = len(cluster.sent)
    cluster.delete()
    cluster.create()
    cluster.arrive_again(begun, ended)
    assert [state.topics.topics["t"].info.check_max for state in cluster.states] == [15] * GROUPS


def test_who_alters_a_topic_that_is_another_one_by_now_is_told() -> None:
    cluster = Cluster()
    cluster.create()

    def again() -> None:
        cluster.delete()
        cluster.create()

    cluster.before[len(cluster.sent) + 1] = again
    with pytest.raises(TopicRecreated, match="deleted and created again"):
        alter_topic(cluster.submit, GROUPS, "t", {"check_max": 3})


def test_a_plan_to_trim_is_about_the_topic_that_was_looked_at() -> None:
    cluster = Cluster()
    made = cluster.create()
    plan = [PartitionTrim(0, 0, 5, 9, made.topic_id)]
    cluster.delete()
    cluster.create()
    with pytest.raises(TopicRecreated):
        carry_out(cluster.submit, lambda topic, number: number, "t", plan)
