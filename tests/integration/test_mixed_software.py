"""An upgrade, node by node: brokers and clients of an earlier version and of today's in one cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.stories import told
from tests.support.earlier_software import LEVEL, unpacked


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_cluster_is_upgraded_node_by_node_while_clients_of_both_versions_work() -> None:
    told("mixed_scenario", "done", patience_s=580.0)


def test_the_earlier_software_is_whole(tmp_path: Path) -> None:
    place = unpacked(tmp_path / "earlier")
    assert (
        f"LEVEL_MAX = {LEVEL}\n" in (place / "escrowmq" / "replication" / "state" / "machine.py").read_text()
    )
    assert (place / "escrowmq" / "cluster" / "cli" / "__init__.py").exists()
