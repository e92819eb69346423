"""The wall clock of a real process is set, and set right, and its monotonic clock goes on."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos import clocks
from tests.support.waiting import wait_until

#: Prints the wall clock and the monotonic one for each line that it gets.
TELLS = """
import sys, time
from time import time_ns
for line in sys.stdin:
    print(time.time() * 1000, time_ns() / 1e6, time.monotonic(), flush=True)
"""
APART_MS = 5_000.0


class Told:
    """A process that tells its clocks."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", TELLS],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ahead_ms(self) -> float:
        """By how much its wall clock is ahead of this process's."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        wall_ms, same_ms, monotonic = map(float, self.process.stdout.readline().split())
        assert abs(wall_ms - same_ms) < APART_MS and abs(monotonic - time.monotonic()) < APART_MS / 1000
        return wall_ms - time.time() * 1000


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return clocks.environment(tmp_path)


@pytest.fixture
def told(environment: dict[str, str]) -> Iterator[Told]:
    one = Told(environment)
    with one.process:
        yield one
        one.process.kill()


def test_the_clock_of_one_process_jumps_to_and_fro(told: Told, environment: dict[str, str]) -> None:
    other = Told(environment)
    with other.process:
        assert abs(told.ahead_ms()) < APART_MS
        jumping = clocks.Clocks(environment)
        pid = told.process.pid
        for ahead_ms in (3_600_000, -86_400_000, 60_000):
            jumping.jump(pid, ahead_ms)
            assert not jumping.taken(pid), "until the process looks at its clock"
            wait_until(lambda: abs(told.ahead_ms() - ahead_ms) < APART_MS)  # noqa: B023
            assert jumping.taken(pid) and abs(other.ahead_ms()) < APART_MS
        jumping.right(pid)
        wait_until(lambda: abs(told.ahead_ms()) < APART_MS)
        other.process.kill()


def test_a_clock_that_was_set_before_anyone_looked_is_right_again(
    told: Told, environment: dict[str, str]
) -> None:
    jumping = clocks.Clocks(environment)
    jumping.jump(told.process.pid, 3_600_000)
    jumping.right(told.process.pid)
    assert abs(told.ahead_ms()) < APART_MS
