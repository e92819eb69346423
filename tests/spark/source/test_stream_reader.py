"""The streaming source between Spark's calls, over in-process brokers: what happens between two of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from escrowmq.actors.client.router import Router
from escrowmq.actors.consumer import reader as range_reader
from escrowmq.replication.errors import DataLoss
from escrowmq.spark_integration.decode.records import RowFormat
from escrowmq.spark_integration.source import heads, reading, stream_reader
from escrowmq.spark_integration.source.options import Use, parse_options
from escrowmq.spark_integration.source.reading import TaskReader
from escrowmq.spark_integration.source.stream_planning import from_json, to_json
from escrowmq.spark_integration.source.stream_reader import EscrowMQStreamReader, Link
from tests.support.brokers import Brokers, ClientCalls
from tests.support.places import by_name

ReaderOf = Callable[..., EscrowMQStreamReader]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    running = Brokers(tmp_path_factory.mktemp("brokers"), groups=2, replicas=1)
    yield running
    running.close()


@pytest.fixture
def topic(request: pytest.FixtureRequest, brokers: Brokers) -> str:
    """A topic of two partitions, ten messages in the first; it lies elsewhere than its name would say."""
    name = f"t-{abs(hash(request.node.nodeid)):x}"
    brokers.topic(name, 2, first=1 - by_name(name, 0, 2))
    brokers.produce(name, 0, numbers(0, 10))
    return name


@pytest.fixture
def reader_of(brokers: Brokers) -> Iterator[ReaderOf]:
    """``reader_of(**options)``: what Spark would make of them."""
    made: list[EscrowMQStreamReader] = []

    def make(**given: str) -> EscrowMQStreamReader:
        options = parse_options(given, Use.STREAM, default_address="127.0.0.1:1")
        tasks = TaskReader(options.address, options.namespace, RowFormat(), options.fail_on_data_loss)
        link = Link(Router(brokers.info, calls=ClientCalls(brokers)), options.subscription)
        made.append(EscrowMQStreamReader(options, tasks, link))
        return made[-1]

    yield make
    for reader in made:
        reader.stop()


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % i for i in range(first, end)]


def run(
    reader: EscrowMQStreamReader, start: dict[str, Any], limit: ReadLimit | None = None
) -> list[list[tuple[str, int, int, int]]]:
    """The batches that Spark would run from ``start`` until there is nothing new, as ranges."""
    batches = []
    while (end := reader.latestOffset(start, limit or reader.getDefaultReadLimit())) != start:
        planned = [split.range for split in reader.partitions(start, end)]
        batches.append([(r.topic, r.partition, r.start, r.end) for r in planned])
        start = end
    return batches


@pytest.mark.parametrize(
    "starting",
    [{}, {"startingOffsets": "latest"}, {"startingTimestamp": "99000000000000"}],
    ids=["default", "latest", "time to come"],
)
@pytest.mark.parametrize("fails", ["true", "false"])
def test_available_now_reads_from_where_it_starts_whatever_comes_while_it_starts(
    brokers: Brokers, topic: str, reader_of: ReaderOf, starting: dict[str, str], fails: str
) -> None:
    reader = reader_of(subscribe=topic, failOnDataLoss=fails, **starting)
    reader.prepareForTriggerAvailableNow()
    brokers.produce(topic, 0, numbers(10, 12))
    start = reader.initialOffset()
    assert from_json(start)[0][topic, 0] == 12, "latest is what is committed when the query starts"
    brokers.produce(topic, 0, numbers(12, 15))
    assert [ranges for ranges in run(reader, start) if ranges] == [[(topic, 0, 12, 15)]]
    brokers.produce(topic, 0, numbers(15, 20))
    end = reader.latestOffset(start, ReadAllAvailable())
    assert from_json(end)[0][topic, 0] == 15, "one run reads what was there when it began"


def test_a_partition_that_comes_while_available_now_starts_is_not_one_that_is_gone(
    brokers: Brokers, topic: str, reader_of: ReaderOf
) -> None:
    reader = reader_of(subscribePattern=f"{topic}.*", startingOffsets="earliest")
    reader.prepareForTriggerAvailableNow()
    brokers.topic(f"{topic}-new")
    brokers.produce(f"{topic}-new", 0, numbers(0, 3))
    (ranges,) = run(reader, reader.initialOffset())
    assert ranges == [(topic, 0, 0, 10), (f"{topic}-new", 0, 0, 3)]


@pytest.fixture
def away(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """``away()``: nobody answers for a second and a half, several times as long as one question waits."""
    monkeypatch.setattr(heads, "ASK_TIMEOUT_S", 0.3)
    for module in (heads, stream_reader):
        monkeypatch.setattr(module, "PLAN_TIMEOUT_S", 0.3)
    timers: list[threading.Timer] = []

    def away() -> None:
        brokers.silent |= {(gid, 0) for gid in range(brokers.info.groups)}
        timers.append(threading.Timer(1.5, brokers.silent.clear))
        timers[-1].start()

    yield away
    for timer in timers:
        timer.join()


@pytest.mark.parametrize("available_now", [False, True])
def test_every_question_of_a_query_waits_for_brokers(
    topic: str, reader_of: ReaderOf, away: Callable[[], None], available_now: bool
) -> None:
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxBytesPerTrigger": "20"}
    reader = reader_of(**options)
    if available_now:
        reader.prepareForTriggerAvailableNow()
    away()
    start = reader.initialOffset()
    limit = reader.getDefaultReadLimit()
    away()
    end = reader.latestOffset(start, limit)  # the first look
    away()
    after = reader.latestOffset(end, limit)  # and how many bytes there are
    assert 0 < from_json(end)[0][topic, 0] < from_json(after)[0][topic, 0] < 10
    restarted = reader_of(**options)
    away()
    planned = restarted.partitions(start, after)
    assert [(s.range.start, s.range.end) for s in planned] == [(0, from_json(after)[0][topic, 0])]


@pytest.mark.parametrize("fails", ["true", "false"])
@pytest.mark.parametrize("available_now", [False, True])
def test_a_topic_that_is_deleted_while_a_limited_run_reads_is_a_loss(
    brokers: Brokers, topic: str, reader_of: ReaderOf, available_now: bool, fails: str
) -> None:
    other = f"{topic}-b"
    brokers.topic(other)
    brokers.produce(other, 0, numbers(0, 10))
    reader = reader_of(
        subscribe=f"{topic},{other}",
        startingOffsets="earliest",
        maxBytesPerTrigger="40",
        failOnDataLoss=fails,
    )
    if available_now:
        reader.prepareForTriggerAvailableNow()
    limit, start = reader.getDefaultReadLimit(), reader.initialOffset()
    end = reader.latestOffset(start, limit)
    assert from_json(end)[0][topic, 0] < 10, "some are left when the topic is deleted"
    brokers.delete(topic)
    if fails == "true":
        with pytest.raises(DataLoss, match=rf"{topic}/0: deleted.*failOnDataLoss"):
            run(reader, end)
        return
    batches = run(reader, end)
    assert [r[0] for ranges in batches for r in ranges] == [other] * len(batches)
    assert batches[-1][0][3] == 10, "the rest is read to its end"


def test_tasks_are_told_who_leads_so_that_they_read_from_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three = Brokers(tmp_path, groups=1, replicas=3)
    with ExitStack() as stopping:
        stopping.callback(three.close)
        three.topic("t", 2)
        for partition in (0, 1):
            three.produce("t", partition, numbers(0, 10))
        options = parse_options({"subscribe": "t"}, Use.STREAM, default_address="127.0.0.1:1")
        tasks = TaskReader(options.address, options.namespace, RowFormat(), options.fail_on_data_loss)
        router = Router(three.info, calls=ClientCalls(three))
        reader = EscrowMQStreamReader(options, tasks, Link(router, options.subscription))
        stopping.callback(reader.stop)
        start = to_json({("t", 0): 0, ("t", 1): 0})
        splits = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
        assert [split.leader for split in splits] == [three.leader()] * 2
        for member in three.groups[0].alive.values():  # one that lags may be passed over
            while [end for _, end in member.parts.reads.partition_bounds("t").values()] != [10, 10]:
                time.sleep(0.01)
        three.asked.clear()
        monkeypatch.setattr(reading, "join_from_worker", lambda address, namespace: None)
        monkeypatch.setattr(range_reader, "over_ray", lambda info: ClientCalls(three))
        for split in splits * 8:  # whom a task begins with is drawn
            assert sum(batch.num_rows for batch in tasks.read(split)) == 10
        asked = {rid for _, rid, method in three.asked if method == "fetch"}
        assert asked and three.leader() not in asked
