"""A replica that was replaced lives on, with Ray's processes and real signals: its peers refuse it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_process_on_a_node_that_was_given_up_is_refused() -> None:
    directory = Path(tempfile.mkdtemp(prefix="emq-", dir="/tmp"))  # sockets allow no long path
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tests.integration.ghost_scenario", str(directory)],
            cwd=ROOT,
            env={
                **os.environ,
                "RAY_AUTH_MODE": "disabled",
            },  # a token that lies on this machine is for others
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-8000:]
        assert "acknowledged messages are there" in done.stdout
    finally:
        shutil.rmtree(directory, ignore_errors=True)
