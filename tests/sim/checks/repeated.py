"""Checks that a schedule is the same in every process, although string hashes differ between processes."""

from __future__ import annotations

import subprocess
import sys


def check_the_same_everywhere(schedule: str) -> None:
    """``schedule``: arguments of ``run_seed``, as text."""
    code = "from tests.sim.running.schedules import run_seed; "
    code += "from tests.sim.clients.workload import RawWorkload; "
    code += "from tests.sim.clients.broker_workload import BrokerWorkload; "
    code += f"print(run_seed({schedule}, trace=True)[0].trace)"
    traces = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(traces) == 1
    assert len(traces.pop().strip()) == 40
