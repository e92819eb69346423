"""A run leaves no process behind, not even one that was stopped or whose parent is dead."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import uuid

import psutil
import pytest

from tests.chaos import cleanup

#: Starts a process that starts another one in a new session, and then dies.
ORPHANING = """
import subprocess, sys
quiet = subprocess.DEVNULL
sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
child = subprocess.Popen(sleeper, start_new_session=True, stdout=quiet, stderr=quiet)
print(child.pid, flush=True)
"""


def _ended(pid: int) -> bool:
    """Whether it is dead, even if its new parent has not collected it yet."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


@pytest.mark.skipif(sys.platform != "linux", reason="environments of processes are read from /proc")
def test_orphans_and_stopped_processes_of_a_run_end_and_others_live() -> None:
    value = uuid.uuid4().hex
    marked = {**os.environ, cleanup.MARK: value}
    parent = subprocess.run(
        [sys.executable, "-c", ORPHANING], env=marked, capture_output=True, text=True, check=True, timeout=30
    )
    orphan = int(parent.stdout)
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    with subprocess.Popen(sleeper, env=marked) as stopped, subprocess.Popen(sleeper) as stranger:
        stopped.send_signal(signal.SIGSTOP)
        assert {process.pid for process in cleanup.marked(value)} == {orphan, stopped.pid}
        assert cleanup.end_all(value) == 2
        stopped.wait(5)  # its exit code may have been collected by end_all
        assert _ended(stopped.pid) and _ended(orphan)
        assert stranger.poll() is None
        stranger.kill()
    assert cleanup.marked(value) == []
