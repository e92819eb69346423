"""Ten thousand parked polls of producers of many apps at the feedback processes: the cost of waiting.

Every producer has a poll parked at each process. CPU time limits their number: the number of parked polls is
the rate at which polls end multiplied by their length. Then checks of random apps become due, and the time
until a parked poll delivers them is measured.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray

import escrowmq
from benchmarks.group import GroupUnderTest
from benchmarks.load.pollers import Crowd, PollerProcess
from benchmarks.load.series import own_megabytes
from benchmarks.measure import CpuMeter, Latencies
from benchmarks.open_transactions import open_many
from benchmarks.workload import bulk_transactions
from escrowmq.feedback.config import AnswererConfig, FeedbackConfig
from escrowmq.feedback.edges.shard_actor import start_shard

TOPIC, PARTITIONS = "polls", 4
TIMEOUT_MS = 1_000
CHECKS, CHECK_EVERY_S = 60, 0.25
SAMPLE_S = 5.0
#: The first polls are spread over this time: ten thousand producers do not start at the same moment.
START_S = 30.0
PARKED_WITHIN_S = 300.0


def measure(
    folder: Path, parked: int, apps: int, poll_s: float, seconds: float, say: Callable[[str], None]
) -> dict[str, Any]:
    """Run the experiment; returns its figures, with ``violations``, which must be empty.

    ``poll_s``: longest duration of a poll.
    """
    with escrowmq.start_local(groups=1, replicas=3, data_dir=folder, namespace="load-polls") as cluster:
        cluster.admin.create_topic(TOPIC, partitions=PARTITIONS)
        shards = FeedbackConfig().shards
        each = max(1, parked // shards // apps)
        config = FeedbackConfig(
            polls_parked_max=max(500, each),
            producers_max=max(2_000, 2 * each),
            poll_wait_max_s=poll_s,
            shard_polls_max=max(5_000, 2 * each * apps),
        )
        group = GroupUnderTest(cluster)
        with group.producer(app="beside") as producer:
            bulk_transactions(group, producer, TOPIC, 1_024, 2.0)
            without = bulk_transactions(group, producer, TOPIC, 1_024, seconds).traffic.per_s
            handles, pids = _start(cluster, config, say)
            try:
                figures = _measure(cluster, group, producer, handles, pids, apps, each, config, seconds, say)
            finally:
                for handle in handles.values():
                    ray.kill(handle)
    figures |= {
        "poll_s": poll_s,
        "apps": apps,
        "shards": shards,
        "producers_each": each,
        "commits_per_s_without": without,
    }
    figures["commit_ratio"] = figures["commits_per_s_with"] / without
    return figures


def _start(
    cluster: Any, config: FeedbackConfig, say: Callable[[str], None]
) -> tuple[dict[str, Any], dict[str, int]]:
    begin = time.monotonic()
    names = [f"feedback process {number}" for number in range(config.shards)]
    handles = {
        name: start_shard(number, config.shards, cluster.info, config) for number, name in enumerate(names)
    }
    statuses = ray.get([handle.status.remote() for handle in handles.values()], timeout=180)
    say(f"{len(names)} feedback processes started in {time.monotonic() - begin:.0f} s")
    return handles, {name: status["pid"] for name, status in zip(names, statuses, strict=True)}


def _measure(
    cluster: Any,
    group: GroupUnderTest,
    producer: Any,
    handles: dict[str, Any],
    pids: dict[str, int],
    app_count: int,
    each: int,
    config: FeedbackConfig,
    seconds: float,
    say: Callable[[str], None],
) -> dict[str, Any]:
    everyone = list(handles.values())
    empty = [own_megabytes(pid) or 0.0 for pid in pids.values()]
    brokers = {name: pid for name, pid in group.pids().items() if name[:4] in ("lead", "foll")}
    answerer = AnswererConfig(poll_wait_max_s=config.poll_wait_max_s)
    apps = tuple(f"app-{n}" for n in range(app_count))
    pollers = PollerProcess(
        Crowd(cluster.address, TOPIC, cluster.info, apps, each, config, answerer, START_S)
    )
    try:
        parked_after = await_parked(everyone, each * app_count * len(handles), pollers, say)
        time.sleep(2 * config.poll_wait_max_s)  # the duration of polls grows step by step
        full = [own_megabytes(pid) or 0.0 for pid in pids.values()]
        watched = {**brokers, **pids, "pollers": pollers.pid}
        figures = _watch(everyone, pollers, watched, 2 * config.poll_wait_max_s)
        say(f"{figures['parked']:,} polls parked; {figures['polls_per_s']:,.0f} polls/s")
        latency = _checks(cluster, list(apps), pollers)
        rate = bulk_transactions(group, producer, TOPIC, 1_024, seconds).traffic.per_s
    finally:
        pollers.stop()
    busy, violations = figures.pop("busy"), []
    if latency["samples"] < CHECKS:
        violations = [f"{CHECKS - int(latency['samples'])} of {CHECKS} due checks reached no producer"]
    elif figures["parked"] < 0.9 * each * app_count * len(handles):
        violations = [f"only {figures['parked']} of {each * app_count * len(handles)} polls were parked"]
    figures |= {
        "parked_after_s": parked_after,
        "actor_mb_empty": sum(empty) / len(empty),
        "actor_mb_full": sum(full) / len(full),
        "kb_per_parked_poll": 1000 * (sum(full) - sum(empty)) / max(1, figures["parked"]),
        "actor_cores_each": sum(busy[name] for name in pids) / len(pids),
        "actor_cores_all": sum(busy[name] for name in pids),
        "pollers_cores": busy["pollers"],
        "broker_cores": {name: busy[name] for name in brokers},
        "check_latency": latency,
        "commits_per_s_with": rate,
        "violations": violations,
    }
    say(f"{figures}")
    return figures


def _watch(
    handles: list[Any], pollers: PollerProcess, watched: dict[str, int], seconds: float
) -> dict[str, Any]:
    """Measure the cost of waiting: cores by process, polls that end, and the mean number of parked polls."""
    begin, (before, _), meter = time.monotonic(), pollers.look(), CpuMeter(watched)
    held, load = [], []
    while time.monotonic() - begin < seconds:
        time.sleep(SAMPLE_S)
        held.append(parked(handles))
        load.append(os.getloadavg()[0])
    (after, _), took = pollers.look(), time.monotonic() - begin
    return {
        "busy": meter.stop(1).busy(),
        "parked": round(sum(held) / len(held)),
        "parked_least": min(held),
        "polls_per_s": (after["polls"] - before["polls"]) / took,
        "polls_lost": after["lost"] - before["lost"],
        "polls_refused": after["refused"] - before["refused"],
        "load": [min(load), max(load)],
    }


def _checks(cluster: Any, apps: list[str], pollers: PollerProcess) -> dict[str, float]:
    """Latency from the time when a check is due to the poll that delivers it."""
    rng, due = random.Random(1), {}
    for n in range(CHECKS):
        app = rng.choice(apps)
        tx_id = f"check-{n}-"
        due[tx_id + "0"] = time.time() + TIMEOUT_MS / 1000
        open_many(cluster.info, app, TOPIC, 1, timeout_ms=TIMEOUT_MS, prefix=tx_id)
        time.sleep(CHECK_EVERY_S)
    deadline = time.time() + 30
    arrived: dict[str, float] = {}
    while len(due.keys() & arrived.keys()) < CHECKS and time.time() < deadline:
        time.sleep(0.2)
        arrived = pollers.look()[1]
    latency = Latencies()
    for tx_id, at in due.items():
        if tx_id in arrived:
            latency.add(arrived[tx_id] - at)
    return latency.summary()


def parked(handles: list[Any]) -> int:
    """Number of polls parked at these actors."""
    statuses = ray.get([handle.status.remote() for handle in handles], timeout=120)
    return sum(status["polls_parked"] for status in statuses)


def await_parked(
    handles: list[Any], wanted: int, pollers: PollerProcess, say: Callable[[str], None]
) -> float | None:
    """Wait until nearly all polls are parked; returns the seconds, None if it took too long."""
    begin, said = time.monotonic(), 0.0
    while (took := time.monotonic() - begin) < PARKED_WITHIN_S:
        held = parked(handles)
        if held >= 0.97 * wanted:
            return took
        if took > said + 10.0:
            said = took
            say(f"{held:,} of {wanted:,} polls parked after {took:.0f} s; {dict(pollers.look()[0])}")
        time.sleep(2.0)
    return None
