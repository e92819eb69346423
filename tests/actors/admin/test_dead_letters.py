"""Dead letters are read at the replica that is taken for the leader: it may lag, or be dead."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from escrowmq.actors.admin import dead_letters
from escrowmq.actors.admin.admin import Admin
from escrowmq.actors.admin.dead_letters import DeadLetters
from escrowmq.actors.client import share_groups
from escrowmq.actors.client.results import submitting
from escrowmq.replication.errors import UnknownGroup
from escrowmq.replication.format.internal_topics import dead_topic, retry_topic
from escrowmq.replication.format.share_ops import REJECT, nack, share_create
from escrowmq.replication.model import ResultCode
from tests.support.brokers import Brokers

AdminOf = Callable[[Brokers], Admin]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    running = Brokers(tmp_path_factory.mktemp("dead"))
    yield running
    running.close()


def give_up(brokers: Brokers, admin: Admin, topic: str, group: str, values: Sequence[bytes]) -> None:
    """A new share group has failed with these messages."""
    submit = submitting(admin.router, 10.0)
    share_groups.set_group(submit, 1, group, {"kind": "share"})
    for name in (retry_topic(group), dead_topic(group)):
        share_groups.create_internal_topic(submit, 1, name)
    start = admin.describe_topic(topic).partitions[0].end
    topic_id, many = admin.describe_topic(topic).info.topic_id, len(values)
    assert submit(0, share_create(group, topic, 0, "latest", topic_id))[0] == 0
    brokers.produce(topic, 0, values)
    offsets = list(range(start, start + many))
    request = nack(group, topic, 0, offsets, [REJECT] * many, ["no"] * many, "", "kim", topic_id)
    assert submit(0, request) == (ResultCode.OK, None)


def stands_still(brokers: Brokers, topic: str, end: int) -> tuple[int, threading.Event]:
    """A follower that has this topic up to ``end``, and applies nothing more until the event is set."""
    rid = next(rid for rid in range(3) if rid != brokers.leader())
    brokers.everywhere(topic, {0: end})
    goes_on = threading.Event()
    brokers.groups[0].alive[rid].parts.running.driver.submit(lambda: goes_on.wait(20.0) and None)
    return rid, goes_on


def taken_for_the_leader(admin: Admin, rid: int, patch: pytest.MonkeyPatch) -> None:
    """As after a hint, once the leader has said which dead letters are left."""
    left = DeadLetters._left

    def then_hinted(self: DeadLetters, group: str) -> Any:
        found = left(self, group)
        admin.router.channels[0].follower.leader = rid
        return found

    patch.setattr(DeadLetters, "_left", then_hinted)


def values(admin: Admin, group: str) -> list[bytes]:
    return [letter.value for letter in admin.dead_letters(group)]


def test_those_of_an_earlier_group_are_not_taken_from_a_replica_that_lags(
    brokers: Brokers, admin_of: AdminOf, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    admin, topic, group = admin_of(brokers), unique("t"), unique("g")
    admin.create_topic(topic)
    give_up(brokers, admin, topic, group, [b"old", b"older"])
    rid, goes_on = stands_still(brokers, dead_topic(group), 2)
    try:
        admin.delete_group(group)
        give_up(brokers, admin, topic, group, [b"new"])
        taken_for_the_leader(admin, rid, monkeypatch)
        assert values(admin, group) == [b"new"]
    finally:
        goes_on.set()


def test_those_of_a_later_group_are_not_taken_for_the_ones_that_were_listed(
    brokers: Brokers, admin_of: AdminOf, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    admin, topic, to, group = admin_of(brokers), unique("t"), unique("to"), unique("g")
    admin.create_topic(topic)
    admin.create_topic(to)
    give_up(brokers, admin, topic, group, [b"old"])
    listed = admin._dead._left(group)
    admin.delete_group(group)
    give_up(brokers, admin, topic, group, [b"new"])
    monkeypatch.setattr(DeadLetters, "_left", lambda self, group: listed)
    with pytest.raises(UnknownGroup):
        admin.redrive(group, to=to)
    assert admin.describe_topic(to).messages == 0, "or a second redrive would send it again"


def test_a_leader_that_dies_is_not_waited_for(
    brokers: Brokers, admin_of: AdminOf, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "FETCH_S", 0.2)
    admin, topic, group = admin_of(brokers), unique("t"), unique("g")
    admin.create_topic(topic)
    give_up(brokers, admin, topic, group, [b"old"])
    dead, left = brokers.leader(), DeadLetters._left

    def then_dead(self: DeadLetters, group: str) -> Any:
        found = left(self, group)
        brokers.lose(0, dead)
        return found

    monkeypatch.setattr(DeadLetters, "_left", then_dead)
    try:
        assert values(admin, group) == [b"old"]
    finally:
        brokers.silent.clear()
        brokers.groups[0].start(dead)
