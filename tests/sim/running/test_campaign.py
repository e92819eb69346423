"""A run that is stopped from outside ends, keeps its results, and continues after its last seed."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
import typer
from rich.console import Console

from tests.sim.running.campaign import seconds
from tests.sim.running.runner import Options, Schedule, run
from tests.sim.running.totals import Totals
from tests.sim.running.workers import Ending, WorkerFailed, Workers

SOON_S = 20.0  # enough on a busy machine, and far less than a minimiser takes
ENVIRONMENT = {"PYTHONPATH": ":".join(sys.path), "COLUMNS": "200", "PATH": os.environ["PATH"]}


def campaign(file: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.sim", "campaign", str(file), "--jobs", "1", *arguments]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)


def test_results_come_in_the_order_of_the_jobs() -> None:
    with Ending() as ending, Workers(2, ending) as workers:
        jobs = [partial(pow, 2, 3), partial(time.sleep, 0.3), partial(pow, 2, 4), partial(pow, 2, 5)]
        assert list(workers.results(jobs)) == [8, None, 16, 32]
        assert workers.one(partial(pow, 2, 6)) == 64


def test_a_process_that_is_gone_is_no_wait_without_end() -> None:
    with Ending() as ending, Workers(2, ending) as workers, pytest.raises(WorkerFailed, match="ended with 3"):
        list(workers.results([partial(os._exit, 3), partial(pow, 2, 3)]))


def test_processes_that_were_killed_while_they_waited_hold_up_nothing() -> None:
    """A pool of multiprocessing would wait forever for the lock that one of them held."""
    with Ending() as ending, Workers(2, ending) as workers:
        assert list(workers.results([partial(pow, 2, 3), partial(pow, 2, 4)])) == [8, 16]
        for process in multiprocessing.active_children():
            process.kill()
        with pytest.raises(WorkerFailed, match="ended with -9"):
            workers.one(partial(pow, 2, 5))


def test_a_job_that_raises_is_told_with_its_place() -> None:
    with Ending() as ending, Workers(1, ending) as workers, pytest.raises(WorkerFailed, match="ValueError"):
        workers.one(partial(int, "x"))


def test_a_run_that_is_to_end_keeps_what_has_run() -> None:
    totals, work = Totals(), [Schedule(seed, "raw", 1) for seed in range(500)]

    def told() -> None:
        if totals.schedules == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    with Ending() as ending, Workers(2, ending) as workers:
        run(work, Options(chaos_s=1.0), workers, totals, Console(quiet=True), told=told)
        assert ending.asked == 1
    assert 2 <= totals.schedules < 50  # includes those that were running when it was stopped
    assert totals.ranges() == [("raw", 0, totals.schedules - 1)]


def test_what_is_minimised_does_not_hold_up_an_end() -> None:
    started = time.monotonic()
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with Ending() as ending, Workers(1, ending) as workers:
        assert workers.one(partial(time.sleep, 600.0)) is None
    assert time.monotonic() - started < SOON_S


def test_a_signal_to_all_processes_ends_a_run_that_minimises() -> None:
    """Ctrl-C in a terminal and ``timeout`` send their signals like this."""
    command = [sys.executable, "-m", "tests.sim", "--seeds", "200", "--seed", "0", "--jobs", "2"]
    command += ["--workload", "raw", "--drop", "hold-acks"]
    with subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if "again: " in line:
                    break
            os.killpg(process.pid, signal.SIGTERM)
            rest, _ = process.communicate(timeout=SOON_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert re.search(r"[1-9]\d* schedules, 1 broken", rest), rest
    assert process.returncode == 1


def test_a_campaign_goes_on_behind_its_last_seed(tmp_path: Path) -> None:
    file = tmp_path / "sums" / "totals.json"
    first = campaign(file, "--groups", "1", "--until", "1")
    assert first.returncode == 0, first.stdout + first.stderr
    before = Totals.load(file)
    again = campaign(file, "--groups", "1", "--until", str(before.virtual_s() + 1))
    assert again.returncode == 0, again.stdout + again.stderr
    after = Totals.load(file)
    assert after.schedules > before.schedules and not after.overlaps()
    assert after.virtual_s() > before.virtual_s() and after.wall_s > before.wall_s
    assert len(after.commits) == 1
    assert after.seeds[0][:2] == before.seeds[0][:2]


def test_durations_have_units() -> None:
    assert [seconds(text) for text in ("90", "90s", "40m", "1.5h")] == [90.0, 90.0, 2400.0, 5400.0]
    with pytest.raises(typer.BadParameter, match="no duration"):
        seconds("soon")
