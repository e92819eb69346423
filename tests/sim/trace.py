"""A schedule, told message by message: for reading what led to a violation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from escrowmq.replication.format.wire import RaftMessage
from tests.controls.guards import taken_away
from tests.controls.planting import planted
from tests.sim.simulation import Plan, Simulation, chosen_faults
from tests.sim.world import Violation


def describe(message: RaftMessage) -> str:
    """One message in one line, entries as (index, term)."""
    parts = []
    for key, value in message.items():
        if key == "entries":
            value = [(entry[1], entry[2]) for entry in value]
        if key != "type":
            parts.append(f"{key}={value}")
    return f"{message['type']} {' '.join(parts)}"


class Told(Simulation):
    """A simulation that prints what happens."""

    say: Callable[[str], None] = staticmethod(print)

    def tell(self, text: str) -> None:
        self.say(f"{self.world.elapsed_s:9.4f}  {text}")

    def traced(self, receiver: str, sender: str, message: RaftMessage) -> None:
        super().traced(receiver, sender, message)
        replica = next(r for r in self.replicas if r.name == receiver)
        node, journal = replica.node, replica.journal
        self.tell(
            f"{sender} -> {receiver} {describe(message)}   [{receiver}: term {node.term}, "
            f"log {journal.first_index}..{journal.last_index}, durable {journal.durable_index}, "
            f"commit {node.commit_index}{', leads' if node.is_leader else ''}]"
        )

    def acknowledged(self, index: int, term: int, command: bytes) -> None:
        self.tell(f"acknowledged: entry {index} of term {term}")
        super().acknowledged(index, term, command)

    def happened(self, text: str) -> None:
        self.tell(text)


def replay(seed: int, keywords: dict[str, Any]) -> int:
    """Run one seed and tell it; 1 if it broke a promise."""
    plan = Plan.of(seed, size=keywords["size"], kind=keywords["kind"])
    chaos_s = keywords["chaos_s"]
    simulation = Told(
        seed,
        plan,
        workload=keywords["workload"](),
        chaos_s=chaos_s,
        faults=chosen_faults(seed, chaos_s, keywords["only_faults"], keywords["plant"]),
        actions_max=keywords["actions_max"],
    )
    simulation.say(f"seed {seed}: {plan}")
    try:
        with planted(keywords["plant"]), taken_away(*keywords["drop"]):
            figures = simulation.run()
    except (Violation, Exception) as broken:
        simulation.tell(f"BROKEN: {type(broken).__name__}: {broken}")
        return 1
    simulation.say(f"nothing broken: {figures}")
    return 0
