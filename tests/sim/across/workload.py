"""The clients of a world of several groups, and the verdict over all of them.

There are two apps, as with one group. ``shop`` answers checks, so all its transactions must be resolved in
every group. ``mute`` does not, so undecided ones stay open until an operator decides at their home group.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from escrowmq.actors.admin.topic_creation import topic_settings
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.actors.producer.plain.record_batch import SendFuture
from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import Op
from escrowmq.replication.model import ResultCode
from escrowmq.replication.raft.node import RaftNode
from escrowmq.replication.state.machine import Result
from tests.history.events import Sent
from tests.history.report import Report
from tests.sim.across.branching import SimBranches
from tests.sim.across.cutting import Cutting
from tests.sim.across.feedback import ASKING, FeedbackProcess, Links
from tests.sim.across.later import LaterAcross
from tests.sim.across.ledger import AcrossLedger, AcrossTx
from tests.sim.across.loop import WorldLoop
from tests.sim.across.named import NamedProducers
from tests.sim.across.operator import Operator
from tests.sim.across.pipelines import END_S, Pipelines
from tests.sim.across.producers import AcrossProducer
from tests.sim.across.scene import Scene
from tests.sim.across.wire import Wire
from tests.sim.clients import crowd
from tests.sim.clients.acting import Acting
from tests.sim.clients.broker_workload import CHECK_MAX
from tests.sim.clients.consumers import Consumer, read_finally
from tests.sim.clients.crowd import NAMES, Crowd
from tests.sim.clients.delayed import DelayedMessages, settings_of
from tests.sim.clients.desk import Desk
from tests.sim.clients.ledger import APART
from tests.sim.clients.topic_changes import TopicChanges
from tests.sim.clients.topics import Topics
from tests.sim.clients.workload import Application, Cluster, ReplicaContext
from tests.sim.environment.fibres import Fibres
from tests.sim.environment.world import Violation
from tests.sim.group.broker_app import BrokerApplication
from tests.sim.questions.operators import Questions
from tests.sim.recreated.topic import RecreatedTopic
from tests.sim.running.coverage import AnyPhase, Phase, cells
from tests.sim.sharing.clients import Clients
from tests.sim.sharing.groups import ShareGroups
from tests.sim.streams.consumers import StreamGroup
from tests.sim.streams.transforming import Transformers
from tests.support.faults.tables import Cells
from tests.support.places import by_name

if TYPE_CHECKING:
    from tests.sim.across.simulation import ManyGroups

APPS = ("shop", "shop", "shop", "mute")
ANSWERING = ("shop", crowd.APP)
RESOLVE_S = 60.0  # after the calm, for the last check
STEP_S = 0.5
READS = 5


class _OneOfMany(BrokerApplication):
    """One replica of one of several groups. ``begin`` is called when it starts to take part, which a state
    that is only rebuilt for a comparison never does."""

    begin: Callable[[], None]

    def attach(self, raft: RaftNode) -> None:
        super().attach(raft)
        self.begin()


class GroupWorkload:
    """The applications of one group's replicas; the clients are common to all groups."""

    def __init__(
        self,
        clients: AcrossWorkload,
        gid: int,
        groups: int,
        branches: Callable[[BrokerApplication, ReplicaContext, AcrossWorkload], SimBranches] = SimBranches,
    ) -> None:
        self._clients, self._gid, self._groups, self._branches = clients, gid, groups, branches
        self.branching: dict[str, SimBranches] = {}

    def open(self, context: ReplicaContext) -> BrokerApplication:
        app = _OneOfMany(context, self._on_entry, self._gid, self._groups)
        app.begin = lambda: self.begin(app, context)
        return app

    def begin(self, app: BrokerApplication, context: ReplicaContext) -> None:
        if context.address in self.branching:  # this process already started; a ghost is another process
            self.branching[context.address].end()
        self.branching[context.address] = self._branches(app, context, self._clients)

    def _on_entry(self, index: int, command: bytes, results: Sequence[Result]) -> None:
        self._clients.ledger.heard(self._gid, index, command, results)

    def act(self, cluster: Cluster) -> None: ...
    def check_end(self, applications: Sequence[Application]) -> None: ...


