"""Members of a consumer group that make outputs of inputs, in transactions that move the group's offsets.

Each works on any partitions, as if it had just been given them by a coordinator that errs: several work on
the same ones, from offsets that a deposed leader has told them, or that they remember. They die, roll back,
or sleep for longer than their time-out. At the end the outputs and the offsets must say the same: anomalies
``processed-twice``, ``output-without-offset``, ``offset-without-output`` and ``held-for-ever``.

The inputs are numbers only: nothing of the broker depends on what is at an offset. They are part of worlds in
which ``pipelines`` is in reach.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from escrowmq.actors.admin.topic_creation import topic_settings
from escrowmq.actors.client.consumer_groups import TopicPartition, coordinator_group
from escrowmq.actors.client.group_work import GroupWork, Span
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.actors.producer.config import ProducerConfig
from escrowmq.actors.producer.encoding.blocks import Outcome
from escrowmq.actors.producer.encoding.encoder import Encoder, TxPlan
from escrowmq.replication.errors import EscrowMQError
from escrowmq.replication.format.ops import NONE_YET
from escrowmq.replication.model import Message
from tests.history.events import body
from tests.sim.across.producers import SimCore
from tests.sim.across.stepping import SteppedTransaction
from tests.sim.across.turns import WorldTurns
from tests.sim.clients.delayed_end import readable
from tests.sim.clients.ledger import PIPELINE
from tests.sim.clients.topics import Topics
from tests.sim.environment.world import Violation
from tests.sim.group.broker_app import BrokerApplication
from tests.support.places import by_name

if TYPE_CHECKING:
    from tests.sim.across.workload import AcrossWorkload

GROUP, INPUT, OUTPUT = "pipeline-group", "pipe-in", "pipe-out"
MEMBERS, INPUTS = 3, 3
BEGINS = 0.5  # share of the clients' steps at which an idle member begins
REMEMBERS = 0.2  # share of the work that begins at an offset that the member remembers
TIMEOUT_MS = 500
TAKES_S = (0.0, 0.0, 0.02, 0.1, 0.8)  # between prepare and the decision
END_S = 30.0  # within which nothing is held any more


class Member:
    """One of them; its process may end, and another one takes its place."""

    def __init__(self, pipelines: Pipelines, number: int) -> None:
        self._all, self._number, self._lives = pipelines, number, 0
        self._remembered: dict[int, int] = {}
        self._start()

    def _start(self) -> None:
        """A new process."""
        self._lives += 1
        clients, world = self._all.clients, self._all.clients.many.world
        scene, name = clients.scene, f"pipe-{self._number}-{self._lives}"
        config = ProducerConfig(delivery_timeout_s=scene.delivery_timeout_s, part_bytes=scene.part_bytes)
        info = ClusterInfo("sim", "sim", scene.groups, scene.size)
        self._turns = WorldTurns(world, clients.wire, info, config.channel, self._all.rng)
        self._core = SimCore(
            info, PIPELINE, config, clock=lambda: world.now, turns=self._turns, instance=name
        )
        self._core.ids = map(f"{name}-{{}}".format, iter(clients.number, None))
        self._core.encoder = Encoder(config, lambda topic: scene.groups, self._all.group_of)
        self._busy = False

    def _die(self) -> None:
        self._turns.dead = True
        self._start()

    def act(self) -> None:
        rng, found = self._all.rng, self._all.committed()
        if self._busy or found is None or rng.random() > BEGINS:
            return
        committed, topic_id = found
        spans: dict[TopicPartition, Span] = {}
        messages: list[Message] = []
        for partition in rng.sample(range(INPUTS), rng.choice((1, 1, 2))):
            begin = committed.get(partition, NONE_YET)
            if rng.random() < REMEMBERS:
                begin = self._remembered.get(partition, begin)
            self._remembered[partition] = begin
            first, count = max(begin, 0), rng.choice((1, 2, 3))
            spans[INPUT, partition] = begin, first + count
            for offset in range(first, first + count):
                number = rng.randrange(self._all.clients.scene.groups)
                messages.append(Message(OUTPUT, body(f"pipe.{partition}.{offset}", 10), partition=number))
        self._begin(GroupWork(GROUP, spans, {INPUT: topic_id}), messages)

    def _begin(self, work: GroupWork, messages: list[Message]) -> None:
        tx = SteppedTransaction(self._core, None, None, TIMEOUT_MS / 1000, None, local=False)
        tx.add(messages, work)
        if (plan := tx.plan()) is None:
            return
        self._busy = True
        tx.start_prepare(plan, partial(self._prepared, self._lives, tx, plan))

    def _prepared(self, life: int, tx: SteppedTransaction, plan: TxPlan, outcome: Outcome) -> None:
        if life != self._lives:
            return
        try:
            settled = tx.after_prepare(plan, outcome)
        except EscrowMQError as error:
            self._all.did[type(error).__name__] += 1
            self._busy = False
            return
        if settled is not None:  # it took so long that it was rolled back
            self._busy = False
            return
        rng = self._all.rng
        if rng.random() < 0.15:
            self._all.did["died"] += 1
            self._die()
            return
        self._all.clients.later(rng.choice(TAKES_S) * rng.random(), self._decide, life, tx)

    def _decide(self, life: int, tx: SteppedTransaction) -> None:
        if life == self._lives:
            commit = self._all.rng.random() < 0.8
            tx.start_decision(commit, partial(self._decided, life, tx))
            if self._all.rng.random() < 0.05:
                self._die()

    def _decided(self, life: int, tx: SteppedTransaction, outcome: Outcome) -> None:
        if life != self._lives:
            return
        self._busy = False
        try:
            tx.after_decision(outcome)
            self._all.did[tx.state.value] += 1
        except EscrowMQError as error:
            self._all.did[type(error).__name__] += 1


class Pipelines:
    """The group and its members. ``did``: how their transactions ended."""

    def __init__(self, clients: AcrossWorkload) -> None:
        self.clients, self.rng = clients, clients.many.world.stream("pipelines")
        self.did: Counter[str] = Counter()
        # A group that is forgotten begins anew: that is a limit, and no defect.
        self.works = "pipelines" in clients.scene.reach and clients.scene.tables is None
        self._gid = coordinator_group(GROUP, clients.scene.groups)
        partitions = {INPUT: INPUTS, OUTPUT: clients.scene.groups}
        settings = {
            name: topic_settings(count, transaction_timeout_ms=TIMEOUT_MS)
            for name, count in partitions.items()
        }
        self._topics = Topics(clients.desks, settings)
        self._members: list[Member] = []

    def group_of(self, topic: str, partition: int) -> int:
        """As the clients' catalog."""
        return by_name(topic, partition, self.clients.scene.groups)

    def committed(self) -> tuple[dict[int, int], int] | None:
        """What some replica that believes it leads says about the group, and the id of the input."""
        leader = self.clients.desks[self._gid].any_leader()
        if leader is None:
            return None
        state = leader[1].replica.state
        topic = state.topics.topics.get(INPUT)
        if topic is None:
            return None
        return dict(state.group_offsets.get(GROUP, {}).get(INPUT, {})), topic.info.topic_id

    def act(self) -> None:
        """One step of the clients."""
        if not self.works or not self._topics.are_there():
            return
        if not self._members:
            self._members = [Member(self, number) for number in range(MEMBERS)]
        for member in self._members:
            member.act()

    # -------------------------------------------------------------- the end

    def held(self, leaders: list[BrokerApplication]) -> str | None:
        """What is still held, for a message; None: nothing."""
        state = leaders[self._gid].replica.state
        held = state.held.holders.get(GROUP)
        return f"{held} of {GROUP}; open: {state.held.by_tx}" if held else None

    def check(self, leaders: list[BrokerApplication]) -> bool:
        """Hold outputs against offsets; False: a replica has ended meanwhile."""
        if not self._members:
            return True
        found: Counter[tuple[int, int]] = Counter()
        for number in range(self.clients.scene.groups):
            read = readable(leaders[self.group_of(OUTPUT, number)], (OUTPUT, number))
            if read is None:
                return False
            found.update((int(p), int(o)) for _, p, o in (id.split(".") for id, _ in read))
        offsets = leaders[self._gid].replica.state.group_offsets.get(GROUP, {}).get(INPUT, {})
        for (partition, offset), count in sorted(found.items()):
            if count > 1:
                raise Violation(f"{count} outputs of {INPUT}/{partition}@{offset}", "processed-twice")
            if offset >= offsets.get(partition, 0):
                committed = offsets.get(partition)
                raise Violation(
                    f"{INPUT}/{partition}@{offset}, and {GROUP} is at {committed}", "output-without-offset"
                )
        for partition, committed in offsets.items():
            for offset in range(committed):
                if not found[partition, offset]:
                    raise Violation(
                        f"{INPUT}/{partition}@{offset}, and {GROUP} is at {committed}",
                        "offset-without-output",
                    )
        self.did["inputs"] += len(found)
        return True
