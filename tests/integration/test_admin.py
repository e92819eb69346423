"""Administration on a real cluster: an operator's work when a transaction hangs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from escrowmq.replication.errors import TopicExists, TransactionConflict, UnknownTopic, UnknownTransaction
from escrowmq.replication.model import Message, TransactionState
from tests.support.polling import read, values

if TYPE_CHECKING:
    from escrowmq import Cluster

Unique = Callable[[str], str]
COMMITTED, ROLLBACK = TransactionState.COMMITTED, TransactionState.ROLLBACK


def test_topics(face: Cluster, unique: Unique) -> None:
    admin, topic = face.admin, unique("orders")
    made = admin.create_topic(topic, partitions=4, transaction_timeout_ms=60_000)
    assert admin.create_topic(topic, partitions=4, transaction_timeout_ms=60_000) == made
    with pytest.raises(TopicExists, match="other settings: partitions is 4, not 5"):
        admin.create_topic(topic, partitions=5)
    assert made in admin.topics()
    described = admin.describe_topic(topic)
    assert [p.partition for p in described.partitions] == [0, 1, 2, 3]
    assert described.partitions[0].leader in (0, 1, 2)
    admin.delete_topic(topic)
    with pytest.raises(UnknownTopic):
        admin.describe_topic(topic)


def test_a_limited_topic_is_taken_as_it_is_unless_the_creator_says_otherwise(
    face: Cluster, unique: Unique
) -> None:
    admin, limited, unlimited = face.admin, unique("limited"), unique("unlimited")
    made = admin.create_topic(limited, partitions=2, retention_ms=604_800_000)
    assert admin.create_topic(limited, partitions=2) == made
    assert admin.create_topic(limited, partitions=2, retention_ms=None) == made
    with pytest.raises(TopicExists, match="retention_ms is 604800000, not -1"):
        admin.create_topic(limited, partitions=2, retention_ms=-1)
    assert admin.describe_topic(limited).kept == "deleted after 7 days"
    admin.create_topic(unlimited)
    assert admin.describe_topic(unlimited).kept == "for ever"


def test_hanging_transactions_are_listed_and_decided_by_hand(face: Cluster, unique: Unique) -> None:
    admin, topic, app = face.admin, unique("orders"), unique("shop")
    admin.create_topic(topic, transaction_timeout_ms=600_000)
    with face.producer(app) as producer:
        for name in ("keep", "drop"):
            with producer.transaction(tx_id=name, query_id=f"order-{name}") as tx:
                tx.send(Message(topic, name.encode()))
                tx.prepare()
                tx.unknown()
    listed = admin.list_transactions(app=app)
    assert [(t.tx_id, t.query_id, t.topic, t.messages) for t in listed] == [
        ("keep", "order-keep", topic, 1),
        ("drop", "order-drop", topic, 1),
    ]
    assert admin.resolve_transaction("keep", COMMITTED, app=app, by="ann").state is COMMITTED
    assert admin.resolve_transaction("drop", ROLLBACK, app=app, by="ann").state is ROLLBACK
    assert admin.list_transactions(app=app) == []
    assert admin.show_transaction("keep", app).state is COMMITTED
    with pytest.raises(TransactionConflict, match="ROLLBACK"):
        admin.resolve_transaction("drop", COMMITTED, app=app)
    with pytest.raises(UnknownTransaction):
        admin.resolve_transaction(unique("never"), COMMITTED)
    with face.consumer(unique("g"), [topic], auto_offset_reset="earliest") as consumer:
        assert values(read(consumer, 1)) == [b"keep"]


def test_groups_and_lag(face: Cluster, unique: Unique) -> None:
    admin, topic, group = face.admin, unique("orders"), unique("g")
    admin.create_topic(topic, partitions=2)
    with face.producer(unique("shop")) as producer:
        for future in [producer.send(Message(topic, b"x", partition=0)) for _ in range(10)]:
            future.result(30)
    with face.consumer(group, [topic], auto_offset_reset="earliest") as consumer:
        read(consumer, 4)
        consumer.commit()
        described = admin.describe_group(group)
        assert described.lag == 6
        assert [m.partitions for m in described.members] == [((topic, 0), (topic, 1))]
    assert group in admin.groups()
    assert admin.describe_group(group).members == ()


def test_status(face: Cluster) -> None:
    status = face.admin.status()
    assert status.healthy
    assert status.cluster_id == face.info.cluster_id
    for group in status.groups:
        assert group.leader in range(face.info.replicas)
        assert len({replica.details["pid"] for replica in group.replicas}) == face.info.replicas
        assert all(replica.applied_index > 0 for replica in group.replicas)
