"""Deleting a consumer group, with real broker services and real consumers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from escrowmq.actors.admin import group_changes
from escrowmq.actors.admin.admin import Admin
from escrowmq.actors.broker.group_service import GroupService
from escrowmq.actors.client import share_groups
from escrowmq.actors.client.consumer_groups import GroupLives, PlacesMoved, coordinator_group
from escrowmq.actors.client.results import submitting
from escrowmq.actors.client.router import result_of
from escrowmq.actors.consumer.config import RetryPolicy
from escrowmq.actors.consumer.consumer import Consumer
from escrowmq.replication.errors import GroupNotEmpty, InvalidMessage, StaleMember, Unavailable, UnknownGroup
from escrowmq.replication.format import ops, share_ops
from escrowmq.replication.format.internal_topics import dead_topic, retry_topic
from escrowmq.replication.format.settings import SHARE
from escrowmq.replication.model import NO_ID
from tests.support.brokers import Brokers
from tests.support.polling import read

ConsumerOf = Callable[..., Consumer]
GROUPS = 2


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    running = Brokers(tmp_path_factory.mktemp("delete"), groups=GROUPS, replicas=1)
    yield running
    running.close()


@pytest.fixture
def admin(brokers: Brokers, admin_of: Callable[[Brokers], Admin]) -> Admin:
    return admin_of(brokers)


@pytest.fixture
def topic(brokers: Brokers, admin: Admin, unique: Callable[[str], str]) -> str:
    name = unique("t")
    admin.create_topic(name, partitions=2)
    for partition in (0, 1):
        brokers.produce(name, partition, [b"%d" % n for n in range(10)])
    return name


def reader(brokers: Brokers, consumer_of: ConsumerOf, group: str, topic: str, **options: Any) -> Consumer:
    return consumer_of(brokers, group=group, topics=[topic], auto_offset_reset="earliest", **options)


def test_a_deleted_group_begins_anew(
    brokers: Brokers, admin: Admin, topic: str, unique: Callable[[str], str], consumer_of: ConsumerOf
) -> None:
    group = unique("g")
    for _ in range(2):
        with reader(brokers, consumer_of, group, topic) as consumer:
            read(consumer, 20)
            consumer.commit()
        assert group in admin.groups()
        admin.delete_group(group)
        assert group not in admin.groups() and admin.describe_group(group).partitions == ()
    with pytest.raises(UnknownGroup):
        admin.delete_group(group)


def named(unique: Callable[[str], str], coordinator: int) -> str:
    """A group whose coordinator is that broker group."""
    return next(name for _ in range(99) if coordinator_group(name := unique("g"), GROUPS) == coordinator)


@pytest.mark.parametrize("coordinator", range(GROUPS))
@pytest.mark.parametrize("interrupted", [False, True])
def test_no_broker_group_keeps_settings_of_a_group_with_retries(
    brokers: Brokers,
    admin: Admin,
    topic: str,
    unique: Callable[[str], str],
    consumer_of: ConsumerOf,
    monkeypatch: pytest.MonkeyPatch,
    coordinator: int,
    interrupted: bool,
) -> None:
    group = named(unique, coordinator)
    with reader(brokers, consumer_of, group, topic, retry=RetryPolicy(order="concurrent")) as consumer:
        read(consumer, 20)
        consumer.commit()
    admin.set_group(group, max_attempts=3)
    if interrupted:
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(group_changes, "_forget_settings", ends)
            admin.delete_group(group)
        assert group in admin.groups(), "so it can be repeated"
    admin.delete_group(group)
    assert group not in admin.groups()
    with pytest.raises(UnknownGroup):
        admin.delete_group(group)
    submit = submitting(admin.router, 10.0)
    assert share_groups.set_group(submit, GROUPS, group, {"kind": SHARE}).max_attempts > 3


def ends(*arguments: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("coordinator", range(GROUPS))
def test_settings_that_were_made_for_a_group_that_never_came_can_be_deleted(
    admin: Admin, unique: Callable[[str], str], coordinator: int
) -> None:
    group = named(unique, coordinator)
    admin.set_group(group, max_attempts=3)
    assert group in admin.groups()
    admin.delete_group(group)
    assert group not in admin.groups()


def test_a_coordinator_that_was_deposed_has_no_say_over_a_group_that_it_has_not_heard_of(
    brokers: Brokers,
    admin: Admin,
    topic: str,
    unique: Callable[[str], str],
    consumer_of: ConsumerOf,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group, describe = unique("g"), GroupService.describe
    service = brokers.groups[coordinator_group(group, GROUPS)].leader().parts.groups
    before = [service.describe(group)]  # as it answers until it hears of its successor

    def deposed(self: GroupService, name: str) -> Any:
        return before.pop() if before and name == group else describe(self, name)

    with reader(brokers, consumer_of, group, topic, retry=RetryPolicy(order="concurrent")) as consumer:
        read(consumer, 20)
        monkeypatch.setattr(GroupService, "describe", deposed)
        with pytest.raises(GroupNotEmpty):
            admin.delete_group(group)
        assert not before
    names = {info.name for info in admin.topics(internal=True)}
    assert {retry_topic(group), dead_topic(group)} <= names


def test_live_members_are_named(
    brokers: Brokers, admin: Admin, topic: str, unique: Callable[[str], str], consumer_of: ConsumerOf
) -> None:
    group = unique("g")
    with reader(brokers, consumer_of, group, topic) as consumer:
        read(consumer, 20)
        consumer.commit()
        with pytest.raises(GroupNotEmpty) as refused:
            admin.delete_group(group)
        (member,) = admin.describe_group(group).members
        assert refused.value.members == (member.member,) and member.member in str(refused.value)


def sleeper(brokers: Brokers, admin: Admin, topic: str, group: str, consumer_of: ConsumerOf) -> Consumer:
    """A member that has read more than it has committed, and whose session has ended: it does not know."""
    config = {"session_timeout_s": 60.0, "heartbeat_interval_s": 25.0}
    consumer = reader(brokers, consumer_of, group, topic, config=config)
    read(consumer, 20)
    consumer.commit()
    consumer.seek(topic, 0, 3)
    read(consumer, 2)
    service = brokers.groups[coordinator_group(group, GROUPS)].leader().parts.groups
    for member in admin.describe_group(group).members:
        assert service.leave(group, member.member) == ("ok", None)
    return consumer


def test_a_member_that_slept_does_not_bring_its_offsets_back(
    brokers: Brokers, admin: Admin, topic: str, unique: Callable[[str], str], consumer_of: ConsumerOf
) -> None:
    group = unique("g")
    consumer = sleeper(brokers, admin, topic, group, consumer_of)
    admin.delete_group(group)
    with pytest.raises(StaleMember):
        consumer.commit()
    assert not any(each.committed for each in admin.describe_group(group).partitions)


def test_a_deletion_that_arrives_late_does_nothing_to_a_group_that_is_used_again(
    brokers: Brokers, admin: Admin, topic: str, unique: Callable[[str], str]
) -> None:
    group = unique("g")
    gid = coordinator_group(group, GROUPS)
    admin.reset_group(group, "latest", topic)
    admin.delete_group(group)
    admin.reset_group(group, "earliest", topic)

    def late(seen: dict[str, dict[int, int]]) -> Any:
        return result_of(admin.router.leader_call(gid, "group_delete", group, seen, timeout_s=5.0), 5.0)

    assert late({topic: {0: 10, 1: 10}}) == PlacesMoved()
    assert [each.committed for each in admin.describe_group(group).partitions] == [0, 0]
    assert late({topic: {0: 0, 1: 0}}) is None
    assert late({topic: {0: 0, 1: 0}}) is None, "it stays deleted if the request is repeated"
    assert not isinstance(late({}), GroupLives)


def test_a_plan_from_before_the_deletion_does_not_bring_the_group_back(
    admin: Admin, topic: str, unique: Callable[[str], str]
) -> None:
    group = unique("g")
    admin.reset_group(group, "latest", topic)
    plan = admin.plan_group_reset(group, "earliest")
    admin.delete_group(group)
    with pytest.raises(InvalidMessage, match="deleted meanwhile"):
        admin.reset_group(group, plan)
    assert group not in admin.groups()


def failed_group(running: Brokers, name: str) -> None:
    """A share group with a retry and a dead letter in each of two broker groups, as its consumers make it."""
    running.topic("orders", partitions=2)
    for gid, group in enumerate(running.groups):
        group.submit(share_ops.group_settings(name, {"kind": "share", "delays_ms": [60_000]}))
        for internal in (retry_topic(name), dead_topic(name)):
            group.submit(ops.create_topic(internal, {"partitions": len(running.groups)}, 0, 0))
        (partition,) = (p for p in range(2) if running.group_number("orders", p) == gid)
        running.produce("orders", partition, [b"one", b"two"])
        group.submit(share_ops.share_create(name, "orders", partition, share_ops.EARLIEST, NO_ID))
        delays = [share_ops.BY_TABLE, share_ops.REJECT]
        failed = ["no", "no"]
        group.submit(share_ops.nack(name, "orders", partition, [0, 1], delays, failed, "", "me", NO_ID))


@pytest.mark.parametrize("interrupted", [False, True], ids=["goes on", "is repeated"])
@pytest.mark.parametrize("lost", [0, 1])
def test_the_leader_dies_when_the_group_is_deleted_and_its_topics_are_not(
    tmp_path: Path,
    admin_of: Callable[[Brokers], Admin],
    monkeypatch: pytest.MonkeyPatch,
    lost: int,
    interrupted: bool,
) -> None:
    """The next leader of that broker group deletes the topics: the same call asks it, or the next one."""
    running = Brokers(tmp_path, groups=2, replicas=3)
    try:
        failed_group(running, "mail")
        admin, delete_topics = admin_of(running), group_changes.delete_topics
        share = admin.describe_group("mail").share
        assert share is not None and (share.retrying, share.dead) == (2, 2)

        def dies(*about: Any) -> bool:
            assert admin.describe_group("mail").kind == "", "the group is deleted"
            running.lose(lost, running.leader(lost))
            if interrupted:
                raise Unavailable("so is the operator's process", 1.0)
            return delete_topics(*about)

        with monkeypatch.context() as patched:
            patched.setattr(group_changes, "delete_topics", dies)
            if interrupted:
                with pytest.raises(Unavailable):
                    admin.delete_group("mail")
            else:
                admin.delete_group("mail")
        if interrupted:
            assert {"__dead.mail", "__retry.mail"} <= {topic.name for topic in admin.topics(internal=True)}
            admin.delete_group("mail")
        for group in running.groups:
            topics = group.leader().parts.running.replica.state.topics.topics
            assert topics.keys() == {"orders"}
        with pytest.raises(UnknownGroup):
            admin.delete_group("mail")
    finally:
        running.close()
