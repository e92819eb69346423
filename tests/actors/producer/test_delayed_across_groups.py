"""Delayed messages over several broker groups of real threads and files: one decision, each group's own
release; and a leader that changes while messages wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from escrowmq.actors.admin.admin import Admin
from escrowmq.replication.model import Message, TransactionState
from tests.support.brokers import Brokers
from tests.support.producing import ProducerOf, values
from tests.support.waiting import wait_until

GROUPS = 2
AdminOf = Callable[[Brokers], Admin]


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    running = Brokers(tmp_path_factory.mktemp("wide"), groups=GROUPS, replicas=1)
    running.topic("orders", 4)
    yield running
    running.close()


@pytest.fixture
def orders(wide: Brokers, unique: Callable[[str], str]) -> str:
    name = unique("orders")
    wide.topic(name, 4)
    return name


def ms() -> int:
    return round(time.time() * 1000)


def test_a_transaction_schedules_in_all_its_groups_or_in_none(
    wide: Brokers, orders: str, producer_of: ProducerOf, admin_of: AdminOf
) -> None:
    producer, due = producer_of(wide), ms() + 1_500
    with producer.transaction() as tx:
        tx.send(Message(orders, b"now", partition=0))
        tx.send(*(Message(orders, b"later %d" % n, partition=n, deliver_at=due) for n in range(4)))
        tx.prepare()
    with pytest.raises(ZeroDivisionError), producer.transaction() as undone:
        undone.send(*(Message(orders, b"never", partition=n, deliver_at=due) for n in range(4)))
        undone.prepare()
        raise ZeroDivisionError
    waiting = admin_of(wide).scheduled(orders)
    assert (
        sorted(m.schedule_id for m in waiting) == sorted(filter(None, tx.schedule_ids)) and len(waiting) == 4
    )
    assert {wide.group_number(orders, m.partition) for m in waiting} == {0, 1}
    assert tx.schedule_ids[2] is not None and producer.cancel(tx.schedule_ids[2])
    assert values(wide, orders, 4) == [b"now"]
    expected = sorted([b"now", b"later 0", b"later 1", b"later 3"])
    wait_until(lambda: sorted(values(wide, orders, 4)) == expected, 10.0, "all that was not cancelled")
    assert ms() >= due


def test_transactions_in_bulk_over_groups_are_scheduled(
    wide: Brokers, orders: str, producer_of: ProducerOf
) -> None:
    producer = producer_of(wide)
    batch = [
        [
            Message(orders, b"%d" % n, partition=n % 4),
            Message(orders, b"late %d" % n, partition=(n + 1) % 4, delay_s=1),
        ]
        for n in range(40)
    ]
    results = producer.send_transactions(batch)
    assert {result.state for result in results} == {TransactionState.COMMITTED}
    now = sorted(b"%d" % n for n in range(40))
    assert sorted(values(wide, orders, 4)) == now
    everything = sorted([*now, *(b"late %d" % n for n in range(40))])
    wait_until(lambda: sorted(values(wide, orders, 4)) == everything, 10.0, "the delayed ones")


def test_what_waits_outlives_a_restart_and_another_leader(
    tmp_path: Path, producer_of: ProducerOf, admin_of: AdminOf
) -> None:
    brokers = Brokers(tmp_path, groups=1, replicas=3)
    try:
        brokers.topic("orders")
        producer = producer_of(brokers)
        sent = [producer.send(Message("orders", b"%d" % n, delay_s=3)).result(10) for n in range(5)]
        group = brokers.groups[0]
        leader = brokers.leader()
        group.stop(leader)
        assert sent[1].schedule_id is not None and producer.cancel(sent[1].schedule_id)
        waiting = [message.schedule_id for message in admin_of(brokers).scheduled("orders")]
        assert waiting == [one.schedule_id for one in sent if one is not sent[1]]
        group.start(leader)
        wait_until(
            lambda: values(brokers, "orders") == [b"0", b"2", b"3", b"4"], 20.0, "what was not cancelled"
        )
        assert ms() >= (sent[0].deliver_at or 0)
    finally:
        brokers.close()
