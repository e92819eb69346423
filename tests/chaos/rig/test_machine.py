"""EscrowMQ on three simulated machines: real network cuts, real full disks, one story after another.

Left out of ``make test``, whose slice of chaos has both under the checker (tests/chaos/test_slice.py).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.rig.machine import MachineRig

REASON = MachineRig.available()
ROOT = Path(__file__).resolve().parents[3]
pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(REASON is not None, reason=f"no simulated machines: {REASON}"),
]


@pytest.mark.timeout(300)
def test_a_leader_without_peers_and_a_leader_without_space() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos.rig.scenario", "cut", "full"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-8000:]
    assert "all is well" in done.stdout
