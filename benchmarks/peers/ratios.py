"""Ratios within rounds, with median and quartiles. Above 1 EscrowMQ does more a second, or answers sooner."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.peers.rows import COMPARISONS, Comparison, Figure

OURS = "escrowmq"
Round = dict[str, dict[str, Figure]]


@dataclass(frozen=True, slots=True)
class Spread:
    """The median, and the quartiles around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value. The quartiles lie between values that were measured ("inclusive")."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)


@dataclass(frozen=True, slots=True)
class Line:
    """One comparison over all rounds in which both systems have a figure."""

    comparison: Comparison
    rounds: int
    ours: Spread
    theirs: Spread
    ratio: Spread


def lines(rounds: Iterable[Round], peer: str) -> list[Line]:
    """The table with one peer, without lines that have no round."""
    known = list(rounds)
    found = []
    for comparison in COMPARISONS:
        # The row of the peer is the same in all rounds, even in one that was cut short.
        row = next((row for row in comparison.theirs if any(row in one.get(peer, {}) for one in known)), None)
        if row is None:
            continue
        pairs = [pair for one in known if (pair := _pair(one, peer, comparison, row)) is not None]
        if pairs:
            sooner = comparison.unit == "p50_ms"
            ratios = [theirs / ours if sooner else ours / theirs for ours, theirs in pairs]
            spreads = (Spread.of(v) for v in ([o for o, _ in pairs], [t for _, t in pairs], ratios))
            found.append(Line(comparison, len(pairs), *spreads))
    return found


def _pair(one: Round, peer: str, comparison: Comparison, row: str) -> tuple[float, float] | None:
    """Both figures of one round. A figure of zero is no measurement: the row was too short."""
    mine, theirs = one.get(OURS, {}).get(comparison.ours), one.get(peer, {}).get(row)
    if theirs is None or mine is None:
        return None
    if comparison.unit == "visible_per_s" and theirs.visible is None:
        return None  # all that was acknowledged was visible: the line before says it
    ours_value, theirs_value = mine.value(comparison.unit), theirs.value(comparison.unit)
    return (ours_value, theirs_value) if ours_value and theirs_value else None


@dataclass(frozen=True, slots=True)
class Visibility:
    """The share of what was acknowledged that could be read, when the load ended and later (medians)."""

    at_end: float
    later: float
    waited_s: float


def visibility(rounds: Iterable[Round], peer: str, row: str) -> Visibility | None:
    """None if the peer shows all that it acknowledges."""
    measured = [figure for one in rounds if (figure := one.get(peer, {}).get(row)) is not None]
    figures = [figure for figure in measured if figure.items and figure.error is None]
    known = [
        f for f in figures if f.visible is not None and f.visible_later is not None and f.waited_s is not None
    ]
    if not known:
        return None
    return Visibility(
        statistics.median((f.visible or 0) / f.items for f in known),
        statistics.median((f.visible_later or 0) / f.items for f in known),
        statistics.median(f.waited_s or 0.0 for f in known),
    )
