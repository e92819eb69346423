"""The application's handlers: on_assign, on_revoke, on_lost, over real broker services."""

from __future__ import annotations

import asyncio
import threading

import pytest

from escrowmq.replication.errors import Closed, ConfigError, EscrowMQError, StaleMember
from tests.support.polling import numbered, read, settle, values

PARTITIONS = 2


class Told:
    """What the handlers were called with; ``then`` is done in each."""

    def __init__(self, then=lambda name, partitions: None):
        self.calls, self.threads, self._then = [], set(), then

    def handler(self, name):
        def handle(partitions):
            self.calls.append((name, [p for _, p in partitions]))
            self.threads.add(threading.get_ident())
            self._then(name, partitions)

        return handle

    def __call__(self, *names):
        return {name: self.handler(name) for name in names or ("on_assign", "on_revoke", "on_lost")}


def hand_over(brokers, topic, unique, consumer_of):
    """One member reads all, another joins; what the second one reads of what the first had read."""
    group = unique("g")
    for partition in range(2):
        brokers.produce(topic, partition, numbered(0, 5))
    told = Told(lambda name, partitions: a.commit() if name == "on_revoke" else None)
    a = consumer_of(brokers, group=group, topics=[topic], **told())
    read(a, 10)
    b = consumer_of(brokers, group=group, topics=[topic])
    again = settle([a, b], lambda: len(a.assignment()) == len(b.assignment()) == 1)
    return told, again + b.poll(timeout_s=0.3)


def test_on_revoke_commits_before_the_next_reader_begins(brokers, topic, unique, consumer_of):
    told, again = hand_over(brokers, topic, unique, consumer_of)
    assert told.calls == [("on_assign", [0, 1]), ("on_revoke", [1])]
    assert told.threads == {threading.get_ident()}
    assert again == []


def test_on_assign_may_seek_before_the_first_record(brokers, topic, unique, consumer_of):
    brokers.produce(topic, 0, numbered(0, 5))
    told = Told(lambda name, partitions: consumer.seek(topic, 0, 3))
    consumer = consumer_of(brokers, group=unique("g"))
    consumer.subscribe([topic], **told("on_assign"))
    assert values(read(consumer, 2)) == [b"3", b"4"]


def test_what_an_idle_member_held_is_lost(brokers, topic, unique, consumer_of):
    told = Told(lambda name, partitions: a.commit() if name == "on_lost" else None)
    group = unique("g")
    brokers.produce(topic, 0, numbered(0, 2))
    quick = {"poll_interval_max_s": 0.4}
    a = consumer_of(brokers, group=group, topics=[topic], config=quick, **told())
    read(a, 2)
    b = consumer_of(brokers, group=group, topics=[topic])
    settle([b], lambda: len(b.assignment()) == 2)
    with pytest.raises(StaleMember):
        a.poll(timeout_s=0.1)
    assert told.calls == [("on_assign", [0, 1]), ("on_lost", [0, 1])]
    settle([a, b], lambda: len(a.assignment()) == len(b.assignment()) == 1)
    assert len(told.calls) == 3


def test_a_handler_that_raises_holds_nothing_up_and_is_not_called_again(brokers, topic, unique, consumer_of):
    def fail(name, partitions):
        if name == "on_revoke":
            raise RuntimeError("no")

    told, group = Told(fail), unique("g")
    a = consumer_of(brokers, group=group, topics=[topic], **told("on_assign", "on_revoke"))
    settle([a], lambda: len(a.assignment()) == 2)
    b = consumer_of(brokers, group=group, topics=[topic])
    with pytest.raises(RuntimeError, match="no"):
        settle([a, b], lambda: False)
    settle([a, b], lambda: len(a.assignment()) == len(b.assignment()) == 1)
    assert told.calls == [("on_assign", [0, 1]), ("on_revoke", [1])]
    with pytest.raises(RuntimeError):
        a.close()
    with pytest.raises(Closed):
        a.poll()
    settle([b], lambda: len(b.assignment()) == 2)


def test_while_a_handler_is_called_others_may_use_the_consumer_and_get_no_record(
    brokers, topic, unique, consumer_of
):
    seen = {}

    def look(name, partitions):
        with pytest.raises(EscrowMQError, match="poll was called by"):
            consumer.poll(timeout_s=0.0)

        def other():
            seen["assignment"] = consumer.assignment()
            seen["records"] = consumer.poll(timeout_s=0.2)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join(5.0)

    brokers.produce(topic, 0, numbered(0, 2))
    consumer = consumer_of(brokers, group=unique("g"), topics=[topic], **Told(look)("on_assign"))
    assert values(read(consumer, 2)) == [b"0", b"1"]
    assert seen == {"assignment": [(topic, 0), (topic, 1)], "records": []}


