"""The sink with real Spark and a real cluster: each row is read once, whole epochs at a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from escrowmq import Message
from escrowmq.spark_integration import SparkSinkQuerier, resolve_sink
from escrowmq.spark_integration.sink.intents import Intent, IntentStore, epoch_id_of
from tests.integration.spark_modes import MODES, shared
from tests.integration.spark_sinking import (
    PARTITIONS,
    Files,
    forget_last_commit,
    prepare_as_a_dead_driver,
    run,
    start,
)
from tests.spark_trials.target import Target, problems_of
from tests.support.leaders import leader_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from escrowmq import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.ray, pytest.mark.timeout(240)]
Name = Callable[[str], str]


@pytest.fixture(scope="module", params=MODES)
def spark(request: pytest.FixtureRequest, cluster: Cluster) -> SparkSession:
    return shared(request.param)


@pytest.fixture
def target(cluster: Cluster, unique: Name) -> Iterator[Target]:
    topic = unique("sink")
    cluster.admin.create_topic(topic, partitions=PARTITIONS)
    made = Target(cluster.info, topic, PARTITIONS)
    yield made
    made.close()


def test_a_batch_comes_back_as_it_was_written(spark: SparkSession, cluster: Cluster, target: Target) -> None:
    frame = spark.range(1000).selectExpr(
        "CAST(id % 10 AS STRING) AS key",
        "CONCAT('v', id) AS value",
        "IF(id = 7, array(struct('h' AS key, CAST('x' AS BINARY) AS value)), NULL) AS headers",
    )
    frame.write.format("escrowmq").mode("append").option("topic", target.topic).save()
    rows = target.rows()
    assert sorted(row.value for row in rows) == sorted(f"v{i}" for i in range(1000))
    assert len({row.tx_id for row in rows}) == 1 and target.open_transactions() == []
    of_key = {row.key: {r.partition for r in rows if r.key == row.key} for row in rows}
    with cluster.producer(app="as-producers-choose") as producer:
        for key, partitions in of_key.items():
            assert partitions == {producer.send(Message(target.topic, b"", key)).result(30).partition}
    back = (
        spark.read.format("escrowmq")
        .option("subscribe", target.topic)
        .option("includeHeaders", "true")
        .load()
    )
    (found,) = back.where("value = CAST('v7' AS BINARY)").collect()
    assert [(h.key, bytes(h.value)) for h in found.headers] == [("h", b"x")]


def test_tasks_compress_values(spark: SparkSession, target: Target) -> None:
    frame = spark.range(100).selectExpr("CONCAT(id, ':', REPEAT('teapot ', 400)) AS value")
    options = {"topic": target.topic, "compression": "zstd", "compressionLevel": "3"}
    frame.write.format("escrowmq").mode("append").options(**options).save()
    rows = target.rows()
    assert sorted(row.value for row in rows) == sorted(f"{n}:" + "teapot " * 400 for n in range(100))
    assert target.stored_bytes() < 100 * 2_800 / 4
    assert target.open_transactions() == []


def test_a_stream_is_written_epoch_by_epoch_and_goes_on_where_it_stopped(
    spark: SparkSession, target: Target, tmp_path: Path
) -> None:
    files = Files(tmp_path / "in", 3)
    run(files.stream(spark), target, tmp_path / "check")
    files.add()
    run(files.stream(spark), target, tmp_path / "check")
    rows = target.rows()
    assert problems_of(rows, files.epochs) == [] and target.open_transactions() == []
    query_id = json.loads((tmp_path / "check" / "metadata").read_text())["id"]
    assert {row.tx_id for row in rows} == {f"spark:{query_id}:{epoch}" for epoch in range(4)}


def test_no_reader_sees_a_part_of_an_epoch(spark: SparkSession, target: Target, tmp_path: Path) -> None:
    files = Files(tmp_path / "in", 5, rows=4_000)
    seen: set[tuple[int, ...]] = set()
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.002):  # the query needs the processor as well
            seen.add(tuple(target.ends()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        run(files.stream(spark), target, tmp_path / "check")
    finally:
        done.set()
        watcher.join()
    seen.add(tuple(target.ends()))
    whole = {tuple([1_000 * epochs] * PARTITIONS) for epochs in range(6)}
    assert seen <= whole and {(0,) * PARTITIONS, (5_000,) * PARTITIONS} < seen


def test_an_epoch_that_is_run_again_has_one_effect(
    spark: SparkSession, target: Target, tmp_path: Path
) -> None:
    files = Files(tmp_path / "in", 2)
    run(files.stream(spark), target, tmp_path / "check")
    before = target.rows()
    store = IntentStore(str(tmp_path / "check"))
    intent = store.read(1)
    assert intent is not None and intent.offsets == store.offsets_digest(1) != ""
    assert forget_last_commit(tmp_path / "check") == 1
    run(files.stream(spark), target, tmp_path / "check")
    assert target.rows() == before and problems_of(before, files.epochs) == []
    assert target.open_transactions() == []


def test_a_batch_that_spark_plans_anew_is_not_taken_for_the_one_that_was_written(
    spark: SparkSession, target: Target, tmp_path: Path
) -> None:
    """A power failure has lost the end of Spark's logs, but not the intent."""
    from pyspark.errors import StreamingQueryException

    files, checkpoint = Files(tmp_path / "in", 2), tmp_path / "check"
    run(files.stream(spark), target, checkpoint)
    before = target.rows()
    copy = (checkpoint / "offsets" / "1").read_bytes()
    assert forget_last_commit(checkpoint) == forget_last_commit(checkpoint, "offsets") == 1
    files.add()
    with pytest.raises(StreamingQueryException, match=r"(?s)EpochReplanned.*offsets/1.*--discard 1"):
        run(files.stream(spark), target, checkpoint)
    assert target.rows() == before and target.open_transactions() == []
    forget_last_commit(checkpoint, "offsets")
    (checkpoint / "offsets" / "1").write_bytes(copy)
    run(files.stream(spark), target, checkpoint)
    assert problems_of(target.rows(), files.epochs) == [] and target.open_transactions() == []


