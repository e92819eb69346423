"""What handing messages over costs their caller: ``python -m benchmarks.handing_over``.

In a cluster in memory of which nothing runs meanwhile, so only the caller's own work is measured, in
processor time of its thread. The application has other objects (``--objects``), which each full collection
of Python's garbage collector visits. The second figure is everything until the answers, broker included.

Then what many transactions cost their caller, from a list and from a table, in turns: everything from the
arguments to requests, and from their answers to results. No broker takes part; each request is encoded and
counts as carried out.
"""

from __future__ import annotations

import argparse
import gc
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from escrowmq import Message, Producer, ProducerConfig
from escrowmq.actors.producer.encoding.blocks import PrepareBlock, encode_decision, encode_prepare
from escrowmq.testing import InMemoryCluster

TOPIC, BYTES, KEYS = "t", 256, 1024


@dataclass(frozen=True)
class Cost:
    """Of one message, in us; and the collections that were started while all were handed over."""

    caller_us: float
    rest_us: float
    collections: int


def one_by_one(producer: Producer, messages: Sequence[Message]) -> Any:
    """``send`` for each, and keeps all futures."""
    return [producer.send(message) for message in messages]


def as_lists(producer: Producer, messages: Sequence[Message]) -> Any:
    """One ``send_many``. The lists are made from the messages, which costs 0.1 us each."""
    return producer.send_many(TOPIC, [m.value for m in messages], [m.key for m in messages])


def as_table(producer: Producer, messages: Sequence[Message]) -> Any:
    """One ``send_table``; the table is made once."""
    if id(messages) not in _TABLES:
        columns = {"value": [m.value for m in messages], "key": [m.key for m in messages]}
        _TABLES[id(messages)] = pa.table(columns)
    return producer.send_table(TOPIC, _TABLES[id(messages)], key="key")


_TABLES: dict[int, Any] = {}


def measure(work: Callable[[Producer, Sequence[Message]], Any], count: int, rounds: int = 3) -> Cost:
    """The cheapest of some rounds."""
    with InMemoryCluster() as cluster:
        cluster.admin.create_topic(TOPIC, partitions=4)
        producer = cluster.producer("app", config=ProducerConfig(buffer_bytes=1 << 30))
        values = [os.urandom(BYTES) for _ in range(KEYS)]
        messages = [Message(TOPIC, values[n % KEYS], b"%08d" % (n % KEYS)) for n in range(count)]
        producer.send(messages[0]).result(60.0)  # from now on it knows the topic
        costs = [_round(cluster, producer, work, messages) for _ in range(rounds)]
        return min(costs, key=lambda cost: cost.caller_us)


def _round(
    cluster: InMemoryCluster,
    producer: Producer,
    work: Callable[[Producer, Sequence[Message]], Any],
    messages: Sequence[Message],
) -> Cost:
    gc.collect()
    before, begin = _collections(), time.thread_time()
    cluster.stage.held.depth += 1
    try:
        kept = work(producer, messages)
    finally:
        cluster.stage.held.depth -= 1
    handed, collections = time.thread_time(), _collections() - before
    assert producer.flush(60.0) and kept is not None
    ended, count = time.thread_time(), len(messages)
    return Cost(1e6 * (handed - begin) / count, 1e6 * (ended - handed) / count, collections)


def many_transactions(count: int, rounds: int = 5) -> dict[str, float]:
    """Way -> us of the caller's thread for each transaction, in the cheapest round."""
    best: dict[str, float] = {}
    with InMemoryCluster() as cluster:
        cluster.admin.create_topic(TOPIC, partitions=4)
        producer = cluster.producer("app", config=ProducerConfig(buffer_bytes=1 << 30))
        values = [os.urandom(BYTES) for _ in range(KEYS)]
        messages = [Message(TOPIC, values[n % KEYS], b"%08d" % (n % KEYS)) for n in range(count)]
        table = pa.table({"value": [m.value for m in messages], "key": [m.key for m in messages]})
        producer.send(messages[0]).result(60.0)

        def enqueue(gid: int, block: Any) -> None:
            if isinstance(block, PrepareBlock):
                encode_prepare("app", [block], lambda topic: 1, instance="i", heard_ms=1)
            else:
                encode_decision("app", [block])
            block.done({})

        producer.core.enqueue = enqueue  # type: ignore[method-assign]
        ways: dict[str, Callable[[], Any]] = {
            "send_transactions": lambda: producer.send_transactions((m, None) for m in messages),
            "send_transactions_table": lambda: producer.send_transactions_table(TOPIC, table, key="key"),
        }
        for _ in range(rounds):
            for name, work in ways.items():
                gc.collect()
                begin = time.thread_time()
                results = work()
                took = 1e6 * (time.thread_time() - begin) / count
                assert len(results) == count and results[-1].error is None
                best[name] = min(took, best.get(name, took))
    return best


def _collections() -> int:
    return sum(generation["collections"] for generation in gc.get_stats())


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--objects", type=int, default=1_000_000, help="other objects of the application")
    options = parser.parse_args(arguments)
    others = [[number] for number in range(options.objects)]
    for name, work in {"send": one_by_one, "send_many": as_lists, "send_table": as_table}.items():
        cost = measure(work, options.messages)
        print(
            f"{name:>11}: caller {cost.caller_us:.2f} us, until the answers {cost.rest_us:.2f} us, "
            f"{cost.collections} collections among {len(others)} other objects"
        )
    for name, caller_us in many_transactions(options.messages).items():
        print(f"{name:>24}: caller {caller_us:.2f} us")


if __name__ == "__main__":
    main()
