"""Overload and a slow follower against real processes: bounds and outcomes, no speeds."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.long, pytest.mark.timeout(420)]

ROOT = Path(__file__).parents[2]
#: Own memory of a broker under a few seconds of overload: 60 MB of Python and Ray, its queue, its tables.
BROKER_MB_MAX = 500


def test_overload_is_refused_with_a_hint_and_nothing_is_lost_or_twice() -> None:
    folder = Path(tempfile.mkdtemp(prefix="emq-load-", dir="/tmp"))
    try:
        run = subprocess.run(
            [sys.executable, "-m", "tests.load.short", str(folder)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=400,  # on a machine with other things to do; half a minute on one without
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assert run.returncode == 0, run.stderr[-4_000:]
    figures = json.loads(run.stdout.splitlines()[-1])
    overload, slow = figures["overload"], figures["slow"]
    assert overload["violations"] == [] and slow["violations"] == []
    assert set(overload["answers"]) == {"offered", "accepted", "refused"}, "no other error"
    assert overload["comparison"]["accepted"] == overload["comparison"]["read"] > 0
    for name, memory in overload["memory_mb"].items():
        assert memory["max"] < BROKER_MB_MAX or name.startswith("clients"), (name, memory)
    assert slow["comparison"]["lost"] == 0 and slow["comparison"]["accepted"] > 100
