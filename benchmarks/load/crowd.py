"""Ten thousand parked polls of two hundred apps at one feedback process: the cost for it and for the leader.

The real ``FeedbackShard`` shares a process with a group of three real replicas (files, ``fdatasync``, TCP).
Calls go through thread pools with the brokers' sizes instead of Ray. So memory per poll and the time until a
check arrives are those of the real code; the CPU time is that of all in one interpreter.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.load.series import own_megabytes
from benchmarks.measure import Latencies
from escrowmq.actors.admin.topic_creation import topic_settings
from escrowmq.actors.broker.config import BrokerConfig
from escrowmq.feedback.asking.shard import FeedbackShard
from escrowmq.feedback.brokers import BrokerUnreachable
from escrowmq.feedback.config import FeedbackConfig
from escrowmq.replication.errors import EscrowMQError
from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import encode_row
from tests.support.broker_group import BrokerGroup

TOPIC = "polls"
POLL_S = 5.0
CHECKS, TIMEOUT_MS, SETTLE_S = 200, 1_000, 10.0
#: Method that feedback calls -> the part of a broker that answers it.
PART_OF = {
    "submit": "requests",
    "whoami": "running",
    "tx_states": "inspection",
    "transactions": "inspection",
} | dict.fromkeys(("due_pairs", "lock_pairs", "open_pairs", "release_locks"), "due_checks")


class PooledBrokers:
    """``feedback.brokers.Brokers`` that calls each replica in thread pools of its actor's sizes."""

    def __init__(self, group: BrokerGroup, config: BrokerConfig) -> None:
        self._group, self.calls = group, Counter[str]()
        sizes = {"due_pairs": config.feedback_threads, "submit": config.produce_threads}
        self._pools = {
            (rid, method): ThreadPoolExecutor(sizes.get(method, config.control_threads))
            for rid in group.alive
            for method in ("due_pairs", "submit", "")
        }

    async def call(self, gid: int, rid: int, method: str, *args: Any) -> Any:
        self.calls[method] += 1
        pool = self._pools.get((rid, method)) or self._pools[rid, ""]
        try:
            function = getattr(getattr(self._group.alive[rid].parts, PART_OF[method]), method)
            return await asyncio.get_running_loop().run_in_executor(pool, function, *args)
        except EscrowMQError as error:
            raise BrokerUnreachable(str(error)) from error

    def close(self) -> None:
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)


class Producers:
    """All producers of all apps. Each always has one parked poll, and answers every check with COMMITTED."""

    def __init__(self, feedback: FeedbackShard, apps: list[str], each: int) -> None:
        self.arrived: dict[str, float] = {}
        self.polls = 0
        self._tasks = [
            asyncio.create_task(self._one(feedback, app, f"{app}-{n}")) for app in apps for n in range(each)
        ]

    async def _one(self, feedback: FeedbackShard, app: str, instance: str) -> None:
        await asyncio.sleep(random.random() * POLL_S)  # so that they do not run in step
        while True:
            status, value = await feedback.poll(app, instance, 16, [], POLL_S)
            self.polls += 1
            if status == "retry":
                await asyncio.sleep(value)
            elif value:
                for row in value:
                    self.arrived.setdefault(row[1], time.time())
                feedback.answer(app, instance, [(row[0], row[1], "COMMITTED", "", row[5]) for row in value])

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def measure(
    folder: Path, parked: int, apps: int, seconds: float, say: Callable[[str], None]
) -> dict[str, Any]:
    """Run the experiment; returns its figures, with ``violations``, which must be empty."""
    config = BrokerConfig()
    group = BrokerGroup(folder, config)
    try:
        group.start()
        leader = group.leader()
        group.submit(ops.create_topic(TOPIC, topic_settings()))
        brokers = PooledBrokers(group, config)
        try:
            return asyncio.run(_measure(group, leader, brokers, parked, apps, seconds, say))
        finally:
            brokers.close()
    finally:
        group.close()


async def _measure(
    group: BrokerGroup,
    leader: Any,
    brokers: PooledBrokers,
    parked: int,
    apps: int,
    seconds: float,
    say: Callable[[str], None],
) -> dict[str, Any]:
    each = -(-parked // apps)
    feedback_config = FeedbackConfig(
        polls_parked_max=max(500, each),
        producers_max=max(2_000, 2 * each),
        shard_polls_max=max(5_000, parked),
    )
    names = [f"app-{n}" for n in range(apps)]
    feedback = FeedbackShard(0, 1, 1, group.replicas, brokers, feedback_config, random.Random(1))
    feedback.start()
    await asyncio.sleep(2.0)
    gc.collect()
    empty = own_megabytes(os.getpid()) or 0.0
    producers = Producers(feedback, names, each)
    try:
        await asyncio.sleep(POLL_S + SETTLE_S)
        held = feedback.status()["polls_parked"]
        full = own_megabytes(os.getpid()) or 0.0
        polls, busy, calls, begin = producers.polls, time.process_time(), brokers.calls.copy(), time.time()
        await asyncio.sleep(2 * seconds)
        elapsed = time.time() - begin
        rates = {method: n / elapsed for method, n in (brokers.calls - calls).items()}
        idle = {"polls_per_s": (producers.polls - polls) / elapsed, "calls_per_s": rates}
        cores = (time.process_time() - busy) / elapsed
        say(f"{held:,} polls parked at {apps} apps: {idle}, {cores:.2f} cores")
        latency = await _checks(group, names, producers)
    finally:
        await producers.stop()
        await feedback.close()
    figures: dict[str, Any] = {
        "parked": held, "apps": apps, "producers_each": each, "cores": cores, "check_latency": latency,
        "kb_per_parked_poll": 1000 * (full - empty) / max(1, held), "violations": [], **idle,
    }  # fmt: skip
    if latency["samples"] < CHECKS:
        figures["violations"].append(f"only {latency['samples']} of {CHECKS} checks reached a producer")
    if held < 0.9 * apps * each:
        figures["violations"].append(f"only {held} of {apps * each} polls were parked")
    if leader is not group.leader():
        say("the leader changed during the measurement")
    return figures


async def _checks(group: BrokerGroup, apps: list[str], producers: Producers) -> dict[str, float]:
    """Latency from the time when a check is due to the poll that delivers it; 20 checks/s of random apps."""
    rng, due = random.Random(1), {}
    for number in range(CHECKS):
        tx_id = f"check-{number}"
        row = encode_row(None, b"v", None, tx_id)
        request = ops.prepare(
            rng.choice(apps), TOPIC, [tx_id], None, TIMEOUT_MS, 0, [1], -1, 1
        ) + ops.pre_message(TOPIC, 0, [0], [len(row)], [row])
        await asyncio.to_thread(group.submit, request)
        due[tx_id] = time.time() + TIMEOUT_MS / 1000
        await asyncio.sleep(0.05)
    for _ in range(300):
        if len(producers.arrived) >= CHECKS:
            break
        await asyncio.sleep(0.1)
    latency = Latencies()
    for tx_id, at in due.items():
        if tx_id in producers.arrived:
            latency.add(producers.arrived[tx_id] - at)
    return latency.summary()
