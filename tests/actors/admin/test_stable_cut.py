"""A stable cut of real broker services in several groups, beside transactions over all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from escrowmq.actors.admin.admin import Admin
from escrowmq.replication.errors import ConfigError, UnknownTopic
from escrowmq.replication.model import Message
from tests.support.brokers import Brokers
from tests.support.producing import ProducerOf

PARTITIONS = 4


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    running = Brokers(tmp_path_factory.mktemp("two"), groups=2, replicas=1)
    for topic in ("orders", "invoices"):
        running.topic(topic, PARTITIONS)
    yield running
    running.close()


def both(number: int, partition: int) -> list[Message]:
    """One message in each group: neighbouring partitions of a topic are in different ones."""
    value = str(number).encode()
    return [Message(topic, value, partition=partition + n) for n, topic in enumerate(("orders", "invoices"))]


def test_cuts_beside_transactions_over_both_groups_are_never_torn(
    two: Brokers, producer_of: ProducerOf, admin_of: Callable[[Brokers], Admin], consumer_of: Any
) -> None:
    admin, done, sent = admin_of(two), threading.Event(), [0]
    producer = producer_of(two)

    def work(thread: int) -> None:
        while not done.is_set():
            sent[0] += 1
            with producer.transaction() as tx:
                tx.send(*both(thread << 32 | sent[0], thread % 3))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    cuts: list[dict[tuple[str, int], int]] = []
    try:
        while sent[0] < 20:
            done.wait(0.01)
        while len(cuts) < 10:
            cuts.append(admin.stable_cut(["orders", "invoices"]))
    finally:
        done.set()
        for thread in threads:
            thread.join()
    end = admin.stable_cut(["invoices", "orders", "orders"])
    assert len(end) == 2 * PARTITIONS and sum(cuts[0].values()) < sum(end.values())
    records = []
    with consumer_of(two, group="readers", topics=["orders", "invoices"]) as consumer:
        while len(records) < sum(end.values()):
            records += consumer.poll()
    for cut in cuts:
        below: dict[bytes, set[str]] = {}
        for record in records:
            if record.offset < cut[record.topic, record.partition]:
                below.setdefault(record.value, set()).add(record.topic)
        assert below and all(len(topics) == 2 for topics in below.values())


def test_what_cannot_be_cut_is_refused(two: Brokers, admin_of: Callable[[Brokers], Admin]) -> None:
    admin = admin_of(two)
    with pytest.raises(UnknownTopic, match="nothing"):
        admin.stable_cut(["orders", "nothing"])
    with pytest.raises(ConfigError, match="at least one topic"):
        admin.stable_cut([])
    with pytest.raises(ConfigError, match="list of names"):
        admin.stable_cut("orders")
    with pytest.raises(ConfigError, match="list of names"):
        admin.stable_cut([1])  # type: ignore[list-item]
