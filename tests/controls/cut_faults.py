"""Planted faults in the search for a stable cut through several groups."""

from __future__ import annotations

import pytest

from escrowmq.actors.admin import stable_cut
from escrowmq.replication.state.machine import StableCuts
from tests.controls.planting import plant
from tests.controls.scenes import ALL_ACROSS, world

busy = world(ALL_ACROSS | {"act_every_s": 0.05})


@plant(
    "cut-of-two-rounds", "cut-torn", groups=2, chaos_s=8.0, start=12, within=40, conditions=busy, long=True
)
def cut_of_two_rounds(patch: pytest.MonkeyPatch) -> None:
    """Nobody asks whether a transaction was decided between the first round and the second."""
    patch.setattr(stable_cut, "is_unmoved", lambda settled, last: True)


@plant(
    "decision-not-noted", "cut-torn", groups=2, chaos_s=8.0, start=24, within=40, conditions=busy, long=True
)
def decision_not_noted(patch: pytest.MonkeyPatch) -> None:
    """A group does not say that it has decided a transaction over several groups since the first round."""
    patch.setattr(StableCuts, "committed", lambda self, index: None)
