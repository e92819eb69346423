"""Where a cluster in memory and a real one could disagree: the same test, against both."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from escrowmq import (
    Closed,
    Cluster,
    ConfigError,
    InvalidMessage,
    Message,
    MessageTooLarge,
    OffsetOutOfRange,
    StaleMember,
    TransactionIdTaken,
    TransactionRunning,
    TransactionSettled,
    TransactionState,
    UnknownTopic,
    UnknownTransaction,
)
from tests.support.faces import let_pass, until
from tests.support.polling import read, settle, values

Unique = Callable[[str], str]
COMMITTED, ROLLBACK = TransactionState.COMMITTED, TransactionState.ROLLBACK


def made(face: Cluster, unique: Unique, partitions: int = 1, **options: Any) -> str:
    topic = unique("orders")
    face.admin.create_topic(topic, partitions=partitions, **options)
    return topic


def test_offsets_are_given_at_commit_and_times_never_go_back(face: Cluster, unique: Unique) -> None:
    topic = made(face, unique)
    with face.producer(unique("shop")) as producer, producer.transaction() as first:
        first.send(Message(topic, b"prepared first"), Message(topic, b"and second"))
        first.prepare()
        with producer.transaction() as second:
            second.send(Message(topic, b"committed first"))
            second.prepare()
        let_pass(face, 0.05)
        plain = producer.send(Message(topic, b"plain")).result(10)
    with face.consumer(unique("g"), [topic], auto_offset_reset="earliest") as consumer:
        records = read(consumer, 4)
    assert values(records) == [b"committed first", b"plain", b"prepared first", b"and second"]
    assert [record.offset for record in records] == [0, 1, 2, 3] and plain.offset == 1
    times = [record.timestamp for record in records]
    assert times == sorted(times) and times[1] == plain.timestamp and times[1] > times[0]
    assert times[2] == times[3]


def test_an_id_of_its_own_is_one_transaction_however_often_it_is_given(face: Cluster, unique: Unique) -> None:
    topic, app, ran = made(face, unique), unique("shop"), []

    def send(value: bytes, tx_id: str, decision: Any = None) -> Any:
        return producer.send_message_in_transaction(
            Message(topic, value), lambda: ran.append(value) or decision, tx_id=tx_id
        ).state

    with face.producer(app) as producer:
        assert send(b"a", "one") is COMMITTED and send(b"a", "one") is COMMITTED
        with pytest.raises(TransactionIdTaken):
            send(b"b", "one")
        assert send(b"a", "two", False) is ROLLBACK
        with pytest.raises(TransactionSettled, match="ROLLBACK"):
            send(b"a", "two")
        with pytest.raises(TransactionRunning), producer.transaction(tx_id="three") as tx:
            tx.send(Message(topic, b"c"))
            tx.prepare()
            send(b"c", "three")
        batch = [(Message(topic, b"d"), None, "four"), (Message(topic, b"d"), None, "four")]
        assert [result.state for result in producer.send_transactions(batch)] == [COMMITTED, COMMITTED]
    assert ran == [b"a", b"a"]
    with face.consumer(unique("g"), [topic], auto_offset_reset="earliest") as consumer:
        assert values(read(consumer, 2)) == [b"a", b"d"] and consumer.poll(timeout_s=0.3) == []


def test_what_is_refused_and_with_which_words(face: Cluster, unique: Unique) -> None:
    topic, app = made(face, unique), unique("shop")
    with face.producer(app) as producer, face.consumer() as reader:
        with pytest.raises(MessageTooLarge, match="1048576"):
            producer.send(Message(topic, bytes(2 << 20)))
        with pytest.raises(UnknownTopic, match="no partition 5"):
            producer.send(Message(topic, b"x", partition=5))
        with pytest.raises(InvalidMessage):
            producer.send_message_in_transaction([], lambda: None)
        with pytest.raises(InvalidMessage, match="local_transaction"):
            producer.send_message_in_transaction(Message(topic, b"x"), "nothing to call")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="group"):
            reader.commit()
        with pytest.raises(ConfigError, match="needs group"):
            face.consumer(topics=[topic])
        with pytest.raises(ConfigError, match="linger"):
            face.producer(app, linger=3)
        with pytest.raises(ConfigError, match="a-z"):
            face.admin.create_topic("no spaces")
        with pytest.raises(UnknownTransaction):
            face.admin.show_transaction(unique("never"))
        with pytest.raises(UnknownTopic):
            face.admin.describe_topic(unique("nowhere"))
        reader.assign([(topic, 0)])
        with pytest.raises(StaleMember, match="not assigned"):
            reader.position(topic, 1)
    with face.consumer(unique("g"), [topic], auto_offset_reset="earliest") as consumer:
        settle([consumer], lambda: bool(consumer.assignment()))
        with pytest.raises(OffsetOutOfRange):
            consumer.commit({(topic, 0): 1})


def test_after_close(face: Cluster, unique: Unique) -> None:
    topic = made(face, unique)
    producer, consumer = face.producer(unique("shop")), face.consumer(unique("g"), [topic])
    tx = producer.transaction()
    tx.send(Message(topic, b"x"))
    for closing in (producer, consumer):
        closing.close()
        closing.close()
    for call in (
        lambda: producer.send(Message(topic, b"x")),
        producer.transaction,
        producer.flush,
        tx.commit,
    ):
        with pytest.raises(Closed, match="closed"):
            call()
    for ask in (consumer.poll, consumer.commit, consumer.assignment):
        with pytest.raises(Closed, match="this consumer was closed"):
            ask()


def test_places_of_a_reader(face: Cluster, unique: Unique) -> None:
    """Seek, pause, latest, none; a place that is gone; a nack that comes again and holds the commit back."""
    topic, group = made(face, unique), unique("g")
    with face.producer(unique("shop")) as producer:
        for n in range(6):
            producer.send(Message(topic, b"%d" % n)).result(10)
        with face.consumer(group, [topic], auto_offset_reset="earliest") as consumer:
            first = read(consumer, 6)
            consumer.nack(first[4], delay_s=0.3)
            consumer.commit()
            assert consumer.committed(topic, 0) == 4
            assert values(read(consumer, 1)) == [b"4"]
            consumer.seek(topic, 0, 1)
            assert values(read(consumer, 2)) == [b"1", b"2"] and consumer.position(topic, 0) == 3
            consumer.pause((topic, 0))
            assert consumer.poll(timeout_s=0.3) == []
            consumer.resume()
            assert values(read(consumer, 1)) == [b"3"]
            consumer.commit()
        with face.consumer(group, [topic], auto_offset_reset="none") as consumer:
            assert values(read(consumer, 1)) == [b"4"]
        with face.consumer(unique("late"), [topic]) as consumer:
            producer.send(Message(topic, b"6")).result(10)
            assert values(read(consumer, 1)) == [b"6"]


def test_members_share_and_hand_over(face: Cluster, unique: Unique) -> None:
    topic, group = made(face, unique, partitions=4), unique("g")
    first = face.consumer(group, [topic], auto_offset_reset="earliest")
    settle([first], lambda: len(first.assignment()) == 4)
    second = face.consumer(group, [topic], auto_offset_reset="earliest")
    settle([first, second], lambda: len(first.assignment()) == len(second.assignment()) == 2)
    described = face.admin.describe_group(group)
    assert sorted(tp for member in described.members for tp in member.partitions) == [
        (topic, p) for p in range(4)
    ]
    lost = set(second.assignment())
    second.close()
    settle([first], lambda: len(first.assignment()) == 4)
    assert lost <= set(first.assignment())
    first.close()
    assert face.admin.describe_group(group).members == ()


def test_large_and_many(face: Cluster, unique: Unique) -> None:
    """A transaction in parts, a thousand in a batch over several partitions, and many threads at once."""
    topic = made(face, unique, partitions=3)
    with face.producer(unique("shop")) as producer:
        with producer.transaction() as tx:
            tx.send(*(Message(topic, bytes([n]) * 700_000, partition=0) for n in range(4)))
            tx.prepare()
        batch = [(Message(topic, b"%d" % n, key=b"%d" % (n % 50)), str(n)) for n in range(1_000)]
        results = producer.send_transactions(batch, lambda prepared: [tx.index % 2 == 0 for tx in prepared])
        assert [result.state for result in results] == [COMMITTED, ROLLBACK] * 500
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda n: producer.send(Message(topic, b"t", partition=1)).result(20), range(200)))
            list(
                pool.map(
                    lambda n: producer.send_message_in_transaction(Message(topic, b"u"), lambda: None),
                    range(50),
                )
            )
        assert producer.flush()
    with face.consumer(unique("g"), [topic], auto_offset_reset="earliest") as consumer:
        found = values(read(consumer, 4 + 500 + 200 + 50, 30.0))
        assert consumer.poll(timeout_s=0.3) == []
    assert [value[0] for value in found if len(value) == 700_000] == [0, 1, 2, 3]
    assert sorted(int(v) for v in found if v.isdigit()) == list(range(0, 1_000, 2))


def test_a_topic_that_goes_away(face: Cluster, unique: Unique) -> None:
    topic = made(face, unique)
    with face.producer(unique("shop")) as producer, face.consumer(unique("g"), [topic]) as consumer:
        producer.send(Message(topic, b"x")).result(10)
        read(consumer, 1)
        open_one = producer.transaction()
        open_one.send(Message(topic, b"y"))
        open_one.prepare()
        face.admin.delete_topic(topic)
        open_one.commit()
        with pytest.raises(UnknownTopic):
            face.admin.delete_topic(topic)
        with pytest.raises(UnknownTopic):
            producer.send(Message(topic, b"x")).result(10)


def test_asyncio_in_many_tasks(face: Cluster, unique: Unique) -> None:
    topic = made(face, unique)

    async def main() -> None:
        async with face.consumer(unique("g"), [topic], auto_offset_reset="earliest").aio as consumer:
            polling = asyncio.create_task(consumer.poll(timeout_s=20.0))
            await asyncio.sleep(0.05)
            producer = face.producer(unique("shop")).aio

            async def one(n: int) -> None:
                async with producer.transaction() as tx:
                    await tx.send(Message(topic, b"%d" % n))
                    await tx.prepare()

            await asyncio.gather(*(one(n) for n in range(50)))

            async def store(prepared: Any) -> list[bool]:
                await asyncio.sleep(0)
                return [True] * len(prepared)

            await producer.send_transactions(
                [(Message(topic, b"%d" % n), None) for n in range(50, 60)], store
            )
            found = await polling
            while len(found) < 60:
                found += await consumer.poll(timeout_s=5.0)
            assert sorted(int(record.value) for record in found) == list(range(60))
            assert await consumer.poll(timeout_s=0.1) == []
            await consumer.commit()
            assert await consumer.committed(topic, 0) == 60

    asyncio.run(main())


def test_a_thread_that_polls_hears_of_messages_and_of_the_end(face: Cluster, unique: Unique) -> None:
    topic = made(face, unique)
    consumer = face.consumer(unique("g"), [topic], auto_offset_reset="earliest")
    found: list[bytes] = []
    read_all = threading.Event()

    def serve() -> None:
        for record in consumer:
            found.append(record.value)
            if len(found) == 3:
                read_all.set()

    thread = threading.Thread(target=serve)
    thread.start()
    with face.producer(unique("shop")) as producer:
        for n in range(3):
            producer.send(Message(topic, b"%d" % n)).result(10)
    assert read_all.wait(10)
    consumer.close()
    thread.join(10)
    assert not thread.is_alive() and found == [b"0", b"1", b"2"]


def test_clients_refuse_to_work_after_a_fork(face: Cluster, unique: Unique) -> None:
    topic = made(face, unique)
    producer, consumer = face.producer(unique("shop")), face.consumer(unique("g"), [topic])
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        said = []
        for use in (
            lambda: producer.send(Message(topic, b"x")),
            consumer.poll,
            face.admin.topics,
            lambda: face.producer("other"),
        ):
            try:
                use()
                said.append("worked")
            except Closed as error:
                said.append("fork" if "os.fork()" in str(error) else str(error))
            except BaseException as error:
                said.append(repr(error))
        os.write(write_end, ";".join(said).encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        assert pipe.read().decode().split(";") == ["fork"] * 4
    os.waitpid(child, 0)
    assert producer.send(Message(topic, b"x")).result(10).offset == 0
    producer.close()
    consumer.close()


def test_the_limit_of_retention_and_by_whom_it_was_decided(face: Cluster, unique: Unique) -> None:
    topic, app = made(face, unique, transaction_timeout_ms=600_000), unique("shop")
    with face.producer(app) as producer:
        for n in range(5):
            producer.send(Message(topic, b"%d" % n)).result(10)
        with producer.transaction(tx_id="left", query_id="42") as tx:
            tx.send(Message(topic, b"left"))
            tx.prepare()
            tx.unknown()
    (trimmed,) = face.admin.trim_topic(topic, 3, 0)
    assert trimmed.partition == 0
    until(face, lambda: face.admin.describe_topic(topic).partitions[0].start == 3)
    face.admin.resolve_transaction("left", ROLLBACK, app, by="kim")
    shown = face.admin.show_transaction("left", app)
    assert (shown.state, shown.decided_by) == (ROLLBACK, "operator:kim")
    assert [life.query_id for life in shown.settled.values()] == ["42"]
    with face.consumer(unique("g"), [topic], auto_offset_reset="earliest") as consumer:
        assert values(read(consumer, 2)) == [b"3", b"4"] and consumer.poll(timeout_s=0.3) == []
