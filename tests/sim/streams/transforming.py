"""Groups that consume, transform and produce with the product's own consumers and transactions, and nack.

Each member is a process with a ``Consumer`` and a producer's core. It polls, nacks what its handler fails
for, before its block or inside of it, and sends the outputs of the rest with ``send_offsets``. The block
commits, is left by an exception before PREPARE or behind it, or takes longer than the transaction's time-out;
the process stops, or dies there or anywhere. There is one group of each kind over the same inputs:

- ``ordered``: ``retry`` with order "ordered". A nack is a part of the transaction;
- ``plain``: without ``retry``. A transaction is refused while nacked records wait in the consumer;
- ``concurrent``: ``retry`` with order "concurrent". ``send_offsets`` is always refused, so its members commit
  their offsets behind the transaction, and seek back if that fails. Outputs may be doubled.

outputs.py judges what has come of it. The groups are part of worlds in which ``nacking`` is in reach.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from escrowmq.actors.admin.topic_creation import create_topic
from escrowmq.actors.client.consumer_groups import TopicPartition
from escrowmq.actors.client.results import submitting
from escrowmq.actors.client.share_groups import set_group
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.actors.consumer.config import ConsumerConfig, RetryPolicy
from escrowmq.actors.consumer.consumer import Consumer
from escrowmq.actors.consumer.positions import PartitionState
from escrowmq.actors.producer.config import ProducerConfig
from escrowmq.actors.producer.transactions.transaction import Transaction
from escrowmq.replication.errors import ConfigError, EscrowMQError
from escrowmq.replication.model import ConsumerRecord, Message
from tests.history.events import body, identify
from tests.sim.across.cores import VirtualCore
from tests.sim.clients.ledger import PIPELINE
from tests.sim.environment.fibres import Fibres
from tests.sim.environment.world import START_S, Violation
from tests.sim.group.broker_app import BrokerApplication
from tests.sim.streams import outputs
from tests.sim.streams.answers import StreamWire
from tests.sim.streams.background import Process, SimRouter
from tests.sim.streams.outputs import INPUT

if TYPE_CHECKING:
    from tests.sim.across.simulation import Part
    from tests.sim.across.workload import AcrossWorkload

ORDERED, PLAIN, CONCURRENT = KINDS = ("ordered", "plain", "concurrent")
PARTITIONS = 2
MEMBERS, ATTEMPTS = 2, 3
FEEDS_EVERY_S, AGAIN_S = 0.25, 0.1
#: For so long applications do what they should not when the faults are over.
LONGER_S = 3.0
#: How often the handler fails for an input. What always fails becomes a dead letter, where there are any.
FAILURES = (0, 0, 0, 0, 1, 2, 1 << 30)
DELAYS_S = (0.0, 0.05, 0.2)
RECORDS, POLLS_S = (1, 2, 4, 8), (0.05, 0.3, 1.0)
#: For so long there are no faults, if the groups are not made before; and the time-out of each step of that.
PRELUDE_S, MAKES_S = 6.0, 1.5
#: Between PREPARE and the decision, and of the transaction.
TAKES_S, TIMEOUT_S = (0.0, 0.0, 0.05, 0.3, 1.5), 0.8
#: Shares of the blocks: in which the handler runs inside, with an early PREPARE, of those with a nack behind
#: it, that end with an exception, in which the process dies, and in which it stops.
INSIDE, PREPARED, LATE, ABORTED, DIES, STOPS = 0.5, 0.5, 0.2, 0.4, 0.06, 0.06
STOPPED_S, BACK_S = (0.3, 1.0, 2.5), 0.3
#: Share of the other blocks before which the member polls twice.
AGAIN = 0.3
#: Share of the feeder's steps at which some process dies wherever it is.
KILLED = 0.08
CONFIG = ConsumerConfig(
    auto_offset_reset="earliest",
    fetch_bytes=600,
    fetch_wait_s=0.5,
    buffer_bytes=4_000,
    session_timeout_s=1.2,
    heartbeat_interval_s=0.3,
    call_timeout_s=4.0,
)

#: A record, and the state of its partition when it was returned: another one came after a rebalance.
Given = tuple[ConsumerRecord, PartitionState | None]


class _Sure(random.Random):
    """Whoever draws from it loses nothing."""

    def random(self) -> float:
        return 1.0


_SURE = _Sure()


class _Aborted(Exception):
    """The application does not want these."""


class _Wire(StreamWire):
    """With luck of its own."""

    def __init__(self, parts: list[Part], fibres: Fibres, late_copies: float) -> None:
        super().__init__(parts, fibres)
        self._rng = self._of_members = self._world.stream("wire-nacking")
        self._late = late_copies
        self.sure = True  # nothing is lost on the way until the groups exist

    def _luck(self, method: str) -> random.Random:
        return _SURE if self.sure else self._rng


class Client(Process):
    """A process with a producer's core."""

    def __init__(self, all: Transformers, name: str) -> None:
        super().__init__(all.world, all.fibres, all.wire, name)
        config = ProducerConfig(delivery_timeout_s=3.0)
        self.router = SimRouter(self, all.info, config.channel)
        self.core = VirtualCore(all.info, PIPELINE, config, turns=self.router, instance=name, background=self)


