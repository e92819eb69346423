"""What operators see of delayed messages, in a cluster in memory: the list, the status, and the metrics."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from escrowmq import ConfigError, InvalidMessage, Message, UnknownTopic
from escrowmq.actors.admin import scheduled as listing
from escrowmq.cluster.cli import status as status_lines
from escrowmq.replication.calling.answers import ScheduledMessages, TimersReport
from escrowmq.replication.host import inspection as reading
from escrowmq.testing import InMemoryCluster

START = datetime(2026, 7, 1, tzinfo=UTC)
START_MS = round(START.timestamp() * 1000)


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    with InMemoryCluster(start=START) as made:
        made.admin.create_topic("orders", partitions=3)
        made.admin.create_topic("others")
        yield made


def fill(cluster: InMemoryCluster, count: int = 20) -> list[str | None]:
    """Messages at 20, 19, ... seconds; returns their ids in order of time."""
    with cluster.producer("shop") as producer:
        ids = [
            producer.send(Message("orders", b"x" * n, partition=n % 3, delay_s=n)).result(0).schedule_id
            for n in range(count, 0, -1)
        ]
        producer.send_many("others", [b""] * 50, delay_s=5).result(0)
    return ids[::-1]


def test_the_list_is_in_order_of_time_and_has_ids(cluster: InMemoryCluster) -> None:
    ids = fill(cluster)
    found = cluster.admin.scheduled("orders")
    assert [message.schedule_id for message in found] == ids
    assert [message.deliver_at for message in found] == [START_MS + 1_000 * n for n in range(1, 21)]
    assert [message.partition for message in found] == [n % 3 for n in range(1, 21)]
    sizes = [message.size_bytes for message in found]
    assert [size - sizes[0] for size in sizes] == list(range(20))
    assert {message.topic for message in found} == {"orders"}


def test_before_and_limit(cluster: InMemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = fill(cluster)
    admin = cluster.admin
    assert [m.schedule_id for m in admin.scheduled("orders", limit=7)] == ids[:7]
    assert [m.schedule_id for m in admin.scheduled("orders", before=START_MS + 5_000)] == ids[:4]
    assert [m.schedule_id for m in admin.scheduled("orders", before=START + timedelta(seconds=5.5))] == ids[
        :5
    ]
    assert [m.schedule_id for m in admin.scheduled("orders", before=2**70)] == ids  # no request carries it
    monkeypatch.setattr(reading, "READ_AT_ONCE", 3)  # many answers, most of them about other topics
    monkeypatch.setattr(reading, "READ_MAX", 6)
    monkeypatch.setattr(listing, "ROWS_MAX", 2)
    assert [m.schedule_id for m in admin.scheduled("orders")] == ids
    assert [m.schedule_id for m in admin.scheduled("orders", limit=9)] == ids[:9]
    assert len(admin.scheduled("others")) == 50


def test_what_is_cancelled_or_readable_is_not_listed(cluster: InMemoryCluster) -> None:
    ids = fill(cluster)
    assert ids[4] is not None and cluster.admin.cancel_scheduled(ids[4])
    assert cluster.admin.cancel_scheduled(ids[4])
    cluster.clock.advance(3)
    assert [m.schedule_id for m in cluster.admin.scheduled("orders")] == [ids[3], *ids[5:]]
    assert ids[0] is not None and cluster.admin.cancel_scheduled(ids[0]) is False
    cluster.admin.delete_topic("orders")
    cluster.admin.create_topic("orders")
    assert cluster.admin.scheduled("orders") == []


def test_open_transactions_are_not_listed(cluster: InMemoryCluster) -> None:
    with cluster.producer("shop") as producer, producer.transaction() as tx:
        tx.send(Message("orders", b"1", deliver_at=START_MS + 60_000))
        tx.prepare()
        assert cluster.admin.scheduled("orders") == []
    (found,) = cluster.admin.scheduled("orders")
    assert (found.schedule_id,) == tx.schedule_ids


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"limit": 0}, ConfigError), ({"limit": True}, ConfigError), ({"limit": 10**9}, ConfigError),
        ({"before": "tomorrow"}, ConfigError), ({"before": datetime(2030, 1, 1)}, ConfigError),
        ({"before": -1}, ConfigError),
    ],
)  # fmt: skip
def test_wrong_questions_are_refused(cluster: InMemoryCluster, given: dict[str, Any], error: Any) -> None:
    with pytest.raises(error):
        cluster.admin.scheduled("orders", **given)
    with pytest.raises(UnknownTopic):
        cluster.admin.scheduled("no such")
    with pytest.raises(InvalidMessage):
        cluster.admin.cancel_scheduled("orders/0/1/2/3/4")


def test_answers_survive_their_way_between_versions() -> None:
    told = ScheduledMessages.of([(1, 2, (1 << 64) - 1, 4, 5)], reached=bytes(range(24)))
    assert copy.copy(told) == told and list(told.rows()) == [(1, 2, (1 << 64) - 1, 4, 5)]
    assert ScheduledMessages.of([], reached=b"") == ScheduledMessages()


def test_the_status_tells_how_many_wait_and_when_the_next_is_readable(cluster: InMemoryCluster) -> None:
    def told() -> TimersReport:
        (group,) = cluster.admin.status().groups
        assert group.timers is not None
        (row,) = status_lines.group_rows(cluster.admin.status())
        assert row["delayed_messages"] == f"{group.timers.waiting} of 100000000"
        return group.timers

    assert (told().waiting, told().next_ms) == (0, 0)
    fill(cluster)
    assert (told().waiting, told().next_ms) == (70, START_MS + 1_000)
    cluster.clock.advance(30)
    assert (told().waiting, told().next_ms) == (0, 0)


def test_the_metrics_count_what_waits_is_released_and_is_cancelled(cluster: InMemoryCluster) -> None:
    ids = fill(cluster)
    assert ids[0] is not None and cluster.admin.cancel_scheduled(ids[0])
    cluster.clock.advance(10)
    (broker,) = cluster.network.brokers
    report = broker._running().instruments.metrics()
    assert report.led is not None and report.led.delayed == 10
    assert (report.released, report.cancelled) == (59, 1)
    late = report.histograms["lateness"]
    assert sum(late.counts) == 59 and late.total < 0.2


def test_a_message_that_waits_for_a_retry_is_not_cancelled(cluster: InMemoryCluster) -> None:
    with cluster.share_consumer("mail", ["others"], auto_offset_reset="earliest") as queue:
        with cluster.producer("shop") as producer:
            producer.send(Message("others", b"1")).result(0)
            queue.nack(queue.poll()[0], 60)
            (waits,) = cluster.admin.scheduled("__retry.mail")
            for cancel in (producer.cancel, cluster.admin.cancel_scheduled):
                with pytest.raises(InvalidMessage, match="is retried; reject it"):
                    cancel(waits.schedule_id)
        (progress,) = cluster.admin.trace("others", 0, 0).groups
        assert progress.state == "retrying"
        cluster.clock.advance(60)
        assert [record.attempt for record in queue.poll()] == [2]
