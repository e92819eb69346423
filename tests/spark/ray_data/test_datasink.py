"""The datasink over in-process brokers, without Ray: what tasks report is readable once, the rest never."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from ray.data.datasource import WriteResult

from escrowmq.actors.client.router import Router
from escrowmq.actors.producer.config import Compression
from escrowmq.replication.errors import ConfigError, MessageTooLarge, OutcomeUnknown, Unavailable
from escrowmq.spark_integration.ray_data import datasink
from escrowmq.spark_integration.ray_data.arguments import ColumnNames
from escrowmq.spark_integration.ray_data.datasink import EscrowMQDatasink, Prepared, attempts_before
from escrowmq.spark_integration.sink import task
from escrowmq.spark_integration.sink.batch import commit_batch, settle_batch
from escrowmq.spark_integration.sink.intents import Attempt
from escrowmq.spark_integration.sink.link import SinkLink
from tests.support.brokers import Brokers, ClientCalls
from tests.support.packed import METHOD_NAMES, is_packed, stored_at
from tests.support.producing import open_transactions
from tests.support.sinking import PARTITIONS, readable
from tests.support.waiting import wait_until

NAMES = ColumnNames("value", "key", None, None)


class Write(EscrowMQDatasink):
    """One write, to in-process brokers. Every task has several chunks in every group."""

    quiet_s, pauses_s = 0.1, (0.1,) * 5
    chunk_bytes = 400

    def __init__(
        self, brokers: Brokers, topic: str, names: ColumnNames = NAMES, compression: Compression | None = None
    ) -> None:
        super().__init__(brokers.info, topic, names, 1 << 20, 60_000, compression)
        self.brokers = brokers

    def new_router(self) -> Router:
        return Router(self.brokers.info, calls=ClientCalls(self.brokers), name="ray-data-test")

    def task(self, number: int, *blocks: Any) -> Prepared:
        return self.write(blocks, SimpleNamespace(task_idx=number))  # type: ignore[arg-type]

    def complete(self, *reports: Prepared) -> None:
        self.on_write_complete(WriteResult(len(reports), 0, list(reports)))

    def open(self) -> int:
        return sum(found.app == self.write_id for found in open_transactions(self.brokers))


def block(*names: str) -> pa.Table:
    return pa.table(
        {"key": [name.encode() for name in names], "value": list(names), "other": [1] * len(names)}
    )


def named(task: int, count: int = 20) -> list[str]:
    return [f"{task}/{n}" for n in range(count)]


def test_all_tasks_become_readable_together(brokers: Brokers, topic: str) -> None:
    write = Write(brokers, topic)
    reports = [write.task(n, block(*named(n)), block(f"last of {n}")) for n in range(3)]
    assert write.open() > 3 and readable(brokers, topic) == []
    write.complete(*reports)
    rows = readable(brokers, topic)
    assert sorted(value for value, _ in rows) == sorted(
        v for n in range(3) for v in [*named(n), f"last of {n}"]
    )
    assert {tx_id for _, tx_id in rows} == {f"{write.write_id}:0"}
    assert write.open() == 0 and write.messages == 3


def test_of_a_task_that_ray_repeats_one_attempt_counts(brokers: Brokers, topic: str) -> None:
    write = Write(brokers, topic)
    write.task(0, block(*named(0)))  # its node is lost before it reports
    report = write.task(0, block(*named(0)))
    write.complete(report)
    assert [value for value, _ in readable(brokers, topic)] == sorted(named(0))
    assert write.open() == 0, "what the lost attempt prepared is rolled back"


def test_an_attempt_that_ends_after_the_commit_is_rolled_back(
    brokers: Brokers, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasink, "_job", lambda: "the same")
    monkeypatch.setattr(datasink, "attempts_before", lambda: 1)
    write = Write(brokers, topic)
    write.complete(write.task(0, block(*named(0))))
    write.task(0, block(*named(0)))
    wait_until(lambda: write.open() == 0, 20.0, "the sweep")
    assert [value for value, _ in readable(brokers, topic)] == sorted(named(0))


def test_a_failed_write_leaves_nothing(brokers: Brokers, topic: str) -> None:
    write = Write(brokers, topic)
    write.task(0, block(*named(0)))
    write.task(1, block(*named(1)))
    write.on_write_failed(ValueError("a function of the application failed"))
    assert write.open() == 0 and readable(brokers, topic) == []


def test_a_task_that_fails_takes_its_rows_back(brokers: Brokers, topic: str) -> None:
    def blocks() -> Iterator[pa.Table]:
        yield block(*named(0))
        raise ValueError("the third block cannot be computed")

    write = Write(brokers, topic)
    with pytest.raises(ValueError, match="third"):
        write.task(0, *blocks())
    with pytest.raises(ValueError, match="third"):
        write.write(blocks(), SimpleNamespace(task_idx=0))  # type: ignore[arg-type]
    with pytest.raises(MessageTooLarge):
        write.task(1, block(*named(1)), block("x" * (2 << 20)))
    assert write.open() == 0 and readable(brokers, topic) == []


@pytest.mark.parametrize("committed", [False, True])
def test_what_a_dead_driver_left_is_settled_as_it_was_decided(
    brokers: Brokers, topic: str, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    write = Write(brokers, topic)
    report = write.task(0, block(*named(0)))
    if committed:
        write.complete(report)
    router = write.new_router()
    settle_batch(SinkLink(router, write.write_id), write.write_id)
    router.close()
    assert write.open() == 0
    assert [value for value, _ in readable(brokers, topic)] == (sorted(named(0)) if committed else [])


@pytest.mark.parametrize("decided", [True, False])
def test_if_the_answer_to_the_commit_is_lost_the_brokers_say_what_was_decided(
    brokers: Brokers, topic: str, monkeypatch: pytest.MonkeyPatch, decided: bool
) -> None:
    def commit(*args: Any, **options: Any) -> None:
        if decided:
            commit_batch(*args, **options)
        raise OutcomeUnknown("no answer came")

    monkeypatch.setattr(datasink, "commit_batch", commit)
    write = Write(brokers, topic)
    report = write.task(0, block(*named(0)))
    if decided:
        write.complete(report)
    else:
        with pytest.raises(OutcomeUnknown):
            write.complete(report)
    assert [value for value, _ in readable(brokers, topic)] == (sorted(named(0)) if decided else [])
    assert write.open() == 0


def test_a_dataset_without_rows_writes_nothing(brokers: Brokers, topic: str) -> None:
    write = Write(brokers, topic)
    write.complete(write.task(0, pa.table({})), write.task(1))
    write.complete()
    assert readable(brokers, topic) == [] and write.open() == 0


def test_blocks_of_pandas_and_columns_of_other_names(brokers: Brokers, topic: str) -> None:
    write = Write(brokers, topic, ColumnNames("body", None, "tags", "place"))
    tags = pa.array(
        [[{"key": "h", "value": b"x"}], []], pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))
    )
    arrow = pa.table(
        {"place": [0, PARTITIONS - 1], "tags": tags, "body": pa.array([b"a", b"b"], pa.large_binary())}
    )
    frame = pd.DataFrame({"body": ["c"], "tags": [None], "place": [1]})
    write.complete(write.task(0, arrow, frame))
    assert [value for value, _ in readable(brokers, topic)] == ["a", "b", "c"]


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_values_are_compressed_where_all_replicas_know_how(brokers: Brokers, topic: str, method: str) -> None:
    values = ["teapot " * (300 if n % 3 else 3) + str(n) for n in range(60)]
    write = Write(brokers, topic, compression=Compression(method))
    write.complete(write.task(0, block(*values[:30]), block(*values[30:])), write.task(1))
    assert [value for value, _ in readable(brokers, topic)] == sorted(values)
    packed = [
        is_packed(row)
        for partition in range(PARTITIONS)
        for row in stored_at(brokers.leader_of(topic, partition).parts.running.replica, topic, partition)
    ]
    assert sorted(packed) == [False] * 20 + [True] * 40


@pytest.mark.parametrize(
    ("table", "why"),
    [
        (pa.table({"value": [b"x"]}), r"no columns \['key'\].*it has \['value'\]"),
        (pa.table({"value": [1], "key": [b"k"]}), "column 'value' is int64.*value needs bytes"),
        (pa.table({"value": [b"x"], "key": [1.5]}), "column 'key' is double.*key needs bytes"),
    ],
)
def test_columns_that_make_no_messages_are_refused(
    brokers: Brokers, topic: str, table: pa.Table, why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        Write(brokers, topic).task(0, table)
    names = {
        "headers": ColumnNames("value", None, "other", None),
        "partition": ColumnNames("value", None, None, "value"),
    }
    for part, of in names.items():
        with pytest.raises(ConfigError, match=f"a message's {part} needs"):
            Write(brokers, topic, of).task(0, block("x"))


def test_failing_to_roll_back_does_not_hide_the_first_error(
    brokers: Brokers, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def abort(*_: object, **__: object) -> None:
        raise Unavailable("no leader", 0.0)

    monkeypatch.setattr(datasink, "abort_batch", abort)
    write = Write(brokers, topic)
    write.on_write_failed(ValueError())
    assert f"resolve_write('{write.write_id}')" in caplog.text


def test_outside_of_a_task_there_were_no_attempts() -> None:
    assert attempts_before() == 0
    assert Attempt(task.attempt_name(3, attempts_before()), {}).name.startswith("3.0.")