class Member:
    """One process of a group."""

    def __init__(self, group: TransformGroup, name: str) -> None:
        self._group, self._all = group, group.all
        self.process = Client(group.all, name)
        self._rng = self.process.rng
        with self.process.making():
            self._consumer = Consumer(
                group.all.info, group=group.name, config=CONFIG, calls=self.process, background=self.process
            )
        group.all.fibres.start(name, self._live)

    @property
    def _calm(self) -> bool:
        return self._all.calm

    def _live(self) -> None:
        self._begin()
        while True:
            given = self._poll()
            if given:
                self._work(given)
            else:
                self.process.sleep(0.02)

    def _begin(self) -> None:
        """What the consumer's constructor does with ``retry`` and ``topics``: it waits for answers."""
        core, kind = self._consumer.core, self._group.kind
        while True:
            try:
                if kind != PLAIN:
                    assert core.membership is not None
                    core._begin_retries(RetryPolicy(order=kind), core.membership)
                self._consumer.subscribe([INPUT])
            except EscrowMQError:  # nobody answers
                self.process.sleep(AGAIN_S)
            else:
                return

    def _poll(self) -> list[Given]:
        rng, consumer = self._rng, self._consumer
        try:
            records = consumer.poll(rng.choice(RECORDS), rng.choice(POLLS_S))
        except EscrowMQError as error:
            self._group.done[f"poll: {type(error).__name__}"] += 1
            self.process.sleep(0.05)
            return []
        self._group.done["given"] += len(records)
        return [(record, consumer.core.positions.get((record.topic, record.partition))) for record in records]

    # -------------------------------------------------------------- one block

    def _work(self, given: list[Given]) -> None:
        rng, consumer, done = self._rng, self._consumer, self._group.done
        ready = None
        if rng.random() >= INSIDE:
            ready = self._handled(given)
            if not self._calm and rng.random() < AGAIN:
                more = self._poll()  # which may have lost what the first poll has returned
                given, ready = given + more, ready + self._handled(more)
        try:
            with Transaction(self.process.core, None, None, TIMEOUT_S, None, local=False) as tx:
                self._send_offsets(tx)
                ready = self._handled(given) if ready is None else ready
                tx.send(*ready)
                self._may_end(tx, given)
        except _Aborted:
            done["aborted"] += 1
            self._failed(given)
        except EscrowMQError as error:
            done[type(error).__name__] += 1
            self._failed(given)
        else:
            done["committed"] += 1
            if self._group.kind == CONCURRENT:
                with contextlib.suppress(EscrowMQError):
                    consumer.commit()

    def _send_offsets(self, tx: Transaction) -> None:
        if self._group.kind != CONCURRENT:
            tx.send_offsets(self._consumer)
            return
        try:
            tx.send_offsets(self._consumer)
        except ConfigError:
            self._group.done["refused"] += 1
        else:
            raise Violation(f"{self._group.name} may send offsets", "unexpected-answer")

    def _failed(self, given: list[Given]) -> None:
        """A consumer whose offsets are in the transaction goes back itself. Others seek."""
        if self._group.kind != CONCURRENT:
            return
        lowest: dict[tuple[str, int], int] = {}
        for record, state in given:
            tp = record.topic, record.partition
            if self._has(tp, state):
                lowest[tp] = min(record.offset, lowest.get(tp, record.offset))
        for (topic, partition), offset in lowest.items():
            with contextlib.suppress(EscrowMQError):
                self._consumer.seek(topic, partition, offset)

    def _has(self, tp: TopicPartition, state: PartitionState | None) -> bool:
        """Whether the partition is still, without interruption, this member's."""
        return state is not None and self._consumer.core.positions.get(tp) is state

    def _handled(self, given: list[Given]) -> list[Message]:
        """The outputs of what the handler does not fail for. It nacks the others, and leaves out what comes
        again with them, or is no longer this member's."""
        group, made = self._group, list[Message]()
        for record, state in given:
            tp = record.topic, record.partition
            if not self._has(tp, state) or state is None:
                continue
            if group.kind == ORDERED and (state.position or 0) <= record.offset:
                continue
            id = identify(record.value or b"")
            if group.fails(id):
                self._nack(record, id)
            else:
                number = self._rng.randrange(self._all.info.groups)
                made.append(Message(group.output, body(id, 10), partition=number))
        return made

    def _nack(self, record: ConsumerRecord, id: str) -> None:
        self._group.failures[id] += 1
        try:
            self._consumer.nack(record, self._rng.choice(DELAYS_S))
        except EscrowMQError as error:
            self._group.done[f"nack: {type(error).__name__}"] += 1
        else:
            self._group.done["nacked"] += 1

    def _may_end(self, tx: Transaction, given: list[Given]) -> None:
        """The block is left by an exception, or its process dies or stops, before PREPARE or behind it."""
        rng = self._rng
        if self._calm:
            return
        if rng.random() < PREPARED:
            tx.prepare()
            if rng.random() < LATE:
                record, _ = rng.choice(given)
                self._group.done["late"] += 1
                self._nack(record, identify(record.value or b""))
            self.process.sleep(rng.choice(TAKES_S) * rng.random())
        chance = rng.random()
        if chance < DIES:
            self._group.died(self)
            self.process.sleep(1.0)  # it ends here
        elif chance < DIES + STOPS:
            self._group.done["stopped"] += 1
            self.process.stopped_until = self._all.world.now + rng.choice(STOPPED_S) * (0.5 + rng.random())
            self.process.sleep(0.0)
        elif chance < DIES + STOPS + ABORTED:
            raise _Aborted


