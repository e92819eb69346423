"""Draws a run of the demo as an SVG: the exporter's metrics over time, the kills and the fail-over.

It has three graphs over the same time axis: transactions decided per second, messages that became readable
per second, and open transactions. The SVG is written directly, so the demo needs no plotting library. Pure.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from escrowmq.cluster.exporter.series import Key, Value
from escrowmq.replication.calling.metrics_report import HistogramReport

# ------------------------------------------------------------------------------------------------------------
# Records what the exporter saw of a demo run, and computes rates from it, for the picture.
#
# A replica's counters start at 0 with its process and count what it did as leader. So increases are computed
# for each replica separately, as Prometheus' ``rate`` does.

#: Number of samples that are kept, more than an hour's worth. Later ones are left out of the picture.
POINTS_MAX = 10_000
#: Seconds between two samples; a fail-over takes about one second.
EVERY_S = 0.5

BY_PRODUCER, ROLLED_BACK, BY_CHECK = "committed by its producer", "rolled back by its producer", "by a check"
MESSAGES = "messages"


@dataclass(frozen=True, slots=True)
class Point:
    """One sample.

    ``counted``: counter values by (what is counted, where). ``opened``: number of open transactions, None
    while no leader reports it.
    """

    at: float
    counted: Mapping[tuple[str, str], float]
    opened: float | None


def _counted(name: str, labels: tuple[str, ...]) -> tuple[str, str] | None:
    """What a series counts, and where; None if the picture does not show it."""
    if name == "escrowmq_topic_messages_total":
        return MESSAGES, labels[0]
    if name != "escrowmq_transactions_decided_total":
        return None
    group, replica, outcome, by = labels
    if by == "producer":
        return (BY_PRODUCER if outcome == "committed" else ROLLED_BACK), f"{group}/{replica}"
    return (BY_CHECK, f"{group}/{replica}") if by in ("feedback", "policy") else None


class Recorder:
    """Keeps samples. Call ``add`` from one thread, and read ``points`` when that thread has ended."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.points: list[Point] = []
        self._clock = clock

    def add(self, series: Mapping[Key, Value]) -> None:
        """Add the series of one collection."""
        counted: dict[tuple[str, str], float] = {}
        opened: float | None = None
        for (name, labels), value in series.items():
            if isinstance(value, HistogramReport):
                continue
            if name == "escrowmq_transactions_oldest_age_seconds":
                opened = opened or 0.0  # there is a leader, so the number of open ones is known
            elif name == "escrowmq_transactions_open":
                opened = (opened or 0.0) + value
            elif (what := _counted(name, labels)) is not None:
                counted[what] = counted.get(what, 0.0) + value
        if len(self.points) < POINTS_MAX:
            self.points.append(Point(self._clock(), counted, opened))


def rates(points: list[Point], kind: str) -> list[tuple[float, float]]:
    """For each sample but the first: (moment, increase per second since the previous sample)."""
    found: list[tuple[float, float]] = []
    last = dict(points[0].counted) if points else {}
    for before, point in pairwise(points):
        new = 0.0
        for what, total in point.counted.items():
            if what[0] == kind:
                known = last.get(what, 0.0)
                new += total - known if total >= known else total  # its process restarted
        last |= point.counted
        found.append((point.at, new / max(point.at - before.at, 1e-9)))
    return found


WIDTH, LEFT, RIGHT, TOP = 960, 70, 20, 92
HEIGHT, GAP = 120, 46
#: Height of the title and legend above each graph.
TITLE = 22
#: Colours of the text, of grid lines, and of the fail-over's background.
INK, FAINT, SHADE = "#1f2933", "#cbd2d9", "#f9d5d3"
COLOURS = {BY_PRODUCER: "#2f6f4f", ROLLED_BACK: "#b7791f", BY_CHECK: "#6b46c1", MESSAGES: "#2b6cb0"}
OPEN_COLOUR = "#c05621"


