"""Operators alter and delete share groups, and the audit trail tells who did it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from escrowmq import ConfigError, GroupNotEmpty, Message, RetryPolicy, ShareRecord, Unavailable, UnknownGroup
from escrowmq.actors.admin import group_changes
from escrowmq.actors.admin.topic_creation import Submit
from escrowmq.actors.client.router import result_of
from escrowmq.replication.replica.share_admission import ShareAdmission
from escrowmq.testing import InMemoryCluster


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    with InMemoryCluster() as made:
        made.admin.create_topic("orders", partitions=2)
        with made.producer("shop") as producer:
            for number in range(4):
                producer.send(Message("orders", b"%d" % number)).result(0)
        yield made


def acts(cluster: InMemoryCluster) -> list[tuple[str, str, str, str]]:
    entries = result_of(cluster.admin.router.leader_call(0, "audit", timeout_s=5.0), 5.0)
    return [(entry.by, entry.app, entry.tx_id, entry.outcome) for entry in entries]


def test_who_alters_a_group_is_in_the_audit_trail(cluster: InMemoryCluster) -> None:
    cluster.admin.set_group("mail", max_attempts=3, by="eve")
    cluster.admin.set_group("mail", lease_s=5)
    assert acts(cluster) == [
        ("eve", "mail", "max_attempts=3", "ALTERED"),
        ("admin", "mail", "lease_ms=5000", "ALTERED"),
    ]


def test_a_share_group_is_deleted_once_nobody_uses_it(cluster: InMemoryCluster) -> None:
    queue = cluster.share_consumer("mail", ["orders"], auto_offset_reset="earliest")
    records = queue.poll()
    with pytest.raises(GroupNotEmpty) as refused:
        cluster.admin.delete_group("mail", by="eve")
    assert len(refused.value.members) == 1
    for record in records:
        queue.ack(record)
    queue.close()
    cluster.clock.advance(60)
    cluster.admin.delete_group("mail", by="eve")
    assert ("eve", "mail", "", "DELETED") in acts(cluster)
    with pytest.raises(UnknownGroup):
        cluster.admin.delete_group("mail")
    again = cluster.share_consumer("mail", ["orders"], auto_offset_reset="earliest")
    assert len(again.poll()) == len(records), "it begins anew"
    again.close()


@pytest.fixture
def cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that has not heard of a group's members, as after a fail-over while they were cut off."""
    monkeypatch.setattr(
        ShareAdmission,
        "deletion",
        lambda self, writer, submission, number: writer.verbatim(
            submission, number, submission.units[number]
        ),
    )


@pytest.mark.usefixtures("cut_off")
@pytest.mark.parametrize(("reset", "expected"), [("latest", [b"new"]), ("earliest", [b"0", b"1", b"new"])])
@pytest.mark.parametrize("awaited", [False, True])
def test_a_consumer_that_was_cut_off_begins_anew_as_it_was_told(
    cluster: InMemoryCluster, reset: str, expected: list[bytes], awaited: bool
) -> None:
    cluster.admin.create_topic("mails")
    with cluster.producer("shop") as producer:
        for value in (b"0", b"1"):
            producer.send(Message("mails", value)).result(0)
        queue = cluster.share_consumer("mail", ["mails"], auto_offset_reset=reset)
        for record in queue.poll(timeout_s=1):
            queue.ack(record)
        queue.flush()
        cluster.admin.delete_group("mail")

        async def poll() -> list[ShareRecord]:
            return await queue.aio.poll(timeout_s=2)

        def polled() -> list[ShareRecord]:
            return asyncio.run(poll()) if awaited else queue.poll(timeout_s=2)

        found = polled()
        producer.send(Message("mails", b"new")).result(0)
        found += polled()
    assert [record.value for record in found] == expected
    described = cluster.admin.describe_group("mail")
    assert described.kind == "share", "so it can be deleted again"
    for record in found:
        queue.ack(record)
    queue.close()
    cluster.admin.delete_group("mail")


