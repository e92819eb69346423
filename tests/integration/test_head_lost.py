"""Ray's head is lost with its machine: with fault tolerance clients see no error, without it they get one.

The clusters have several nodes and wait for a lost head: two and a half minutes, so in ``make test-long``.
"""

from __future__ import annotations

import pytest

from escrowmq.actors.client.topology import RECONNECT_VARIABLE
from tests.integration.stories import told


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.timeout(300)
def test_with_fault_tolerance_nobody_notices() -> None:
    ending = "nothing was noticed, and everything is well"
    told("head_scenario", ending, "survives", **{RECONNECT_VARIABLE: "600"})


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.timeout(300)
def test_without_it_everybody_is_told_what_happened() -> None:
    told("head_scenario", "everybody was told what happened", "ends", **{RECONNECT_VARIABLE: "5"})


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.timeout(300)
def test_with_fault_tolerance_more_than_rays_own_minute_is_survived() -> None:
    ending = "nothing was noticed, and everything is well"
    told("head_scenario", ending, "survives", "90", **{RECONNECT_VARIABLE: "600"})
