"""Plain messages through real broker services: order, batches, keys, limits, bad input."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import google_crc32c
import pytest

from escrowmq.actors.producer.config import ProducerConfig
from escrowmq.actors.producer.producer import Producer
from escrowmq.replication.errors import (
    ConfigError,
    InvalidMessage,
    MessageTooLarge,
    Overloaded,
    Unavailable,
    UnknownTopic,
)
from escrowmq.replication.format import ops
from escrowmq.replication.model import Message, RecordMetadata
from tests.support.brokers import Brokers, ClientCalls
from tests.support.producing import ProducerOf, Unique, rows, values

PARTITIONS = 4


def test_a_message_gets_its_offset_and_is_read_as_it_was_sent(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    metadata = producer_of(brokers).send(Message(topic, b"v", b"k", {"h": b"1"})).result(5.0)
    assert metadata == RecordMetadata(topic, google_crc32c.value(b"k") % 4, 0, metadata.timestamp)
    assert abs(metadata.timestamp - time.time() * 1000) < 60_000
    assert rows(brokers, topic, 4) == [(metadata.partition, 0, (b"k", b"v", {"h": b"1"}, None))]


def test_messages_of_a_partition_keep_their_order_and_get_dense_offsets(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    producer = producer_of(brokers, request_bytes=2000, linger_ms=1.0)
    futures = [producer.send(Message(topic, b"%d" % i, b"%d" % (i % 7))) for i in range(2000)]
    sent = [future.result(10.0) for future in futures]
    found = {(p, o): row[1] for p, o, row in rows(brokers, topic, 4)}
    assert all(found[m.partition, m.offset] == b"%d" % i for i, m in enumerate(sent))
    for key in range(7):
        offsets = [m.offset for i, m in enumerate(sent) if i % 7 == key]
        assert offsets == sorted(offsets)


def test_messages_without_a_key_keep_company_and_move_on_together(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    producer = producer_of(brokers, linger_ms=60_000.0)  # ended by flush, however slow this machine is
    partitions = []
    for _ in range(8):
        batch = [producer.send(Message(topic, b"x")) for _ in range(10)]
        assert producer.flush(10.0)
        (partition,) = {future.result(5.0).partition for future in batch}
        partitions.append(partition)
    assert set(partitions) == {0, 1, 2, 3}


def test_a_linger_makes_one_call_of_many_messages(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    producer = producer_of(brokers, linger_ms=1_000.0)  # a busy machine may take a while for so many sends
    producer.send(Message(topic, b"x", partition=1))
    assert producer.flush(5.0)
    before = len(brokers.asked)
    for future in [producer.send(Message(topic, b"x", partition=1)) for _ in range(100)]:
        future.result(5.0)
    assert [m for _, _, m in brokers.asked[before:]].count("submit") == 1


def test_a_full_batch_does_not_wait_for_its_linger(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    producer = producer_of(brokers, linger_ms=60_000.0, request_bytes=10_000)
    futures = [producer.send(Message(topic, b"x" * 1000, partition=0)) for _ in range(10)]
    futures[0].result(10.0)


def test_flush_ends_the_linger(brokers: Brokers, topic: str, producer_of: ProducerOf) -> None:
    producer = producer_of(brokers, linger_ms=60_000.0)
    future = producer.send(Message(topic, b"x"))
    assert producer.flush(5.0) and future.done()
    assert producer.flush(5.0), "flushing nothing is fine"


def test_many_threads_can_share_a_producer(brokers: Brokers, topic: str, producer_of: ProducerOf) -> None:
    producer = producer_of(brokers)

    def work(thread: int) -> list[RecordMetadata]:
        futures = [producer.send(Message(topic, b"%d.%d" % (thread, i), partition=2)) for i in range(200)]
        return [future.result(10.0) for future in futures]

    with ThreadPoolExecutor(8) as pool:
        sent = list(pool.map(work, range(8)))
    assert sorted(m.offset for part in sent for m in part) == list(range(1600))
    for part in sent:
        assert [m.offset for m in part] == sorted(m.offset for m in part), "each thread's own order"


# ---------------------------------------------------------------- bad input


def test_an_unknown_topic_says_how_to_create_it(
    brokers: Brokers, unique: Unique, producer_of: ProducerOf
) -> None:
    producer = producer_of(brokers)
    name = unique("new")
    with pytest.raises(UnknownTopic, match="create it: admin"):
        producer.send(Message(name, b"x"))
    brokers.topic(name)
    assert producer.send(Message(name, b"x")).result(5.0).offset == 0


def test_a_partition_out_of_range_says_how_many_there_are(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    with pytest.raises(UnknownTopic, match=r"no partition 4 \(it has 4\)"):
        producer_of(brokers).send(Message(topic, b"x", partition=4))


def test_a_message_over_the_limit_is_refused_and_the_next_one_is_not(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    producer = producer_of(brokers, message_bytes_max=1000, transaction_bytes_max=1000)
    with pytest.raises(MessageTooLarge, match="limit of 1000"):
        producer.send(Message(topic, b"x" * 1000))
    producer.send(Message(topic, b"x" * 900)).result(5.0)


@pytest.mark.parametrize("message", ["text", None, b"bytes", ("orders", b"v")])
def test_what_is_no_message_is_refused(brokers: Brokers, message: object, producer_of: ProducerOf) -> None:
    with pytest.raises(InvalidMessage, match="expected an escrowmq"):
        producer_of(brokers).send(message)


@pytest.mark.parametrize("app", ["", 7, "x" * 513, "\ud800"])
def test_an_app_needs_a_name(brokers: Brokers, app: object) -> None:
    with pytest.raises(InvalidMessage, match=r"app .*(characters|Unicode)"):
        Producer(brokers.info, app=app, calls=ClientCalls(brokers))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [
        {"linger_ms": -1},
        {"request_bytes": 0},
        {"delivery_timeout_s": True},
        {"transaction_timeout_s": 0},
        {"message_bytes_max": 1 << 30},
        {"buffer_bytes": 1000},
    ],
)
def test_nonsensical_settings_are_refused_where_they_are_written(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings)).split("_")[0]):
        ProducerConfig(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"message_bytes_max": 3000, "transaction_bytes_max": 2000},
            r"message_bytes_max \(3000\) exceeds .* \(2000\); .* set transaction_bytes_max to at least",
        ),
        (
            {"message_bytes_max": 1000, "transaction_bytes_max": 2000, "buffer_bytes": 1500},
            r"transaction_bytes_max \(2000\) exceeds .* \(1500\).*; .* set buffer_bytes to at least",
        ),
    ],
)
def test_bounds_that_do_not_fit_each_other_are_told_with_their_values(
    settings: dict[str, int], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        ProducerConfig(**settings)  # type: ignore[arg-type]


# ---------------------------------------------------------------- limits and losses


class Gate(ClientCalls):
    """Holds submits back until it is opened."""

    def __init__(self, brokers: Brokers) -> None:
        super().__init__(brokers)
        self.opened = threading.Event()
        self.held: list[Callable[[], None]] = []
        self.lock = threading.Lock()

    def call(self, gid, rid, method, args, done):  # type: ignore[no-untyped-def]
        with self.lock:
            if method == "submit" and not self.opened.is_set():
                self.held.append(lambda: super(Gate, self).call(gid, rid, method, args, done))
                return
        super().call(gid, rid, method, args, done)

    def open(self) -> None:
        with self.lock:
            self.opened.set()
        for call in self.held:
            call()
        self.held.clear()


def test_a_full_buffer_waits_and_then_says_overloaded(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    gate = Gate(brokers)
    producer = producer_of(
        brokers,
        calls=gate,
        buffer_bytes=20_000,
        message_bytes_max=10_000,
        transaction_bytes_max=10_000,
        buffer_wait_s=1.0,
    )
    futures = [producer.send(Message(topic, b"x" * 9_000)) for _ in range(2)]
    start = time.monotonic()
    with pytest.raises(Overloaded, match="buffer of 20000 bytes was full") as refused:
        producer.send(Message(topic, b"x" * 9_000))
    assert 1.0 <= time.monotonic() - start < 9.0 and refused.value.retry_after_s > 0
    threading.Timer(0.05, gate.open).start()
    futures.append(producer.send(Message(topic, b"x" * 9_000)))
    assert all(future.result(5.0) for future in futures)


def test_a_producer_whose_work_waited_too_long_takes_on_less_until_it_does_not(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    def fill() -> int:
        futures = []
        with pytest.raises(Overloaded, match="was full") as refused:
            for _ in range(200):
                futures.append(producer.send(Message(topic, b"x" * 9_000)))
        assert refused.value.retry_after_s > 0
        gate.open()
        assert all(future.result(30.0) for future in futures)
        return len(futures)

    gate = Gate(brokers)
    producer = producer_of(
        brokers,
        calls=gate,
        buffer_bytes=1_000_000,
        message_bytes_max=10_000,
        transaction_bytes_max=10_000,
        buffer_wait_s=0.6,
        buffer_s=0.2,
    )
    assert fill() > 100, "nothing is known yet: as many as there is room for in bytes"
    gate.opened.clear()
    assert fill() < 50, "they waited for 0.6 s"
    for _ in range(200):
        producer.send(Message(topic, b"x" * 9_000)).result(30.0)
        time.sleep(0.005)
    gate.opened.clear()
    assert fill() > 100, "what was sent in between was answered at once"


def test_what_could_not_be_sent_in_time_says_that_it_was_not(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    producer = producer_of(brokers, delivery_timeout_s=0.5)
    producer.send(Message(topic, b"warm")).result(5.0)
    before = len(values(brokers, topic, 4))
    channel = producer.core.router.channels[0]
    channel.follower.leader = None
    everybody = {(0, rid) for rid in range(3)}
    brokers.silent |= everybody
    try:
        future = producer.send(Message(topic, b"x"))
        with pytest.raises(Unavailable):
            future.result(5.0)
    finally:
        brokers.silent -= everybody
    assert len(values(brokers, topic, 4)) == before


def test_a_topic_that_was_deleted_is_learnt_about(
    brokers: Brokers, unique: Unique, producer_of: ProducerOf
) -> None:
    name = unique("again")
    brokers.topic(name, 2)
    producer = producer_of(brokers)
    for _ in range(3):
        producer.send(Message(name, b"x", partition=1)).result(5.0)
    brokers.groups[0].submit(ops.delete_topic(name))
    with pytest.raises(UnknownTopic):
        producer.send(Message(name, b"lost", partition=1)).result(5.0)
    with pytest.raises(UnknownTopic):
        producer.send(Message(name, b"lost", partition=1))
    brokers.topic(name, 2)
    assert producer.send(Message(name, b"new", partition=1)).result(5.0).offset == 0
    assert producer.send(Message(name, b"new", partition=1)).result(5.0).offset == 1
