"""A replaced replica is still alive (real Ray processes and signals): its peers refuse it."""

from __future__ import annotations

import pytest

from tests.integration.stories import told


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_process_on_a_node_that_was_given_up_is_refused() -> None:
    told("ghost_scenario", "acknowledged messages are there")
