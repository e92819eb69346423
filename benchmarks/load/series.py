"""Samples the memory of processes over time in a thread, and draws it."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

SAMPLE_S = 1.0
WIDTH, HEIGHT, LEFT, BOTTOM = 860, 300, 70, 40
COLOURS = ("#1b6ca8", "#c0392b", "#27864f", "#8e44ad", "#b9770e", "#555555", "#16a085", "#7f8c8d")


@dataclass
class Series:
    """Memory of one process in MB over time. ``seconds``: since the start."""

    seconds: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def maximum(self, after: float = 0.0) -> float:
        return max((v for t, v in zip(self.seconds, self.values, strict=True) if t >= after), default=0.0)

    def slope_per_min(self, after: float) -> float:
        """Slope in MB per minute, by least squares over the samples after ``after`` seconds."""
        points = [(t, v) for t, v in zip(self.seconds, self.values, strict=True) if t >= after]
        if len(points) < 3:
            return 0.0
        mean_t = sum(t for t, _ in points) / len(points)
        mean_v = sum(v for _, v in points) / len(points)
        spread = sum((t - mean_t) ** 2 for t, _ in points)
        return 60 * sum((t - mean_t) * (v - mean_v) for t, v in points) / spread


class Sampler:
    """Samples the processes' own memory from ``start`` to ``stop``, without mapped files."""

    def __init__(self, pids: dict[str, int]) -> None:
        self.series = {name: Series() for name in pids}
        self._pids = pids
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.begin = time.monotonic()

    def start(self) -> Sampler:
        self.begin = time.monotonic()
        self._thread.start()
        return self

    def stop(self) -> dict[str, Series]:
        self._ended.set()
        self._thread.join()
        return self.series

    def elapsed(self) -> float:
        return time.monotonic() - self.begin

    def _run(self) -> None:
        while True:
            now = self.elapsed()
            for name, pid in self._pids.items():
                megabytes = own_megabytes(pid)
                if megabytes is not None:
                    self.series[name].seconds.append(now)
                    self.series[name].values.append(megabytes)
            if self._ended.wait(SAMPLE_S):
                return


def own_megabytes(pid: int) -> float | None:
    """The process's own resident memory in MB (RssAnon), without mapped files; None if it has ended."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024 / 1e6
    except (FileNotFoundError, ProcessLookupError):
        return None
    return psutil.Process(pid).memory_info().rss / 1e6


def round_step(least: float) -> float:
    """The smallest of 1, 2, 2.5, 5, 10, 20, 25, 50, ... that is not below ``least``: steps of an axis."""
    power = 10.0 ** max(math.floor(math.log10(max(least, 1.0))), 0)
    return next(part * power for part in (1, 2, 2.5, 5, 10) if part * power >= least)


def draw(series: dict[str, Series], title: str, unit: str, file: Path) -> None:
    """Draw an SVG with one line per process. A plotting library would be larger than this project."""
    end = max((s.seconds[-1] for s in series.values() if s.seconds), default=1.0) or 1.0
    step = round_step(max((s.maximum() for s in series.values()), default=1.0) / 4)
    top = 4 * step
    inner_w, inner_h = WIDTH - LEFT - 170, HEIGHT - BOTTOM - 30

    def x(t: float) -> float:
        return LEFT + inner_w * t / end

    def y(v: float) -> float:
        return 30 + inner_h * (1 - v / top)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="18" font-size="14">{title}</text>',
    ]
    for number in range(5):
        value = step * number
        parts.append(
            f'<line x1="{LEFT}" x2="{LEFT + inner_w}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#ddd"/>'
            f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:,.0f}</text>'
        )
        at = end * number / 4
        parts.append(f'<text x="{x(at):.1f}" y="{HEIGHT - 18}" text-anchor="middle">{at:,.0f} s</text>')
    parts.append(f'<text x="{LEFT - 6}" y="18" text-anchor="end">{unit}</text>')
    for number, (name, s) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(f"{x(t):.1f},{y(v):.1f}" for t, v in zip(s.seconds, s.values, strict=True))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts.append(f'<text x="{LEFT + inner_w + 8}" y="{40 + 16 * number}" fill="{colour}">{name}</text>')
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join([*parts, "</svg>\n"]))
