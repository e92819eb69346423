"""An upgrade under load, replica by replica: clients do not notice, and nothing is written too early."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from escrowmq.replication.format.codec import OpType, decode_command
from escrowmq.replication.model import Message
from escrowmq.replication.replica.validation import level_needed
from escrowmq.replication.state.machine import LEVEL_MAX
from tests.support.brokers import Brokers
from tests.support.producing import COMMITTED, ProducerOf, values
from tests.support.waiting import wait_until

GROUPS, REPLICAS, PARTITIONS = 2, 3, 4


@pytest.fixture
def old(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """Two groups of three replicas with the software from before format levels."""
    running = Brokers(tmp_path_factory.mktemp("old"), GROUPS, REPLICAS, old=True)
    running.topic("t", PARTITIONS)
    yield running
    running.close()


def above_level_1(brokers: Brokers, gid: int, rid: int) -> bool:
    """Whether the replica's log has entries that the software from before format levels cannot read."""
    journal = brokers.groups[gid].alive[rid].parts.running.journal
    for index in range(journal.first_index, journal.last_index + 1):
        command = journal.read(index)
        if command[0] == 0:
            ops = decode_command(command)[1]
            if level_needed(ops) > 1 or any(op.type == OpType.LEVEL for op in ops):
                return True
    return False


def levels(brokers: Brokers) -> set[int]:
    return {report.applied for report in brokers.ask_levels().values() if report is not None}


@pytest.mark.slow
def test_replicas_are_upgraded_one_by_one_under_load(old: Brokers, producer_of: ProducerOf) -> None:
    producer = producer_of(old, delivery_timeout_s=30.0)
    stop = threading.Event()
    sent: list[bytes] = []
    failed: list[bytes] = []

    def load() -> None:
        number = 0
        while not stop.is_set():
            value = b"%d" % number
            with producer.transaction() as tx:
                tx.send(Message("t", value, partition=number % PARTITIONS))
                tx.prepare()
                tx.commit()
            if tx.state is COMMITTED:
                sent.append(value)
            else:
                failed.append(value)
            producer.send(Message("t", b"plain " + value, partition=number % PARTITIONS)).result(40.0)
            sent.append(b"plain " + value)
            number += 1

    thread = threading.Thread(target=load)
    thread.start()
    try:
        everywhere = [(gid, rid) for gid in range(GROUPS) for rid in range(REPLICAS)]
        for at, (gid, rid) in enumerate(everywhere):
            assert levels(old) <= {1}
            assert not any(above_level_1(old, *each) for each in everywhere[at:]), "older software would stop"
            before = len(sent)
            old.upgrade(gid, rid)
            wait_until(lambda seen=before: len(sent) > seen + 20, 20.0, "the load to go on")
        wait_until(lambda: levels(old) == {LEVEL_MAX}, 20.0, "the highest level everywhere")
        before = len(sent)
        wait_until(lambda: len(sent) > before + 200, 20.0, "the load to go on")
    finally:
        stop.set()
        thread.join(40.0)
    assert not thread.is_alive() and not failed
    assert sorted(values(old, "t", PARTITIONS)) == sorted(sent)
    # From here on transactions carry what PREPARE of version 2 states.
    for partition in range(PARTITIONS):
        tx = producer.transaction(tx_id=f"open-{partition}")
        tx.send(Message("t", b"open", partition=partition))
        tx.prepare()
        state = old.leader_of("t", partition).parts.running.replica.state
        assert state.transactions.look("shop").open[tx.tx_id].given
        tx.rollback()
