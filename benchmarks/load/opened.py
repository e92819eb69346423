"""A million open transactions: memory, listing, checks, the rate of other commits, and recovery.

Commits and checks are measured in turns on two clusters, one without and one with the open transactions. The
speed of a shared machine changes from minute to minute, so only ratios of consecutive measurements are
meaningful.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL
from statistics import median
from typing import Any

import escrowmq
from benchmarks.group import GroupUnderTest
from benchmarks.load.replicas import Replicas, pid_of, send_signal
from benchmarks.load.series import own_megabytes
from benchmarks.measure import Latencies
from benchmarks.open_transactions import open_many
from benchmarks.workload import PARTITIONS, bulk_transactions
from escrowmq.actors.admin.transactions import LIST_MAX

TOPIC, APP = "open", "bench-open"
IN_FLIGHT, TURNS = 1_024, 5
CHECKS, CHECK_TURNS = 10_000, 3
CHECK_AFTER_MS = 1_000
CHECKS_TOPIC, CHECKS_APP = "checks", "bench-checks"


class Settles(escrowmq.TxStatusQuerier):
    """A querier that answers COMMITTED for every transaction and records when it was asked."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    def query_status(self, tx_id: str, query_id: str) -> escrowmq.TransactionState:
        self.asked.append(time.monotonic())
        return escrowmq.TransactionState.COMMITTED


