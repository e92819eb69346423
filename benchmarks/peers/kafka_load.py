"""Kafka's load program: ``python -m benchmarks.peers.kafka_load BOOTSTRAP``. The client is librdkafka.

Messages of several callers share requests by librdkafka's defaults (5 ms of linger); lone ones do not wait.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.peers.load_loop import bodies, serve, timed

TOPICS = {256: "plain-256", 1024: "plain-1024"}
TRANSACTIONS = "transactions"
PARTITIONS, REPLICAS = 4, 3
IN_FLIGHT = 64
#: Of transactions with a hundred messages each.
TX_OF_100_IN_FLIGHT = 8
WAIT_S = 30.0


class KafkaLoad:
    """The producers of all rows. Transactional ones are kept: they are made once, as in an application."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._failed = 0
        admin = AdminClient({"bootstrap.servers": servers})
        names = (*TOPICS.values(), TRANSACTIONS)
        for made in admin.create_topics([NewTopic(name, PARTITIONS, REPLICAS) for name in names]).values():
            made.result(WAIT_S)
        self._lone = self._producer({"linger.ms": 0})
        self._plain = self._producer({"delivery.report.only.error": True, "on_delivery": self._not_delivered})
        self._transactional: list[Any] = []

    def _producer(self, settings: dict[str, Any]) -> Any:
        return Producer({"bootstrap.servers": self._servers, "acks": "all", **settings})

    def _not_delivered(self, error: Any, _: Any) -> None:
        self._failed += 1

    def plain(self, size: int, seconds: float) -> dict[str, Any]:
        """As fast as one thread can, waiting for the last answer at the end."""
        source, producer, topic = bodies(size), self._plain, TOPICS[size]
        count, self._failed = 0, 0
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds:
            for _ in range(256):
                key, value = next(source)
                while True:
                    try:
                        producer.produce(topic, value, key)
                        break
                    except BufferError:  # the queue is full
                        producer.poll(0.005)
            count += 256
            producer.poll(0)
        left = producer.flush(WAIT_S)
        if left or self._failed:
            raise RuntimeError(f"{left} messages were not answered, {self._failed} were refused")
        return {"items": count, "seconds": time.perf_counter() - begin}

    def reading(self, seconds: float) -> dict[str, Any]:
        """A new group reads from the start, and commits once a second."""
        settings = {
            "bootstrap.servers": self._servers,
            "group.id": f"reading-{time.time_ns()}",
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 1000,
            # By default 1,000: once its own queue is full, librdkafka stops to fetch for a second.
            "fetch.queue.backoff.ms": 10,
        }
        consumer = Consumer(settings)
        try:
            consumer.subscribe([TOPICS[256]])
            end = time.perf_counter() + WAIT_S
            while not (first := self._good(consumer.consume(1, 1.0))) and time.perf_counter() < end:
                pass
            count, begin = len(first), time.perf_counter()
            while (now := time.perf_counter()) - begin < seconds:
                records = consumer.consume(5000, 1.0)
                if not records:
                    break
                count += len(self._good(records))
            return {"items": count, "seconds": now - begin}
        finally:
            consumer.close()

    @staticmethod
    def _good(records: list[Any]) -> list[bytes]:
        for record in records:
            if (error := record.error()) is not None and error.code() != KafkaError._PARTITION_EOF:
                raise RuntimeError(str(error))
        return [record.value() for record in records]

    def lone_plain(self, seconds: float) -> dict[str, Any]:
        """One message, and its answer."""
        source, producer = bodies(256), self._lone

        def one() -> None:
            key, value = next(source)
            producer.produce(TOPICS[256], value, key)
            if producer.flush(WAIT_S):
                raise RuntimeError("a message was not answered")

        return timed(one, seconds)

    def _some_transactional(self, count: int) -> list[Any]:
        missing = range(len(self._transactional), count)
        made = [self._producer({"transactional.id": f"bench-{n}", "linger.ms": 0}) for n in missing]
        with ThreadPoolExecutor(16) as threads:
            list(threads.map(lambda producer: producer.init_transactions(WAIT_S), made))
        self._transactional += made
        return self._transactional[:count]

    @staticmethod
    def _one_transaction(producer: Any, source: Any, messages: int = 1) -> Callable[[], None]:
        def one() -> None:
            producer.begin_transaction()
            for key, value in islice(source, messages):
                producer.produce(TRANSACTIONS, value, key)
            producer.commit_transaction(WAIT_S)

        return one

    def lone_transaction(self, seconds: float) -> dict[str, Any]:
        """One transaction of one message after the other."""
        (producer,) = self._some_transactional(1)
        return timed(self._one_transaction(producer, bodies(256)), seconds)

    def transactions(self, seconds: float, in_flight: int = IN_FLIGHT, messages: int = 1) -> dict[str, Any]:
        """As many producers, since one producer has one transaction at a time. Counts messages."""
        producers = self._some_transactional(in_flight)
        begin = time.perf_counter()

        def work(producer: Any) -> int:
            one, count = self._one_transaction(producer, bodies(256), messages), 0
            while time.perf_counter() - begin < seconds:
                one()
                count += messages
            return count

        with ThreadPoolExecutor(in_flight) as threads:
            count = sum(threads.map(work, producers))
        return {"items": count, "seconds": time.perf_counter() - begin}


def main() -> None:
    load = KafkaLoad(sys.argv[1])
    serve(
        {
            "plain-256": partial(load.plain, 256),
            "plain-1024": partial(load.plain, 1024),
            "reading": load.reading,
            "lone-plain": load.lone_plain,
            "lone-tx": load.lone_transaction,
            "tx-64": load.transactions,
            "tx-of-100": partial(load.transactions, in_flight=TX_OF_100_IN_FLIGHT, messages=100),
        }
    )


if __name__ == "__main__":
    main()
