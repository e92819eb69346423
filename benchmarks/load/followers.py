"""A slow follower, and one that was dead for long: clients must not wait for it, and it must catch up.

``slow``: one follower is stopped and continued in turns. ``dead``: one is stopped while the others write a
gigabyte, and then killed and restarted under load. If everything is retained, it reads the leader's log; if
retention has removed entries that it lacks, it copies the leader's files.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Any

import escrowmq
from benchmarks.group import GroupUnderTest
from benchmarks.load.ledger import ACCEPTED, as_dict, compare, read_all, value_of
from benchmarks.load.replicas import Replicas, pid_of, send_signal
from benchmarks.load.series import Sampler
from benchmarks.measure import Latencies

#: Messages of topic ``EARLY`` are not retained: a topic that retains everything would retain the whole log.
TOPIC, EARLY, PARTITIONS = "followers", "early", 4
BULK_BYTES, PACED_BYTES, PACED_PER_S = 16_000, 1_000, 200.0
STOPPED_S, RUNNING_S = 2.0, 1.0
SEGMENT_BYTES = 16 << 20
#: Rate at which other clients write while a follower catches up.
BESIDE_MB_PER_S = 5.0


class Paced:
    """Sends plain messages at a low rate from a thread, and records their latency by phase."""

    def __init__(self, cluster: Any, client: int, topic: str = TOPIC) -> None:
        self._topic = topic
        self._producer = GroupUnderTest(cluster).producer(app="paced")
        self._client = client
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.phases: dict[str, Latencies] = {}
        self.phase = "before"
        self.told = bytearray()
        self.errors: list[str] = []

    def _run(self) -> None:
        number = 0
        while not self._ended.wait(1 / PACED_PER_S):
            self.told.append(1)
            self._send(number)
            number += 1

    def _send(self, number: int) -> None:
        begin, phase = time.perf_counter(), self.phase

        def done(future: Any) -> None:
            error = future.exception()
            if error is not None:
                self.errors.append(f"{phase}: {error!r}")
                return
            self.told[number] = ACCEPTED
            self.phases.setdefault(phase, Latencies()).add(time.perf_counter() - begin)

        message = escrowmq.Message(self._topic, value_of(self._client, number, PACED_BYTES))
        self._producer.send(message).add_done_callback(done)

    def __enter__(self) -> Paced:
        self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._ended.set()
        self._thread.join()
        self._producer.close()

    def summary(self) -> dict[str, dict[str, float]]:
        return {name: latency.summary() for name, latency in list(self.phases.items())}


class Beside:
    """Load on the group while something else is measured: BESIDE_MB_PER_S into topic ``bulk``."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.sent = 0
        self.refused = 0

    def _run(self) -> None:
        body = bytes(BULK_BYTES)
        while not self._ended.wait(BULK_BYTES / BESIDE_MB_PER_S / 1e6):
            try:
                self._producer.send(escrowmq.Message("bulk", body))
            except escrowmq.Overloaded:
                self.refused += 1
            else:
                self.sent += 1

    def __enter__(self) -> Beside:
        self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._ended.set()
        self._thread.join()


def _cluster(folder: Path) -> Any:
    return escrowmq.start_local(
        groups=1,
        replicas=3,
        data_dir=folder,
        namespace="load-followers",
        broker={"segment_bytes": SEGMENT_BYTES},
    )


