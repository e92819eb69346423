"""Runs contenders in turns: rates of each round, medians over the rounds, ratios within a round."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from benchmarks.measure import CpuMeter, CpuUse


@dataclass(slots=True)
class Contest:
    """A contest in which every contender processes ``rows`` rows of ``row_bytes`` in every round."""

    rows: int
    row_bytes: int
    seconds: dict[str, list[float]] = field(default_factory=dict)
    cpu: dict[str, list[CpuUse]] = field(default_factory=dict)

    def run(
        self,
        contenders: Mapping[str, Callable[[], object]],
        rounds: int,
        pids: Mapping[str, int],
        say: Callable[[str], None],
    ) -> None:
        """Run ``rounds`` rounds after one warm-up; every second round runs in reverse order."""
        for number in range(rounds + 1):
            names = list(contenders)[:: 1 if number % 2 == 0 else -1]
            for name in names:
                meter, begin = CpuMeter(pids), time.perf_counter()
                contenders[name]()
                seconds = time.perf_counter() - begin
                say(f"{'warming up, ' * (number == 0)}{name}: {self.rows / seconds:,.0f} rows/s")
                if number > 0:
                    self.seconds.setdefault(name, []).append(seconds)
                    self.cpu.setdefault(name, []).append(meter.stop(self.rows))

    def figures(self, beside: str) -> dict[str, dict[str, float]]:
        """For each contender: medians, and the ratio of its rate to that of ``beside`` in the same round."""
        megabytes = self.rows * self.row_bytes / 1e6
        found: dict[str, dict[str, float]] = {}
        for name, seconds in self.seconds.items():
            ratios = [other / own for own, other in zip(seconds, self.seconds[beside], strict=True)]
            quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
            cpu = [sum(use.by_process.values()) * 1e3 / megabytes for use in self.cpu[name]]
            found[name] = {
                "rows_per_s": self.rows / statistics.median(seconds),
                "mb_per_s": megabytes / statistics.median(seconds),
                "ratio": statistics.median(ratios),
                "ratio_low": quartiles[0],
                "ratio_high": quartiles[2],
                "broker_cpu_ms_per_mb": statistics.median(cpu),
            }
        return found
