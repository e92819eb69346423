"""Workers follow the executors that Spark wants: no more than asked for, none ended that is in use."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest

from escrowmq.spark_integration.session.driver_jvm import runs
from escrowmq.spark_integration.session.standalone import IDLE_LOOKS, Scaler


class Cluster:
    """Workers in a list; executors appear on them as a test says."""

    def __init__(self, workers: int) -> None:
        self.made = 0
        self.running: dict[str, int | None] = {}
        for _ in range(workers):
            self.add_worker()
            self.running[f"w{self.made}"] = 1

    def executors_by_worker(self) -> dict[str, int | None]:
        return dict(self.running)

    def add_worker(self) -> None:
        self.made += 1
        self.running[f"w{self.made}"] = None

    def remove_worker(self, worker: str) -> None:
        assert not self.running.pop(worker), "a Worker was ended while it ran an executor"


def test_what_is_wanted_is_started_at_once_and_no_more_than_allowed() -> None:
    cluster = Cluster(1)
    scaler = Scaler(cluster, least=1, most=3)
    scaler.look(2)
    assert len(cluster.running) == 2
    scaler.look(50)
    assert len(cluster.running) == 3


def test_only_what_is_idle_for_a_while_is_ended_and_what_never_started_first() -> None:
    cluster = Cluster(3)
    scaler = Scaler(cluster, least=1, most=4)
    scaler.look(4)
    cluster.running |= {"w1": 1, "w2": 0, "w3": 0}
    for _ in range(IDLE_LOOKS - 1):
        scaler.look(3)
        assert len(cluster.running) == 4
    scaler.look(3)
    assert set(cluster.running) == {"w1", "w2", "w3"}, "w4 had not even started"
    scaler.look(0)
    assert "w1" in cluster.running and len(cluster.running) == 1


def test_a_worker_that_got_an_executor_meanwhile_stays() -> None:
    cluster = Cluster(2)
    scaler = Scaler(cluster, least=1, most=2)
    cluster.running["w2"] = 0
    for _ in range(IDLE_LOOKS - 1):
        scaler.look(1)
    cluster.running["w2"] = 1
    scaler.look(1)
    cluster.running["w2"] = 0
    scaler.look(1)
    assert len(cluster.running) == 2


@pytest.mark.parametrize("seed", range(20))
def test_any_wish_is_met_within_its_bounds(seed: int) -> None:
    chance = random.Random(seed)
    cluster = Cluster(2)
    scaler = Scaler(cluster, least=2, most=6)
    for _ in range(200):
        target = chance.randrange(10)
        for _ in range(chance.randrange(1, 2 * IDLE_LOOKS)):
            scaler.look(target)
            for name in cluster.running:
                cluster.running[name] = chance.choice([None, 0, 1, 1])
            assert 2 <= len(cluster.running) <= 6, f"seed {seed}"
            assert len(cluster.running) >= min(target, 6), f"seed {seed}"
    cluster.running = dict.fromkeys(cluster.running, 0)
    for _ in range(IDLE_LOOKS):
        scaler.look(0)
    assert len(cluster.running) == 2, f"seed {seed}"


def test_a_child_that_has_ended_or_is_something_else_is_no_executor() -> None:
    command = [sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()", "an.executor"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"up\n"
        assert runs(child.pid, b"an.executor") and not runs(child.pid, b"another")
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, and not yet waited for
        assert not runs(child.pid, b"an.executor")
    assert not runs(child.pid, b"an.executor")
