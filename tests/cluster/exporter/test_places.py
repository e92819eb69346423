"""Which applications have a series: those with open transactions, not those that only once had some."""

from __future__ import annotations

import msgspec

from escrowmq.cluster.exporter.findings import Found
from escrowmq.cluster.exporter.series import FORGET_AFTER_S, Series
from escrowmq.replication.calling.answers import MembersReport, OverdueReport, ReplicaReport
from escrowmq.replication.calling.metrics_report import (
    CarryMetrics,
    FindMetrics,
    HistogramReport,
    LedMetrics,
    MetricsReport,
    Named,
)


def opened(at: float, **apps: int) -> Found:
    """A look at a group of one, at a leader with these open transactions."""
    columns = [list(apps.values()), [0] * len(apps)]
    nothing = Named(names=[], columns=[[], []], rest=[0, 0], all=0)
    led = LedMetrics(
        apps=Named(names=list(apps), columns=columns, rest=[0, 0], all=len(apps)),
        topics=nothing,
        oldest_age_s=0.0,
        overdue=OverdueReport(),
        delayed=0,
        delayed_bytes=0,
        pinned_bytes=0,
        shares=(0, 0),
    )
    report = ReplicaReport(gid=0, rid=0, role="leader", ready=True)
    members = {0: MembersReport(version=0, voters=[0])}
    return Found(at, 0.1, members, {(0, 0): report}, {(0, 0): MetricsReport(gid=0, rid=0, led=led)})


def shown(series: Series, found: Found) -> dict[str, object]:
    name = "escrowmq_transactions_open"
    return {labels[1]: value for (of, labels), value in series.of(found).items() if of == name}


def test_an_app_without_open_transactions_takes_no_slot() -> None:
    series = Series(apps_max=2)
    assert shown(series, opened(0, idle=0, gone=0, small=1, large=9)) == {"large": 9, "small": 1}
    assert shown(series, opened(1, idle=0, gone=0, small=0, large=9, new=3)) == {
        "large": 9,
        "small": 0,  # a graph that ends at 0 is better than one that ends anywhere
        "other": 3,
    }


def test_it_gives_its_slot_back_when_it_has_had_none_for_long() -> None:
    series = Series(apps_max=1)
    assert shown(series, opened(0, first=1)) == {"first": 1}
    assert shown(series, opened(10, first=0, second=2)) == {"first": 0, "other": 2}
    shown(series, opened(FORGET_AFTER_S, first=0, second=2))
    assert shown(series, opened(FORGET_AFTER_S + 1, first=0, second=2)) == {"second": 2}


def test_overdue_checks_are_told_of_each_group() -> None:
    found = opened(0, shop=1)
    assert Series().of(found)["escrowmq_checks_overdue", ("0",)] == 0
    told = found.metrics[0, 0]
    assert told.led is not None
    late = OverdueReport(count=2, oldest_ms=90_500, app="shop", topic="t", tx_id="x")
    led = msgspec.structs.replace(told.led, overdue=late)
    found.metrics[0, 0] = msgspec.structs.replace(told, led=led)  # type: ignore[index]
    series = Series().of(found)
    assert series["escrowmq_checks_overdue", ("0",)] == 2
    assert series["escrowmq_checks_overdue_oldest_seconds", ("0",)] == 90.5


def test_what_leaders_forwarded_is_told_by_what_became_of_it() -> None:
    found = opened(0, shop=1)
    told = found.metrics[0, 0]
    assert told.led is not None and not any("forwarded" in name for name, _ in Series().of(found))
    led = msgspec.structs.replace(told.led, shares=(3, 40))
    forwarded = {"retried": 5, "dead": 1}
    found.metrics[0, 0] = msgspec.structs.replace(told, led=led, forwarded=forwarded)  # type: ignore[index]
    series = Series().of(found)
    assert series["escrowmq_share_forwarded_total", ("0", "0", "retried")] == 5
    assert series["escrowmq_share_forwarded_total", ("0", "0", "dead")] == 1
    assert series["escrowmq_share_partitions", ("0",)] == 3
    assert series["escrowmq_share_ranges", ("0",)] == 40


def test_searches_and_carrying_are_told() -> None:
    found = opened(0, shop=1)
    told = found.metrics[0, 0]
    assert told.led is not None
    led = msgspec.structs.replace(told.led, delayed_bytes=500, pinned_bytes=9_000)
    searches = FindMetrics(bytes=4096, files=2, memory_bytes=80, hits=7, misses=3, damaged=1)
    report = msgspec.structs.replace(
        told,
        led=led,
        find=searches,
        carried=CarryMetrics(2, 60, 6_000),
        histograms={"find_build": HistogramReport([1.0], [2, 1], 3.5)},
    )
    found.metrics[0, 0] = report  # type: ignore[index]
    series, replica = Series().of(found), ("0", "0")
    assert {name: value for name, value in series.items() if "find" in name[0]} == {
        ("escrowmq_find_cache_bytes", replica): 4096,
        ("escrowmq_find_cache_files", replica): 2,
        ("escrowmq_find_memory_bytes", replica): 80,
        ("escrowmq_find_lookups_total", (*replica, "hit")): 7,
        ("escrowmq_find_lookups_total", (*replica, "miss")): 3,
        ("escrowmq_find_damaged_total", replica): 1,
        ("escrowmq_find_build_seconds", replica): report.histograms["find_build"],
    }
    assert series["escrowmq_delayed_bytes", ("0",)] == 500
    assert series["escrowmq_delayed_pinned_bytes", ("0",)] == 9_000
    assert series["escrowmq_delayed_carried_entries_total", replica] == 2
    assert series["escrowmq_delayed_carried_total", replica] == 60
    assert series["escrowmq_delayed_carried_bytes_total", replica] == 6_000
