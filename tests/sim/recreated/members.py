"""Members of a consumer group that outlive the topic: the broker's real group service, and a consumer's real
membership state.

A member commits what it has read at any time. Its calls and their answers may be lost or late. A static
member's process is killed now and then, and the next one of its instance starts at once. Members may sleep
until their sessions have ended, and their group is deleted meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from escrowmq.actors.client.consumer_groups import (
    GroupJoined,
    InstanceTaken,
    MembershipStale,
    TopicPartition,
    coordinator_group,
)
from escrowmq.actors.consumer.membership_thread import Membership
from escrowmq.replication.calling.answers import Reply
from escrowmq.replication.model import NO_ID, ResultCode
from tests.sim.environment.world import Violation
from tests.sim.group.broker_app import BrokerApplication, ids_of
from tests.sim.group.group_service import SimGroupService, service_of
from tests.sim.recreated.model import GROUP, TOPIC, Era

if TYPE_CHECKING:
    from tests.sim.recreated.topic import RecreatedTopic

PAUSE_S = 0.06  # approximate time between two actions of a member
SESSION_S = 1.0
ANSWER_S = 0.1
LOST = 0.05
RESTARTS = 0.02  # share of a static member's actions that are a restart
POLL_BYTES = (1, 300, 5_000)


@dataclass(slots=True)
class _Position:
    offset: int
    era: Era  # the life of topic and group in which the offset was looked up


class Member:
    """One member."""

    def __init__(self, name: str, topic: RecreatedTopic, *, static: bool = False) -> None:
        self._topic, self._instance = topic, name if static else None
        self._name = f"{name}@{0:016x}" if static else name
        self._process = 0
        self._rng = topic.desks[0].world.stream(f"recreated-{name}")
        self._gid = coordinator_group(GROUP, len(topic.desks))
        self._membership = Membership(GROUP, self._name)
        self._held: dict[TopicPartition, _Position | None] = {}
        self._calling = self._committing = False
        self.asleep_until = 0.0

    def act(self) -> None:
        """Poll, send a heartbeat, or commit; repeat until the end."""
        if self._topic.desks[0].cluster.calm:
            return
        self._topic.later(self._rng.expovariate(1 / PAUSE_S), self.act)
        if self._topic.desks[0].world.elapsed_s < self.asleep_until:
            return
        if self._instance is not None and self._rng.random() < RESTARTS:
            self._restart(self._instance)
        chance = self._rng.random()
        if chance < 0.3:
            self._keep_membership()
        elif chance < 0.7:
            self._poll()
        else:
            self._commit()

    def _restart(self, instance: str) -> None:
        """Restart as a new process, which knows nothing and gets no answer meant for the previous one."""
        self._process += 1
        self._name = f"{instance}@{self._process:016x}"
        self._membership = Membership(GROUP, self._name)
        self._held = {}
        self._calling = self._committing = False
        self._topic.done["restarted"] += 1

    def _service(self) -> tuple[BrokerApplication, SimGroupService] | None:
        found = self._topic.leader(self._gid)
        if found is None or self._rng.random() < LOST:
            return None
        return found[1], service_of(self._topic.desks[0].world, *found)

    # -------------------------------------------------------------- membership
    def _keep_membership(self) -> None:
        found = None if self._calling else self._service()
        if found is None:
            return
        _, service = found
        member, generation = self._membership, self._membership.generation
        self._calling = True
        if member.joined:
            answer = service.groups.heartbeat(GROUP, self._name, generation)
            self._later(self._heard, generation, member.joins, answer)
            return
        claim = self._membership.claim()
        answer = service.groups.join(GROUP, self._name, [TOPIC], SESSION_S, list(self._held), *claim)
        self._later(self._joined, answer)

    def _later(self, then: Callable[..., None], *args: Any) -> None:
        """Deliver the answer later, or lose it."""
        lost, process = self._rng.random() < LOST, self._process

        def answered() -> None:
            if process == self._process:
                (self._calls_end if lost else then)(*args)

        self._topic.later(ANSWER_S * self._rng.random(), answered)

    def _calls_end(self, *args: Any) -> None:
        self._calling = False

    def _joined(self, answer: Reply) -> None:
        self._calling = False
        if answer[0] == "ok" and isinstance(answer[1], InstanceTaken):
            raise Violation(f"{self._name}, the latest of its instance, is fenced", "unexpected-answer")
        if answer[0] == "ok" and isinstance(answer[1], GroupJoined):
            self._membership.on_join(answer[1])

    def _heard(self, generation: int, joins: int, answer: Reply) -> None:
        self._calling = False
        member = self._membership
        if answer[0] != "ok" or joins != member.joins or not member.joined:
            return
        if isinstance(answer[1], InstanceTaken):
            raise Violation(f"{self._name}, the latest of its instance, is fenced", "unexpected-answer")
        if isinstance(answer[1], MembershipStale):
            member.on_stale()
        elif generation == member.generation:
            member.on_heartbeat(answer[1])

    # -------------------------------------------------------------- reading
    def _poll(self) -> None:
        offer = self._membership.take_over()
        if offer is not None:
            kept = set(self._held) if offer.kept is None else offer.kept
            self._held = {tp: self._held.get(tp) if tp in kept else None for tp in sorted(offer.partitions)}
        for tp, position in self._held.items():
            if position is None:
                self._look_up(tp)
        standing = [(tp, position) for tp, position in self._held.items() if position is not None]
        if standing:
            self._read(*self._rng.choice(standing))

    def _look_up(self, tp: TopicPartition) -> None:
        """Look up the group's committed offset, or the start of the partition."""
        found = self._topic.leader(self._gid)
        if found is None:
            return
        _, app = found
        life = self._topic.models[self._gid].at(app.applied_index)
        if life is not None:
            committed = app.replica.state.group_offsets.get(GROUP, {}).get(TOPIC, {}).get(tp[1])
            if committed is not None:
                self._topic.models[self._gid].check_offset(life, app.applied_index, GROUP, tp[1], committed)
            era = self._topic.models[self._gid].era(life, app.applied_index)
            self._held[tp] = _Position(committed or 0, era)

    def _read(self, tp: TopicPartition, position: _Position) -> None:
        if self._topic.info is None or tp[1] >= self._topic.info.partitions:
            return
        gid = self._topic.group_of(tp[1])
        replicas = self._topic.desks[gid].replicas()
        if not replicas:
            return
        replica, app = self._rng.choice(replicas)
        wanted = self._membership.ids.get(TOPIC, NO_ID)
        model = self._topic.models[gid]
        life = model.at(app.applied_index)
        result = app.fetch(*tp, position.offset, self._rng.choice(POLL_BYTES), wanted)
        if result is None or life is None:
            return
        if result[2] in (ResultCode.OK, ResultCode.OUT_OF_RANGE) and wanted not in (NO_ID, life.id):
            text = f"{self._name} reads {TOPIC} with id {wanted}, and {replica.name} answers of id {life.id}"
            raise Violation(text, "namesake")
        if result[2] == ResultCode.OUT_OF_RANGE and position.offset < result[3]:
            position.offset, position.era = result[3], (life.number, position.era[1])
        elif result[2] == ResultCode.OK and (records := ids_of(result, position.offset)):
            model.check_read(life, tp[1], records, replica.name)
            position.offset = records[-1][0] + 1

    # -------------------------------------------------------------- committing
    def _commit(self) -> None:
        standing = [(tp, position) for tp, position in self._held.items() if position is not None]
        found = None if self._committing or not standing or not self._membership.joined else self._service()
        if found is None:
            return
        _, service = found
        (topic, partition), position = self._rng.choice(standing)
        stood = self._topic.models[self._gid].stood
        stood.setdefault((GROUP, partition, position.offset), set()).add(position.era)
        self._committing = True
        process = self._process
        self._topic.later(0.5, self._commit_ends, process)  # longer than the log takes, or its answer is lost
        answer = service.commit(
            *(GROUP, self._name, self._membership.generation, {topic: {partition: position.offset}}),
            self._committed,
        )
        if answer[0] == "ok" and isinstance(answer[1], MembershipStale):
            self._topic.done["old place refused" if "created again" in answer[1].reason else "stale"] += 1
            self._membership.on_stale()

    def _commit_ends(self, process: int) -> None:
        if process == self._process:
            self._committing = False

    def _committed(self, reply: Reply) -> None:
        self._topic.done["places"] += reply[0] == "ok"
