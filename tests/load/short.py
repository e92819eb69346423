"""One short overload and one short slow follower, for the test beside this. Prints their figures as JSON.

``python -m tests.load.short FOLDER``: a program of its own, since it starts a Ray of its own.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import escrowmq
from benchmarks.group import GroupUnderTest
from benchmarks.load import followers
from benchmarks.load.overload import OverloadPlan, overload

PLAN = OverloadPlan(
    processes=2, producers=2, buffer_bytes=96 << 10, step_s=1.5, first_rate=8_000.0, seconds=5.0, steps_max=2
)


def main(folder: Path) -> None:
    """Both, one after the other."""
    with escrowmq.start_local(groups=1, replicas=3, data_dir=folder / "overload") as cluster:
        pids = {
            n: p for n, p in GroupUnderTest(cluster).pids().items() if n.startswith(("leader", "follower"))
        }
        first = overload(cluster, pids, PLAN, folder, print_beside)
    second = followers.slow(folder / "slow", 3.0, print_beside)
    print(json.dumps({"overload": first, "slow": second}))


def print_beside(text: str) -> None:
    """Print beside the figures, which are on standard output."""
    print(text, file=sys.stderr)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
