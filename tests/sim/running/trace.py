"""Prints a schedule message by message, to find out what led to a violation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from escrowmq.replication.format.wire import RaftMessage
from tests.sim.across.simulation import ManyGroups, Part
from tests.sim.group.simulation import Simulation
from tests.sim.running.schedules import carry_out, chosen_faults, made


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
        replica = next(r for r in (*self.replicas, *self.retired) if r.name == receiver)
        if not replica.began:  # its predecessor receives it, or nobody
            self.tell(f"{sender} -> {receiver} {describe(message)}")
            return
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


class ToldPart(Told, Part):
    """One of several groups; it also prints what happens."""


class ToldMany(ManyGroups):
    """A simulation of several groups that prints what happens."""

    part_class = ToldPart
    say: Callable[[str], None] = staticmethod(print)

    def happened(self, text: str) -> None:
        self.say(f"{self.world.elapsed_s:9.4f}  {text}")


def replay(seed: int, keywords: dict[str, Any]) -> int:
    """Run one seed and print what happens; returns 1 if it broke a promise, else 0."""
    settings = dict(keywords)
    drop, plant, only = settings.pop("drop"), settings.pop("plant"), settings.pop("only_faults")
    faults = chosen_faults(seed, settings["chaos_s"], only, plant, settings["groups"], settings["aim"])
    simulation = made(seed, faults=faults, one=Told, many=ToldMany, **settings)
    assert isinstance(simulation, Told | ToldMany)
    chosen = simulation.plan if isinstance(simulation, Told) else simulation.scene
    simulation.say(f"seed {seed}: {chosen}")
    broken = carry_out(simulation, drop=drop, plant=plant)
    if broken is not None:
        simulation.say(f"{simulation.world.elapsed_s:9.4f}  BROKEN: {broken}")
        return 1
    simulation.say(f"nothing broken: {simulation.figures()}")
    return 0
