"""A topic is deleted and created again between a plan and its tasks: they read nothing of the new one.

The new topic has grown past the planned offsets, so nothing but its id tells it from the old one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")

from escrowmq.actors.admin.admin import Admin
from escrowmq.actors.client.router import Router
from escrowmq.replication.errors import DataLoss, Unavailable
from escrowmq.replication.model import NO_ID
from escrowmq.spark_integration.decode.records import RowFormat
from escrowmq.spark_integration.ray_data import datasource, planning
from escrowmq.spark_integration.source import reading
from escrowmq.spark_integration.source.heads import LeaderCatalog
from escrowmq.spark_integration.source.options import Use, parse_options
from escrowmq.spark_integration.source.planning import plan
from escrowmq.spark_integration.source.reading import Split, TaskReader, splits
from escrowmq.spark_integration.source.stream_reader import EscrowMQStreamReader, Link
from tests.support.brokers import BehindCalls, Brokers, ClientCalls

OLD, NEW = [b"old %d" % n for n in range(10)], [b"new %d" % n for n in range(25)]


@pytest.fixture
def admin(brokers: Brokers) -> Iterator[Admin]:
    made = Admin(brokers.info, timeout_s=10.0, calls=ClientCalls(brokers))
    yield made
    made.close()


@pytest.fixture
def named(query: str) -> str:
    return f"named-{query}"


@pytest.fixture
def router(brokers: Brokers) -> Iterator[Router]:
    made = Router(brokers.info, calls=ClientCalls(brokers), name="recreated-test")
    yield made
    made.close()


def create(brokers: Brokers, admin: Admin, topic: str, values: list[bytes]) -> None:
    admin.create_topic(topic, partitions=2)
    brokers.produce(topic, 1, values)


def create_again(brokers: Brokers, admin: Admin, topic: str) -> None:
    admin.delete_topic(topic)
    create(brokers, admin, topic, NEW)


def test_a_batch_of_spark_is_refused(brokers: Brokers, admin: Admin, named: str, router: Router) -> None:
    create(brokers, admin, named, OLD)
    options = parse_options({"subscribe": named, "startingOffsets": "earliest"}, Use.BATCH,
                            default_address="127.0.0.1:1", default_namespace="test")  # fmt: skip
    catalog = LeaderCatalog(router, 10.0, options.subscription)
    (split,) = splits(router, plan(options, catalog), catalog.ids)
    assert split.topic_id != NO_ID

    def read(split: Split, fails: bool) -> int:
        task = TaskReader("127.0.0.1:1", "test", RowFormat(), fails)
        found = task.stretches(
            split.info,
            split.range,
            calls=ClientCalls(brokers),
            group=split.group,
            topic_id=split.topic_id,
            lag_patience_s=0.3,
        )
        return sum(run[1] for stretch in found for run in stretch.runs)

    assert read(split, True) == 10
    create_again(brokers, admin, named)
    again = r"offsets 0 to 10 are gone, since it was deleted and created again|unknown topic|no partition"
    with pytest.raises(DataLoss, match=again):
        read(split, True)
    assert read(split, False) == 0, "skipped with a warning, as failOnDataLoss says"


def test_a_batch_of_a_stream_names_the_topic_as_it_is_now(
    brokers: Brokers, admin: Admin, named: str, router: Router
) -> None:
    """A replica that lags and has the earlier topic is not asked for the same offsets of that one."""
    create(brokers, admin, named, OLD)
    options = parse_options({"subscribe": named, "startingOffsets": "earliest"}, Use.STREAM,
                            default_address="127.0.0.1:1", default_namespace="test")  # fmt: skip
    tasks = TaskReader("127.0.0.1:1", "test", RowFormat(), True)
    reader = EscrowMQStreamReader(options, tasks, Link(router, options.subscription))

    def ids() -> list[int]:
        start = reader.initialOffset()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        return [split.topic_id for split in reader.partitions(start, end)]

    (before,) = ids()
    create_again(brokers, admin, named)
    (after,) = ids()
    assert NO_ID < before < after


def test_a_dataset_is_refused(brokers: Brokers, admin: Admin, named: str, router: Router) -> None:
    create(brokers, admin, named, OLD)
    (planned,) = planning.plan(router, named, "earliest", "latest", None)

    def read() -> int:
        found = reading.stretches(
            brokers.info,
            planned.part,
            datasource._lost,
            calls=ClientCalls(brokers),
            group=planned.group,
            topic_id=planned.topic_id,
        )
        return sum(run[1] for stretch in found for run in stretch.runs)

    assert read() == 10
    create_again(brokers, admin, named)
    with pytest.raises(datasource.SnapshotLost, match=r"created again|unknown topic|no partition"):
        read()


def test_a_topic_replaced_while_the_read_is_planned(
    brokers: Brokers, admin: Admin, named: str, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bounds are the new topic's then, but its id is the old one's."""
    create(brokers, admin, named, OLD)
    ask = planning.OffsetReader.offsets

    def replaced(*args: Any) -> Any:
        monkeypatch.undo()
        create_again(brokers, admin, named)
        return ask(*args)

    monkeypatch.setattr(planning.OffsetReader, "offsets", replaced)
    (planned,) = planning.plan(router, named, "earliest", "latest", None)
    assert planned.part.end == 25
    found = reading.stretches(brokers.info, planned.part, datasource._lost, calls=ClientCalls(brokers),
                             group=planned.group, topic_id=planned.topic_id)  # fmt: skip
    with pytest.raises(datasource.SnapshotLost, match=r"created again|unknown topic|no partition"):
        list(found)


def test_a_replica_that_still_has_the_old_topic_loses_nothing(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Its rows would be the old topic's. It lags, so the task is repeated elsewhere."""
    now, before = (Brokers(tmp_path_factory.mktemp(name), replicas=1) for name in ("now", "before"))
    router = Router(now.info, calls=ClientCalls(now), name="recreated-test")
    admins = [Admin(each.info, timeout_s=10.0, calls=ClientCalls(each)) for each in (now, before)]
    try:
        for each, admin in zip((now, before), admins, strict=True):
            create(each, admin, "t", OLD)
        create_again(now, admins[0], "t")
        (planned,) = planning.plan(router, "t", "earliest", "latest", None)

        def read(calls: Any) -> int:
            found = reading.stretches(
                now.info,
                planned.part,
                datasource._lost,
                calls=calls,
                lag_patience_s=0.3,
                ask_timeout_s=1.0,
                topic_id=planned.topic_id,
            )
            return sum(run[1] for stretch in found for run in stretch.runs)

        with pytest.raises(Unavailable, match="replicas lag behind offset 0"):
            read(BehindCalls(now, before))
        assert read(ClientCalls(now)) == 25
    finally:
        router.close()
        for admin in admins:
            admin.close()
        for each in (now, before):
            each.close()
