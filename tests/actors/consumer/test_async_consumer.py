"""The asyncio interface: awaiting, cancelling without loss, closing."""

from __future__ import annotations

import asyncio
import time

import pytest

from escrowmq.replication.errors import Closed, ConfigError, UnknownTopic
from tests.support.polling import values


async def read(consumer, count):
    records = []
    async with asyncio.timeout(10):
        while len(records) < count:
            records += await consumer.poll(count - len(records), 0.2)
    return records


def test_poll_commit_position(brokers, topic, unique, consumer_of):
    async def main():
        async with consumer_of(brokers, group=unique("g"), topics=[topic]).aio as consumer:
            brokers.produce(topic, 0, [b"a", b"b"])
            assert values(await read(consumer, 2)) == [b"a", b"b"]
            await consumer.commit()
            assert await consumer.committed(topic, 0) == await consumer.position(topic, 0) == 2
            assert consumer.assignment() == [(topic, 0)]
            consumer.seek(topic, 0, 1)
            async for record in consumer:
                assert record.value == b"b"
                break

    asyncio.run(main())


def test_news_wakes_a_waiting_poll_and_the_loop_goes_on(brokers, topic, consumer_of):
    async def main():
        async with consumer_of(brokers).aio as consumer:
            await consumer.assign([(topic, 0)])
            assert await consumer.poll(timeout_s=0.1) == []
            polling = asyncio.create_task(consumer.poll(timeout_s=10.0))
            for _ in range(20):
                await asyncio.sleep(0.01)
            await asyncio.to_thread(brokers.produce, topic, 0, [b"x"])
            started = time.monotonic()
            assert values(await polling) == [b"x"]
            assert time.monotonic() - started < 5.0, "before the poll's time ends"

    asyncio.run(main())


def test_a_cancelled_poll_loses_nothing(brokers, topic, consumer_of):
    async def main():
        async with consumer_of(brokers).aio as consumer:
            await consumer.assign([(topic, 0)])
            for i in range(20):
                polling = asyncio.create_task(consumer.poll(timeout_s=5.0))
                await asyncio.sleep(0.01)
                await asyncio.to_thread(brokers.produce, topic, 0, [b"%d" % i])
                polling.cancel()
                done = await asyncio.gather(polling, return_exceptions=True)
                if isinstance(done[0], list):  # the records came before the cancellation
                    consumer.seek(topic, 0, done[0][0].offset)
                assert values(await read(consumer, 1)) == [b"%d" % i]

    asyncio.run(main())


def test_bad_input(brokers, topic, unique, consumer_of):
    async def main():
        consumer = consumer_of(brokers, group=unique("g"), topics=[topic]).aio
        with pytest.raises(UnknownTopic):
            await consumer.subscribe([unique("nowhere")])
        await consumer.close()
        await consumer.close()
        with pytest.raises(Closed):
            await consumer.poll()
        with pytest.raises(Closed):
            await consumer.commit()

    asyncio.run(main())


def test_another_event_loop_may_follow_a_closed_one(brokers, topic, consumer_of):
    """It was refused with the loop's own RuntimeError, as soon as there was something to wait for."""
    consumer = consumer_of(brokers).aio

    async def first():
        await consumer.assign([(topic, 0)])
        assert await consumer.poll(timeout_s=0.1) == []

    async def second():
        polling = asyncio.create_task(consumer.poll(timeout_s=10.0))
        await asyncio.sleep(0.2)
        await asyncio.to_thread(brokers.produce, topic, 0, [b"x"])
        started = time.monotonic()
        assert values(await polling) == [b"x"]
        assert time.monotonic() - started < 5.0, "before the poll's time ends"

    asyncio.run(first())
    asyncio.run(second())


def test_two_event_loops_at_once_are_refused(brokers, topic, consumer_of):
    consumer = consumer_of(brokers).aio

    async def main():
        await consumer.assign([(topic, 0)])
        assert await consumer.poll(timeout_s=0.1) == []
        with pytest.raises(ConfigError, match="belongs to another event loop"):
            await asyncio.to_thread(asyncio.run, consumer.poll(timeout_s=0.1))
        assert await consumer.poll(timeout_s=0.1) == []

    asyncio.run(main())
