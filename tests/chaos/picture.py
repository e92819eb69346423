"""A picture of one round: what was acknowledged per second, and when each fault struck."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.chaos.measure import Results

SECONDS_MAX = 150.0
#: Each point of the line is an average over this many intervals.
SMOOTHED_OVER = 3


def draw(results: Results, file: Path) -> bool:
    """Draw a PNG or SVG, by the file's name; False if no round was judged."""
    if not results.judged:
        return False
    judged = max(results.judged, key=lambda one: len(one["acknowledged"]["counts"]))
    trials = [trial for trial in results.trials if trial["round"] == judged["round"]]
    _draw(judged["acknowledged"], trials, file, f"seed {results.seed}, round {judged['round']}")
    return True


def per_second(acknowledged: Mapping[str, Any]) -> tuple[list[float], list[float]]:
    """Times in seconds since the first acknowledgement, and the rate at each."""
    counts: Sequence[int] = acknowledged["counts"]
    width_s = acknowledged["width_ns"] / 1e9
    half = SMOOTHED_OVER // 2
    rates = []
    for place in range(len(counts)):
        near = counts[max(place - half, 0) : place + half + 1]
        rates.append(sum(near) / len(near) / width_s)
    return [(place + 0.5) * width_s for place in range(len(counts))], rates


def _draw(
    acknowledged: Mapping[str, Any], trials: Sequence[Mapping[str, Any]], file: Path, title: str
) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    times, rates = per_second(acknowledged)
    top = max(rates, default=1.0)
    figure, axes = pyplot.subplots(figsize=(12, 4.5), layout="constrained")
    axes.fill_between(times, rates, color="#4c78a8", alpha=0.5, linewidth=0)
    axes.plot(times, rates, color="#4c78a8", linewidth=0.8)
    for trial in trials:
        at = (trial["struck_at"] - acknowledged["start"]) / 1e9
        if at <= SECONDS_MAX:
            axes.axvline(at, color="#b22222", linewidth=0.9)
            axes.text(at, top * 1.04, trial["kind"], rotation=55, fontsize=8, color="#b22222")
            axes.axvspan(at, at + (trial.get("away_s") or 0.0), color="#b22222", alpha=0.15, linewidth=0)
    axes.set_xlim(0, min(times[-1], SECONDS_MAX))
    axes.set_ylim(0, top * 1.02)
    axes.set_xlabel("seconds")
    axes.set_ylabel("acknowledged transactions and sends per second")
    axes.set_title(f"Shaded red: until the next transaction was acknowledged ({title})", fontsize=9, y=-0.24)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    about = dict.fromkeys(("Creator", "Date", "Format", "Type"))  # without them an SVG is always the same
    # "tight": the layout does not reserve room for slanted names of faults at the upper edge.
    metadata = about if file.suffix == ".svg" else None
    figure.savefig(file, metadata=metadata, bbox_inches="tight")
    pyplot.close(figure)
