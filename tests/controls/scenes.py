"""Worlds of several groups in which a planted fault shows: conditions that are harmless by themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from escrowmq.replication.format.settings import Settings
from tests.controls.planting import Install
from tests.sim.across.scene import Scene

#: Ids are forgotten all the time, and many requests arrive a second time much later.
FORGETFUL: dict[str, Any] = {
    "across": 0.0,
    "late_copies": 0.3,
    "tables": Settings(settled_generation=60, producers_generation=15, groups_kept=2),
}
#: The same, and hardly any producer is remembered.
FORGETFUL_OF_PRODUCERS: dict[str, Any] = FORGETFUL | {
    "tables": Settings(settled_generation=60, producers_generation=3, groups_kept=2)
}
#: Every transaction lies in several groups, and everything is remembered.
ALL_ACROSS: dict[str, Any] = {"across": 1.0, "tables": None, "crowd": False}
#: A check that finds no row says ROLLBACK and writes none.
UNFENCED: dict[str, Any] = {"fence": False}


def world(wanted: dict[str, Any]) -> Install:
    """Change these fields in every scene that is drawn. Without ``firsts`` a topic's name places it."""
    wanted = {"firsts": None, **wanted}

    def install(patch: pytest.MonkeyPatch) -> None:
        drawn = Scene.of
        patch.setattr(Scene, "of", lambda *args, **named: replace(drawn(*args, **named), **wanted))

    return install


all_across = world(ALL_ACROSS)
