"""Three Ray nodes: spread, one lost, one back, one replaced; ``escrowmq up``, ``status`` and ``down``."""

from __future__ import annotations

import pytest

from tests.integration.stories import told


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_cluster_on_three_nodes_survives_what_happens_to_nodes() -> None:
    told("nodes_scenario", "down and up again with everything")


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.timeout(400)
def test_replicas_are_spread_moved_and_taken_out_by_command() -> None:
    told("nodes_scenario", "moved, by command", "--commands")
