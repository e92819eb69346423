"""Four times the sustainable rate: accepted messages are kept and answered in time; the rest is refused.

First the offered rate is raised until the accepted rate no longer grows; its maximum is the sustainable rate.
Then clients that ignore the hint to come back later offer four times that rate, while the memory of every
process is recorded. At the end everything is read.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.load.clients import ClientProcess
from benchmarks.load.ledger import as_dict, compare, read_all
from benchmarks.load.offering import ClientPlan
from benchmarks.load.quota import cpu_quota
from benchmarks.load.replicas import Replicas
from benchmarks.load.series import Sampler, draw
from benchmarks.load.tally import CALL, PLAIN, TRANSACTION, Times, quantile_ms

TOPIC, PARTITIONS = "load", 4
FACTOR = 4
GROWTH = 1.4
EXPECTED = ("offered", "accepted", "refused")
BUSY_BROKER_MB = 50.0  # per minute: steady growth beyond this is a leak


@dataclass(frozen=True)
class OverloadPlan:
    """Sizes of one run."""

    processes: int = 4
    producers: int = 8  # in each process
    message_bytes: int = 256
    #: Small, as the messages are small: its content must be answered before the delivery time-out.
    buffer_bytes: int = 128 << 10
    step_s: float = 6.0
    first_rate: float = 2_000.0
    seconds: float = 600.0
    steps_max: int = 30
    #: Limit of CPU for all brokers together, so that the clients are able to offer four times their rate.
    broker_cores: float = 0.3


class Clients:
    """All client processes: half of them send plain messages, the others transactions."""

    def __init__(self, cluster: Any, plan: OverloadPlan) -> None:
        info = cluster.info
        self.ordered: set[int] = set()
        self.processes: list[ClientProcess] = []
        for number in range(plan.processes):
            first = number * plan.producers
            transactional = number % 2 == 1
            if not transactional:
                self.ordered |= set(range(first, first + plan.producers))
            self.processes.append(
                ClientProcess(
                    ClientPlan(
                        cluster.address, info.namespace, TOPIC, first, plan.producers, transactional,
                        plan.message_bytes, plan.buffer_bytes, 0.0,
                    )
                )
            )  # fmt: skip
        for process in self.processes:
            process.wait_ready()

    def set_rate(self, per_s: float) -> None:
        for process in self.processes:
            process.set_rate(per_s / len(self.processes))

    def look(self) -> tuple[Counter[str], Times]:
        counts: Counter[str] = Counter()
        times: Times = {}
        for process in self.processes:
            more, theirs = process.look()
            counts.update(more)
            add_times(times, theirs)
        return counts, times

    def end(self) -> tuple[Counter[str], dict[int, bytes]]:
        counts: Counter[str] = Counter()
        told: dict[int, bytes] = {}
        for process in self.processes:
            (last, _), ledgers = process.end()
            counts.update(last)
            told.update(ledgers)
        return counts, told

    def kill(self) -> None:
        for process in self.processes:
            process.kill()


def add_times(all_times: Times, more: Times) -> None:
    for what, classes in more.items():
        all_times.setdefault(what, Counter()).update(classes)


def whole(times: Times) -> Counter[int]:
    """The waiting times of applications, for messages and transactions together."""
    return times.get(PLAIN, Counter()) + times.get(TRANSACTION, Counter())


def shown(classes: Counter[int], q: float) -> str:
    """A quantile as text; nothing was measured: a dash."""
    return f"{quantile_ms(classes, q):,.0f} ms" if classes.total() else "-"


def calls_of(times: Times, seconds: float) -> str:
    """As text: the rate and the median latency of each kind of call."""
    return "".join(
        f"; {what} {sum(classes.values()) / seconds:,.0f}/s p50 {shown(classes, 0.5)}"
        for what, classes in sorted(times.items())
        if what.startswith(CALL)
    )


def sustainable_rate(clients: Clients, plan: OverloadPlan, say: Callable[[str], None]) -> float:
    """The highest accepted rate per second while the offered rate was raised step by step.

    The series ends when three steps in a row gave no increase; fewer could be caused by other load.
    """
    rate, best, in_vain = plan.first_rate, 0.0, 0
    for _ in range(plan.steps_max):
        if in_vain == 3:
            break
        clients.set_rate(rate)
        time.sleep(plan.step_s / 3)  # the transition itself is not measured
        clients.look()
        begin = time.monotonic()
        time.sleep(plan.step_s * 2 / 3)
        counts, times = clients.look()
        elapsed = time.monotonic() - begin
        offered, accepted = counts["offered"] / elapsed, counts["accepted"] / elapsed
        say(
            f"{rate:,.0f}/s wanted: offered {offered:,.0f}/s, accepted {accepted:,.0f}/s, refused "
            f"{counts['refused']:,}, p99 {shown(whole(times), 0.99)}" + calls_of(times, elapsed)
        )
        in_vain = 0 if accepted > best * 1.05 else in_vain + 1
        best, rate = max(best, accepted), rate * GROWTH
    return best


def overload(
    cluster: Any, pids: dict[str, int], plan: OverloadPlan, folder: Path, say: Callable[[str], None]
) -> dict[str, Any]:
    """Run the experiment; returns its figures, with ``violations``, which must be empty."""
    cluster.admin.create_topic(TOPIC, partitions=PARTITIONS)
    replicas = Replicas(cluster)
    term = replicas.leader().term
    clients = Clients(cluster, plan)
    try:
        with cpu_quota(pids.values(), plan.broker_cores) as uncapped:
            if uncapped is not None:
                say(uncapped)
            rate = sustainable_rate(clients, plan, say)
            clients.set_rate(0)
            time.sleep(2.0)
            before, _ = clients.look()
            watched = {**pids, **{f"clients {n + 1}": p.pid for n, p in enumerate(clients.processes)}}
            sampler = Sampler(watched).start()
            clients.set_rate(FACTOR * rate)
            totals, times, worst_p99 = _watch(clients, sampler, plan.seconds, say)
            clients.set_rate(0)
            elapsed = sampler.elapsed()
            memory = sampler.stop()
            last, told = clients.end()
    finally:
        clients.kill()
    draw(
        memory, f"Own memory under {FACTOR} times the sustainable load", "MB", folder / "overload-memory.svg"
    )
    bounds = _bounds(cluster)
    say(f"reading {sum(end - start for start, end in bounds):,} messages")
    verdict = compare(told, read_all(cluster.info, TOPIC, bounds), ordered=frozenset(clients.ordered))
    warm = min(60.0, elapsed / 3)
    figures: dict[str, Any] = {
        "broker_cores": None if uncapped else plan.broker_cores,
        "leader_changes": replicas.leader().term - term,
        "sustainable_per_s": rate,
        "seconds": elapsed,
        "offered_per_s": totals["offered"] / elapsed,
        "accepted_per_s": totals["accepted"] / elapsed,
        "factor": totals["offered"] / elapsed / rate,
        "refused_share": totals["refused"] / max(1, totals["offered"]),
        "latency_ms": {
            what: {"p50": quantile_ms(classes, 0.5), "p99": quantile_ms(classes, 0.99)}
            for what, classes in times.items()
        },
        "worst_second_p99_ms": worst_p99,
        "answers": dict(totals + last + before),
        "memory_mb": {
            name: {
                "first": s.values[0],
                "max": s.maximum(),
                "last": s.values[-1],
                "slope_per_min": s.slope_per_min(warm),
            }
            for name, s in memory.items()
        },
        "comparison": as_dict(verdict),
        "clients": plan.processes * plan.producers,
    }
    figures["violations"] = violations(figures)
    return figures


def _watch(
    clients: Clients, sampler: Sampler, seconds: float, say: Callable[[str], None]
) -> tuple[Counter[str], Times, float]:
    totals: Counter[str] = Counter()
    times: Times = {}
    worst, told_at = 0.0, 0.0
    while (now := sampler.elapsed()) < seconds:
        time.sleep(1.0)
        counts, more = clients.look()
        totals.update(counts)
        add_times(times, more)
        if whole(more):
            worst = max(worst, quantile_ms(whole(more), 0.99))
        if now - told_at >= 10:
            told_at = now
            brokers = ", ".join(
                f"{name} {s.values[-1]:,.0f} MB" for name, s in sampler.series.items() if s.values
            )
            waits = ", ".join(f"{what} {quantile_ms(times[what], 0.99):,.0f}" for what in sorted(times))
            say(
                f"{now:4.0f} s: offered {totals['offered']:,}, accepted {totals['accepted']:,}, "
                f"refused {totals['refused']:,}, p99 ms: {waits}; {brokers}"
                + "".join(f"; {n} {what!r}" for what, n in totals.items() if what not in EXPECTED)
            )
    return totals, times, worst


def violations(figures: dict[str, Any]) -> list[str]:
    """The violated conditions, as texts."""
    found = []
    verdict = figures["comparison"]
    for what in ("lost", "twice", "refused_but_there", "corrupt", "out_of_order"):
        if verdict[what]:
            found.append(f"{what}: {verdict[what]} ({verdict['examples']})")
    for what, count in figures["answers"].items():
        if what not in EXPECTED:
            found.append(f"{count} answers {what!r}")
    if not figures["answers"].get("refused"):
        found.append("nothing was refused, so there was no overload")
    if figures["seconds"] >= 120:  # a slope over less is noise
        for name, s in figures["memory_mb"].items():
            if not name.startswith("clients") and s["slope_per_min"] > BUSY_BROKER_MB:
                found.append(f"{name} grows by {s['slope_per_min']:.0f} MB per minute")
    return found


def _bounds(cluster: Any) -> list[tuple[int, int]]:
    described = cluster.admin.describe_topic(TOPIC)
    return [(p.start, p.end) for p in sorted(described.partitions, key=lambda p: p.partition)]
