"""Ray Data with a real cluster: datasets are what was committed, and writes are readable once or never."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from escrowmq import ConfigError, DataLoss, Message, UnknownTopic, ray_data
from escrowmq.spark_integration.sink.intents import RAY_DATA
from examples import ray_data_scoring
from tests.spark_trials.target import Target

if TYPE_CHECKING:
    from ray.data import Dataset

    from escrowmq import Cluster, ConsumerRecord

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(240)]
Unique = Callable[[str], str]
PARTITIONS = 3


@pytest.fixture(autouse=True)
def quiet(ray_local: str) -> None:
    """No progress bars in the output of tests."""
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False


@pytest.fixture
def topic(cluster: Cluster, unique: Unique) -> str:
    name = unique("ray-data")
    cluster.admin.create_topic(name, partitions=PARTITIONS)
    return name


def send(cluster: Cluster, topic: str, first: int, count: int) -> None:
    with cluster.producer(app="ray-data-test") as producer:
        sent = [
            producer.send(
                Message(
                    topic,
                    b"%d" % number,
                    key=b"k%d" % number if number % 2 else None,
                    partition=number % PARTITIONS,
                    headers={"h": b"%d" % number} if number % 7 == 0 else {},
                )
            )
            for number in range(first, first + count)
        ]
        for future in sent:
            future.result(30)


def readable(cluster: Cluster, topic: str) -> list[ConsumerRecord]:
    found: list[ConsumerRecord] = []
    with cluster.consumer(auto_offset_reset="earliest") as consumer:
        places = [(topic, partition) for partition in range(PARTITIONS)]
        consumer.assign(places)
        ends = ray_data.offsets(topic, cluster=cluster)
        while any(consumer.position(*place) < ends[place[1]] for place in places):
            found += consumer.poll(timeout_s=1.0)
    return found


def left_open(cluster: Cluster, topic: str) -> list[str]:
    return [
        found.app for found in cluster.admin.list_transactions(topic=topic) if found.app.startswith(RAY_DATA)
    ]


def numbers(count: int, blocks: int = 2) -> Dataset:
    import ray.data

    return ray.data.range(count, override_num_blocks=blocks).map_batches(
        lambda batch: {
            "key": [b"%d" % (n % 5) for n in batch["id"]],
            "value": [b"%d" % n for n in batch["id"]],
        }
    )


def test_a_dataset_is_what_is_committed_when_it_is_planned(cluster: Cluster, topic: str) -> None:
    send(cluster, topic, 0, 90)
    with cluster.producer(app="ray-data-open") as producer:
        with producer.transaction() as tx:
            tx.send(Message(topic, b"rolled back", partition=0))
            tx.prepare()
            tx.rollback()
        with producer.transaction() as tx:
            tx.send(Message(topic, b"in progress", partition=0))
            tx.prepare()
            dataset = ray_data.read(topic, cluster=cluster, parallelism=2)
            before = readable(cluster, topic)
        send(cluster, topic, 90, 10)
    assert dataset.count() == 90, "known without reading"
    rows = dataset.take_all()
    by_place = {(row["partition"], row["offset"]): row for row in rows}
    assert len(by_place) == len(rows) == len(before) == 90
    for record in before:
        row = by_place[record.partition, record.offset]
        assert (row["topic"], row["key"], row["value"], row["tx_id"]) == (
            topic,
            record.key,
            record.value,
            None,
        )
        assert {pair["key"]: pair["value"] for pair in row["headers"]} == record.headers
        assert int(row["timestamp"].timestamp() * 1000) == record.timestamp
    part = ray_data.read(
        topic,
        address=cluster.address,
        start={1: 5},
        end={1: 25},
        partitions=[1],
        columns=["offset", "value"],
        parallelism=1,
    )
    assert part.schema().names == ["offset", "value"]
    assert [row["offset"] for row in part.take_all()] == list(range(5, 25))


def test_a_written_dataset_comes_back(cluster: Cluster, topic: str, unique: Unique) -> None:
    send(cluster, topic, 0, 60)
    target = unique("copy")
    cluster.admin.create_topic(target, partitions=PARTITIONS)
    source = ray_data.read(topic, cluster=cluster, parallelism=2)
    written = ray_data.write(
        source, target, key="key", headers="headers", partition="partition", cluster=cluster
    )
    before, after = readable(cluster, topic), readable(cluster, target)
    assert written.messages == len(after) == 60

    def content(records: list[ConsumerRecord]) -> list[Any]:
        return sorted((r.partition, r.value, r.key, sorted(r.headers.items())) for r in records)

    assert [row[:2] for row in content(after)] == [row[:2] for row in content(before)]
    assert Counter(map(repr, content(after))) == Counter(map(repr, content(before)))
    assert {record.tx_id for record in after} == {f"{written.write_id}:0"}
    assert left_open(cluster, target) == []


def test_values_that_tasks_compress_come_back(cluster: Cluster, topic: str) -> None:
    import ray.data

    words = [f"{n}:" + "teapot " * (500 if n % 2 else 1) for n in range(80)]
    dataset = ray.data.from_items([{"value": word} for word in words], override_num_blocks=2)
    for method in ("zstd", "lz4"):
        assert ray_data.write(dataset, topic, compression=method, cluster=cluster).messages == 80
    back = ray_data.read(topic, cluster=cluster, columns=["value"], parallelism=2).take_all()
    assert sorted(row["value"].decode() for row in back) == sorted(2 * words)
    target = Target(cluster.info, topic, PARTITIONS)
    try:
        assert target.stored_bytes() < 2 * sum(map(len, words)) / 4
    finally:
        target.close()


def test_an_empty_topic_and_what_does_not_exist(cluster: Cluster, topic: str, unique: Unique) -> None:
    empty = ray_data.read(topic, cluster=cluster)
    assert empty.count() == 0 and empty.take_all() == []
    assert ray_data.write(empty, topic, cluster=cluster).messages == 0
    with pytest.raises(UnknownTopic):
        ray_data.read(unique("nowhere"), cluster=cluster)
    with pytest.raises(UnknownTopic):
        ray_data.write(empty, unique("nowhere"), cluster=cluster)
    with pytest.raises(ConfigError, match=r"no columns \['body'\]"):
        ray_data.write(numbers(10, 1), topic, value="body", cluster=cluster)


def test_a_write_that_fails_leaves_nothing(cluster: Cluster, topic: str) -> None:
    def fail_late(batch: dict[str, Any]) -> dict[str, Any]:
        if b"99" in batch["value"]:
            raise ValueError("the last block cannot be computed")
        return batch

    with pytest.raises(Exception, match="cannot be computed") as caught:
        ray_data.write(numbers(100).map_batches(fail_late), topic, cluster=cluster)
    assert any("the write's id is ray-data-" in note for note in caught.value.__notes__)
    assert left_open(cluster, topic) == [] and readable(cluster, topic) == []


def test_a_task_that_ray_repeats_writes_once(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    from escrowmq.spark_integration.ray_data.arguments import ColumnNames
    from escrowmq.spark_integration.ray_data.datasink import EscrowMQDatasink, attempts_before, run_write

    class Dying(EscrowMQDatasink):
        """The first process to get that far dies when it has prepared its rows, before it reports."""

        def write(self, blocks: Any, ctx: Any) -> Any:
            report = super().write(blocks, ctx)
            try:
                os.close(os.open(tmp_path / "died", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                with (tmp_path / "attempts").open("a") as file:
                    file.write(str(attempts_before()))
                return report
            os._exit(1)

    sink = Dying(cluster.info, topic, ColumnNames("value", "key", None, None), 1 << 20, 60_000)
    assert run_write(numbers(100), sink, concurrency=None, ray_remote_args=None) == 100
    assert sorted((tmp_path / "attempts").read_text()) == ["0", "1"], "of two tasks, one was tried again"
    assert sorted(int(record.value) for record in readable(cluster, topic)) == list(range(100))
    assert left_open(cluster, topic) == []


def test_what_retention_removes_in_between_is_an_error(cluster: Cluster, topic: str) -> None:
    from escrowmq.spark_integration.ray_data.datasink import typed_cause

    send(cluster, topic, 0, 60)
    dataset = ray_data.read(topic, cluster=cluster, parallelism=1)
    cluster.admin.trim_topic(topic, 10, partition=1)
    with pytest.raises(Exception, match="retention removed them after the read was planned") as caught:
        dataset.take_all()
    assert isinstance(typed_cause(caught.value), DataLoss)
    assert ray_data.read(topic, cluster=cluster, parallelism=1).count() == 50
    with pytest.raises(DataLoss):
        ray_data.write(dataset, topic, cluster=cluster)


def test_a_topic_that_was_created_again_in_between_is_an_error(cluster: Cluster, topic: str) -> None:
    """It has grown past the planned offsets, and its rows were in the dataset."""
    from escrowmq.spark_integration.ray_data.datasink import typed_cause

    send(cluster, topic, 0, 60)
    dataset = ray_data.read(topic, cluster=cluster, parallelism=1)
    cluster.admin.delete_topic(topic)
    cluster.admin.create_topic(topic, partitions=PARTITIONS)
    send(cluster, topic, 1_000, 90)
    with pytest.raises(Exception, match="created again") as caught:
        dataset.take_all()
    assert isinstance(typed_cause(caught.value), DataLoss)


def test_the_example_scores_each_committed_message_once(cluster: Cluster, unique: Unique) -> None:
    expected, found = ray_data_scoring.run(cluster, unique("clicks"), unique("scores"), micro_batches=2)
    assert len(expected) == 90 and dict(found) == expected
    assert len(found) == len(expected)
