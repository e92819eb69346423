"""The state of a replica's process, when two processes have the replica's name."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

from tests.sim.across.workload import AcrossWorkload, GroupWorkload
from tests.sim.clients.workload import ReplicaContext
from tests.sim.group.broker_app import BrokerApplication


class Turns:
    """A ``SimBranches`` that only records whether it was ended."""

    def __init__(self, app: BrokerApplication, context: ReplicaContext, clients: AcrossWorkload) -> None:
        self.ended = False

    def end(self) -> None:
        self.ended = True


def test_a_ghost_that_starts_leaves_its_successor_alone() -> None:
    """Both are ``g0r1``. Without the successor's turns, nothing would ask about the group's branches."""
    group = GroupWorkload(cast("AcrossWorkload", SimpleNamespace()), 0, 2, cast("Any", Turns))

    def starts(address: str) -> None:
        nothing = cast("Any", None)
        context = ReplicaContext(
            "g0r1", address, nothing, nothing, random.Random(0), nothing, nothing, nothing
        )
        group.begin(cast("BrokerApplication", None), context)

    def working() -> set[str]:
        return {address for address, turns in group.branching.items() if not cast("Any", turns).ended}

    starts("g0r1#2")
    starts("g0r1")
    assert working() == {"g0r1", "g0r1#2"}
    first = group.branching["g0r1"]
    starts("g0r1")
    assert working() == {"g0r1", "g0r1#2"}
    assert cast("Any", first).ended, "what the process began before its restart"
