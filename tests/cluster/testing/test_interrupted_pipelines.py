"""Consume, transform, produce, where the end of a transaction's block is cancelled or refused: what was not
committed is polled again, by a consumer that goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

import escrowmq
from escrowmq import EscrowMQError, Message, Unavailable
from escrowmq.actors.client.router import LoopBridge
from escrowmq.testing import InMemoryCluster

GROUP, ORDERS = "billing", 12


class Refused(Exception):
    """The application does not want these."""


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    with InMemoryCluster() as made:
        made.admin.create_topic("orders")
        made.admin.create_topic("invoices")
        with made.producer("shop") as producer:
            for number in range(ORDERS):
                producer.send(Message("orders", str(number).encode()))
        yield made


def member(cluster: InMemoryCluster) -> escrowmq.Consumer:
    return cluster.consumer(GROUP, ["orders"], auto_offset_reset="earliest")


def transform(consumer: escrowmq.Consumer, producer: escrowmq.Producer) -> int:
    records = consumer.poll(max_records=4, timeout_s=1)
    with producer.transaction(local=False) as tx:
        tx.send_offsets(consumer)
        for record in records:
            tx.send(Message("invoices", record.value))
    return len(records)


def rest(consumer: escrowmq.Consumer, producer: escrowmq.Producer) -> None:
    idle = 0
    while idle < 3:
        with suppress(EscrowMQError):
            idle = 0 if transform(consumer, producer) else idle + 1


def invoices(cluster: InMemoryCluster) -> list[int]:
    with cluster.consumer("reader", ["invoices"], auto_offset_reset="earliest") as consumer:
        return sorted(int(record.value) for record in consumer.poll(max_records=1_000))


@pytest.mark.parametrize("at", ["prepare", "commit", "rollback"])
@pytest.mark.parametrize("inside", [False, True])
def test_a_task_that_is_cancelled(
    cluster: InMemoryCluster, at: str, inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``inside``: the block itself notices the cancellation, and goes on."""
    waiter = LoopBridge.waiter

    def deaf(bridge: LoopBridge) -> Any:
        """A cluster in memory answers sooner than any time-out: these answers are not heard."""
        return waiter(bridge)[0], lambda value: None

    async def cancelled(consumer: escrowmq.Consumer, producer: escrowmq.Producer) -> None:
        records = await consumer.aio.poll(max_records=4, timeout_s=1)
        with suppress(TimeoutError, Refused, EscrowMQError):
            async with asyncio.timeout(0.2 if not inside else None):
                async with producer.aio.transaction(local=False) as tx:
                    await tx.send_offsets(consumer.aio)
                    await tx.send(*(Message("invoices", record.value) for record in records))
                    if at != "prepare":
                        await tx.prepare()
                    cluster.network.down = True
                    monkeypatch.setattr(LoopBridge, "waiter", deaf)
                    if inside:
                        with suppress(TimeoutError):
                            async with asyncio.timeout(0.2):
                                await {"prepare": tx.prepare, "commit": tx.commit, "rollback": tx.rollback}[
                                    at
                                ]()
                    elif at == "rollback":
                        raise Refused
        monkeypatch.undo()
        held.append(tx)  # as a log or a traceback may hold it
        cluster.clock.advance(60)
        cluster.network.down = False
        cluster.clock.advance(120)  # nobody has decided: it is rolled back

    held: list[object] = []
    with member(cluster) as consumer, cluster.producer("shop") as producer:
        assert transform(consumer, producer) == 4
        asyncio.run(cancelled(consumer, producer))
        rest(consumer, producer)
        running = len(producer.core.running)
    assert invoices(cluster) == list(range(ORDERS))
    assert running == 0  # else its checks would be put off for as long as it is held


def test_a_block_whose_end_is_refused(cluster: InMemoryCluster) -> None:
    """Its transaction cannot be prepared: nobody answers."""
    with member(cluster) as consumer, cluster.producer("shop") as producer:
        records = consumer.poll(max_records=4, timeout_s=1)
        with pytest.raises(Unavailable), producer.transaction(local=False) as tx:
            tx.send_offsets(consumer)
            for record in records:
                tx.send(Message("invoices", record.value))
            cluster.network.down = True
        cluster.network.down = False
        rest(consumer, producer)
    assert invoices(cluster) == list(range(ORDERS))
