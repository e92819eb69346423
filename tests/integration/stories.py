"""Runs a scenario (``*_scenario.py``) in its own process: a process can connect to only one Ray cluster."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def told(story: str, ending: str, *more: str, patience_s: float = 280.0, **variables: str) -> None:
    """Run ``tests.integration.<story>``, which must succeed and print ``ending``; with its own directory,
    ``more`` arguments, and environment variables."""
    directory = Path(tempfile.mkdtemp(prefix="emq-", dir="/tmp"))  # sockets allow no long path
    try:
        done = subprocess.run(
            [sys.executable, "-m", f"tests.integration.{story}", str(directory), *more],
            cwd=ROOT,
            # A token on this machine belongs to another Ray cluster.
            env={**os.environ, "RAY_AUTH_MODE": "disabled", **variables},
            capture_output=True,
            text=True,
            timeout=patience_s,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-8000:]
        assert ending in done.stdout
    finally:
        shutil.rmtree(directory, ignore_errors=True)