def test_close_tells_before_it_leaves(brokers, topic, unique, consumer_of):
    group = unique("g")
    brokers.produce(topic, 0, numbered(0, 3))
    told = Told(lambda name, partitions: a.commit() if name == "on_revoke" else None)
    a = consumer_of(brokers, group=group, topics=[topic], **told("on_revoke"))
    read(a, 3)
    a.close()
    a.close()
    assert told.calls == [("on_revoke", [0, 1])]
    assert consumer_of(brokers, group=group).committed(topic, 0) == 3


def test_a_block_that_fails_commits_nothing(brokers, topic, unique, consumer_of):
    """What was polled was not dealt with: a handler that commits would have the group skip it."""
    group = unique("g")
    brokers.produce(topic, 0, numbered(0, 3))
    told = Told(lambda name, partitions: a.commit())
    a = consumer_of(brokers, group=group, topics=[topic], **told("on_revoke"))
    with pytest.raises(ZeroDivisionError), a:
        read(a, 3)
        1 / 0  # noqa: B018

    async def main(consumer):
        async with consumer.aio:
            raise ZeroDivisionError

    b = consumer_of(brokers, group=group, topics=[topic], **told("on_revoke"))
    settle([b], lambda: len(b.assignment()) == 2)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(main(b))
    assert told.calls == []
    assert consumer_of(brokers, group=group).committed(topic, 0) is None


def test_topics_that_are_subscribed_to_no_more_can_be_committed_once_more(
    brokers, topic, unique, consumer_of
):
    other = unique("other")
    brokers.topic(other)
    brokers.produce(topic, 0, numbered(0, 3))
    told = Told(lambda name, partitions: a.commit() if name == "on_revoke" else None)
    a = consumer_of(brokers, group=unique("g"), topics=[topic, other], **told("on_revoke", "on_lost"))
    read(a, 3)
    a.subscribe([other])
    settle([a], lambda: a.assignment() == [(other, 0)])
    assert told.calls == [("on_revoke", [0, 1])]
    assert a.committed(topic, 0) == 3


def test_handlers_of_asyncio_are_awaited(brokers, topic, unique, consumer_of):
    calls = []

    async def on_assign(partitions):
        await asyncio.sleep(0)
        calls.append(("on_assign", len(partitions)))

    async def on_revoke(partitions):
        await a.aio.commit()
        calls.append(("on_revoke", len(partitions)))
        with pytest.raises(EscrowMQError, match="poll was called by"):
            await a.aio.poll(timeout_s=0.0)

    brokers.produce(topic, 0, [b"a"])
    group = unique("g")
    a = consumer_of(brokers, group=group, topics=[topic], on_assign=on_assign, on_revoke=on_revoke)

    async def main():
        async with asyncio.timeout(10):
            while not await a.aio.poll(timeout_s=0.2):
                pass
        await a.aio.close()

    asyncio.run(main())
    assert calls == [("on_assign", 2), ("on_revoke", 2)]
    assert consumer_of(brokers, group=group).committed(topic, 0) == 1


def test_a_cancelled_handler_of_asyncio_is_not_called_again(brokers, topic, unique, consumer_of):
    calls = []
    called = asyncio.Event()

    async def on_assign(partitions):
        calls.append(len(partitions))
        called.set()
        await asyncio.sleep(30)

    a = consumer_of(brokers, group=unique("g"), topics=[topic], on_assign=on_assign)

    async def main():
        polling = asyncio.create_task(a.aio.poll(timeout_s=10.0))
        await asyncio.wait_for(called.wait(), 10)
        polling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await polling
        brokers.produce(topic, 0, [b"a"])
        return await a.aio.poll(timeout_s=5.0)

    assert values(asyncio.run(main())) == [b"a"]
    assert calls == [2]


def test_misuse(brokers, topic, unique, consumer_of):
    async def on_assign(partitions):
        pass

    consumer = consumer_of(brokers, group=unique("g"), topics=[topic], on_assign=on_assign)
    with pytest.raises(ConfigError, match=r"consumer\.aio"):
        settle([consumer], lambda: False)
    with pytest.raises(ConfigError, match="members of a group"):
        consumer_of(brokers, on_assign=print)
