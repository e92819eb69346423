"""The broker's clients in the simulator: producers, feedback, operators, consumers, and the final checks.

Everything that they do and read is recorded in one history, whose checker runs along and judges it at the end
(tests/history). There are two apps: ``shop`` answers checks, so all its transactions must get resolved;
``mute`` does not, so undecided ones must stay open until an operator decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from escrowmq.actors.admin.topic_creation import topic_settings
from escrowmq.replication.format import ops
from escrowmq.replication.model import ResultCode
from escrowmq.replication.state.machine import Result
from tests.history.events import Sent
from tests.history.report import Report
from tests.sim.clients import crowd as crowds
from tests.sim.clients.acting import Acting
from tests.sim.clients.checkers import Feedback
from tests.sim.clients.consumers import Consumer, read_finally
from tests.sim.clients.crowd import Crowd
from tests.sim.clients.decisions import Decision
from tests.sim.clients.delayed import APP as DELAYED
from tests.sim.clients.delayed import DelayedMessages
from tests.sim.clients.desk import Desk
from tests.sim.clients.leader_reads import LeaderReads
from tests.sim.clients.ledger import REDIRECTS, ClientTx, Ledger
from tests.sim.clients.producers import PARTITIONS, Producer
from tests.sim.clients.topic_changes import TopicChanges
from tests.sim.clients.workload import Application, Cluster, ReplicaContext
from tests.sim.environment.world import Violation
from tests.sim.group.broker_app import BrokerApplication
from tests.sim.questions.operators import Questions
from tests.sim.recreated import model as recreated
from tests.sim.recreated.topic import RecreatedTopic
from tests.sim.running.coverage import Phase, cells
from tests.sim.sharing.groups import ShareGroups
from tests.support.faults.tables import Cells

APPS = ("shop", "shop", "shop", "mute")
RESOLVE_S = 60.0  # after the calm, for the last check
STEP_S = 0.5
TAKEN_UP, TAKEN_UP_S = 0.7, 5.0  # share of what a dead producer left open under ids that the application gave
TWICE, TWICE_S = 0.05, (0.0, 0.02, 0.3)  # share of transactions begun again elsewhere while they run
#: So many unanswered checks that no transaction of an app that answers is left to operators.
CHECK_MAX = 100
READS = 5  # final reads of everything: each may find the damage of one replica


class BrokerWorkload(Acting):
    """Clients of one broker group."""

    check_after_ms = 500  # a transaction was prepared
    crowded = True  # some of the worlds have a crowd

    def __init__(self) -> None:
        self.ledger: Ledger | None = None
        self._cluster: Cluster | None = None
        self._numbers = 0
        self.crowd: Crowd | None = None
        self.report: Report | None = None

    def open(self, context: ReplicaContext) -> BrokerApplication:
        return BrokerApplication(context, self._on_entry)

    def _on_entry(self, index: int, command: bytes, results: Sequence[Result]) -> None:
        if self.ledger is not None:
            self.ledger.on_entry(index, command, results)

    def _begin(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.ledger = self._new_ledger(cluster)
        self.ledger.entered = cluster.phase
        self.desk = Desk(cluster)
        self._rng = cluster.rng
        self.producers: dict[str, Producer] = {}
        self._working = [self._hire(app) for app in APPS]
        self.feedback = [self._new_feedback("shop", topic) for topic in ("t", "u")]
        self.consumers = [Consumer(f"c{n}", self.desk, self.ledger) for n in range(2)]
        self._again = cluster.world.stream("begun-again")
        self.crowd = None
        if self.crowded and cluster.world.stream("crowded").random() < crowds.SHARE:
            topics = crowds.topics([self.desk])
            self.crowd = Crowd(self.desk, self.ledger, self._of_crowd, self._number, topics)
        self.leader_reads = LeaderReads(self.desk)
        self.changes = TopicChanges([cluster], PARTITIONS)
        self.recreated = RecreatedTopic([cluster], members=True)
        self.delayed = DelayedMessages(cluster)
        self.shares = ShareGroups([cluster], self.ledger.recorder)
        self.questions = Questions([cluster], self.ledger.recorder, self.ledger.transactions, self.shares)
        self.ledger.listener = self._hear
        self._topics = 0
        keep = self._rng.choice(({}, {}, {"retention_ms": 3_000}, {"retention_bytes": 2_000}))
        for name, partitions in (("t", 2), ("u", 1)):
            settings = topic_settings(
                partitions, transaction_timeout_ms=self.check_after_ms, check_max=CHECK_MAX, **keep
            )
            self.desk.call(ops.create_topic(name, settings), self._created, lambda: True)

    def _hear(self, *entry: Any) -> None:
        self.recreated.heard(*entry)
        self.delayed.heard(*entry)
        self.questions.heard(*entry)

    def _created(self, results: list[Any]) -> None:
        if results[0][0] not in (ResultCode.OK, ResultCode.DUPLICATE):
            raise Violation(f"CREATE_TOPIC was answered {results[0]}", "unexpected-answer")
        self._topics += 1

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _of_crowd(self, app: str, tx_id: str, sent: list[Sent]) -> ClientTx:
        assert self.ledger is not None
        tx = self.ledger.transactions[app, tx_id] = ClientTx(app, tx_id, sent, 1, app)
        self.ledger.enter(tx, Phase.PREPARING)
        return tx

    def _hire(self, app: str) -> Producer:
        producer = self._new_producer(f"p{self._number()}", app)
        self.producers[producer.name] = producer
        return producer

    def _new_ledger(self, cluster: Cluster) -> Ledger:
        return Ledger(cluster.world)

    def _new_producer(self, name: str, app: str) -> Producer:
        assert self.ledger is not None
        return Producer(name, app, self.desk, self.ledger)

    def _new_feedback(self, app: str, topic: str) -> Feedback:
        assert self.ledger is not None
        return Feedback(app, topic, self.desk, self.ledger, self.producers)

    # -------------------------------------------------------------- one step of all clients

    def act(self, cluster: Cluster) -> None:
        if self._cluster is None:
            self._begin(cluster)
        if self._topics < 2:
            return
        for number, producer in enumerate(self._working):
            if not producer.alive:
                self._working[number] = self._hire(producer.app)
                self._take_up(producer, self._working[number])
        if cluster.calm:
            self._send()
            return
        self.act_at_random()
        if self.crowd is not None:
            self.crowd.act()
        self.leader_reads.act()
        self.changes.act()
        self.recreated.act()
        self.delayed.act()
        self.shares.act()
        self.questions.act()

    def _take_up(self, dead: Producer, successor: Producer) -> None:
        """The application retries, with the same ids that it gave, what the dead producer left behind."""
        for tx in dead.left_behind():
            if self._again.random() < TAKEN_UP:
                self.desk.later(TAKEN_UP_S * self._again.random(), successor.take_up, tx)

    def _transact(self) -> None:
        count = self._rng.choice((1, 1, 1, 3))
        first, self._numbers = self._numbers + 1, self._numbers + count
        producer = self._rng.choice(self._working)
        batch = producer.transact(range(first, first + count))
        if self._again.random() < TWICE:
            self._run_twice(producer, batch)

    def _run_twice(self, producer: Producer, batch: Sequence[ClientTx]) -> None:
        """Another live process of the app runs the same transaction at the same time, with its id."""
        others = [p for p in self._working if p.alive and p is not producer and p.app == producer.app]
        tx = next((tx for tx in batch if tx.content is not None), None)
        if tx is not None and others:
            tx.fenced = True  # its owner does not know the state of the other process's local transaction
            self.desk.later(self._again.choice(TWICE_S), self._again.choice(others).take_up, tx)

    def _send(self) -> None:
        self._rng.choice(self._working).send(self._number())

    def _trouble(self) -> None:
        """A producer or a feedback actor dies, or an operator decides an open transaction."""
        chance = self._rng.random()
        if chance < 0.3:
            self._rng.choice(self._working).die()
        elif chance < 0.5:
            self._rng.choice(self.feedback).restart()
        elif (found := self.desk.any_leader()) is not None:
            opened = self._listed(found[1])
            if opened:
                (name, tx_id), arrived = self._rng.choice(list(opened.items()))
                self._operate(name, tx_id, arrived, self._rng.choice(("COMMITTED", "ROLLBACK")))

    def _listed(self, app: BrokerApplication) -> dict[tuple[str, str], int]:
        """What an operator sees at this replica: (app, transaction) -> parts that have arrived."""
        apps = app.replica.state.transactions.apps
        return {
            (name, tx_id): len(record.digests)
            for name, table in apps.items()
            if name not in (recreated.APP, DELAYED, REDIRECTS)
            for tx_id, record in table.open.items()
        }

    def _operate(self, app: str, tx_id: str, arrived: int, outcome: str) -> None:
        """Decide as an operator. A commit covers the parts that have arrived, so it needs all of them."""
        assert self.ledger is not None
        tx = self.ledger.transactions[app, tx_id]
        if arrived < tx.parts:
            outcome = "ROLLBACK"
        Decision(self.desk, self.ledger, [tx], outcome, "operator", lambda: True)

    # -------------------------------------------------------------- the end

    def check_end(self, applications: Sequence[Application]) -> None:
        """Resolve the transactions of answering apps, let operators decide the rest, read everything."""
        self._wait_for_topics()
        assert self.ledger is not None
        leader = self._resolve("shop", RESOLVE_S)
        self._mute_stay_open(leader)
        for (name, tx_id), arrived in self._listed(leader).items():
            self._operate(name, tx_id, arrived, self._rng.choice(("COMMITTED", "ROLLBACK")))
        self._resolve(None, RESOLVE_S)
        self._read_everything()
        self.ledger.leave_all()
        self.report = self.ledger.recorder.checker.finish(expect_resolved=True)
        self.ledger.recorder.judge()

    def _wait_for_topics(self) -> None:
        """A group that could have no leader before its broken link was mended creates them only now."""
        if self._cluster is None:
            raise Violation("no client ever began", "stuck")
        until = self._cluster.world.now + RESOLVE_S
        while self._topics < 2:
            if self._cluster.world.now >= until:
                raise Violation("the topics were never created", "stuck")
            self._run(STEP_S)

    def _leader(self) -> BrokerApplication | None:
        return next((app for r, app in self.desk.leaders() if r.node.ready), None)

    def _run(self, seconds: float) -> None:
        assert self._cluster is not None
        self._cluster.world.run(self._cluster.world.now + seconds)

    def _resolve(self, app: str | None, within_s: float) -> BrokerApplication:
        """Let time pass until nothing of ``app`` (None: of any) is open and no answer is pending."""
        assert self._cluster is not None
        until = self._cluster.world.now + within_s
        while True:
            leader = self._leader()
            opened = [] if leader is None else [t for t in self._listed(leader) if app in (None, t[0])]
            waiting = self.desk.waiting + self.changes.waiting + self.recreated.waiting
            waiting += self.delayed.waiting + self.shares.waiting
            if leader is not None and not opened and not waiting:
                return leader
            if self._cluster.world.now >= until:
                if leader is None:
                    raise Violation("no leader long after the calm", "stuck")
                if opened:
                    raise Violation(f"still open long after the calm: {opened[:5]}", "unresolved")
                raise Violation(f"{waiting} requests are still without answer", "stuck")
            self._run(STEP_S)

    def _mute_stay_open(self, leader: BrokerApplication) -> None:
        """Check that transactions of the mute app that were not decided are still listed."""
        assert self.ledger is not None
        listed = self._listed(leader)
        for key, tx in self.ledger.transactions.items():
            if tx.app == "mute" and tx.prepared and not tx.asked and key not in listed:
                raise Violation(f"{tx.tx} was decided by nobody and is no longer open", "invented-decision")

    def _read_everything(self) -> None:
        """Read every partition at every replica, the groups' offsets, all outcomes, and the databases."""
        assert self.ledger is not None
        partitions = [*PARTITIONS, *(self.crowd.partitions if self.crowd is not None else ())]
        for attempt in range(READS):
            leader = self._wait_until_all_agree()
            replicas = self.desk.replicas()
            read = read_finally(replicas, self.ledger.recorder, attempt, partitions)
            read = read and self.delayed.check(leader, [app for _, app in replicas])
            if read and self.shares.check([leader]):
                break
        else:
            raise Violation(f"of {READS} tries to read everything none could be ended", "stuck")
        self.changes.check([leader])
        self.recreated.check()
        self.questions.check()
        for consumer in self.consumers:
            consumer.check_offsets(leader)
        tables = leader.replica.state.transactions.apps
        for app, tx_id in self.ledger.transactions:
            self.ledger.tell_outcome(app, tx_id, tables.get(app))
        self.ledger.tell_the_truth()

    def _wait_until_all_agree(self) -> BrokerApplication:
        """Wait until every replica is up and has applied what the leader has.

        Damage that a reader finds on a disk ends a process even now, and its restart repairs it.
        """
        assert self._cluster is not None
        replicas = self._cluster.replicas
        until = self._cluster.world.now + RESOLVE_S
        while True:
            self._run(STEP_S)
            here = self.desk.replicas()
            applied = {r.name: app.applied_index for r, app in here}
            leader = self._leader()
            if leader is not None and len(here) == len(replicas) and len(set(applied.values())) == 1:
                return leader
            if self._cluster.world.now >= until:
                raise Violation(
                    f"long after the calm, of {len(replicas)} replicas these are there and have applied so "
                    f"much: {applied}",
                    "stuck",
                )

    def coverage(self, log: Sequence[tuple[float, str, str]]) -> Cells:
        """Which of these faults struck transactions in which phase."""
        if self.ledger is None:
            return Cells()
        self.ledger.leave_all()
        return cells(log, self.ledger.stays)