def test_an_intent_that_a_dead_driver_left_is_carried_out(
    spark: SparkSession, cluster: Cluster, target: Target, tmp_path: Path
) -> None:
    """A crash between the intent and the COMMIT: the chunks are prepared and still open."""
    files = Files(tmp_path / "in", 2)
    checkpoint = tmp_path / "check"
    run(files.stream(spark), target, checkpoint)
    files.add()
    prepared = prepare_as_a_dead_driver(target, checkpoint, 2, files.epochs["file-2"])
    store = IntentStore(str(checkpoint))
    store.create(Intent(2, epoch_id_of(store.query_id(), 2), (prepared,)))
    assert len(target.rows()) == 80
    run(files.stream(spark), target, checkpoint)
    rows = target.rows()
    assert problems_of(rows, files.epochs) == [] and target.open_transactions() == []
    assert {r.key for r in rows if r.value.startswith("file-2")} == {None}, (
        "the dead driver's rows had no key"
    )


def test_leftovers_are_rolled_back_by_the_next_epoch_or_by_an_operator(
    spark: SparkSession, cluster: Cluster, target: Target, tmp_path: Path
) -> None:
    files = Files(tmp_path / "in", 1)
    checkpoint = tmp_path / "check"
    run(files.stream(spark), target, checkpoint)
    prepare_as_a_dead_driver(target, checkpoint, 0, ["a late twin's"])
    prepare_as_a_dead_driver(target, checkpoint, 7, ["never committed"])
    files.add()
    run(files.stream(spark), target, checkpoint)
    assert len(target.open_transactions()) == 1
    done = resolve_sink(str(checkpoint), address=cluster.address, namespace=cluster.info.namespace)
    assert (done.committed, done.rolled_back, done.undecided, done.stuck) == ([], 0, 1, {})
    command = [sys.executable, "-m", "escrowmq.spark_integration.sink_resolve", str(checkpoint)]
    command += ["--address", cluster.address, "--namespace", cluster.info.namespace, "--stopped"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert told.returncode == 0, told.stderr[-3000:]
    assert told.stdout == "committed epochs: none were open\nrolled back: 1 transactions\n"
    assert target.open_transactions() == [] and problems_of(target.rows(), files.epochs) == []


def test_checks_are_answered_from_the_checkpoint_of_a_query_that_is_dead(
    spark: SparkSession, cluster: Cluster, target: Target, tmp_path: Path
) -> None:
    files, checkpoint = Files(tmp_path / "in", 1), tmp_path / "check"
    run(files.stream(spark), target, checkpoint)
    loser = prepare_as_a_dead_driver(target, checkpoint, 1, ["lost"], 500)
    winner = prepare_as_a_dead_driver(target, checkpoint, 1, ["won", "too"], 500)
    store = IntentStore(str(checkpoint))
    store.create(Intent(1, epoch_id_of(store.query_id(), 1), (winner,)))
    querier = SparkSinkQuerier(str(checkpoint), cluster.info)
    assert loser.name != winner.name and len(target.open_transactions()) == 2
    with cluster.producer(app=querier.app, tx_status_querier=querier):
        deadline = time.monotonic() + 60
        while target.open_transactions():
            assert time.monotonic() < deadline, "nobody was asked"
            time.sleep(0.1)
    querier.close()
    assert problems_of(target.rows(), {**files.epochs, "dead": ["won", "too"]}) == []


def test_a_task_that_fails_at_first_counts_once(spark: SparkSession, target: Target, tmp_path: Path) -> None:
    files = Files(tmp_path / "in", 2, rows=3_000)

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            yield batch.slice(0, 1_000)
            if context.attemptNumber() == 0 and context.partitionId() == 0:
                raise RuntimeError("the first attempt fails")
            yield batch.slice(1_000)

    frame = files.stream(spark)
    run(frame.mapInArrow(fail_once, frame.schema), target, tmp_path / "check")
    assert problems_of(target.rows(), files.epochs) == []


def test_a_python_worker_killed_in_the_middle_is_repeated(
    spark: SparkSession, target: Target, tmp_path: Path
) -> None:
    files = Files(tmp_path / "in", 2)

    def die_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        yield from batches
        if context.attemptNumber() == 0 and context.partitionId() == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    frame = files.stream(spark)
    run(frame.mapInArrow(die_once, frame.schema), target, tmp_path / "check")
    assert problems_of(target.rows(), files.epochs) == []


def test_a_leader_killed_in_the_middle_delays_and_changes_nothing(
    spark: SparkSession, cluster: Cluster, target: Target, tmp_path: Path
) -> None:
    files = Files(tmp_path / "in", 8, rows=2_000)

    def kill() -> None:
        deadline = time.monotonic() + 60
        while not sum(target.ends()) and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(leader_of(cluster).details["pid"], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        run(files.stream(spark), target, tmp_path / "check")
        killer.join()
        assert problems_of(target.rows(), files.epochs) == [] and target.open_transactions() == []
    finally:
        killer.join()
        deadline = time.monotonic() + 60
        while not (cluster.health()["ready"] and cluster.status().healthy):  # as the other tests expect it
            assert time.monotonic() < deadline, "the killed broker does not come back"
            time.sleep(0.2)


def test_two_queries_into_one_topic_do_not_meet(spark: SparkSession, target: Target, tmp_path: Path) -> None:
    one, two = Files(tmp_path / "one", 3), Files(tmp_path / "two", 3)
    two.epochs = {f"other {name}": values for name, values in two.epochs.items()}
    frames = one.stream(spark), two.stream(spark).selectExpr("concat('2-', value) AS value")
    queries = [start(frame, target, tmp_path / f"check-{i}") for i, frame in enumerate(frames)]
    assert all(query.awaitTermination(120) for query in queries)
    epochs = {**one.epochs, **{n: [f"2-{value}" for value in values] for n, values in two.epochs.items()}}
    assert problems_of(target.rows(), epochs) == [] and target.open_transactions() == []


def test_an_aggregation_in_complete_mode_writes_what_it_is_at_each_epoch(
    spark: SparkSession, target: Target, tmp_path: Path
) -> None:
    files = Files(tmp_path / "in", 2, rows=10)
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(files.directory))
    counts = lines.groupBy("value").count().selectExpr("concat(value, '=', count) AS value")
    run(counts, target, tmp_path / "check", "complete")
    first, second = ([f"{value}=1" for value in values] for values in files.epochs.values())
    assert sorted(row.value for row in target.rows()) == sorted(first * 2 + second)


def test_update_mode_goes_through_foreach_batch_and_is_written_once(
    spark: SparkSession, cluster: Cluster, target: Target, tmp_path: Path
) -> None:
    """Spark's Python sinks take no update mode; a write in foreachBatch that names its batch does."""
    files, checkpoint = Files(tmp_path / "in", 2, rows=10), str(tmp_path / "check")
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(files.directory))
    parity = lines.selectExpr("CAST(split(value, '/')[1] AS INT) % 2 AS parity").groupBy("parity").count()

    def write(batch: DataFrame, epoch: int) -> None:
        rows = batch.selectExpr("concat(parity, '=', count) AS value")
        for name in ("one", "two"):
            options = {
                "topic": target.topic,
                "checkpointLocation": checkpoint,
                "epoch": epoch,
                "sinkName": name,
            }
            rows.write.format("escrowmq").mode("append").options(**options).save()

    for _ in range(2):
        query = parity.writeStream.outputMode("update").foreachBatch(write)
        query = query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        expected = ["0=10", "0=10", "0=5", "0=5", "1=10", "1=10", "1=5", "1=5"]
        assert sorted(row.value for row in target.rows()) == expected and target.open_transactions() == []
        forget_last_commit(tmp_path / "check")
    done = resolve_sink(checkpoint, address=cluster.address, namespace=cluster.info.namespace)
    assert (done.committed, done.rolled_back) == ([], 0)


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        (["id"], {}, "ConfigError: column 'id' cannot be written"),
        (["id AS value"], {}, "ConfigError: column 'value' has type bigint; it must be string or binary"),
        (["'x' AS key"], {}, "ConfigError: column 'value' is missing"),
        (["'x' AS value"], {"topic": "no-such-topic"}, "UnknownTopic: unknown topic 'no-such-topic'"),
        (["'x' AS value"], {"topik": "t"}, "ConfigError: unknown option 'topik'"),
        (["CAST(NULL AS STRING) AS value"], {}, "InvalidMessage: column 'value' contains null"),
        (["'x' AS value", "9 AS partition"], {}, "UnknownTopic: topic .* has no partition 9"),
        (["repeat('x', 2000000) AS value"], {}, "RowTooLarge: a row makes a message of"),
    ],
)
def test_mistakes_are_told_by_name(
    spark: SparkSession, target: Target, columns: list[str], options: dict[str, str], said: str
) -> None:
    from pyspark.errors import PySparkException

    writer = spark.range(1).selectExpr(*columns).write.format("escrowmq").mode("append")
    with pytest.raises(PySparkException, match=said):
        writer.options(**{"topic": target.topic, **options}).save()
    assert target.ends() == [0] * PARTITIONS and target.open_transactions() == []


def test_what_a_topic_is_not_made_for_is_refused(spark: SparkSession, target: Target, tmp_path: Path) -> None:
    from pyspark.errors import PySparkException

    frame: Any = spark.range(1).selectExpr("'x' AS value")
    with pytest.raises(PySparkException, match="a topic cannot be overwritten"):
        frame.write.format("escrowmq").mode("overwrite").option("topic", target.topic).save()
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "default"))
    try:
        stream = (
            Files(tmp_path / "in", 1)
            .stream(spark)
            .writeStream.format("escrowmq")
            .option("topic", target.topic)
        )
        with pytest.raises(PySparkException, match="option 'checkpointLocation' is missing"):
            stream.trigger(availableNow=True).start().awaitTermination(60)
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
