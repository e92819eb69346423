"""The asyncio interface: the same meaning as the blocking one, and thousands of coroutines at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from escrowmq.actors.producer.async_producer import AsyncTransaction
from escrowmq.actors.producer.transactions.local_transaction import PreparedTransaction
from escrowmq.replication.errors import (
    Closed,
    InvalidMessage,
    OutcomeUnknown,
    Overloaded,
    TransactionConflict,
    UnknownTopic,
)
from escrowmq.replication.model import Message, RecordMetadata, TransactionState
from tests.support.brokers import Brokers
from tests.support.producing import COMMITTED, ROLLBACK, UNKNOWN, ProducerOf, never, open_transactions, values


def run(main: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(main, 30.0))


def test_plain_messages(brokers: Brokers, topic: str, producer_of: ProducerOf) -> None:
    producer = producer_of(brokers)

    async def main() -> list[RecordMetadata]:
        first = await producer.aio.send(Message(topic, b"0"))
        futures = [await producer.aio.send_nowait(Message(topic, b"%d" % i)) for i in range(1, 50)]
        return [first, *[await future for future in futures]]

    assert [m.offset for m in run(main())] == list(range(50))
    assert values(brokers, topic) == [b"%d" % i for i in range(50)]


@pytest.mark.parametrize(("returned", "state"), [(None, COMMITTED), (False, ROLLBACK), (UNKNOWN, UNKNOWN)])
@pytest.mark.parametrize("coroutine", [True, False])
def test_a_callback_decides_awaited_or_not(
    brokers: Brokers,
    topic: str,
    producer_of: ProducerOf,
    returned: object,
    state: TransactionState,
    coroutine: bool,
) -> None:
    producer = producer_of(brokers)

    async def slowly(tx: AsyncTransaction) -> object:
        assert values(brokers, topic) == [] and tx.query_id == "42"
        await asyncio.sleep(0)
        return returned

    async def main() -> Any:
        local: Any = slowly if coroutine else lambda tx: returned
        return await producer.aio.send_message_in_transaction(Message(topic, b"a"), local, query_id="42")

    assert run(main()).state is state
    assert values(brokers, topic) == ([b"a"] if state is COMMITTED else [])
    assert len(open_transactions(brokers, topic)) == (state is UNKNOWN)


def test_a_block(brokers: Brokers, topic: str, producer_of: ProducerOf) -> None:
    producer = producer_of(brokers)

    async def main() -> None:
        async with producer.aio.transaction(tx_id="block") as tx:
            await tx.send(Message(topic, b"a"), Message(topic, b"b"))
            await tx.prepare()
        assert tx.state is COMMITTED
        async with producer.aio.transaction(tx_id="block") as again:
            await again.send(Message(topic, b"a"), Message(topic, b"b"))
            await again.prepare()
            raise AssertionError("the local transaction was run")
        assert again.state is COMMITTED
        with pytest.raises(KeyError):
            async with producer.aio.transaction() as undone:
                await undone.send(Message(topic, b"c"))
                await undone.prepare()
                raise KeyError("x")
        assert undone.state is ROLLBACK

    run(main())
    assert values(brokers, topic) == [b"a", b"b"] and not open_transactions(brokers, topic)


def test_an_id_that_was_rolled_back_raises_as_the_callback_is_not_run(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    send = producer_of(brokers).aio.send_message_in_transaction

    async def main() -> None:
        first = await send(Message(topic, b"a"), lambda: False, tx_id="undone before")
        assert first.state is ROLLBACK, "this one was run"
        with pytest.raises(TransactionConflict, match="already recorded as ROLLBACK"):
            await send(Message(topic, b"a"), never, tx_id="undone before")

    run(main())


def test_a_cancelled_local_transaction_is_left_to_the_check(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    producer = producer_of(brokers)

    async def main() -> None:
        entered = asyncio.Event()

        async def local() -> None:
            entered.set()
            await asyncio.sleep(60.0)

        task = asyncio.create_task(producer.aio.send_message_in_transaction(Message(topic, b"a"), local))
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())
    assert len(open_transactions(brokers, topic)) == 1 and not producer.core.running


def test_a_thousand_at_once_share_a_few_calls(brokers: Brokers, topic: str, producer_of: ProducerOf) -> None:
    producer = producer_of(brokers)
    before = len(brokers.asked)

    async def main() -> list[Any]:
        one = producer.aio.send_message_in_transaction
        return await asyncio.gather(*(one(Message(topic, b"%d" % i), lambda: None) for i in range(1000)))

    assert {result.state for result in run(main())} == {COMMITTED}
    assert sorted(int(v) for v in values(brokers, topic)) == list(range(1000))
    assert [m for _, _, m in brokers.asked[before:]].count("submit") < 100


def test_batches_with_a_callback_in_the_loop(brokers: Brokers, topic: str, producer_of: ProducerOf) -> None:
    producer = producer_of(brokers)

    async def main() -> Any:
        loop = asyncio.get_running_loop()

        async def store(prepared: list[PreparedTransaction]) -> bool:
            assert asyncio.get_running_loop() is loop and len(prepared) == 500
            return True

        return await producer.aio.send_transactions([Message(topic, b"%d" % i) for i in range(500)], store)

    assert {result.state for result in run(main())} == {COMMITTED}
    assert len(values(brokers, topic)) == 500


def test_a_cancelled_callback_of_a_batch_leaves_it_to_the_check(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    """As when asyncio.run ends: its part in the database may be committed."""
    producer = producer_of(brokers)

    async def main() -> None:
        running: list[asyncio.Task[Any]] = []

        async def store(prepared: list[PreparedTransaction]) -> bool:
            this = asyncio.current_task()
            assert this is not None
            running.append(this)
            asyncio.get_running_loop().call_soon(this.cancel)
            await asyncio.sleep(60.0)  # the database's commit
            return True

        with pytest.raises(asyncio.CancelledError):
            await producer.aio.send_transactions([Message(topic, b"%d" % i) for i in range(3)], store)
        assert running[0].cancelled()

    run(main())
    assert len(open_transactions(brokers, topic)) == 3 and not producer.core.running


def test_bad_input_is_refused_alike(
    brokers: Brokers, topic: str, unique: Callable[[str], str], producer_of: ProducerOf
) -> None:
    aio = producer_of(brokers).aio

    async def main() -> None:
        with pytest.raises(UnknownTopic):
            await aio.send(Message(unique("nowhere"), b"x"))
        with pytest.raises(UnknownTopic):
            await aio.send(Message(topic, b"x", partition=9))
        with pytest.raises(InvalidMessage, match="at least one message"):
            await aio.send_message_in_transaction([], lambda: None)
        with pytest.raises(InvalidMessage, match="expected messages"):
            await aio.send_message_in_transaction(42, lambda: None)  # type: ignore[arg-type]
        with pytest.raises(InvalidMessage, match="callable"):
            await aio.send_message_in_transaction(Message(topic), None)  # type: ignore[arg-type]
        for nothing in ("text", None):
            with pytest.raises(InvalidMessage, match="expected an escrowmq"):
                await aio.send(nothing)  # type: ignore[arg-type]
        with pytest.raises(InvalidMessage, match="not 'fine'"):
            await aio.send_message_in_transaction(Message(topic), lambda: "fine")

    run(main())


def test_a_full_buffer_does_not_block_the_loop(brokers: Brokers, topic: str, producer_of: ProducerOf) -> None:
    producer = producer_of(
        brokers,
        buffer_bytes=1_000,
        message_bytes_max=900,
        transaction_bytes_max=900,
        buffer_wait_s=0.1,
    )

    async def main() -> None:
        await producer.aio.send(Message(topic, b"known from now on"))
        held, call = [], brokers.call
        brokers.call = lambda *args: held.append(args)  # type: ignore[method-assign]
        kept = await producer.aio.send_nowait(Message(topic, b"x" * 800))
        with pytest.raises(Overloaded):
            await producer.aio.send_nowait(Message(topic, b"x" * 800))
        brokers.call = call  # type: ignore[method-assign]
        for args in held:
            call(*args)
        await producer.aio.flush()
        assert (await kept).offset == 1

    run(main())


def test_closing_ends_both_faces(brokers: Brokers, topic: str, producer_of: ProducerOf) -> None:
    producer = producer_of(brokers)

    async def main() -> None:
        async with producer.aio as aio:
            future = await aio.send_nowait(Message(topic, b"a"))
        assert (await future).offset == 0, "closing flushes"
        with pytest.raises(Closed):
            await aio.send(Message(topic, b"b"))
        with pytest.raises(Closed):
            aio.transaction()

    run(main())
    with pytest.raises(Closed):
        producer.send(Message(topic, b"c"))


def test_two_loops_can_use_one_producer(brokers: Brokers, topic: str, producer_of: ProducerOf) -> None:
    producer = producer_of(brokers)

    async def main() -> int:
        return (await producer.aio.send(Message(topic, b"x"))).offset

    assert [run(main()) for _ in range(3)] == [0, 1, 2]


def test_an_unknown_outcome_said_by_the_callback(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    async def local() -> None:
        raise OutcomeUnknown("connection lost")

    with pytest.raises(OutcomeUnknown):
        run(producer_of(brokers).aio.send_message_in_transaction(Message(topic, b"a"), local))
    assert len(open_transactions(brokers, topic)) == 1
