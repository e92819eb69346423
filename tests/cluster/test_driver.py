"""The program that began a cluster: whether it lives, and what ends with it."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from escrowmq.cluster import driver as module
from escrowmq.cluster.driver import DriverProcess, DriverWatch, end_cluster, this_driver
from escrowmq.replication.errors import DataDirLocked
from escrowmq.replication.log.datadir import process_started, take_lock
from tests.support.waiting import wait_until

WAIT = "import sys; sys.stdin.read()"
HOLD = """
import sys
from pathlib import Path
from escrowmq.replication.log.datadir import take_lock
take_lock(Path(sys.argv[1]), 0o644, str)
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def program() -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen([sys.executable, "-c", WAIT], stdin=subprocess.PIPE)
    yield started
    started.kill()
    started.communicate(timeout=10)


def driver_of(program: subprocess.Popen[bytes]) -> DriverProcess:
    began = process_started(program.pid)
    assert began is not None
    return replace(this_driver(owns_ray=True), pid=program.pid, started=began)


def is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_zombie_is_dead(program: subprocess.Popen[bytes]) -> None:
    """Its number is still there, and a signal to it finds somebody: that is what Ray goes by."""
    driver = driver_of(program)
    assert driver.lives()
    program.kill()
    wait_until(lambda: is_zombie(program.pid), what="a zombie")
    os.kill(program.pid, 0)
    assert not driver.lives()
    program.wait(10)
    assert not driver.lives()


def test_a_number_that_another_process_has_got_is_not_the_program(program: subprocess.Popen[bytes]) -> None:
    assert not replace(driver_of(program), started=1).lives()


def test_the_watch_tells_the_end_once_and_not_after_it_was_closed(
    program: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.01)
    told, closed, elsewhere = threading.Event(), threading.Event(), threading.Event()
    driver = driver_of(program)
    DriverWatch(driver, told.set)
    DriverWatch(driver, closed.set).close()
    DriverWatch(replace(driver, space="pid:[1]"), elsewhere.set)
    assert not told.wait(0.1)
    program.kill()
    assert told.wait(5.0)
    assert not closed.is_set() and not elsewhere.is_set()


def test_with_the_program_those_end_that_hold_replicas_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "g0-r0").mkdir()
    (tmp_path / "g0-r1").mkdir()
    (tmp_path / "g0-r1" / "lock").write_text(f"{os.getppid()}\n")  # of earlier times: nobody holds it
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "g0-r0" / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline()
        ended: list[int] = []
        monkeypatch.setattr(module.os, "_exit", ended.append)
        end_cluster(this_driver(owns_ray=True), "n", tmp_path, lambda: ended.append(-1))
        assert holder.wait(10) == -signal.SIGKILL
        assert ended == [0]
    finally:
        holder.kill()
        holder.communicate(timeout=10)


def test_a_lock_says_that_its_holder_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        ended = subprocess.Popen([sys.executable, "-c", ""])
        wait_until(lambda: is_zombie(ended.pid), what="a zombie")
        for holder, said in ((os.getpid(), f"{os.getpid()}$"), (ended.pid, f"{ended.pid}, which has ended")):
            held.seek(0)
            held.truncate()
            held.write(f"{holder}\n")
            held.flush()
            with pytest.raises(DataDirLocked, match=said):
                take_lock(path, 0o644, str)
        ended.wait(10)
