"""Calls through Ray at the end of a process."""

from __future__ import annotations

import subprocess
import sys

#: A thread that goes on calling while the interpreter ends, as a fetch thread does.
CALLS_AT_THE_END = """
import threading
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.actors.client.ray_calls import RayCalls

calls, ended = RayCalls(ClusterInfo("c", "at-the-end", 1, 2)), threading.Event()

def call_on():
    ended.wait()
    threading.main_thread().join()
    answers = []
    for rid in (0, 0, 1):
        calls.call(0, rid, "status", (), lambda answer, error: answers.append(error))
    print([type(error).__name__ for error in answers])

thread = threading.Thread(target=call_on)
thread.start()
ended.set()
"""


def test_a_call_while_the_interpreter_ends_is_answered_with_an_error() -> None:
    """Formerly 'cannot schedule new futures after interpreter shutdown', with a traceback of each thread."""
    ended = subprocess.run(
        [sys.executable, "-c", CALLS_AT_THE_END], capture_output=True, text=True, check=False, timeout=60
    )
    assert (ended.returncode, ended.stdout) == (0, "['RuntimeError', 'RuntimeError', 'RuntimeError']\n"), (
        ended.stderr
    )
    assert "Traceback" not in ended.stderr
