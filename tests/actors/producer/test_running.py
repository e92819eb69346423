"""What a producer answers to "does its local transaction run here?": every interface, every way it can
end."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from escrowmq.actors.producer.core import RunningTransactions
from escrowmq.actors.producer.producer import Producer
from escrowmq.replication.errors import OutcomeUnknown, TransactionConflict
from escrowmq.replication.model import Message
from tests.support.brokers import Brokers
from tests.support.producing import COMMITTED, UNKNOWN, ProducerOf


def running(producer: Producer) -> RunningTransactions:
    return producer.core.running


@pytest.mark.parametrize("tx_id", [None, "given"])
def test_a_transaction_runs_from_before_its_prepare_until_it_is_decided(
    brokers: Brokers, topic: str, producer_of: ProducerOf, tx_id: str | None
) -> None:
    producer = producer_of(brokers)
    with producer.transaction(tx_id=None if tx_id is None else f"{topic}-{tx_id}") as tx:
        tx.send(Message(topic, b"a"))
        assert tx.tx_id not in running(producer), "nothing was sent"
        tx.prepare()
        assert tx.tx_id in running(producer), "the application holds it"
    assert not running(producer)
    seen = []
    producer.send_message_in_transaction(
        Message(topic, b"b"),
        lambda tx: seen.append(tx.tx_id in running(producer)),
        tx_id=f"{topic}-{tx_id}-2",
    )
    assert seen == [True] and not running(producer)


@pytest.mark.parametrize("tx_id", [None, "given"])
def test_what_is_left_to_the_check_runs_no_more(
    brokers: Brokers, topic: str, producer_of: ProducerOf, tx_id: str | None
) -> None:
    producer = producer_of(brokers)

    def raising(error: BaseException) -> None:
        raise error

    ways: list[Any] = [
        lambda: UNKNOWN,
        lambda: raising(OutcomeUnknown("?")),
        lambda: raising(KeyboardInterrupt()),
    ]
    for number, way in enumerate(ways):
        given = None if tx_id is None else f"{topic}-{number}"
        try:
            producer.send_message_in_transaction(Message(topic, b"a"), way, tx_id=given)
        except (OutcomeUnknown, KeyboardInterrupt):
            pass
        assert not running(producer)
    tx = producer.transaction(tx_id=None if tx_id is None else f"{topic}-dropped")
    tx.send(Message(topic, b"a"))
    tx.prepare()
    assert tx.tx_id in running(producer)
    del tx
    gc.collect()
    assert not running(producer), "nobody holds it any more"
    unsent = producer.transaction(tx_id=None if tx_id is None else f"{topic}-unsent")
    unsent.unknown()
    assert not running(producer)


def test_another_try_under_an_id_that_runs_does_not_end_it(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    """When the second one was refused, the first one also counted as over: a check could roll it back."""
    producer, name = producer_of(brokers), f"{topic}-x"
    with producer.transaction(tx_id=name) as tx:
        tx.send(Message(topic, b"a"))
        tx.prepare()
        other = producer.transaction(tx_id=name)
        other.send(Message(topic, b"something else"))
        with pytest.raises(TransactionConflict):
            other.prepare()
        assert name in running(producer)
    assert not running(producer)


def test_the_asyncio_face_and_many_at_once(brokers: Brokers, topic: str, producer_of: ProducerOf) -> None:
    producer = producer_of(brokers)
    seen: list[bool] = []

    async def main() -> None:
        async with producer.aio.transaction() as tx:
            await tx.send(Message(topic, b"a"))
            await tx.prepare()
            seen.append(tx.tx_id in running(producer))
        assert not running(producer)
        async with producer.aio.transaction(tx_id=f"{topic}-aio") as given:
            await given.send(Message(topic, b"a"))
            await given.prepare()
            seen.append(given.tx_id in running(producer))

    asyncio.run(main())

    def local(prepared: Any) -> Any:
        seen.append(all(tx.tx_id in running(producer) for tx in prepared))
        return COMMITTED

    producer.send_transactions(
        [([Message(topic, b"%d" % n)], None, f"{topic}-{n}") for n in range(50)], local
    )
    assert seen == [True] * 3 and not running(producer)
