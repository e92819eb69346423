"""Ten thousand producers' polls parked at the feedback actors of many apps: what waiting costs.

Every app has its feedback actor, a process of its own, so memory says how many apps fit on a machine:
the polls are spread over as many actors as fit here, and the cost of one more app is reported. Checks
are then made due in random apps: how long until a parked poll gets them?
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import ray

import escrowmq
from benchmarks.group import GroupUnderTest
from benchmarks.load.series import own_megabytes
from benchmarks.measure import CpuMeter, Latencies
from benchmarks.open_transactions import open_many
from benchmarks.workload import bulk_transactions
from escrowmq.actors.topology import ClusterInfo
from escrowmq.feedback.actor import start_feedback
from escrowmq.feedback.config import FeedbackConfig

TOPIC, PARTITIONS = "polls", 4
TIMEOUT_MS = 1_000
CHECKS = 60
#: What is left to the machine, and what one actor is reckoned to need before any is measured.
SPARE_MB, ACTOR_MB = 6_000, 130
STARTS_AT_ONCE = 8


@dataclass(frozen=True)
class Crowd:
    """What the pollers' process is told at its start."""

    address: str
    info: ClusterInfo
    apps: tuple[str, ...]
    each: int
    config: FeedbackConfig
    poll_s: float


class Pollers:
    """All producers of all apps in one process: each has one poll parked at its app's actor, always."""

    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd
        self._ended = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)
        self.polls = 0
        self.arrived: dict[str, float] = {}  # transaction -> when a producer got it
        self._thread.start()

    async def _main(self) -> None:
        crowd = self._crowd
        tasks = []
        for app in crowd.apps:
            handle = start_feedback(app, TOPIC, crowd.info, crowd.config)
            for n in range(crowd.each):
                tasks.append(asyncio.create_task(self._producer(handle, f"{app}-{n}")))
        await asyncio.to_thread(self._ended.wait)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _producer(self, handle: Any, instance: str) -> None:
        poll_s = self._crowd.poll_s
        await asyncio.sleep(random.random() * poll_s)  # not all in step
        while True:
            status, value = await handle.poll.remote(instance, 16, [], poll_s)
            self.polls += 1
            if status == "retry":
                await asyncio.sleep(value)
            elif value:
                now = time.time()
                for row in value:
                    self.arrived.setdefault(row[1], now)
                answers = [(row[0], row[1], "COMMITTED", "none") for row in value]
                await handle.answer.remote(instance, answers)

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(30.0)


def run_pollers(crowd: Crowd, pipe: Connection) -> None:
    """The process: answers every word with what the pollers saw, until it hears "end"."""
    ray.init(address=crowd.address, namespace=crowd.info.namespace, log_to_driver=False)
    pollers = Pollers(crowd)
    while pipe.recv() != "end":
        pipe.send((pollers.polls, dict(pollers.arrived)))
    pollers.stop()
    ray.shutdown()


class PollerProcess:
    """The parent's end."""

    def __init__(self, crowd: Crowd) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=run_pollers, args=(crowd, theirs), daemon=True)
        self._process.start()

    def look(self) -> tuple[int, dict[str, float]]:
        """Polls that ended so far, and which transactions arrived when."""
        self._pipe.send("look")
        if not self._pipe.poll(60.0):
            raise TimeoutError("the pollers do not answer")
        polls, arrived = self._pipe.recv()
        return polls, arrived

    def stop(self) -> None:
        self._pipe.send("end")
        self._process.join(60.0)
        if self._process.is_alive():
            self._process.kill()


