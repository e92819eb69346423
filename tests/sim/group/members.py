"""Operators who change the members of a simulated group through its leader, with the product's own
``next_step``, repeatedly until the change is done.

They are careless: two may work at once, each asks any replica that believes it leads, and now and then one
asks to add a replica that was removed. Some act on an outdated view: the members that they have seen are
seconds old when the leader gets the request. The leader refuses what is not allowed.

A new replica has an empty disk and an unused id. A removed one lives on for a while, since nothing tells its
process; the checker observes it to the end.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from escrowmq.replication.errors import ChangeNotYet, ChangeRefused
from escrowmq.replication.format.membership import Members, in_order
from escrowmq.replication.raft.members import Act, Goal, Step, after, next_step
from tests.sim.faults.damage import knows_less, others_have_all
from tests.sim.faults.unfound import has_damaged_state, has_damaged_vote

if TYPE_CHECKING:
    from tests.sim.group.replica import SimReplica
    from tests.sim.group.simulation import Simulation

ASK_EVERY_S = 0.08
#: Approximate time from an operator's look at the members to the resulting step; most operators are quick.
LATE_S: dict[str, tuple[float, ...]] = {"operators": (0.0, 0.0, 0.0, 0.3, 1.0, 3.0)}
#: At most this many operators work at the same time.
AT_ONCE = 2
#: Range of the number of voters that changes lead to; a schedule has no time for more.
MOST, LEAST = 5, 1
LIVES_ON_S = 1.5


@dataclass(slots=True)
class Change:
    """One operator's change. ``steps``: the steps that were appended for it."""

    goal: Goal
    steps: int = 0
    refused: int = 0
    late_s: float = 0.0  # from the operator's look to the resulting step
    looked: bool = False  # the operator has looked, and the resulting step is still to come
    created: set[str] = field(default_factory=set)