def slow(folder: Path, seconds: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Run ``slow``: one follower runs only a third of the time."""
    with _cluster(folder) as cluster:
        cluster.admin.create_topic(TOPIC, partitions=PARTITIONS)
        replicas = Replicas(cluster)
        leader = pid_of(replicas.leader())
        victim = replicas.followers()[0]
        sampler = Sampler({"leader": leader}).start()
        with Paced(cluster, 1) as paced:
            time.sleep(seconds)
            paced.phase = "slow follower"
            end = time.monotonic() + seconds
            try:
                while time.monotonic() < end:
                    send_signal(pid_of(victim), SIGSTOP)
                    time.sleep(STOPPED_S)
                    send_signal(pid_of(victim), SIGCONT)
                    time.sleep(RUNNING_S)
            finally:
                send_signal(pid_of(victim), SIGCONT)
            paced.phase = "after"
            behind = replicas.caught_up(victim.replica)
            time.sleep(seconds / 2)
        memory = sampler.stop()["leader"]
        say(f"{paced.summary()}")
        return _judged(
            cluster,
            [paced],
            {
                "latency": paced.summary(),
                "caught_up_s": behind,
                "leader_mb": {"first": memory.values[0], "max": memory.maximum()},
                "elections": replicas.leader().term,
            },
        )


def dead(
    folder: Path,
    log_mb: int,
    seconds: float,
    say: Callable[[str], None],
    ways: tuple[str, ...] = ("log", "copy"),
) -> dict[str, Any]:
    """Run ``dead`` with both ways to catch up: from the log, and by copying files."""
    figures: dict[str, Any] = {}
    problems: list[str] = []
    for name in ways:
        retained = -1 if name == "log" else 1 << 16
        with _cluster(folder / name) as cluster:
            cluster.admin.create_topic(TOPIC, partitions=PARTITIONS)
            for topic in ("bulk", EARLY):
                cluster.admin.create_topic(topic, partitions=PARTITIONS, retention_bytes=retained)
            found = _dead(cluster, log_mb, seconds, say)
            problems += [f"by {name}: {p}" for p in found.pop("violations")]
            if name == "copy" and not found["leader_first_index"] > found["follower_last_index"]:
                problems.append("retention had not removed what the follower lacked, so no copy was needed")
            figures[name] = found
            say(f"done: by {name}")
    return {"log_mb": log_mb, **figures, "violations": problems}


def _dead(cluster: Any, log_mb: int, seconds: float, say: Callable[[str], None]) -> dict[str, Any]:
    replicas = Replicas(cluster)
    leader = replicas.leader()
    victim = replicas.followers()[0]
    sampler = Sampler({"leader": pid_of(leader)}).start()
    with Paced(cluster, 1, EARLY) as early, GroupUnderTest(cluster).producer(app="bulk") as bulk:
        time.sleep(seconds)
        send_signal(pid_of(victim), SIGSTOP)  # dead from the others' point of view
        try:
            early.phase = "writing without it"
            wrote_s = _write(bulk, log_mb)
            say(f"{log_mb} MB written without it in {wrote_s:.0f} s")
            early.phase = "without it"
            time.sleep(max(seconds, 25.0))  # two rounds of retention
            first = replicas.leader().first_index
        finally:
            send_signal(pid_of(victim), SIGKILL)
    with GroupUnderTest(cluster).producer(app="beside") as others, Paced(cluster, 1) as paced:
        paced.phase = "while it catches up"
        came = time.monotonic()
        with Beside(others) as beside:
            replicas.restarted(victim)
            started = time.monotonic() - came
            replicas.caught_up(victim.replica)
            back = time.monotonic() - came
        paced.phase = "after"
        time.sleep(seconds)
    latencies = early.summary() | paced.summary()
    memory = sampler.stop()["leader"]
    say(f"back after {back:.1f} s, {log_mb / back:.0f} MB/s; latencies {latencies}")
    return _judged(
        cluster,
        [paced],
        {
            "write_s": wrote_s,
            "follower_last_index": victim.last_index,
            "leader_first_index": first,
            "started_s": started,
            "back_s": back,
            "mb_per_s": log_mb / back,
            "beside_mb_per_s": beside.sent * BULK_BYTES / 1e6 / back,
            "beside_refused": beside.refused,
            "latency": latencies,
            "leader_mb": {"first": memory.values[0], "max": memory.maximum()},
            "leader_log_mb": max(r.details.get("log_bytes", 0) for r in replicas.all()) / 1e6,
        },
    )


def _write(producer: Any, megabytes: int) -> float:
    begin = time.monotonic()
    body = bytes(BULK_BYTES)
    last = None
    for _ in range(megabytes * 1_000_000 // BULK_BYTES):
        last = producer.send(escrowmq.Message("bulk", body))
    assert last is not None
    last.result(timeout=120)
    producer.flush()
    return time.monotonic() - begin


def _judged(cluster: Any, paced: list[Paced], figures: dict[str, Any]) -> dict[str, Any]:
    described = cluster.admin.describe_topic(TOPIC)
    bounds = [(p.start, p.end) for p in described.partitions]
    told = {n + 1: bytes(p.told) for n, p in enumerate(paced)}
    verdict = compare(told, read_all(cluster.info, TOPIC, bounds), ordered=frozenset(told))
    problems = [error for p in paced for error in p.errors[:3]]
    if verdict.problems():
        problems.append(f"{as_dict(verdict)}")
    return {**figures, "comparison": as_dict(verdict), "violations": problems}