@dataclass(frozen=True, slots=True)
class Mark:
    """An event at a moment, shown as a vertical line with a text."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Graph:
    """One of the graphs: lines of (moment, value) by name, with their colours."""

    title: str
    lines: Sequence[tuple[str, str, Sequence[tuple[float, float]]]]


def picture(
    points: Sequence[Point], marks: Sequence[Mark], fail_over: tuple[float, float] | None, title: str
) -> str:
    """The whole SVG.

    ``points``: at least two. All moments are seconds of the same clock. ``fail_over``: the moments of the
    leader's death and of the next commit.
    """
    seen = list(points)
    opened = [(point.at, point.opened) for point in seen if point.opened is not None]
    graphs = (
        Graph(
            "transactions decided per second",
            [(kind, COLOURS[kind], rates(seen, kind)) for kind in (BY_PRODUCER, ROLLED_BACK, BY_CHECK)],
        ),
        Graph("messages that became readable per second", [("", COLOURS[MESSAGES], rates(seen, MESSAGES))]),
        Graph("open transactions", [("", OPEN_COLOUR, opened)]),
    )
    begin, end = seen[0].at, seen[-1].at
    scale = (WIDTH - LEFT - RIGHT) / max(end - begin, 1e-9)

    def x(at: float) -> float:
        return round(LEFT + (min(max(at, begin), end) - begin) * scale, 1)

    height = TOP + len(graphs) * (HEIGHT + GAP) + 10
    bottom = height - GAP - 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(LEFT, 24, title, size=16, weight="bold"),
    ]
    if fail_over is not None:
        left, right = (x(moment) for moment in fail_over)
        wide = max(right - left, 2.0)
        parts.append(
            f'<rect x="{left}" y="{TOP}" width="{wide:.1f}" height="{bottom - TOP}" fill="{SHADE}"/>'
        )
    for number, graph in enumerate(graphs):
        parts += _graph(graph, TOP + number * (HEIGHT + GAP), x)
    parts += _axis(begin, end, bottom, x)
    tops = [TOP + number * (HEIGHT + GAP) for number in range(len(graphs))]
    for number, mark in enumerate(sorted(marks, key=lambda mark: mark.at)):
        parts += _mark(mark, x(mark.at), 46 + 16 * (number % 2), tops)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _graph(graph: Graph, top: int, x: Callable[[float], float]) -> list[str]:
    highest = _round_up(max((value for _, _, line in graph.lines for _, value in line), default=0.0))
    base = top + HEIGHT
    parts = [_text(LEFT, top - 8, graph.title, weight="bold")]
    for part in (0.0, 0.5, 1.0):
        y = round(base - part * HEIGHT, 1)
        parts.append(f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="{FAINT}" fill="none"/>')
        parts.append(_text(LEFT - 8, y + 4, f"{highest * part:,.0f}", anchor="end"))
    legend = LEFT + 10 + 7 * len(graph.title)
    for name, colour, line in graph.lines:
        path = " ".join(
            f"{'M' if at == 0 else 'L'}{x(moment)} {base - HEIGHT * value / highest:.1f}"
            for at, (moment, value) in enumerate(line)
        )
        if path:
            parts.append(
                f'<path d="{path}" stroke="{colour}" stroke-width="1.6" fill="none" stroke-linejoin="round"/>'
            )
        if name:
            parts.append(f'<path d="M{legend} {top - 12}h16" stroke="{colour}" stroke-width="3"/>')
            parts.append(_text(legend + 22, top - 8, name))
            legend += 44 + 6 * len(name)
    return parts


def _axis(begin: float, end: float, bottom: int, x: Callable[[float], float]) -> list[str]:
    step = _round_up((end - begin) / 8)
    ticks = [begin + step * number for number in range(int((end - begin) / step) + 1)]
    parts = [_text(x(moment), bottom + 18, f"{moment - begin:g} s", anchor="middle") for moment in ticks]
    return [f'<path d="M{LEFT} {bottom}H{WIDTH - RIGHT}" stroke="{INK}" fill="none"/>', *parts]


def _mark(mark: Mark, x: float, y: int, tops: Sequence[int]) -> list[str]:
    """A line through the graphs. It leaves out their titles and legends, which it would cross out."""
    late = x > WIDTH * 0.7
    spans = [(y + 4, TOP - TITLE), *((top, top + HEIGHT) for top in tops)]
    path = "".join(f"M{x} {above}V{below}" for above, below in spans if above < below)
    return [
        f'<path d="{path}" stroke="#c53030" stroke-dasharray="4 3" fill="none"/>',
        _text(x - 4 if late else x + 4, y, mark.text, anchor="end" if late else "start"),
    ]


def _text(
    x: float, y: float, text: str, *, size: int = 12, weight: str = "normal", anchor: str = "start"
) -> str:
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" '
        f'fill="{INK}">{escape(text)}</text>'
    )


def _round_up(value: float) -> float:
    """The smallest of 1, 2, 5, 10, 20, 50, ... that is not below ``value``."""
    if value <= 1:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value)