def test_partitions_and_topics_that_are_younger_are_read_from_their_beginning(
    cluster: InMemoryCluster,
) -> None:
    with cluster.share_consumer("mail", ["orders"], auto_offset_reset="latest") as queue:
        assert queue.poll(timeout_s=0) == []
        cluster.admin.delete_topic("orders")
        cluster.admin.create_topic("orders")
        with cluster.producer("shop") as producer:
            producer.send(Message("orders", b"first")).result(0)
        assert [record.value for record in queue.poll(timeout_s=5)] == [b"first"]


def internal(cluster: InMemoryCluster) -> list[str]:
    return [topic.name for topic in cluster.admin.topics(internal=True) if topic.name.startswith("__")]


def fail_two(cluster: InMemoryCluster) -> None:
    """One message is a dead letter, one has come again and was handled, two were handled at once."""
    with cluster.share_consumer("mail", ["orders"], auto_offset_reset="earliest") as queue:
        first, second, *others = queue.poll()
        queue.reject(first, reason="hopeless")
        queue.nack(second, delay_s=1)
        for record in others:
            queue.ack(record)
        cluster.clock.advance(2)
        (again,) = queue.poll()
        assert again.topic == "__retry.mail"
        queue.ack(again)
    cluster.clock.advance(60)


def test_retries_and_dead_letters_are_deleted_with_their_group(cluster: InMemoryCluster) -> None:
    fail_two(cluster)
    assert internal(cluster) == ["__dead.mail", "__retry.mail"]
    cluster.admin.delete_group("mail")
    assert internal(cluster) == []
    with pytest.raises(UnknownGroup):
        cluster.admin.dead_letters("mail")
    with cluster.share_consumer("mail", ["orders"], auto_offset_reset="earliest") as queue:
        found = queue.poll()
        assert {record.topic for record in found} == {"orders"} and len(found) == 4, (
            "each once, no old retries"
        )
        queue.reject(found[0])
        assert [letter.id for letter in cluster.admin.dead_letters("mail")] == ["0-0"]


@pytest.mark.parametrize("topics_left", [2, 1])
def test_an_interrupted_deletion_is_finished_by_the_next_one(
    cluster: InMemoryCluster, monkeypatch: pytest.MonkeyPatch, topics_left: int
) -> None:
    fail_two(cluster)
    deleted, delete = [], group_changes.delete_topic

    def interrupted(submit: Submit, groups: int, name: str, known: int | None) -> None:
        if len(deleted) + topics_left == 2:
            raise Unavailable("interrupted", 1.0)
        deleted.append(name)
        delete(submit, groups, name, known)

    with monkeypatch.context() as patched:
        patched.setattr(group_changes, "delete_topic", interrupted)
        with pytest.raises(Unavailable):
            cluster.admin.delete_group("mail")
    assert len(internal(cluster)) == topics_left
    cluster.admin.delete_group("mail")
    assert internal(cluster) == []
    with pytest.raises(UnknownGroup):
        cluster.admin.delete_group("mail")


def test_a_refused_deletion_leaves_the_topics(cluster: InMemoryCluster) -> None:
    with cluster.share_consumer("mail", ["orders"], auto_offset_reset="earliest") as queue:
        queue.poll()
        with pytest.raises(GroupNotEmpty):
            cluster.admin.delete_group("mail")
        assert internal(cluster) == ["__dead.mail", "__retry.mail"]


def test_a_group_by_offsets_loses_its_retries_too(cluster: InMemoryCluster) -> None:
    retry = RetryPolicy(order="concurrent")
    with cluster.consumer("bill", ["orders"], auto_offset_reset="earliest", retry=retry) as consumer:
        records = consumer.poll()
        consumer.nack(records[0], delay_s=0)
        consumer.commit()
    assert internal(cluster) == ["__dead.bill", "__retry.bill"]
    cluster.admin.delete_group("bill")
    assert internal(cluster) == []


def test_its_topics_are_not_deleted_without_the_group(cluster: InMemoryCluster) -> None:
    fail_two(cluster)
    for name in ("__retry.mail", "__dead.mail"):
        with pytest.raises(ConfigError, match="escrowmq group delete mail"):
            cluster.admin.delete_topic(name)
    assert internal(cluster) == ["__dead.mail", "__retry.mail"]
