"""A consumer group whose members are the product's own consumers, over a topic that is deleted and created
again.

Each member is a process that polls, handles for a while what it got, and commits; it stops, dies and is
replaced, unsubscribes for a while, and is interrupted while it polls. The topic, its life and its messages
are those of ``recreated``. Whatever the members meet (deposed leaders, replicas that lag or have an earlier
topic, lost answers), at the end each message of the topic's last life must have been handled: by a process
that committed behind it, or that still has it in hand (``skipped``). The same is reported as soon as the
group's offset passes a message that no member was given. A record must be what stands at its offset in some
life (``namesake``). A member that has unsubscribed is given nothing (``unsubscribed``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from escrowmq.actors.client.consumer_groups import coordinator_group
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.actors.consumer.config import ConsumerConfig
from escrowmq.actors.consumer.consumer import Consumer
from escrowmq.replication.errors import EscrowMQError
from escrowmq.replication.format.codec import Op
from escrowmq.replication.format.operation import OpType
from escrowmq.replication.model import ConsumerRecord
from tests.history.events import identify
from tests.sim.environment.fibres import Fibres
from tests.sim.environment.world import Violation
from tests.sim.group.broker_app import BrokerApplication
from tests.sim.recreated.model import STREAMED as GROUP
from tests.sim.recreated.model import TOPIC, Life
from tests.sim.streams.answers import StreamWire
from tests.sim.streams.background import Process

if TYPE_CHECKING:
    from tests.sim.across.workload import AcrossWorkload

SHARE = 0.5  # of the worlds with such a topic
MEMBERS = 2
LIFE_S = (
    2.0  # approximate length of a life of the topic: a group that has lost its leader begins in that time
)
PAUSE_S = 0.03  # approximate time between two sends
BEGIN_EVERY_S = 0.1
POLLS_S = (0.0, 0.05, 0.3)
RECORDS = (1, 5, 500)
HANDLES_S = (0.0, 0.01, 0.1)
COMMITS = 0.6  # share of polls with records that are followed by a commit
DIES, STOPS, STOPPED_S = 0.02, 0.03, (0.3, 1.5, 3.0)
#: Share of the polls with records after which it unsubscribes for a while, and of the records at which a poll
#: is interrupted, as by Ctrl-C: it returns nothing of what it has taken.
UNSUBSCRIBES, AWAY_S, INTERRUPTED = 0.06, (0.1, 0.5, 2.0), 0.1
BACK_S = 0.3  # approximate time until another process comes for one that has died
CONFIG = ConsumerConfig(
    auto_offset_reset="earliest",
    fetch_bytes=300,
    fetch_wait_s=0.2,
    buffer_bytes=2_000,
    session_timeout_s=1.0,
    heartbeat_interval_s=0.1,
    call_timeout_s=4.0,
)


class _Interrupted(BaseException):
    """As ``KeyboardInterrupt``, in the middle of a poll."""


class Member:
    """One process of the group."""

    def __init__(self, group: StreamGroup, name: str) -> None:
        self._group, world = group, group.world
        self.process = Process(world, group.fibres, group.wire, name)
        #: Ids that it was given and has not committed.
        self.held_batches: set[str] = set()
        with self.process.making():
            self._consumer = Consumer(
                group.info,
                group=GROUP,
                config=CONFIG,
                calls=self.process,
                background=self.process,
                value_deserializer=self._deserialized,
            )
        group.fibres.start(name, self._live)

    def _live(self) -> None:
        self._subscribe()
        rng, process = self.process.rng, self.process
        while True:
            records = self._poll()
            self.held_batches.update(self._group.given(record) for record in records)
            if records and not self._group.calm and self._falters():
                return
            if records and not self._group.calm and rng.random() < UNSUBSCRIBES:
                self._stay_away()
            process.sleep(rng.choice(HANDLES_S) * rng.random())
            if self.held_batches and (self._group.calm or rng.random() < COMMITS):
                self._commit()

    def _subscribe(self) -> None:
        while True:
            try:
                self._consumer.subscribe([TOPIC])
            except EscrowMQError:  # it does not exist now, or nobody answers
                self.process.sleep(0.1)
            else:
                return

    def _stay_away(self) -> None:
        """Unsubscribes for a while, and polls as before. Others get what it had not committed."""
        self._group.done["unsubscribed"] += 1
        self._consumer.subscribe([])
        self.held_batches.clear()
        until = self._group.world.now + self.process.rng.choice(AWAY_S)
        while self._group.world.now < until:
            if records := self._poll():
                text = f"{self.process.name} is subscribed to nothing, and is given {records[0]}"
                raise Violation(text, "unsubscribed")
            self.process.sleep(0.05)
        self._subscribe()

    def _deserialized(self, value: bytes) -> bytes:
        if not self._group.calm and self.process.rng.random() < INTERRUPTED:
            raise _Interrupted
        return value

    def _poll(self) -> Sequence[ConsumerRecord]:
        rng = self.process.rng
        try:
            return self._consumer.poll(rng.choice(RECORDS), rng.choice(POLLS_S))
        except EscrowMQError as error:  # the topic is deleted, or nobody answers
            self._group.done[type(error).__name__] += 1
            self.process.sleep(0.05)
            return ()
        except _Interrupted:
            self._group.done["interrupted"] += 1
            return ()

    def _commit(self) -> None:
        """What it holds is handled: behind a commit that succeeds nobody gets it again."""
        had = set(self.held_batches)
        try:
            self._consumer.commit()
        except EscrowMQError as error:
            self._group.done[f"commit: {type(error).__name__}"] += 1
            self.process.sleep(0.02)
        else:
            self._group.done["commits"] += 1
            self._group.handled |= had
            self.held_batches -= had

    def _falters(self) -> bool:
        """Whether it dies; or it stops for a while, with everything that it has."""
        chance = self.process.rng.random()
        if chance < DIES:
            self._group.died(self)
            return True
        if chance < DIES + STOPS:
            self._group.done["stopped"] += 1
            world, rng = self._group.world, self.process.rng
            self.process.stopped_until = world.now + rng.choice(STOPPED_S) * (0.5 + rng.random())
            self.process.sleep(0.0)
        return False


class StreamGroup:
    """The group in one world."""

    def __init__(self, all: AcrossWorkload) -> None:
        self._all, self.world = all, all.many.world
        rng = self.world.stream("streams")
        self.fibres = Fibres(self.world)
        self.wire = StreamWire(all.many.parts, self.fibres)
        self.info = ClusterInfo("sim", "sim", all.scene.groups, all.scene.size)
        self._rng = rng
        self.done: Counter[str] = Counter()
        self.handled, self._given = set[str](), set[str]()
        #: (topic's id, partition) -> up to where the group's offset has moved.
        self._passed: dict[tuple[int, int], int] = {}
        self.members: list[Member] = []
        self._names = 0
        self.works = all.recreated.works and (rng.random() < SHARE or "streams" in all.scene.reach)
        if self.works:
            all.recreated.is_streamed(LIFE_S, PAUSE_S)
            all.later(0.0, self._begin)

    @property
    def calm(self) -> bool:
        return self._all.many.calm

    def _begin(self) -> None:
        if self.calm:
            return
        if not self._all.recreated.topic_id:
            self._all.later(BEGIN_EVERY_S, self._begin)
            return
        for _ in range(MEMBERS):
            self._hire()

    def _hire(self) -> None:
        self._names += 1
        self.members.append(Member(self, f"streamed-{self._names:04}"))

    def died(self, member: Member) -> None:
        """Another one comes soon; nobody has what it had in hand."""
        self.done["died"] += 1
        self.members.remove(member)
        member.process.die()
        self._all.later(self._rng.expovariate(1 / BACK_S), self._hire)

    def heard(self, gid: int, ops: Sequence[Op]) -> None:
        """An entry of a broker group is applied for the first time."""
        if not self.members or gid != coordinator_group(GROUP, self.info.groups):
            return
        life = self._all.recreated.models[gid].life
        for op in ops:
            if op.type != OpType.GROUP_OFFSETS or life is None:
                continue
            if (op.meta.group, op.meta.topic) == (GROUP, TOPIC):
                for number, committed in zip(op.meta.offsets[::2], op.meta.offsets[1::2], strict=True):
                    self._passes(life.id, number, committed)

    def _passes(self, topic_id: int, number: int, committed: int) -> None:
        """The group's offset moves: whatever is below, somebody was given, or retention has removed it."""
        for model in self._all.recreated.models:
            life = model.life
            if life is None or life.id != topic_id or number not in life.held:
                continue
            begin = max(life.starts[number], self._passed.get((topic_id, number), 0))
            for offset, (id, _) in enumerate(life.held[number][begin:committed], begin):
                if id not in self._given:
                    text = f"{GROUP!r} passes {id} at {offset} of {TOPIC}[{number}]"
                    raise Violation(f"{text}, in life {life.number}, which no member was given", "skipped")
            self._passed[topic_id, number] = max(committed, self._passed.get((topic_id, number), 0))

    def given(self, record: ConsumerRecord) -> str:
        """A member was given this: its id, which belongs to one life of the topic."""
        self.done["given"] += 1
        id = identify(record.value or b"")
        self._given.add(id)
        gid = record.partition % self.info.groups
        models = self._all.recreated.models
        if not any(_stands(life, record, id) for model in models for life in model.lives()):
            text = f"{id} is delivered from {TOPIC}[{record.partition}] at {record.offset}"
            raise Violation(f"{text} (group {gid}), where it stood in no life", "namesake")
        return id

    # -------------------------------------------------------------- at the end

    def _left(self, leaders: Sequence[BrokerApplication]) -> dict[int, tuple[int, int]]:
        """Partition -> the group's offset and the end, where it is not at the end."""
        state = leaders[coordinator_group(GROUP, self.info.groups)].replica.state
        committed = state.group_offsets.get(GROUP, {}).get(TOPIC, {})
        found = {}
        for leader in leaders:
            topic = leader.replica.state.topics.topics.get(TOPIC)
            for number, partition in {} if topic is None else topic.partitions.items():
                offset = committed.get(number, 0)
                if max(offset, partition.index.start) < partition.index.end:
                    found[number] = offset, partition.index.end
        return found

    @property
    def waiting(self) -> int:
        """Partitions that the group has not read to their ends; 1 if somebody cannot be asked."""
        if not self.members:
            return 0
        leaders = [self._all.leader(gid) for gid in range(self.info.groups)]
        if any(leader is None for leader in leaders):
            return 1
        return len(self._left([leader for leader in leaders if leader is not None]))

    def check(self) -> None:
        """Each message of the last life was handled."""
        if not self.members:
            return
        had = self.handled.union(*(member.held_batches for member in self.members))
        for model in self._all.recreated.models:
            life = model.life
            for number, held in {} if life is None else life.held.items():
                assert life is not None
                for offset in range(life.starts[number], len(held)):
                    if held[offset][0] not in had:
                        text = f"{held[offset][0]} at {offset} of {TOPIC}[{number}], in life {life.number},"
                        raise Violation(f"{text} was never handled by group {GROUP!r}", "skipped")

    def close(self) -> None:
        """End what still runs."""
        self.fibres.close()


def _stands(life: Life, record: ConsumerRecord, id: str) -> bool:
    held = life.held.get(record.partition, ())
    return record.offset < len(held) and held[record.offset][0] == id
