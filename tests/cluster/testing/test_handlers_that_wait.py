"""``run`` of all consumers while what a handler needs is away: no attempt is counted, nothing is passed by,
and nothing becomes a dead letter."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from escrowmq import ConfigError, Message, RetryPolicy
from escrowmq.actors.client.pausing import errors_of, pause_on
from escrowmq.integrations import AsyncInbox, Inbox
from escrowmq.testing import InMemoryCluster

TOPIC, GROUP = "orders", "billing"
STREAMS, FACES = ["concurrent", "ordered"], ["blocking", "asyncio"]


class Away(Exception):
    """What the handler needs is not there."""


def plain() -> BaseException:
    return Away("refused")


def raised_from() -> BaseException:
    error = RuntimeError("the bill cannot be written")
    error.__cause__ = Away("refused")
    return error


def raised_meanwhile() -> BaseException:
    try:
        try:
            raise Away("refused")
        except Away:
            raise RuntimeError("the bill cannot be written")  # noqa: B904
    except RuntimeError as error:
        return error


def grouped() -> BaseException:
    return ExceptionGroup("two of them", [ValueError("one"), ExceptionGroup("within", [raised_from()])])  # type: ignore[list-item]


SHAPES = [plain, raised_from, raised_meanwhile, grouped]


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    with InMemoryCluster() as made:
        made.admin.create_topic(TOPIC)
        made.admin.set_group(GROUP, max_attempts=2, delays_s=[1])
        yield made


def send(cluster: InMemoryCluster, *values: bytes) -> None:
    with cluster.producer("shop") as producer:
        for value in values:
            producer.send(Message(TOPIC, value)).result(0)


class Handler:
    """Away for so many calls, then there. ``bad`` fails once by itself."""

    def __init__(
        self, cluster: InMemoryCluster, away: int, wanted: int, make: Callable[[], BaseException]
    ) -> None:
        self._cluster, self._away, self._wanted, self._make = cluster, away, wanted, make
        self.calls: list[tuple[float, bytes, int]] = []
        self.handled: list[bytes] = []
        self.stop: Any = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, record: Any, db: object = None) -> None:
        with self._lock:
            self.calls.append((self._cluster.clock.time(), record.value, record.attempt))
            if len(self.calls) <= self._away:
                raise self._make()
            if record.value == b"bad" and record.attempt == 1:
                raise ValueError("the record's own")
            self.handled.append(record.value)
            if len(self.handled) == self._wanted:
                self.stop.set()

    async def awaited(self, record: Any, db: object = None) -> None:
        await asyncio.sleep(0)
        self(record)


class Waiting:
    """An inbox, and who is asked whether to wait."""

    def __init__(self, inbox: Any, waits: Callable[[BaseException], bool]) -> None:
        self.group, self.handler, self.is_away = inbox.group, inbox.handler, waits


async def pass_time(cluster: InMemoryCluster) -> None:
    """An event loop that waits does not move the clock."""
    while True:
        await asyncio.sleep(0.001)
        cluster.clock.advance(0.5)


def run(cluster: InMemoryCluster, kind: str, face: str, handler: Handler, **options: Any) -> Any:
    """Runs a consumer until the handler has enough; returns its statistics."""
    if kind == "share":
        consumer: Any = cluster.share_consumer(GROUP, [TOPIC], auto_offset_reset="earliest")
        many = {"threads": 1} if face == "blocking" else {"tasks": 1}
    else:
        consumer = cluster.consumer(
            GROUP, [TOPIC], auto_offset_reset="earliest", retry=RetryPolicy(order=kind)
        )
        many = {}

    async def main() -> None:
        handler.stop = asyncio.Event()
        passing = asyncio.create_task(pass_time(cluster))
        await consumer.aio.run(handler.awaited, stop=handler.stop, **many, **options)
        passing.cancel()

    if face == "asyncio":
        asyncio.run(main())
    elif kind == "share":  # its threads wait in real time, unless somebody moves the clock
        with ThreadPoolExecutor(1) as thread:
            running = thread.submit(consumer.run, handler, stop=handler.stop, **many, **options)
            while not running.done():
                time.sleep(0.001)
                cluster.clock.advance(0.5)
        running.result()
    else:
        consumer.run(handler, stop=handler.stop, **many, **options)
    with consumer:
        return consumer.statistics()


@pytest.mark.parametrize("make", SHAPES)
def test_what_wraps_it_counts_too(make: Callable[[], BaseException]) -> None:
    assert pause_on(Away)(make()) and pause_on(lambda error: isinstance(error, Away))(make())
    assert not pause_on(KeyError)(make()) and not pause_on(())(make())


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("kind", [*STREAMS, "share"])
def test_no_attempt_is_counted_while_it_is_away(cluster: InMemoryCluster, kind: str, face: str) -> None:
    send(cluster, b"a", b"bad", b"c")
    handler = Handler(cluster, 6, 3, grouped)
    told = run(cluster, kind, face, handler, pause_on=Away)
    assert sorted(handler.handled) == [b"a", b"bad", b"c"]
    assert {attempt for _, _, attempt in handler.calls[:7]} == {1}
    assert cluster.admin.dead_letters(GROUP) == []
    assert max(attempt for _, value, attempt in handler.calls if value == b"bad") == 2
    assert told.pauses == 6 and not told.pausing
    if kind != "share":
        assert [value for _, value, _ in handler.calls[:7]] == [b"a"] * 7, "its partition waits"


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("kind", [*STREAMS, "share"])
def test_the_pauses_grow_to_half_a_minute(cluster: InMemoryCluster, kind: str, face: str) -> None:
    send(cluster, b"a")
    handler = Handler(cluster, 9, 1, plain)
    run(cluster, kind, face, handler, pause_on=[Away])
    at = [now for now, _, _ in handler.calls]
    pauses = [later - now for now, later in pairwise(at)]
    wanted = [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    # The clock moves by half a second in each millisecond, and a busy machine takes some to notice. Pauses
    # that do not grow are too short, and such that grow further would be 64 and 128 s.
    assert all(least <= pause < least + 15 for least, pause in zip(wanted, pauses, strict=True)), pauses


@pytest.mark.parametrize("kind", STREAMS)
def test_meanwhile_nothing_is_committed_and_the_next_reader_gets_it(
    cluster: InMemoryCluster, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """For longer than a member may be silent: it stays one, and says why it waits."""
    send(cluster, b"a", b"b", b"c")
    handler = Handler(cluster, 1_000, 1, plain)
    with cluster.consumer(
        GROUP, [TOPIC], auto_offset_reset="earliest", retry=RetryPolicy(order=kind)
    ) as consumer:
        began = cluster.clock.time()

        class LongEnough(threading.Event):
            def is_set(self) -> bool:
                return cluster.clock.time() > began + 330

        with caplog.at_level(logging.WARNING):
            consumer.run(handler, stop=LongEnough(), pause_on=lambda error: isinstance(error, Away))
        assert consumer.committed(TOPIC, 0) in (None, 0)
        assert {value for _, value, _ in handler.calls} == {b"a"}
        told = consumer.statistics()
        assert told.pausing == {(TOPIC, 0): "Away: refused"} and told.pauses == len(handler.calls)
        said = [line for line in caplog.messages if "waits at offset 0" in line]
        assert 8 <= len(said) <= 12, "about twice a minute"
        (member,) = cluster.admin.describe_group(GROUP).members
        assert (TOPIC, 0) in member.partitions
    with cluster.consumer(
        GROUP, [TOPIC], auto_offset_reset="earliest", retry=RetryPolicy(order=kind)
    ) as other:
        assert [(record.value, record.attempt) for record in other.poll()] == [
            (b"a", 1),
            (b"b", 1),
            (b"c", 1),
        ]


def test_other_partitions_go_on(cluster: InMemoryCluster) -> None:
    cluster.admin.create_topic("two", partitions=2)
    with cluster.producer("shop") as producer:
        for number in range(6):
            producer.send(Message("two", b"%d" % number, partition=number % 2)).result(0)
    handled: list[bytes] = []
    stop = threading.Event()

    def handle(record: Any) -> None:
        if record.partition == 1:
            raise Away
        handled.append(record.value)
        if len(handled) == 3:
            stop.set()

    with cluster.consumer(
        GROUP, ["two"], auto_offset_reset="earliest", retry=RetryPolicy(order="ordered")
    ) as consumer:
        consumer.run(handle, stop=stop, pause_on=Away)
        assert handled == [b"0", b"2", b"4"]
        assert consumer.committed("two", 0) == 3 and not consumer.committed("two", 1)


def test_a_share_consumer_leaves_what_it_cannot_handle_to_others(cluster: InMemoryCluster) -> None:
    send(cluster, *(b"%d" % number for number in range(5)))
    with cluster.share_consumer(GROUP, [TOPIC], auto_offset_reset="earliest") as first:
        stop = threading.Event()

        def away(record: Any) -> None:
            stop.set()
            raise Away

        first.run(away, threads=1, stop=stop, pause_on=Away)
        with cluster.share_consumer(GROUP, [TOPIC]) as other:
            found = [record for _ in range(3) for record in other.poll(timeout_s=1.0)]
            assert sorted(record.value for record in found) == [b"0", b"1", b"2", b"3", b"4"]
            assert {record.attempt for record in found} == {1}


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("kind", [*STREAMS, "share"])
def test_an_inbox_knows_that_its_database_is_away(
    cluster: InMemoryCluster, tmp_path: Path, kind: str, face: str
) -> None:
    """Unasked: the file of the database lies in a folder that is not there yet."""
    send(cluster, b"a", b"b")
    folder, away = tmp_path / "mounted", tmp_path / "away"
    folder.mkdir()
    if face == "blocking":
        inbox: Any = Inbox(lambda: sqlite3.connect(folder / "shop.db", check_same_thread=False), group=GROUP)
        inbox.create_table()
    else:
        from sqlalchemy.ext.asyncio import create_async_engine
        from sqlalchemy.pool import NullPool

        engine = create_async_engine(f"sqlite+aiosqlite:///{folder / 'shop.db'}", poolclass=NullPool)
        inbox = AsyncInbox(engine, group=GROUP)
        asyncio.run(inbox.create_table())
    folder.rename(away)
    asked = 0
    work = inbox.handler

    def counted(handle: Any) -> Any:
        handled = work(handle)

        def come_back() -> None:
            nonlocal asked
            asked += 1
            if asked == 5:
                away.rename(folder)

        def blocking(record: Any) -> None:
            come_back()
            handled(record)

        async def awaited(record: Any) -> None:
            come_back()
            await handled(record)

        return blocking if face == "blocking" else awaited

    inbox.handler = counted
    handler = Handler(cluster, 0, 2, plain)
    told = run(cluster, kind, face, handler, inbox=inbox)
    assert handler.handled == [b"a", b"b"] and told.pauses == 4
    assert {attempt for _, _, attempt in handler.calls} == {1}
    assert cluster.admin.dead_letters(GROUP) == []


def test_too_many_that_wait_here_are_not_passed_by(cluster: InMemoryCluster) -> None:
    """A record that cannot be kept until its failure is durable is read again."""
    send(cluster, b"bad", b"b")
    handler = Handler(cluster, 0, 2, plain)
    with cluster.consumer(
        GROUP, [TOPIC], auto_offset_reset="earliest", retry=RetryPolicy(order="concurrent")
    ) as consumer:
        consumer.core.redelivery._limit = 0

        def handle(record: Any) -> None:
            if len(handler.calls) == 1:
                consumer.core.redelivery._limit = 10
            handler(record)

        consumer.run(handle, stop=handler.stop)
    assert sorted(handler.handled) == [b"b", b"bad"]


@pytest.mark.parametrize("wrong", [3, "Away", [Away, "x"], object(), Handler.awaited, int])
def test_what_pauses_is_classes_or_a_function(cluster: InMemoryCluster, wrong: object) -> None:
    with (
        cluster.share_consumer(GROUP, [TOPIC]) as queue,
        pytest.raises(ConfigError, match="pause_on is exception classes"),
    ):
        queue.run(lambda record: None, pause_on=wrong)  # type: ignore[arg-type]


def test_errors_that_lead_to_each_other_in_a_circle_end() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert list(errors_of(one)) == [one, other]
    hidden = RuntimeError("without")
    hidden.__context__, hidden.__suppress_context__ = Away(), True
    assert list(errors_of(hidden)) == [hidden]


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("kind", [*STREAMS, "share"])
def test_a_table_that_is_missing_is_waited_for(
    cluster: InMemoryCluster, tmp_path: Path, kind: str, face: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever sets the inbox up forgot it, or has not come to it yet. No message is to blame."""
    send(cluster, b"a", b"b")
    by_hand = Inbox(lambda: sqlite3.connect(tmp_path / "shop.db", check_same_thread=False), group=GROUP)
    inbox: Any = by_hand
    if face == "asyncio":
        from sqlalchemy.ext.asyncio import create_async_engine
        from sqlalchemy.pool import NullPool

        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}", poolclass=NullPool)
        inbox = AsyncInbox(engine, group=GROUP)
    asked, is_away = 0, inbox.is_away

    def waits(error: BaseException) -> bool:
        nonlocal asked
        asked += 1
        if asked == 5:
            by_hand.create_table()
        return bool(is_away(error))

    handler = Handler(cluster, 0, 2, plain)
    run(cluster, kind, face, handler, inbox=Waiting(inbox, waits))
    assert sorted(handler.handled) == [b"a", b"b"] and asked >= 5
    assert {attempt for _, _, attempt in handler.calls} == {1}
    assert not cluster.admin.dead_letters(GROUP) and "create_table" in caplog.text
