"""Three Ray nodes: spread out, one lost, one back, one replaced; ``escrowmq up``, ``status`` and ``down``."""

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
def test_a_cluster_on_three_nodes_survives_what_happens_to_nodes() -> None:
    directory = Path(tempfile.mkdtemp(prefix="emq-", dir="/tmp"))  # sockets allow no long path
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tests.integration.nodes_scenario", str(directory)],
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
        assert "down and up again with everything" in done.stdout
    finally:
        shutil.rmtree(directory, ignore_errors=True)