class AcrossWorkload(Acting):
    """All clients of the brokers."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.report: Report | None = None
        self.did: Counter[str] = Counter()  # what producers began besides single transactions and messages
        self.sends: dict[int, SendFuture] = {}  # plain messages that have not ended

    def begin(self, many: ManyGroups) -> None:
        """Before the first replica starts."""
        self.many = many
        self._rng = many.world.stream("callers")
        self.loop = WorldLoop(many.world)
        self.ledger = AcrossLedger(many.world, self.scene.groups)
        self.ledger.entered = self._entered
        self.wire = Wire(many.parts, self.scene.late_copies)
        self.number = itertools.count(1).__next__
        self.desks = [Desk(part) for part in many.parts]
        self.producers: list[AcrossProducer] = []
        self._links: dict[str, Links] = {}
        self.operator = Operator(self)
        self.cutting = Cutting(self)
        self.pipelines = Pipelines(self)
        self.crowds: list[Crowd] = []
        if self.scene.crowd:
            topics = crowd.topics(self.desks)
            self.crowds += [self._crowd(gid, desk, topics) for gid, desk in enumerate(self.desks)]
        self.changes = TopicChanges(many.parts, self.scene.partitions())
        streams = "streams" in self.scene.reach
        self.recreated = RecreatedTopic(many.parts, members=self.scene.tables is None, always=streams)
        self.streams = StreamGroup(self) if self.scene.tables is None else None
        self.transformers = Transformers(self)
        # Its clients repeat requests, so the brokers must remember ids and producers.
        remembers = self.scene.tables is None
        self.delayed: list[DelayedMessages] = []
        if remembers:
            groups = self.scene.groups
            shared = Topics(self.desks, settings_of(groups)) if groups > 1 else None
            self.delayed += [DelayedMessages(part, part.gid, groups, shared) for part in many.parts]
        self.later_across = LaterAcross(self)
        self.named = NamedProducers(self)
        self.shares: ShareGroups | None = None
        if remembers:
            info = ClusterInfo("sim", "sim", self.scene.groups, self.scene.size)
            clients = Clients(self.wire, info, Fibres(many.world))
            self.shares = ShareGroups(many.parts, self.ledger.recorder, clients)
        told = self.ledger.recorder, self.ledger.transactions
        self.questions = Questions(many.parts, *told, self.shares)
        self.ledger.listener = self._hear
        self.processes: list[FeedbackProcess] = []
        self._keep = self._rng.choice(({}, {}, {"retention_ms": 3_000}, {"retention_bytes": 2_000}))
        settings = {
            name: topic_settings(partitions, transaction_timeout_ms=500, check_max=CHECK_MAX, **self._keep)
            for name, partitions in self.scene.topics.items()
        }
        Topics(self.desks, settings, firsts=self.scene.firsts, then=self._set_tables).are_there()

    def _hear(self, gid: int, index: int, now_ms: int, found: Sequence[Op]) -> None:
        self.recreated.heard(gid, index, now_ms, found)
        if self.streams is not None:
            self.streams.heard(gid, found)
        self.later_across.heard(gid, now_ms, found)
        self.named.heard(gid, index, found)
        self.questions.heard(gid, index, now_ms, found)
        for clients in self.delayed:
            clients.heard(gid, index, now_ms, found)

    def close(self) -> None:
        """End the coroutines, and forget the sends of producers that died.

        A future leads to itself as long as somebody waits for it, and the garbage collector does not look
        into it: it would keep this whole world, and a long campaign would have all of its worlds in memory.
        """
        self.loop.close()
        for part in (self.shares, self.streams, self.transformers):
            if part is not None:
                part.close()
        for future in self.sends.values():
            future._parcel.nobody_asks(future._number)

    def _entered(self, phase: AnyPhase) -> None:
        for part in self.many.parts:
            part.phase(phase)

    def _crowd(self, gid: int, desk: Desk, topics: Sequence[Topics]) -> Crowd:
        def add(app: str, tx_id: str, sent: list[Sent]) -> AcrossTx:
            tx = AcrossTx(app, tx_id, sent, 1, app)
            self.ledger.add(tx, {gid: 1})
            return tx

        names = [name for name in NAMES if by_name(name, 0, self.scene.groups) == gid]
        forgets = self.scene.tables is not None
        return Crowd(desk, self.ledger, add, self.number, topics, names, gid=gid, forgets=forgets)

    def partitions(self, gid: int) -> list[tuple[str, int]]:
        """All partitions of a group."""
        crowded = self.crowds[gid].partitions if self.crowds else []
        return [*self.scene.partitions(gid), *crowded]

    def _set_tables(self) -> None:
        """All groups have the topics: set small tables before anything else."""
        tables = [self.scene.tables_of(gid) for gid in range(self.scene.groups)]
        self._unset = sum(small is not None for small in tables)
        if not self._unset:
            self._open_shop()
        for desk, small in zip(self.desks, tables, strict=True):
            if small is not None:
                desk.call(ops.settings(small.values()), self._tables_set, lambda: True)

    def _tables_set(self, results: list[Any]) -> None:
        if results[0][0] != ResultCode.OK:
            raise Violation(f"SETTINGS was answered {results[0]}", "unexpected-answer")
        self._unset -= 1
        if self._unset == 0:
            self._open_shop()

    def _open_shop(self) -> None:
        if not self.producers:
            self.processes = [FeedbackProcess(index, self) for index in range(ASKING.shards)]
            self.producers = [self._hire(app) for app in (*APPS, *([crowd.APP] if self.crowds else ()))]
            self.consumers = [
                Consumer(f"c{gid}", desk, self.ledger, self.scene.partitions(gid))
                for gid, desk in enumerate(self.desks)
            ]

    def _hire(self, app: str) -> AcrossProducer:
        producer = AcrossProducer(f"p{self.number()}", app, self)
        if app != "mute":
            self._links[producer.name] = Links(producer, self.processes, self)
        return producer

    def share_across(self, app: str) -> float:
        """The share of an app's transactions that are in more than one group."""
        return 0.0 if app == "mute" and "mute-branches" not in self.scene.reach else self.scene.across

    # -------------------------------------------------------------- what clients ask

    def later(self, delay_s: float, fn: Callable[..., None], *args: Any) -> None:
        self.many.world.later(delay_s, fn, *args)

    def in_loop(self, work: Callable[[], None]) -> None:
        """Run ``work`` where coroutines run."""
        self.loop.call_soon(work)

    def checked(self, app: str, tx_id: str) -> None:
        """A producer is asked about a transaction."""
        try:
            recorder = self.ledger.recorder
            recorder.ok(recorder.invoke("check", app=app, tx=tx_id))
            if not (tx := self.ledger.of(app, tx_id)).decided:
                self.ledger.enter(tx, Phase.CHECK_OUT)
        except Violation as violation:
            self.loop.fail(violation)

    def answered(self, app: str, tx_id: str, outcome: str) -> None:
        """Its answer goes to feedback, which will carry it out."""
        try:
            recorder, tx = self.ledger.recorder, self.ledger.of(app, tx_id)
            op = recorder.invoke("decide", app=app, tx=tx_id, outcome=outcome, by="check")
            recorder.unknown(op, "answered to feedback")
            tx.asked = True
            self.ledger.leave(tx, Phase.CHECK_OUT)
            if not tx.decided:
                self.ledger.enter(tx, Phase.CHECK_ANSWERED)
        except Violation as violation:
            self.loop.fail(violation)

    # -------------------------------------------------------------- one step of all clients

    def act(self) -> None:
        if not self.producers:
            return
        for number, producer in enumerate(self.producers):
            if not producer.alive:
                self.bury(producer)
                self.producers[number] = self._hire(producer.app)
        self.named.act()
        if self.many.calm:
            self._rng.choice(self.producers).send()
            self._touch_every_group()
            return
        self.act_at_random()
        for crowded in self.crowds:
            crowded.act()
        self.changes.act()
        self.recreated.act()
        for clients in self.delayed:
            clients.act()
        self.cutting.act()
        self.pipelines.act()
        if self.shares is not None:
            self.shares.act()
        self.questions.act()

    def another(self, producer: AcrossProducer) -> AcrossProducer | None:
        """A live process of the same app."""
        others = [p for p in self.producers if p.alive and p is not producer and p.app == producer.app]
        return self._rng.choice(others) if others else None

    def may_share_ids(self, app: str) -> bool:
        """Whether transactions of one id may have different homes, and a branch in one group."""
        return self.scene.groups > 2 and self.share_across(app) > 0

    def start_together(self, homes: Sequence[int], starts: Sequence[Callable[[], None]]) -> None:
        """Begin these transactions, whose home groups are ``homes``."""
        for start in starts:
            start()

    def bury(self, producer: AcrossProducer) -> None:
        """Stop everything that a dead producer's process was doing."""
        links = self._links.pop(producer.name, None)
        if links is not None:
            links.end()

    def _touch_every_group(self) -> None:
        """Commit a consumer group's offset in each group, so that each shows that it works."""
        for consumer in self.consumers:
            consumer.commit_offsets()

    def _transact(self) -> None:
        self._rng.choice(self.producers).transact()

    def _send(self) -> None:
        self._rng.choice(self.producers).send()

    def _trouble(self) -> None:
        """A producer or a feedback process dies, or an operator decides something that is open."""
        chance = self._rng.random()
        if chance < 0.3:
            self._rng.choice(self.producers).die()
        elif chance < 0.5:
            self._rng.choice(self.processes).restart()
        elif opened := [tx for tx in self._open_at_home() if tx.whole]:
            self.operator.decide(self._rng.choice(opened), self._rng.choice(("COMMITTED", "ROLLBACK")))

    def _open_at_home(self) -> list[AcrossTx]:
        """The open transactions that operators see, where a leader can be asked."""
        found: list[AcrossTx] = []
        for gid, desk in enumerate(self.desks):
            leader = desk.any_leader()
            if leader is not None:
                found += [tx for tx in self._listed(gid, leader[1]) if tx.home == gid]
        return found

    def _listed(self, gid: int, app: BrokerApplication) -> list[AcrossTx]:
        return [
            self.ledger.on_wire(name, tx_id, record.home_group if record.home_group >= 0 else gid)
            for name, tx_id, record in app.replica.state.transactions.iterate_open()
            if name not in APART
        ]

    # -------------------------------------------------------------- the end

    def check_end(self) -> None:
        """Resolve all transactions in every group, let operators decide the mute app's, read everything."""
        self._wait_for_topics()
        self._resolve(*ANSWERING)
        self._mute_stay_open()
        for tx in self._open_at_home():
            self.operator.decide(tx, self._rng.choice(("COMMITTED", "ROLLBACK")) if tx.whole else "ROLLBACK")
        self._resolve()
        self._let_go()
        self.many.judging = True
        for process in self.processes:
            process.check()
        self._read_everything()
        self.ledger.leave_all()
        self.cutting.check()
        self.report = self.ledger.recorder.checker.finish(expect_resolved=True)
        self.ledger.recorder.judge()

    def _wait_for_topics(self) -> None:
        """A group that could have no leader before its broken link was mended creates them only now."""
        until = self.many.world.now + RESOLVE_S
        while not self.producers:
            if self.many.world.now >= until:
                raise Violation("the topics were never created", "stuck")
            self._run(0.5)

    def _let_go(self) -> None:
        """Wait until no offset of a group is held any more."""
        until = self.many.world.now + END_S
        while self.pipelines.works and (held := self.pipelines.held(self.wait_until_all_agree())):
            if self.many.world.now > until:
                raise Violation(held, "held-for-ever")
        while self.transformers.works and (held := self.transformers.held(self.wait_until_all_agree())):
            if self.many.world.now > until:
                raise Violation(held, "held-for-ever")
        self.named.let_go()

    def _run(self, seconds: float) -> None:
        world = self.many.world
        world.run(world.now + seconds)

    def leader(self, gid: int) -> BrokerApplication | None:
        return next((app for r, app in self.desks[gid].leaders() if r.node.ready), None)

    def _resolve(self, *apps: str) -> None:
        """Let time pass until nothing of these apps (none: of any) is open and no answer is pending.

        The history's checker reports what is still open then.
        """
        until = self.many.world.now + RESOLVE_S
        while self.many.world.now < until:
            leaders = [self.leader(gid) for gid in range(self.scene.groups)]
            if all(leaders):
                opened = [
                    tx
                    for gid, leader in enumerate(leaders)
                    for tx in self._listed(gid, leader)  # type: ignore[arg-type]
                    if not apps or tx.app in apps
                ]
                if not opened and not self._waiting():
                    return
            self._run(STEP_S)
        for gid in range(self.scene.groups):
            if self.leader(gid) is None:
                raise Violation(f"group {gid} has no leader long after the calm", "stuck")
        if waiting := self._waiting():
            raise Violation(f"{waiting} requests are still without answer", "stuck")

    def _waiting(self) -> int:
        alive = [producer for producer in self.producers if producer.alive]
        own = sum(len(one.preparing) + len(one.deciding) + one.returning for one in alive)
        asked = sum(desk.waiting for desk in self.desks) + self.changes.waiting + self.recreated.waiting
        asked += 0 if self.shares is None else self.shares.waiting
        asked += 0 if self.streams is None else self.streams.waiting
        asked += self.named.waiting + self.transformers.waiting
        return own + self.operator.waiting + asked + sum(clients.waiting for clients in self.delayed)

    def _mute_stay_open(self) -> None:
        """Check that transactions of the mute app that were not decided are still open at home."""
        opened = set(self._open_at_home())
        for tx in self.ledger.transactions.values():
            if tx.app == "mute" and tx.prepared and not tx.asked and tx not in opened:
                raise Violation(f"{tx.tx} was decided by nobody and is no longer open", "invented-decision")

    def _read_everything(self) -> None:
        """Read every partition at every replica, the groups' offsets, all outcomes, and the databases."""
        for attempt in range(READS):
            leaders = self.wait_until_all_agree()
            read = [
                read_finally(desk.replicas(), self.ledger.recorder, attempt, self.partitions(gid))
                for gid, desk in enumerate(self.desks)
            ]
            read += [
                clients.check(leaders[gid], [app for _, app in self.desks[gid].replicas()])
                for gid, clients in enumerate(self.delayed)
            ]
            read += [self.later_across.check(gid, leader) for gid, leader in enumerate(leaders)]
            read += [self.named.read(gid, leader) for gid, leader in enumerate(leaders)]
            read += [self.pipelines.check(leaders), self.transformers.check(leaders)]
            if all(read) and (self.shares is None or self.shares.check(leaders)):
                break
        else:
            raise Violation(f"of {READS} tries to read everything none could be ended", "stuck")
        self.changes.check(leaders)
        self.recreated.check()
        if self.streams is not None:
            self.streams.check()
        self.questions.check()
        self.named.judge()
        for consumer, leader in zip(self.consumers, leaders, strict=True):
            if self.scene.tables is None or len(self.consumers) <= self.scene.tables.groups_kept:
                consumer.check_offsets(leader)
        for tx in self.ledger.transactions.values():
            assert isinstance(tx, AcrossTx)
            self._tell_outcomes(tx, leaders)
        self.ledger.tell_the_truth()

    def _tell_outcomes(self, tx: AcrossTx, leaders: Sequence[BrokerApplication]) -> None:
        """Record what each group says about it; a forgotten decision says nothing."""
        tables = [leader.replica.state.transactions.apps.get(tx.app) for leader in leaders]
        home = tables[tx.home]
        forgotten = home is None or (tx.wire not in home.open and home.outcome(tx.wire) is None)
        if not (tx.home in tx.ended_in and forgotten):
            self.ledger.tell_outcome(tx.app, tx.tx, home, wire=tx.wire)
        if tx.shares_id:
            return  # a branch may have the outcome of the other transaction with this id
        for gid in list(tx.parts_in)[1:]:
            self.ledger.tell_outcome(tx.app, tx.tx, tables[gid], branch=gid)

    def wait_until_all_agree(self) -> list[BrokerApplication]:
        """Wait until every replica is up and has applied what its group's leader has; returns the leaders."""
        until = self.many.world.now + RESOLVE_S
        while True:
            self._run(STEP_S)
            leaders = [self.leader(gid) for gid in range(self.scene.groups)]
            applied = [{r.name: app.applied_index for r, app in desk.replicas()} for desk in self.desks]
            sizes = [len(part.replicas) for part in self.many.parts]
            alike = all(
                len(seen) == size and len(set(seen.values())) == 1
                for seen, size in zip(applied, sizes, strict=True)
            )
            if alike and all(leaders):
                return [leader for leader in leaders if leader is not None]
            if self.many.world.now >= until:
                raise Violation(f"long after the calm these are there and have applied: {applied}", "stuck")

    def coverage(self, log: Sequence[tuple[float, str, str]]) -> Cells:
        """Which of these faults struck transactions in which phase."""
        self.ledger.leave_all()
        return cells(log, self.ledger.stays)
