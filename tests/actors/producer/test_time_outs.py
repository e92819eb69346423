"""A time-out to the first check that no broker takes is refused at the call: in a request it would make the
broker refuse everything else in it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from escrowmq.actors.producer.transactions.transaction_base import timeout_ms
from escrowmq.replication.errors import InvalidMessage
from escrowmq.replication.limits import TIMEOUT_MS_MAX
from escrowmq.replication.model import Message
from tests.support.brokers import Brokers
from tests.support.producing import COMMITTED, ProducerOf


def test_others_are_not_refused_with_it(brokers: Brokers, topic: str, producer_of: ProducerOf) -> None:
    producer = producer_of(brokers, linger_ms=20.0, transaction_linger_ms=20.0)

    async def one(number: int, timeout_s: float | None) -> Any:
        async with producer.aio.transaction(transaction_timeout_s=timeout_s) as tx:
            await tx.send(Message(topic, b"%d" % number))
        return tx.state

    async def main() -> list[Any]:
        await one(0, None)
        calls = [one(number, 4e8 if number == 5 else None) for number in range(10)]
        plain = [producer.aio.send(Message(topic, b"plain")) for _ in range(5)]
        return await asyncio.gather(*calls, *plain, return_exceptions=True)

    states = asyncio.run(main())
    assert isinstance(states[5], InvalidMessage)
    assert states[:5] + states[6:10] == [COMMITTED] * 9
    assert not [one for one in states[10:] if isinstance(one, BaseException)]


@pytest.mark.parametrize("too_long", [TIMEOUT_MS_MAX / 1000 + 1, 9e8, 1e9])
def test_the_longest_is_ten_years(too_long: float) -> None:
    assert timeout_ms(TIMEOUT_MS_MAX / 1000, None) == TIMEOUT_MS_MAX
    with pytest.raises(InvalidMessage, match="transaction_timeout_s"):
        timeout_ms(too_long, None)
