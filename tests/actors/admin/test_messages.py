"""Searching and tracing messages at real brokers: which replica is asked, and what when it is away."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from escrowmq.actors.admin.admin import Admin
from escrowmq.actors.producer.producer import Producer
from escrowmq.replication.errors import TopicRecreated, Unavailable
from escrowmq.replication.format.find_table import BLOCK_OFFSETS
from escrowmq.replication.model import Message
from tests.support.brokers import Brokers, ClientCalls, taking

PARTITIONS = 2


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Brokers]:
    running = Brokers(tmp_path)
    yield running
    running.close()


class Impatient(Admin):
    answer_s = 0.2


@pytest.fixture
def admin(cluster: Brokers) -> Iterator[Admin]:
    cluster.topic("orders", PARTITIONS)
    with Impatient(cluster.info, timeout_s=4.0, calls=ClientCalls(cluster)) as made:
        yield made


def produce(cluster: Brokers, count: int, partition: int = 0) -> None:
    with Producer(cluster.info, app="shop", calls=ClientCalls(cluster)) as producer:
        sent = [
            producer.send(Message("orders", b"", b"k%d" % (n % 1_000), partition=partition))
            for n in range(count)
        ]
        for future in sent:
            future.result(30)


def asked(cluster: Brokers) -> list[int]:
    found = [rid for _, rid, method in cluster.asked if method == "find"]
    cluster.asked.clear()
    return found


def found(admin: Admin, key: str, partition: int = 0) -> list[int]:
    return [message.offset for message in admin.find("orders", key=key, partitions=[partition]).messages]


def test_one_follower_answers_and_keeps_what_it_has_read(
    cluster: Brokers, admin: Admin, tmp_path: Path
) -> None:
    produce(cluster, BLOCK_OFFSETS + 1_000)
    assert found(admin, "k7") == list(range(7, BLOCK_OFFSETS + 1_000, 1_000))
    (rid,) = set(asked(cluster))
    assert rid != cluster.leader()
    produce(cluster, 10)
    assert found(admin, "k7") == [*range(7, BLOCK_OFFSETS + 1_000, 1_000), BLOCK_OFFSETS + 1_007]
    assert set(asked(cluster)) == {rid}
    (file,) = tmp_path.rglob("*.find")
    group = cluster.groups[0]
    group.stop(rid)
    assert not any(thread.name == f"find-{rid}" for thread in threading.enumerate())
    file.write_bytes(file.read_bytes()[:-1])
    group.start(rid)
    assert found(admin, "k7") == [*range(7, BLOCK_OFFSETS + 1_000, 1_000), BLOCK_OFFSETS + 1_007]


def test_another_replica_answers_for_a_silent_one(cluster: Brokers, admin: Admin) -> None:
    produce(cluster, 100)
    admin.find("orders", key="k1", partitions=[0])
    (rid,) = set(asked(cluster))
    cluster.silent.add((0, rid))
    assert found(admin, "k7") == [7]
    assert set(asked(cluster)) - {rid}
    cluster.silent.update((0, n) for n in range(3) if n != cluster.leader())
    assert found(admin, "k8") == [8]


def test_when_nobody_answers_it_says_so(cluster: Brokers, admin: Admin) -> None:
    produce(cluster, 10)
    with (
        taking(cluster, lambda *call: call[2] == "find"),
        pytest.raises(Unavailable, match="does not answer"),
    ):
        admin.find("orders", key="k", partitions=[0])


def test_a_follower_that_lags_hides_nothing(cluster: Brokers, admin: Admin) -> None:
    for count in range(1, 30):
        produce(cluster, 1)
        assert found(admin, "k0") == list(range(count))


def test_a_topic_that_is_created_again_meanwhile_is_noticed(
    cluster: Brokers, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.create_topic("notes")
    real = admin._topic
    with Producer(cluster.info, app="shop", calls=ClientCalls(cluster)) as producer:
        producer.send(Message("notes", b"", b"k")).result(30)
        known = real("notes")
        admin.delete_topic("notes")
        admin.create_topic("notes")
    with Producer(cluster.info, app="shop", calls=ClientCalls(cluster)) as producer:
        producer.send(Message("notes", b"", b"k")).result(30)
    monkeypatch.setattr(admin, "_topic", lambda name: known)
    for ask in (lambda: admin.find("notes", key="k"), lambda: admin.message("notes", 0, 0)):
        with pytest.raises(TopicRecreated):
            ask()
