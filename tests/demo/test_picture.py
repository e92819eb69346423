"""The demo's picture: what it counts from the exporter's series, and that it is drawn where it belongs."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from escrowmq.cluster.demo.picture import (
    BY_CHECK,
    BY_PRODUCER,
    LEFT,
    MESSAGES,
    POINTS_MAX,
    RIGHT,
    WIDTH,
    Mark,
    Recorder,
    picture,
    rates,
)
from escrowmq.cluster.exporter.series import Key, Value

DECIDED, OLDEST = "escrowmq_transactions_decided_total", "escrowmq_transactions_oldest_age_seconds"
OPEN, READABLE = "escrowmq_transactions_open", "escrowmq_topic_messages_total"


def decided(replica: str, by: str, count: float) -> tuple[Key, Value]:
    return (DECIDED, ("0", replica, "committed", by)), count


def recorded() -> Recorder:
    """Three looks, two seconds apart; between the last two, replica 1 took the lead from replica 0."""
    now = iter((100.0, 102.0, 104.0))
    recorder = Recorder(clock=lambda: next(now))
    looks: list[list[tuple[Key, Value]]] = [
        [decided("0", "producer", 1_000), ((OPEN, ("0", "shop")), 7.0), ((READABLE, ("t",)), 50.0)],
        [decided("0", "producer", 1_200), ((OLDEST, ("0",)), 0.0), ((READABLE, ("t",)), 90.0)],
        [decided("1", "producer", 60), decided("1", "feedback", 10), decided("0", "producer", 5)],
    ]
    for look in looks:
        recorder.add(dict(look))
    return recorder


def test_rates_are_counted_at_each_replica_and_from_each_process() -> None:
    points = recorded().points
    # 200 in two seconds; then 60 of the new leader's and 5 of a process that was restarted.
    assert rates(points, BY_PRODUCER) == [(102.0, 100.0), (104.0, 32.5)]
    assert rates(points, BY_CHECK) == [(102.0, 0.0), (104.0, 5.0)]
    assert rates(points, MESSAGES) == [(102.0, 20.0), (104.0, 0.0)]
    assert [point.opened for point in points] == [7.0, 0.0, None]
    assert rates([], BY_CHECK) == []


def test_a_recorder_that_is_full_keeps_what_it_has() -> None:
    recorder = Recorder(clock=lambda: 0.0)
    for _ in range(POINTS_MAX + 1):
        recorder.add({})
    assert len(recorder.points) == POINTS_MAX


def test_kills_and_the_fail_over_stand_at_their_moment() -> None:
    marks = [Mark(103.0, "leader killed"), Mark(101.0, "producer <1> killed"), Mark(999.0, "too late")]
    drawn = picture(recorded().points, marks, (103.0, 103.5), "a run")
    root = ElementTree.fromstring(drawn)
    texts = {"".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"a run", "leader killed", "producer <1> killed", "open transactions", "0 s", "4 s"} <= texts
    broad = WIDTH - LEFT - RIGHT
    places = [float(found) for found in re.findall(r'd="M([\d.]+) [\d.]+V', drawn)]
    assert places == [LEFT + broad / 4, LEFT + 3 * broad / 4, WIDTH - RIGHT]
    lines = re.findall(r'd="(M[^"]+)" stroke="#c53030"', drawn)
    spans = [(float(a), float(b)) for line in lines for a, b in re.findall(r"([\d.]+)V([\d.]+)", line)]
    texts_y = [float(y) for y in re.findall(r'y="([\d.]+)" font-size="12" font-weight="bold"', drawn)]
    assert len(texts_y) == 3 and not any(a < y - 4 < b for a, b in spans for y in texts_y), "through a title"
    (shade,) = re.findall(r'<rect x="([\d.]+)" y="\d+" width="([\d.]+)"', drawn)
    assert [*map(float, shade)] == pytest.approx([LEFT + 3 * broad / 4, broad / 8], abs=0.1)
