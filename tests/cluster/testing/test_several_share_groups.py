"""Share groups over several broker groups: tags, what operators see, deletions that are cut short."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from escrowmq import GroupNotEmpty, Message, ShareConsumer, ShareRecord, Unavailable, UnknownGroup
from escrowmq.actors.client.consumer_groups import coordinator_group
from escrowmq.replication.format.codec import decode_ops
from escrowmq.replication.format.internal_topics import dead_topic
from escrowmq.replication.format.operation import OpType
from escrowmq.testing import InMemoryCluster

TOPIC, GROUP, PARTITIONS = "orders", "mail", 6
DELETIONS = (OpType.DELETE_GROUP, OpType.DELETE_TOPIC)


class ThreeGroups(InMemoryCluster):
    _GROUPS = 3


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    with ThreeGroups() as made:
        made.admin.create_topic(TOPIC, partitions=PARTITIONS)
        hosts = {each.group for each in made.admin.describe_topic(TOPIC).partitions}
        assert hosts == {0, 1, 2}
        yield made


def queue_of(cluster: InMemoryCluster, **options: Any) -> ShareConsumer:
    return cluster.share_consumer(GROUP, [TOPIC], auto_offset_reset="earliest", **options)


def send(cluster: InMemoryCluster, *tags: str | None) -> None:
    """One message with each of these tags into each partition."""
    with cluster.producer("shop") as producer:
        for partition in range(PARTITIONS):
            for number, tag in enumerate(tags):
                value = b"%d-%d" % (partition, number)
                producer.send(Message(TOPIC, value, partition=partition, tag=tag)).result(0)


def everything(queue: ShareConsumer) -> list[ShareRecord]:
    found: list[ShareRecord] = []
    while records := queue.poll(timeout_s=0.1):
        found += records
    return found


def internal(cluster: InMemoryCluster) -> set[tuple[int, str]]:
    """The internal topics that each broker group has."""
    brokers: Any = cluster.network.brokers
    return {
        (gid, name)
        for gid, broker in enumerate(brokers)
        for name in broker.parts.running.replica.state.topics.topics
        if name.startswith("__")
    }


def known(cluster: InMemoryCluster) -> list[int]:
    """The broker groups that know something of the group."""
    brokers: Any = cluster.network.brokers
    states = [broker.parts.running.replica.state.shares for broker in brokers]
    return [
        gid
        for gid, shares in enumerate(states)
        if GROUP in shares.groups or any(name == GROUP for name, _ in shares.pairs)
    ]


def fail_some(cluster: InMemoryCluster) -> None:
    """In each partition: one dead letter, one that came again and was handled, one handled at once."""
    send(cluster, None, None, None)
    with queue_of(cluster) as queue:
        for record in everything(queue):
            number = record.value[-1:]
            if number == b"0":
                queue.reject(record, reason="hopeless")
            elif number == b"1":
                queue.nack(record, delay_s=1)
            else:
                queue.ack(record)
        cluster.clock.advance(2)
        again = everything(queue)
        assert len(again) == PARTITIONS and {record.topic for record in again} == {"__retry.mail"}
        for record in again:
            queue.ack(record)
    cluster.clock.advance(60)


def test_tags_select_in_all_broker_groups_and_the_rest_is_final(cluster: InMemoryCluster) -> None:
    send(cluster, "paid", None, "sent", "paid", "refunded")
    with queue_of(cluster, tags=["paid", "refunded"]) as queue:
        found = everything(queue)
        expected = {b"%d-%d" % (partition, n) for partition in range(PARTITIONS) for n in (0, 3, 4)}
        assert len(found) == len(expected) and {record.value for record in found} == expected
        queue.flush()
        described = cluster.admin.describe_group(GROUP).share
        assert described is not None and (described.lag, described.leased) == (len(found), len(found))
        nacked, *others = found
        queue.nack(nacked, delay_s=1)
        for record in others:
            queue.ack(record)
        cluster.clock.advance(2)
        (again,) = queue.poll(timeout_s=1)
        assert (again.value, again.tag, again.attempt) == (nacked.value, nacked.tag, 2), "it keeps its tag"
        queue.ack(again)
    described = cluster.admin.describe_group(GROUP).share
    assert described is not None and len(described.partitions) == PARTITIONS
    assert (described.lag, described.leased, described.retrying, described.dead) == (0, 0, 0, 0)
    with queue_of(cluster) as queue:
        assert everything(queue) == [], "what was passed over does not come to a consumer without tags"


def test_two_consumers_with_the_same_tags_share_all_broker_groups(cluster: InMemoryCluster) -> None:
    send(cluster, *["paid", "sent"] * 10)
    with queue_of(cluster, tags=["paid"]) as one, queue_of(cluster, tags=["paid"]) as other:
        found: list[ShareRecord] = []
        for _ in range(60):
            for queue in one, other:
                for record in queue.poll(max_records=3, timeout_s=0.1):
                    found.append(record)
                    queue.ack(record)
    assert len(found) == PARTITIONS * 10 == len({record.value for record in found})
    described = cluster.admin.describe_group(GROUP).share
    assert described is not None and described.lag == 0


def test_counts_of_all_broker_groups_are_added_up(cluster: InMemoryCluster) -> None:
    send(cluster, None, None, None)
    with queue_of(cluster) as queue:
        records = everything(queue)
        for record in records:
            if record.value.endswith(b"0"):
                queue.reject(record)
            elif record.value.endswith(b"1"):
                queue.nack(record, delay_s=60)
        queue.flush()
        share = cluster.admin.describe_group(GROUP).share
        assert share is not None and (share.lag, share.leased) == (PARTITIONS, PARTITIONS)
        assert (share.retrying, share.retrying_later, share.dead) == (PARTITIONS, PARTITIONS, PARTITIONS)
        assert all((each.lag, each.leased) == (1, 1) for each in share.partitions)
        for partition in range(PARTITIONS):
            states = [cluster.admin.trace(TOPIC, partition, n).groups[0].state for n in range(3)]
            assert states == ["dead", "retrying", "leased"]


def test_a_group_is_deleted_with_its_retries_and_dead_letters_everywhere(cluster: InMemoryCluster) -> None:
    fail_some(cluster)
    assert internal(cluster) == {(gid, name) for gid in range(3) for name in ("__dead.mail", "__retry.mail")}
    assert known(cluster) == [0, 1, 2] and len(cluster.admin.dead_letters(GROUP)) == PARTITIONS
    cluster.admin.delete_group(GROUP)
    assert internal(cluster) == set() and known(cluster) == []
    with pytest.raises(UnknownGroup):
        cluster.admin.delete_group(GROUP)
    with queue_of(cluster) as queue:
        found = everything(queue)
        assert len(found) == 3 * PARTITIONS and {record.topic for record in found} == {TOPIC}
        assert cluster.admin.dead_letters(GROUP) == []


@pytest.mark.parametrize("carried_out", [False, True])
def test_a_deletion_that_is_cut_short_at_any_request_is_finished_by_the_next_one(
    monkeypatch: pytest.MonkeyPatch, carried_out: bool
) -> None:
    """Three requests for the group, and three for each of its topics."""
    requests = 0
    for cut in range(20):
        with ThreeGroups() as cluster:
            cluster.admin.create_topic(TOPIC, partitions=PARTITIONS)
            fail_some(cluster)
            submit, requests = cluster.admin._submit, 0

            def cut_short(gid: int, frame: bytes, submit: Any = submit, cut: int = cut) -> Any:
                nonlocal requests
                if decode_ops(frame)[0].type in DELETIONS:
                    requests += 1
                    if requests == cut + 1:
                        if carried_out:
                            submit(gid, frame)
                        raise Unavailable("cut short", 1.0)
                return submit(gid, frame)

            with monkeypatch.context() as patched:
                patched.setattr(cluster.admin, "_submit", cut_short)
                if cut == 9:
                    cluster.admin.delete_group(GROUP)
                    assert requests == 9
                    return
                with pytest.raises(Unavailable):
                    cluster.admin.delete_group(GROUP)
            if cut < 3 and not (cut == 2 and carried_out):
                assert coordinator_group(GROUP, 3) in known(cluster), "the one that decides its kind is last"
                assert len(internal(cluster)) == 6, "topics come after the group"
            done = cut == 8 and carried_out
            if done:
                with pytest.raises(UnknownGroup):
                    cluster.admin.delete_group(GROUP)
            else:
                cluster.admin.delete_group(GROUP)
            assert internal(cluster) == set() and known(cluster) == [], cut
            with queue_of(cluster) as queue:
                found = everything(queue)
                assert len(found) == 3 * PARTITIONS and {record.topic for record in found} == {TOPIC}, cut
    pytest.fail(f"a deletion has {requests} requests")


def in_time(queue: ShareConsumer) -> list[bytes]:
    """All that comes within some seconds, acked."""
    found: list[bytes] = []
    while records := queue.poll(timeout_s=6):
        for record in records:
            queue.ack(record)
            found.append(record.value)
    return sorted(found)


def test_retries_come_where_the_topics_have_no_partition_any_more(cluster: InMemoryCluster) -> None:
    send(cluster, "later", "dead")
    with queue_of(cluster) as queue:
        for record in everything(queue):
            if record.value.endswith(b"0"):
                queue.nack(record, 60)
            else:
                queue.reject(record)
    cluster.admin.delete_topic(TOPIC)
    cluster.admin.create_topic("parcels")
    with cluster.share_consumer(GROUP, ["parcels"]) as queue:
        assert in_time(queue) == []
        cluster.clock.advance(60)
        assert in_time(queue) == [b"%d-0" % partition for partition in range(PARTITIONS)]
        assert cluster.admin.redrive(GROUP).redriven == PARTITIONS
        assert in_time(queue) == [b"%d-1" % partition for partition in range(PARTITIONS)]


def test_a_topic_that_is_created_again_with_more_partitions_is_read(cluster: InMemoryCluster) -> None:
    cluster.admin.create_topic("parcels")
    with cluster.share_consumer(GROUP, ["parcels"]) as queue:
        assert in_time(queue) == []
        cluster.admin.delete_topic("parcels")
        cluster.admin.create_topic("parcels", partitions=3)
        with cluster.producer("shop") as producer:
            for partition in range(3):
                producer.send(Message("parcels", b"%d" % partition, partition=partition)).result(0)
        assert in_time(queue) + in_time(queue) == [b"0", b"1", b"2"]


def test_a_dead_letter_is_found_by_its_key(cluster: InMemoryCluster) -> None:
    keys = [b"k%d" % n for n in range(9)]
    with cluster.producer("shop") as producer:
        for key in keys:
            producer.send(Message(TOPIC, b"", key)).result(0)
    with queue_of(cluster) as queue:
        for record in everything(queue):
            queue.reject(record, "no")
    found = {key: cluster.admin.find(dead_topic(GROUP), key=key).messages for key in keys}
    assert {key: [message.key for message in messages] for key, messages in found.items()} == {
        key: [key] for key in keys
    }
    assert {message.partition for (message,) in found.values()} == {0, 1, 2}


def test_a_deletion_that_one_broker_group_refuses_deletes_nothing_in_the_others(
    cluster: InMemoryCluster,
) -> None:
    send(cluster, None)
    cluster.admin.set_group(GROUP, max_attempts=3)
    with queue_of(cluster, prefetch_records=0) as queue:
        records = everything(queue)
        for record in records[:-1]:
            queue.ack(record)
        queue.flush()
        cluster.clock.advance(10)
        with pytest.raises(GroupNotEmpty):
            cluster.admin.delete_group(GROUP)
        assert known(cluster) == [0, 1, 2]
        queue.ack(records[-1])
        assert everything(queue) == [], "what was acked does not come again"
    assert cluster.admin.describe_group(GROUP).share.settings.max_attempts == 3
