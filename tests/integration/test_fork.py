"""A process forks after it has connected: the child gets an error at once, and the parent continues."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ray


def test_a_child_is_told_at_once_and_the_parent_goes_on(ray_local: str, cluster: object) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.fork_scenario", ray_local],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0 and "the child was told" in said and "the parent goes on" in said, said
    assert said.count("an exit hook ran") == 2 and "SIGSEGV" not in said, said
