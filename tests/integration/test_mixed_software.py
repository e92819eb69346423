"""An upgrade, node by node: brokers and clients of today's version and of a next one in one cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.stories import told
from tests.support.next_software import LEVEL, made


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_cluster_is_upgraded_node_by_node_while_clients_of_both_versions_work() -> None:
    told("mixed_scenario", "done", patience_s=580.0)


def test_the_next_software_has_one_level_more(tmp_path: Path) -> None:
    place = made(tmp_path / "next")
    code = (
        "from escrowmq.replication.format import ops; "
        "from escrowmq.replication.state.machine import LEVEL_MAX; "
        "print(LEVEL_MAX, ops.Cut.LEVEL, ops.MessageOp.LEVEL, ops.__file__)"
    )
    environment = {**os.environ, "PYTHONPATH": str(place)}
    told = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    *levels, where = told.stdout.split()
    assert levels == [str(LEVEL), str(LEVEL), "1"] and where.startswith(str(place))
