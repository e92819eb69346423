"""Measuring instruments: latencies, CPU time by process, and facts about the machine."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil


class Latencies:
    """Durations of single calls in seconds; summarised in milliseconds."""

    def __init__(self) -> None:
        self._samples: list[float] = []

    def add(self, seconds: float) -> None:
        self._samples.append(seconds)

    def extend(self, seconds: list[float]) -> None:
        self._samples.extend(seconds)

    def quantile_ms(self, q: float) -> float:
        """By the nearest rank: the smallest sample that at least ``q`` of all samples do not exceed."""
        if not self._samples:
            return float("nan")
        ordered = sorted(self._samples)
        return ordered[max(0, math.ceil(q * len(ordered)) - 1)] * 1000

    def each_ms(self) -> list[int]:
        """In the order in which they came."""
        return [round(1000 * seconds) for seconds in self._samples]

    def summary(self) -> dict[str, float]:
        """p50, p99 and max in ms, and the number of samples."""
        return {
            "p50_ms": self.quantile_ms(0.5),
            "p99_ms": self.quantile_ms(0.99),
            "max_ms": self.quantile_ms(1.0),
            "samples": float(len(self._samples)),
        }


@dataclass(frozen=True)
class CpuUse:
    """CPU seconds by process in one measurement of ``seconds``, and the number of items of work done."""

    seconds: float
    work: int
    by_process: dict[str, float]

    def us_per_item(self) -> dict[str, float]:
        """Microseconds of CPU time per item of work, by process."""
        return {name: used * 1e6 / max(1, self.work) for name, used in self.by_process.items()}

    def busy(self) -> dict[str, float]:
        """Cores kept busy, by process (1.0 = one core all the time)."""
        return {name: used / self.seconds for name, used in self.by_process.items()}


def _processor_seconds(pid: int) -> float:
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


class CpuMeter:
    """Reads the kernel's CPU counters of the given processes at the start and at :meth:`stop`."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = dict(pids)
        self._begin = time.perf_counter()
        self._at_begin = {name: _processor_seconds(pid) for name, pid in self._pids.items()}

    def stop(self, work: int) -> CpuUse:
        used = {
            name: max(0.0, _processor_seconds(pid) - self._at_begin[name]) for name, pid in self._pids.items()
        }
        return CpuUse(time.perf_counter() - self._begin, work, used)


def fdatasync_ms(folder: Path, rounds: int = 200) -> dict[str, float]:
    """The latency of appending 4 KiB and fdatasync on this disk."""
    latency = Latencies()
    path = folder / "fdatasync-probe"
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    try:
        block = os.urandom(4096)
        for _ in range(rounds):
            begin = time.perf_counter()
            os.write(file, block)
            os.fdatasync(file)
            latency.add(time.perf_counter() - begin)
    finally:
        os.close(file)
        path.unlink()
    return latency.summary()


def machine(folder: Path) -> dict[str, Any]:
    """Facts about the machine on which the figures were measured."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
        "fdatasync_4k": fdatasync_ms(folder),
    }