class Operators:
    """The operators. They do nothing before the first fault of their kind."""

    def __init__(self, simulation: Simulation) -> None:
        self._sim = simulation
        self._rng = simulation.world.stream(f"operators{simulation.prefix}")
        self._late = simulation.world.stream(f"late-operators{simulation.prefix}")
        self.under_way: list[Change] = []
        self.done: list[Change] = []
        self.wanted = set(simulation.names)  # voters once everything is done
        self._next = len(simulation.names)
        self.begun = 0
        self.misled = 0  # steps that were not asked for: the leader counted on what nobody should rely on
        self._removed: list[str] = []
        self._asking = False

    # -------------------------------------------------------------- the fault
    def begin(self, rng: random.Random) -> str:
        """An operator begins a change of members."""
        if len(self.under_way) >= AT_ONCE:
            return ""
        add, remove = list[str](), list[str]()
        kind = rng.choice(("grow", "shrink", "replace", "replace"))
        if kind != "shrink" and (len(self.wanted) < MOST or kind == "replace"):
            add.append(f"{self._sim.prefix}r{self._next}")
            self._next += 1
        if kind != "grow" and len(self.wanted) > LEAST:
            remove.append(rng.choice(in_order(self.wanted)))
        if self._removed and rng.random() < 0.2:
            add.append(rng.choice(self._removed))
        if not add and not remove:
            return ""
        self.wanted = self.wanted - set(remove) | {name for name in add if name not in self._removed}
        self.begun += 1
        change = Change(Goal(f"change-{self.begun}", tuple(add), tuple(remove)))
        change.late_s = self._late.choice(LATE_S["operators"])
        self.under_way.append(change)
        if not self._asking:
            self._asking = True
            self.ask_soon()
        return f"{kind} +{','.join(add)} -{','.join(remove)}"

    # -------------------------------------------------------------- the operators
    def ask_soon(self) -> None:
        self._sim.world.later(ASK_EVERY_S * (0.2 + self._rng.random()), self._ask)

    def _ask(self) -> None:
        self.ask_soon()
        for change in list(self.under_way):
            if (leader := self._leader()) is None or change.looked:
                continue
            seen = leader.node.members.version
            if not change.late_s:
                self.ask_unless_misled(change, leader, seen)
            else:
                change.looked = True
                late_s = change.late_s * (0.5 + self._late.random())
                self._sim.world.later(late_s, self._act, change, seen)

    def _act(self, change: Change, seen: int) -> None:
        """Ask the current leader for the step that results from an old look."""
        change.looked = False
        leader = self._leader()
        if leader is not None and change in self.under_way:
            self.ask_unless_misled(change, leader, seen)

    def _leader(self) -> SimReplica | None:
        sim = self._sim
        leaders = [r for r in sim.replicas if r.up and r.node.is_leader and sim.world.now >= r.paused_until]
        return self._rng.choice(leaders) if leaders else None

    def ask_unless_misled(self, change: Change, leader: SimReplica, version: int) -> None:
        """Ask for the next step, unless it leaves no majority of voters that know what they promised, and the
        leader cannot know that. What the leader knows, it has to judge itself."""
        node = leader.node
        step = next_step(node.members, change.goal, leader.name, node.caught_up)
        if step.act in (Act.REMOVE, Act.PROMOTE):
            voters = set(after(node.members, step, change.goal.id).voters)
            lost = [r for r in self._sim.replicas if r.name in voters and knows_less(r)]
            if 2 * len(lost) >= len(voters) and (
                (step.act is Act.REMOVE and self._counts_on_ghosts(leader, voters))
                or any(self._is_damaged_unseen(replica) for replica in lost)
            ):
                self.misled += 1
                return
        self._ask_leader(change, leader, version)

    def _counts_on_ghosts(self, leader: SimReplica, voters: set[str]) -> bool:
        """Whether the leader counts on a replaced process, since it has not heard of the successor yet.

        The product's supervisor has itself replaced that process, so it does not count it, and does not ask
        (``member_steps``, ``_may_go``). Operators know nothing of the supervisor, and the leader has
        not heard of the successor yet: nobody else could prevent that an empty replica is needed for a
        majority.
        """
        replaced = {ghost.name for ghost in self._sim.ghosts} & voters - {leader.name}
        return any(r.name in replaced and leader.marks.of(r.name) != r.own for r in self._sim.replicas)

    def _is_damaged_unseen(self, replica: SimReplica) -> bool:
        """Whether the replica will need a leader's copy once somebody reads its files.

        State and vote are damaged on a minority at a time (damage.py), and that holds for the voters after a
        step as well. The operator waits until a scrub has found a damaged state and the replica has its copy.
        A damaged vote is found by a restart only, and there is none in the calm. A learner does not count,
        and the leader knows that.
        """
        if not replica.spoilt or replica.learner:
            return False
        return has_damaged_state(replica) or (not self._sim.calm and has_damaged_vote(replica))

    def _ask_leader(self, change: Change, leader: SimReplica, version: int) -> None:
        """Ask for the next step. ``version``: that of the members that the operator has seen."""
        node = leader.node
        if version != node.members.version:
            change.refused += 1
            return
        step = next_step(node.members, change.goal, leader.name, node.caught_up)
        if step.act is Act.DONE:
            if node.ready and node.applied_index >= leader.journal.members.newest_index:
                self._finish(change, node.members)
        elif step.act is Act.HAND_OVER:
            node.transfer_leadership()
        elif step.act is not Act.WAIT:
            if step.act is Act.ADD and step.replica not in change.created:
                change.created.add(step.replica)
                self._create(step.replica)
            leader.guarded(lambda: node.change_members(step, change.goal.id, self._answer(change, step)))
        leader.kick()

    def _answer(self, change: Change, step: Step) -> Any:
        def done(result: Any, applied: bool | None) -> None:
            change.steps += applied is True
            change.refused += isinstance(result, (ChangeNotYet, ChangeRefused))
            if applied:
                self._sim.happened(f"{change.goal.id}: {step} is applied")

        return done

    def _create(self, name: str) -> None:
        sim = self._sim
        again = name in sim.network.hosts  # the product prevents this
        newcomer = type(sim.replicas[0])(sim, name, address=f"{name}+" if again else name)
        newcomer.joining = True
        sim.add(newcomer, again)
        sim.world.later(0.01, newcomer.start)

    def _finish(self, change: Change, members: Members) -> None:
        self.under_way.remove(change)
        self.done.append(change)
        for name in change.goal.remove:
            gone = next((r for r in self._sim.replicas if r.name == name), None)
            if gone is not None and members.retired(name):
                self._removed.append(name)
                self._sim.retire(gone)
                self._sim.world.later(LIVES_ON_S * self._rng.random(), self._end, gone)

    def _end(self, gone: SimReplica) -> None:
        """End a removed replica; but keep the only sound copy of an entry that is damaged elsewhere."""
        if others_have_all(self._sim, gone):
            gone.superseded = True
            gone.crash(power=False)

    # -------------------------------------------------------------- at the end
    def missing(self) -> list[str]:
        """The changes that are not done yet, and the replicas that are left over."""
        missing = [f"{change.goal} is not done" for change in self.under_way]
        if not missing and self.begun:
            names = {replica.name for replica in self._sim.replicas}
            for replica in self._sim.replicas:
                if replica.up and set(replica.node.members.voters) != names:
                    missing.append(f"{replica.name} counts by {replica.node.members}, and there are {names}")
        return missing