class TransformGroup:
    """The group of one kind. ``failures``: how often its handlers failed for an input."""

    def __init__(self, all: Transformers, kind: str) -> None:
        self.all, self.kind = all, kind
        self.name, self.output = f"nacking-{kind}", f"nack-out-{kind}"
        self.failures: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.members: list[Member] = []
        self._names = 0

    def hire(self) -> None:
        """Another process comes."""
        if not self.all.closed:
            self._names += 1
            self.members.append(Member(self, f"{self.name}-{self._names:03}"))

    def died(self, member: Member) -> None:
        """Another one comes soon."""
        self.done["died"] += 1
        self.members.remove(member)
        member.process.die()
        self.all.clients.later(self.all.rng.expovariate(1 / BACK_S), self.hire)

    def fails(self, id: str) -> bool:
        """Whether a handler fails for this input now. Without dead letters it does not for ever."""
        most = self.all.fails_for[id]
        if self.kind == PLAIN:
            most = min(most, 2)
        return self.failures[id] < most


class Transformers:
    """The groups of one world, and who sends what they read."""

    def __init__(self, clients: AcrossWorkload) -> None:
        self.clients, self.world = clients, clients.many.world
        self.rng = self.world.stream("nacking")
        self.fibres = Fibres(self.world)
        self.wire = _Wire(clients.many.parts, self.fibres, clients.scene.late_copies)
        self.info = ClusterInfo("sim", "sim", clients.scene.groups, clients.scene.size)
        self.groups = [TransformGroup(self, kind) for kind in KINDS]
        #: Input -> how often handlers fail for it.
        self.fails_for: dict[str, int] = {}
        self.began = self.closed = False
        self._calm_at = START_S + clients.many.chaos_s + LONGER_S
        self.works = "nacking" in clients.scene.reach
        if self.works:
            clients.later(0.0, self._begin)

    @property
    def calm(self) -> bool:
        """Whether applications do nothing wrong any more: some time after the faults are over."""
        return self.clients.many.calm and self.world.now >= self._calm_at

    @property
    def waits(self) -> bool:
        """Whether faults come later, since the groups do not exist yet."""
        return self.works and not self.began and self.world.elapsed_s < PRELUDE_S

    def _begin(self) -> None:
        self._feeder = Client(self, "nacking-feeder")
        self.fibres.start("nacking-feeder", self._feed)

    def _feed(self) -> None:
        while True:
            try:
                self._make()
            except EscrowMQError:  # nobody answers
                self._feeder.sleep(AGAIN_S)
            else:
                break
        if self.calm:
            return
        self.began, self.wire.sure = True, False
        for group in self.groups:
            for _ in range(MEMBERS):
                group.hire()
        while not self.calm:
            for _ in range(self.rng.choice((1, 1, 2, 3))):
                self._send(f"in{len(self.fails_for)}")
            group = self.rng.choice(self.groups)
            if group.members and self.rng.random() < KILLED:
                group.died(self.rng.choice(group.members))
            self._feeder.sleep(FEEDS_EVERY_S * self.rng.expovariate(1.0))

    def _make(self) -> None:
        """The topics, and the groups' settings."""
        router, groups = self._feeder.router, self.info.groups
        submit = submitting(router, MAKES_S)  # type: ignore[arg-type]
        wanted = {INPUT: PARTITIONS, **{group.output: groups for group in self.groups}}
        for name, partitions in wanted.items():
            create_topic(submit, groups, name, partitions, {})
        for group in self.groups:
            if group.kind != PLAIN:
                set_group(submit, groups, group.name, {"max_attempts": ATTEMPTS})

    def _send(self, id: str) -> None:
        self.fails_for[id] = self.rng.choice(FAILURES)
        core = self._feeder.core
        with contextlib.suppress(EscrowMQError):
            number, row = core.encoder.plain(
                Message(INPUT, body(id, 10), partition=self.rng.randrange(PARTITIONS))
            )
            core.send(INPUT, number, row)

    @property
    def done(self) -> Counter[str]:
        """What has happened, by kind of the group."""
        every = ((group.kind, what, n) for group in self.groups for what, n in group.done.items())
        return Counter({f"{kind} {what}": n for kind, what, n in every})

    # -------------------------------------------------------------- the end

    def _leaders(self) -> list[BrokerApplication] | None:
        found = [self.clients.leader(gid) for gid in range(self.info.groups)]
        return None if None in found else [leader for leader in found if leader is not None]

    @property
    def waiting(self) -> int:
        """Messages that a group has not read or that wait for their time; 1 if somebody cannot be asked."""
        leaders = self._leaders() if self.began else []
        if leaders is None:
            return 1
        return sum(outputs.left(leaders, group) for group in self.groups) if leaders else 0

    def held(self, leaders: Sequence[BrokerApplication]) -> str | None:
        """What is still held, for a message; None: nothing."""
        for group in self.groups:
            if found := outputs.coordinator(leaders, group).held.holders.get(group.name):
                return f"{found} of {group.name}"
        return None

    def check(self, leaders: Sequence[BrokerApplication]) -> bool:
        """Judge what has come of the inputs; False: a replica has ended meanwhile."""
        return not self.began or all(outputs.judge(leaders, group, ATTEMPTS) for group in self.groups)

    def close(self) -> None:
        """End what still runs."""
        self.closed = True
        self.fibres.close()
