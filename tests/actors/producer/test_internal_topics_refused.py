"""Topics that only brokers write into: a message to one is refused at the call, since in a request it would
make the broker refuse everything else in it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from escrowmq.replication.errors import InvalidMessage
from escrowmq.replication.model import Message
from tests.support.brokers import Brokers
from tests.support.producing import COMMITTED, ProducerOf, Unique


def test_others_are_not_refused_with_it(brokers: Brokers, unique: Unique, producer_of: ProducerOf) -> None:
    internal = "__retry." + unique("group")
    brokers.topic(internal, len(brokers.groups), 0)
    topics = [unique("t") for _ in range(6)]
    for name in topics:
        brokers.topic(name)
    producer = producer_of(brokers, linger_ms=20.0, transaction_linger_ms=20.0)
    producer.core.catalog.learn([internal])

    async def transaction(name: str) -> Any:
        async with producer.aio.transaction() as tx:
            await tx.send(Message(name, b"tx"))
        return tx.state

    async def main() -> list[Any]:
        for name in topics:
            await producer.aio.send(Message(name, b"first"))
        names = [topics[0], topics[1], internal, *topics[2:]]
        calls = [producer.aio.send(Message(name, b"x")) for name in names]
        return await asyncio.gather(*calls, *map(transaction, [*topics, internal]), return_exceptions=True)

    got = asyncio.run(main())
    assert isinstance(got.pop(2), InvalidMessage) and isinstance(got.pop(), InvalidMessage)
    assert not [one for one in got if isinstance(one, BaseException)]


def test_each_way_to_send_refuses_it(brokers: Brokers, unique: Unique, producer_of: ProducerOf) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    internal = "__dead." + unique("group")
    brokers.topic(internal, len(brokers.groups), 0)
    producer, table = producer_of(brokers), pyarrow.table({"value": [b"x"]})
    for send in (
        lambda: producer.send(Message(internal, b"x")),
        lambda: producer.send_many(internal, [b"x"]),
        lambda: producer.send_table(internal, table),
        lambda: producer.transaction().send(Message(internal, b"x")),
        lambda: producer.send_transactions_table(internal, table),
    ):
        with pytest.raises(InvalidMessage, match="only brokers write"):
            send()
    (result,) = producer.send_transactions([Message(internal, b"x")])
    assert isinstance(result.error, InvalidMessage) and result.state is not COMMITTED
