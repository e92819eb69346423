"""Handlers that cannot be right: they get no message, and no message counts as handled."""

from __future__ import annotations

import asyncio
import functools
import sqlite3
import threading
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import pytest

from escrowmq import ConfigError, Message, RetryPolicy
from escrowmq.integrations import Inbox
from escrowmq.testing import InMemoryCluster


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    with InMemoryCluster() as made:
        made.admin.create_topic("orders")
        with made.producer("shop") as producer:
            producer.send(Message("orders", b"1")).result(0)
        yield made


def opened(cluster: InMemoryCluster, kind: str) -> Any:
    if kind == "share":
        return cluster.share_consumer("mail", ["orders"], auto_offset_reset="earliest")
    retry = RetryPolicy(order="concurrent")
    return cluster.consumer("mail", ["orders"], auto_offset_reset="earliest", retry=retry)


async def awaited(record: Any, more: int = 0) -> None:
    raise AssertionError("nobody runs this")


def yielding(record: Any) -> Iterator[None]:
    yield


class Handler:
    async def __call__(self, record: Any) -> None: ...

    async def method(self, record: Any) -> None: ...


def without_record() -> None: ...


def with_database(record: Any, db: Any) -> None: ...


class Unshowable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


KINDS = pytest.mark.parametrize("kind", ["share", "stream"])


@KINDS
@pytest.mark.parametrize(
    ("handler", "text"),
    [
        (None, "must be callable"),
        (5, "must be callable"),
        (awaited, "coroutine function.*use consumer.aio.run"),
        (functools.partial(awaited, more=1), "coroutine function"),
        (Handler(), "coroutine function"),
        (Handler().method, "coroutine function"),
        (yielding, "generator function"),
        (without_record, r"called as handler\(record\)"),
        (with_database, r"called as handler\(record\): missing a required argument: 'db'; .*inbox="),
    ],
    ids=["none", "number", "coroutine", "partial", "called", "method", "generator", "no record", "two"],
)
def test_a_wrong_handler_is_refused_and_gets_nothing(
    cluster: InMemoryCluster, kind: str, handler: Any, text: str
) -> None:
    with opened(cluster, kind) as consumer:
        with pytest.raises(ConfigError, match=text):
            consumer.run(handler)
        (record,) = consumer.poll()
        assert record.attempt == 1, "it is still there"


@KINDS
def test_a_handler_of_a_record_alone_cannot_be_given_a_database(
    cluster: InMemoryCluster, kind: str, tmp_path: Path
) -> None:
    inbox = Inbox(lambda: sqlite3.connect(tmp_path / "shop.db"), group="mail")
    with opened(cluster, kind) as consumer:
        with pytest.raises(ConfigError, match=r"called as handler\(record, db\): too many positional"):
            consumer.run(lambda record: None, inbox=inbox)
        (record,) = consumer.poll()
        assert record.attempt == 1, "it is still there"


@KINDS
@pytest.mark.parametrize("handler", [None, 5, yielding, without_record, with_database])
def test_so_it_is_in_an_event_loop(cluster: InMemoryCluster, kind: str, handler: Any) -> None:
    async def main() -> None:
        async with opened(cluster, kind).aio as consumer:
            with pytest.raises(ConfigError, match="handler"):
                await consumer.run(handler)

    asyncio.run(main())


@KINDS
def test_a_coroutine_that_a_plain_function_returns_is_a_failure(cluster: InMemoryCluster, kind: str) -> None:
    cluster.admin.set_group("mail", max_attempts=1)
    stop = threading.Event()

    def handler(record: Any) -> Awaitable[None]:
        stop.set()
        return awaited(record)

    with opened(cluster, kind) as consumer:
        consumer.run(handler, stop=stop)
    (letter,) = cluster.admin.dead_letters("mail")
    assert "the handler returned a coroutine, which nobody awaits" in letter.reason


@KINDS
def test_an_exception_that_cannot_be_shown_is_a_failure(cluster: InMemoryCluster, kind: str) -> None:
    cluster.admin.set_group("mail", max_attempts=1)
    stop = threading.Event()

    def handler(record: Any) -> None:
        stop.set()
        raise Unshowable

    with opened(cluster, kind) as consumer:
        consumer.run(handler, stop=stop)
    (letter,) = cluster.admin.dead_letters("mail")
    assert letter.reason == "Unshowable (it cannot be shown: its own code raises)"


def test_so_is_that_of_a_deserializer(cluster: InMemoryCluster) -> None:
    cluster.admin.set_group("mail", max_attempts=1)

    def deserialize(value: bytes) -> None:
        raise Unshowable

    with cluster.share_consumer(
        "mail", ["orders"], auto_offset_reset="earliest", value_deserializer=deserialize
    ) as queue:
        assert not queue.poll()
    (letter,) = cluster.admin.dead_letters("mail")
    assert "Unshowable (it cannot be shown" in letter.reason


def test_a_deserializer_that_ends_the_thread_ends_the_run(cluster: InMemoryCluster) -> None:
    def deserialize(value: bytes) -> None:
        raise SystemExit(3)

    stop = threading.Event()
    late = threading.Timer(5.0, stop.set)
    late.start()
    with cluster.share_consumer(
        "mail", ["orders"], auto_offset_reset="earliest", value_deserializer=deserialize
    ) as queue:
        with pytest.raises(SystemExit):
            queue.run(lambda record: None, threads=2, stop=stop)
        assert not stop.is_set(), "it would have waited with no thread left"
    late.cancel()