def measure(folder: Path, opened: int, seconds: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Run the experiment; returns its figures, with ``violations``, which must be empty."""
    with (
        escrowmq.start_local(groups=1, replicas=3, data_dir=folder / "many", namespace="load-many") as many,
        escrowmq.start_local(groups=1, replicas=3, data_dir=folder / "none", namespace="load-none") as none,
    ):
        for cluster in (none, many):
            cluster.admin.create_topic(TOPIC, partitions=PARTITIONS)
        figures: dict[str, Any] = {"opened": opened}
        figures |= _open(many, opened, say)
        figures |= _commits(none, many, seconds / 2, say)
        figures |= _checks(none, many, say)
        none.stop()
        figures |= _listing(many, say)
        figures |= _recovery(many, opened, say)
    figures["violations"] = figures.pop("recovery_problems")
    return figures


def _memory(group: GroupUnderTest) -> dict[str, float]:
    return {
        name: own_megabytes(pid) or 0.0 for name, pid in group.pids().items() if name[:4] in ("lead", "foll")
    }


def _open(cluster: Any, opened: int, say: Callable[[str], None]) -> dict[str, Any]:
    group = GroupUnderTest(cluster)
    with group.producer(app=APP) as producer:
        bulk_transactions(group, producer, TOPIC, IN_FLIGHT, 1.0)  # allocates all other memory first
    before, begin = _memory(group), time.monotonic()
    open_many(cluster.info, APP, TOPIC, opened)
    took = time.monotonic() - begin
    time.sleep(2.0)
    after = _memory(group)
    each = {name: (after[name] - before.get(name, after[name])) * 1e6 / opened for name in after}
    say(f"{opened:,} opened in {took:.0f} s; bytes for each: { {n: round(b) for n, b in each.items()} }")
    return {"opening_s": took, "bytes_each": each}


def _commits(none: Any, many: Any, seconds: float, say: Callable[[str], None]) -> dict[str, Any]:
    groups = {"none": GroupUnderTest(none), "many": GroupUnderTest(many)}
    producers = {name: group.producer(app=APP) for name, group in groups.items()}
    rates: dict[str, list[float]] = {"none": [], "many": []}
    cpu: dict[str, list[float]] = {"none": [], "many": []}
    try:
        for turn in range(TURNS + 1):
            for name in ("none", "many") if turn % 2 else ("many", "none"):
                timed = bulk_transactions(groups[name], producers[name], TOPIC, IN_FLIGHT, seconds)
                if turn:  # the first one is a warm-up
                    rates[name].append(timed.traffic.per_s)
                    cpu[name].append(timed.traffic.cpu.us_per_item()["leader"])
    finally:
        for producer in producers.values():
            producer.close()
    ratios = ratios_of(rates)
    say(f"commits/s: {median(rates['none']):,.0f} and {median(rates['many']):,.0f}; ratios {ratios}")
    return {
        "commits_per_s": {name: median(values) for name, values in rates.items()},
        "ratios": ratios,
        "ratio": median(ratios),
        "leader_us": {name: median(values) for name, values in cpu.items()},
    }


class _Beside:
    """Sends lone transactions in a thread, so that a pause of the replica appears as a latency."""

    def __init__(self, cluster: Any) -> None:
        self._producer = GroupUnderTest(cluster).producer(app="beside")
        self._ended = threading.Event()
        self.latency = Latencies()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._ended.is_set():
            begin = time.perf_counter()
            self._producer.send_message_in_transaction(
                escrowmq.Message(TOPIC, b"x" * 100), lambda: escrowmq.TransactionState.COMMITTED
            )
            self.latency.add(time.perf_counter() - begin)

    def __enter__(self) -> _Beside:
        self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._ended.set()
        self._thread.join()
        self._producer.close()


def _listing(cluster: Any, say: Callable[[str], None]) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    with _Beside(cluster) as quiet:
        time.sleep(3.0)
    figures["lone_ms_before"] = quiet.latency.summary()
    times: dict[str, float] = {}
    with _Beside(cluster) as beside:
        for name, asked in (
            ("first 1,000", {"limit": 1_000}),
            ("100,000, the limit of one call", {"limit": LIST_MAX}),
            ("the parked ones (none), which scans all", {"state": "PARKED"}),
        ):
            begin = time.perf_counter()
            found = len(cluster.admin.list_transactions(**asked))
            times[name] = time.perf_counter() - begin
            say(f"listing {name}: {found:,} in {times[name]:.2f} s")
    figures |= {"listing_s": times, "lone_ms_while_listing": beside.latency.summary()}
    return figures


def _checks(none: Any, many: Any, say: Callable[[str], None]) -> dict[str, Any]:
    """The rate at which checks are resolved, without and with the other open transactions."""
    clusters = {"none": none, "many": many}
    for cluster in clusters.values():
        cluster.admin.create_topic(CHECKS_TOPIC, partitions=PARTITIONS)
    rates: dict[str, list[float]] = {"none": [], "many": []}
    questions = 0
    for turn in range(CHECK_TURNS):
        for name in ("none", "many") if turn % 2 else ("many", "none"):
            rate, asked = _checked(clusters[name], turn, say)
            rates[name].append(rate)
            questions += asked if name == "many" else 0
    ratios = ratios_of(rates)
    say(f"checks/s: {median(rates['none']):,.0f} and {median(rates['many']):,.0f}; ratios {ratios}")
    return {
        "checks_per_s": {name: median(values) for name, values in rates.items()},
        "check_ratios": ratios,
        "check_ratio": median(ratios),
        "questions_per_check": questions / (CHECK_TURNS * CHECKS),
    }


def ratios_of(rates: dict[str, list[float]]) -> list[float]:
    """For each turn: the rate with the open transactions divided by the rate without."""
    return [many / none for none, many in zip(rates["none"], rates["many"], strict=True)]


def _checked(cluster: Any, turn: int, say: Callable[[str], None]) -> tuple[float, int]:
    """Let one producer resolve transactions whose producer has vanished: (resolved per second, questions)."""
    ids = f"turn-{turn}-"  # new ids: those of earlier turns are settled
    open_many(cluster.info, CHECKS_APP, CHECKS_TOPIC, CHECKS, timeout_ms=CHECK_AFTER_MS, prefix=ids)
    time.sleep(CHECK_AFTER_MS / 1000 + 1.0)  # all are due
    querier = Settles()
    with cluster.producer(app=CHECKS_APP, tx_status_querier=querier):
        begin = time.monotonic()
        while cluster.admin.list_transactions(app=CHECKS_APP, limit=1):
            if time.monotonic() - begin > 300:
                raise TimeoutError("checks are not resolved")
            time.sleep(0.1)
        end = time.monotonic()
    first = querier.asked[0]
    rate = CHECKS / (end - first)
    say(f"{rate:,.0f} checks/s, the first after {first - begin:.1f} s; {len(querier.asked):,} questions")
    return rate, len(querier.asked)


def _recovery(cluster: Any, opened: int, say: Callable[[str], None]) -> dict[str, Any]:
    replicas, problems = Replicas(cluster), []
    figures: dict[str, Any] = {}
    with GroupUnderTest(cluster).producer(app="beside") as producer:

        def commit() -> None:
            producer.send_message_in_transaction(
                escrowmq.Message(TOPIC, b"x" * 100), lambda: escrowmq.TransactionState.COMMITTED
            )

        commit()
        for name in ("leader", "all"):
            victims = [replicas.leader()] if name == "leader" else list(replicas.all())
            begin = time.monotonic()
            for victim in victims:
                send_signal(pid_of(victim), SIGKILL)
            commit()
            figures[f"first_commit_after_{name}_s"] = time.monotonic() - begin
            for victim in victims:
                replicas.restarted(victim)
            figures[f"back_after_{name}_s"] = time.monotonic() - begin
            for victim in victims:
                try:
                    replicas.whole(victim.replica, opened)
                except TimeoutError as error:
                    problems.append(
                        f"{name} died, and replica {victim.replica} lacks open transactions: {error}"
                    )
            figures[f"whole_after_{name}_s"] = time.monotonic() - begin
            say(
                f"SIGKILL of {name}: next commit after {figures[f'first_commit_after_{name}_s']:.2f} s, "
                f"all back after {figures[f'back_after_{name}_s']:.1f} s"
            )
    return {**figures, "recovery_problems": problems}