def measure(
    folder: Path, parked: int, apps: int, poll_s: float, seconds: float, say: Callable[[str], None]
) -> dict[str, Any]:
    """All of it; the figures, with ``violations`` that must be empty. ``poll_s``: longest time of a poll."""
    with escrowmq.start_local(groups=1, replicas=3, data_dir=folder, namespace="load-polls") as cluster:
        cluster.admin.create_topic(TOPIC, partitions=PARTITIONS)
        free = psutil.virtual_memory().available / 1e6 - SPARE_MB
        count = max(1, min(apps, int(free / ACTOR_MB)))
        each = -(-parked // count)
        config = FeedbackConfig(
            polls_parked_max=max(500, each), producers_max=max(2_000, 2 * each), poll_wait_max_s=poll_s
        )
        group = GroupUnderTest(cluster)
        with group.producer(app="beside") as producer:
            bulk_transactions(group, producer, TOPIC, 1_024, 2.0)
            without = bulk_transactions(group, producer, TOPIC, 1_024, seconds).traffic.per_s
            handles, pids = _start(cluster, count, config, say)
            try:
                figures = _measure(cluster, group, producer, handles, pids, each, config, seconds, say)
            finally:
                for handle in handles.values():
                    ray.kill(handle)
    figures |= {
        "poll_s": poll_s,
        "apps": count,
        "apps_wanted": apps,
        "producers_each": each,
        "commits_per_s_without": without,
    }
    figures["commit_ratio"] = figures["commits_per_s_with"] / without
    return figures


def _start(
    cluster: Any, count: int, config: FeedbackConfig, say: Callable[[str], None]
) -> tuple[dict[str, Any], dict[str, int]]:
    handles: dict[str, Any] = {}
    pids: dict[str, int] = {}
    begin = time.monotonic()
    names = [f"app-{n}" for n in range(count)]
    for first in range(0, count, STARTS_AT_ONCE):
        some = names[first : first + STARTS_AT_ONCE]
        for app in some:
            handles[app] = start_feedback(app, TOPIC, cluster.info, config)
        for app, status in zip(
            some, ray.get([handles[a].status.remote() for a in some], timeout=180), strict=True
        ):
            pids[app] = status["pid"]
    say(f"{count} feedback actors started in {time.monotonic() - begin:.0f} s")
    return handles, pids


def _measure(
    cluster: Any,
    group: GroupUnderTest,
    producer: Any,
    handles: dict[str, Any],
    pids: dict[str, int],
    each: int,
    config: FeedbackConfig,
    seconds: float,
    say: Callable[[str], None],
) -> dict[str, Any]:
    empty = [own_megabytes(pid) or 0.0 for pid in pids.values()]
    brokers = {name: pid for name, pid in group.pids().items() if name[:4] in ("lead", "foll")}
    pollers = PollerProcess(
        Crowd(cluster.address, cluster.info, tuple(handles), each, config, config.poll_wait_max_s)
    )
    try:
        held = _await_parked(list(handles.values()), each)
        full = [own_megabytes(pid) or 0.0 for pid in pids.values()]
        (polls, _), meter = pollers.look(), CpuMeter({**brokers, **pids})
        time.sleep(2 * seconds)
        busy = meter.stop(1).busy()
        polls = pollers.look()[0] - polls
        say(f"{held:,} polls parked at {len(handles)} actors; {polls / 2 / seconds:,.0f} polls/s")
        latency = _checks(cluster, list(handles), pollers)
        rate = bulk_transactions(group, producer, TOPIC, 1_024, seconds).traffic.per_s
    finally:
        pollers.stop()
    actors = [busy[app] for app in pids]
    lost = CHECKS - int(latency["samples"])
    figures = {
        "parked": held,
        "polls_per_s": polls / 2 / seconds,
        "actor_mb_empty": sum(empty) / len(empty),
        "actor_mb_full": sum(full) / len(full),
        "kb_per_parked_poll": 1000 * (sum(full) - sum(empty)) / max(1, held),
        "actor_cores_each": sum(actors) / len(actors),
        "broker_cores": {name: busy[name] for name in brokers},
        "check_latency": latency,
        "commits_per_s_with": rate,
        "violations": [],
    }
    if lost:
        figures["violations"] = [f"{lost} of {CHECKS} due checks reached no producer"]
    elif held < 0.9 * each * len(handles):
        figures["violations"] = [f"only {held} of {each * len(handles)} polls were parked"]
    say(f"{figures}")
    return figures


def _checks(cluster: Any, apps: list[str], pollers: PollerProcess) -> dict[str, float]:
    """From a check being due to a parked poll that brings it."""
    rng, due = random.Random(1), {}
    for n in range(CHECKS):
        app = rng.choice(apps)
        tx_id = f"check-{n}-"
        due[tx_id + "0"] = time.time() + TIMEOUT_MS / 1000
        open_many(cluster.info, app, TOPIC, 1, timeout_ms=TIMEOUT_MS, prefix=tx_id)
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


def _await_parked(handles: list[Any], each: int) -> int:
    """Until nearly all polls are parked, or no more come; how many are."""
    held, deadline = 0, time.monotonic() + 180
    while time.monotonic() < deadline:
        statuses = ray.get([handle.status.remote() for handle in handles], timeout=120)
        held = sum(status["polls_parked"] for status in statuses)
        if held >= 0.97 * each * len(handles):
            break
        time.sleep(2.0)
    return held
