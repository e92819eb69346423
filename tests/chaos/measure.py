"""Figures of a run: how long the cluster was away after each kind of fault, how many faults there were.

Pure functions over the events of the rounds. A fault counts as a trial even if it struck before the cluster
had recovered from the previous one, or if another one struck during it. Its times are then left out, since
they would measure both faults.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.plan import GROUPS

#: Bound for the p95 of fail-over, from the SIGKILL of the leader to the next acknowledged commit, and the
#: number of samples below which there is no p95.
FAIL_OVER_S, FAIL_OVER_SAMPLES = 1.0, 20


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least this share of all values does not exceed; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of fault. Times are in seconds. ``away``: until a transaction that began after the fault was
    acknowledged; for a rolling restart, the longest gap. ``well``: until every replica was back and had
    caught up."""

    kind: str
    trials: int
    by_groups: tuple[int, ...]  # trials in clusters of one, two and three broker groups
    overlapping: int
    away_p50: float | None
    away_p95: float | None
    away_max: float | None
    well_p50: float | None
    well_max: float | None


def rows(trials: Sequence[Mapping[str, Any]]) -> list[Row]:
    """One row per kind, in order of first appearance."""
    kinds = dict.fromkeys(trial["kind"] for trial in trials)
    return [_row(kind, [trial for trial in trials if trial["kind"] == kind]) for kind in kinds]


def _row(kind: str, trials: Sequence[Mapping[str, Any]]) -> Row:
    alone = [trial for trial in trials if not trial["overlapping"] and not trial.get("meanwhile")]
    away = [trial["away_s"] for trial in alone if trial.get("away_s") is not None]
    well = [trial["well_after_s"] for trial in alone if trial.get("well_after_s") is not None]
    return Row(
        kind,
        len(trials),
        tuple(sum(trial["groups"] == groups for trial in trials) for groups in GROUPS),
        len(trials) - len(alone),
        percentile(away, 0.5),
        percentile(away, 0.95),
        max(away, default=None),
        percentile(well, 0.5),
        max(well, default=None),
    )


@dataclass(frozen=True, slots=True)
class Cluster:
    """Figures of all judged rounds with the same number of broker groups."""

    groups: int
    rounds: int
    on_machines: int
    slow_database: int
    trials: int
    transactions: int
    records_read: int
    damaged: int


def clusters(results: Results) -> list[Cluster]:
    """One for each number of broker groups that a judged round had."""
    found = []
    for groups in sorted({judged["groups"] for judged in results.judged}):
        judged = [one for one in results.judged if one["groups"] == groups]
        found.append(
            Cluster(
                groups,
                len(judged),
                sum(one["machines"] for one in judged),
                sum(one["slow_database"] for one in judged),
                sum(trial["groups"] == groups for trial in results.trials),
                sum(one["counts"].get("transactions", 0) for one in judged),
                sum(one["counts"].get("records read", 0) for one in judged),
                sum(one["figures"].get("entries damaged", 0) for one in judged),
            )
        )
    return found


@dataclass(frozen=True, slots=True)
class FailOver:
    """Fail-over: seconds from a ``leader-kill`` without any other fault to the next acknowledged commit."""

    samples: int
    p95: float | None

    @property
    def held(self) -> bool | None:
        """Whether the bound was kept; None: too few samples to tell."""
        if self.samples < FAIL_OVER_SAMPLES or self.p95 is None:
            return None
        return self.p95 <= FAIL_OVER_S

    def text(self) -> str:
        """The verdict in one line, for readers."""
        if self.held is None:
            return (
                f"fail-over is not judged: {self.samples} undisturbed SIGKILLs of a leader, and a p95 wants "
                f"{FAIL_OVER_SAMPLES} (--kinds leader-kill --trials 30 has them in a few minutes)"
            )
        word = "within" if self.held else "MORE THAN"
        return (
            f"fail-over p95 {self.p95:.2f} s, {word} {FAIL_OVER_S:g} s ({self.samples} SIGKILLs of a leader)"
        )


def fail_over(trials: Sequence[Mapping[str, Any]]) -> FailOver | None:
    """The fail-over of all these trials; None if no leader was killed in any."""
    for row in rows(trials):
        if row.kind == "leader-kill":
            return FailOver(row.trials - row.overlapping, row.away_p95)
    return None


@dataclass(slots=True)
class Results:
    """The results of a run so far."""

    seed: int
    trials: list[dict[str, Any]] = field(default_factory=list)
    #: Kinds that were asked for and not inflicted, with the reason (see ``drawn``).
    left_out: dict[str, str] = field(default_factory=dict)
    judged: list[dict[str, Any]] = field(default_factory=list)
    #: One entry per failed round, with the text of every violation.
    violations: list[dict[str, Any]] = field(default_factory=list)
    took_s: float = 0.0

    def operations(self) -> dict[str, Counter[str]]:
        """Invoked, ok, failed and unknown by kind of operation."""
        total: dict[str, Counter[str]] = {}
        for judged in self.judged:
            for kind, row in judged["operations"].items():
                total.setdefault(kind, Counter()).update(row)
        return total

    def together(self) -> Counter[str]:
        """Pairs of faults of which the second struck while the first lasted, and how often."""
        return Counter(
            f"{trial['meanwhile']} during {trial['kind']}" for trial in self.trials if trial.get("meanwhile")
        )

    def figures(self) -> Counter[str]:
        """Figures of the final reads, and the checker's counts."""
        total: Counter[str] = Counter()
        for judged in self.judged:
            total.update(judged["figures"])
            total["transactions"] += judged["counts"].get("transactions", 0)
            for counted in ("records read", "missing, with a deleted topic", "refused for an earlier topic"):
                total[counted] += judged["counts"].get(counted, 0)
            total["crashes of clients by their own plan"] += judged["own_crashes"]
            total["decisions by the operator"] += judged["operator"]["decided"]
        return total

    def as_dict(self) -> dict[str, Any]:
        """Everything, for a file."""
        return {
            "seed": self.seed,
            "took_s": round(self.took_s, 1),
            "trials": self.trials,
            "left_out": self.left_out,
            "rounds": self.judged,
            "violations": self.violations,
        }
