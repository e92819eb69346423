"""A world in which every local transaction is tied to its messages by the product's own fence.

The fence's code runs as it is over a simulated database (``database``): a local transaction is slow, fails,
or loses its connection, also in its commit; checks go to any live instance of the app, whoever owns the
transaction; instances share the database, and their clocks differ. In some worlds old rows are removed
meanwhile (``purging``). At the end the rows of the database are compared with the readable messages: a
difference is ``fence-split``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from greenlet import GreenletExit

from escrowmq.actors.producer.transactions.local_transaction import Guards
from escrowmq.feedback.database.fence import Fence
from escrowmq.feedback.database.producing import Guard
from escrowmq.feedback.policy import Trouble
from escrowmq.integrations import AlreadyDone, DatabaseMisused, FenceLost
from escrowmq.replication.calling.answers import LockedRow
from escrowmq.replication.errors import OutcomeUnknown
from escrowmq.replication.model import TransactionState
from tests.sim.clients.broker_workload import STEP_S, BrokerWorkload
from tests.sim.clients.checkers import Asked, Feedback
from tests.sim.clients.desk import Desk
from tests.sim.clients.ledger import ClientTx, Ledger
from tests.sim.clients.producers import Producer
from tests.sim.clients.purging import SCALE, Purging, listening
from tests.sim.clients.workload import Cluster
from tests.sim.environment.database import KINDS, Access, ServerError, SimDatabase
from tests.sim.environment.fibres import Fibres
from tests.sim.environment.world import Violation, World
from tests.sim.running.coverage import Phase

LOCK_TIMEOUT_S = 0.4
LEVELS = ("READ COMMITTED", "REPEATABLE READ")
CLOCKS_DIFFER_S = 1800.0
LATE, LATE_S = 0.3, 2.5  # share of local transactions that begin late after PREPARE, and the longest delay
SLOW, SLOW_S = 0.3, 3.0
FAILS = 0.2  # share of local transactions that the business code refuses
#: Shares of local transactions: the producer's block sees some other exception in place of the fence's; the
#: block fails after the local transaction; the block gives up waiting, and a thread of the process goes on.
HIDES, FAILS_LATE, GIVES_UP, GIVES_UP_S = 0.2, 0.1, 0.2, 1.5
#: Whether an id of the application's own is not rolled back where no fence was asked; see ``_as_stored``.
LEAVES_GIVEN = True
TROUBLED_S = 3.0  # for this time after the calm began, the database still loses answers
CRASH = 0.003  # chance, at each random action of clients, that the database crashes
ENDS = 20  # steps of time that the last purge, and a check that has just been asked, may take
TOGETHER_S = 0.02  # checks that arrive within this time are answered with one call


class Refused(Exception):
    """The application refuses the transaction."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    """The part of a producer's transaction that a fence uses."""

    tx_id: str
    given_id: bool
    guards: Guards

    @property
    def _guard(self) -> Guard | None:
        return self.guards.of(self.tx_id)

    def _guarded_by(self, guard: Guard) -> bool:
        return self.guards.add(self.tx_id, guard)


class FencedLedger(Ledger):
    """A ledger that leaves local transactions to the database."""

    def __init__(self, world: World, database: SimDatabase, clocks_run: float) -> None:
        """``clocks_run``: how much faster than virtual time the clocks of the app's machines run."""
        super().__init__(world)
        self.database, self.clocks_run = database, clocks_run

    def tell_the_truth(self) -> None:
        stored = self.database.committed("orders")
        for app, tx_id in self.transactions:
            op = self.recorder.invoke("stored", app=app, tx=tx_id)
            self.recorder.ok(op, stored=f"{app}/{tx_id}" in stored)


class FencedProducer(Producer):
    """One process of an app, with a fence on the app's database."""

    def __init__(self, name: str, app: str, desk: Desk, ledger: FencedLedger, fibres: Fibres) -> None:
        super().__init__(name, app, desk, ledger)
        self._database, self._fibres = ledger.database, fibres
        self._clocks_run = ledger.clocks_run
        self._luck = desk.world.stream(f"fence-{name}")
        self._shape = desk.world.stream(f"shape-{name}")
        self._ahead_s = CLOCKS_DIFFER_S * (self._luck.random() - 0.5)
        self.fence = Fence(
            Access(ledger.database, name), app=app, lock_timeout_s=LOCK_TIMEOUT_S, clock=self._clock
        )
        self._to_ask: list[tuple[str, Callable[[TransactionState, Trouble], None]]] = []

    def _clock(self) -> float:
        """The wall clock of its machine, which is sometimes set."""
        if self._luck.random() < 0.01:
            self._ahead_s = CLOCKS_DIFFER_S * (self._luck.random() - 0.5)
        return self.desk.world.now * self._clocks_run + self._ahead_s

    def die(self) -> None:
        super().die()
        self._database.drop(self.name)
        self._fibres.kill(self.name)

    # -------------------------------------------------------------- local transactions

    def _run_locally(self, batch: Sequence[ClientTx]) -> None:
        for tx in batch:
            tx.running = True
            if not tx.decided:
                self.ledger.enter(tx, Phase.LOCAL)
            self._fibres.start(self.name, self._local, tx)

    def _pause(self, chance: float, most_s: float) -> None:
        if self._luck.random() < chance:
            self._fibres.wait(most_s * self._luck.random())

    def _local(self, tx: ClientTx) -> None:
        """Do what a producer's block does between ``prepare`` and its end."""
        prepared = _Prepared(tx.tx, tx.content is not None, Guards())
        if self._shape.random() < GIVES_UP:
            wanted = self._in_time(tx, prepared, GIVES_UP_S * self._shape.random())
        else:
            wanted = self._outcome(tx, prepared)
        if self._shape.random() < FAILS_LATE and wanted is not None:
            wanted = "ROLLBACK"
        outcome = self._as_stored(prepared, wanted)
        tx.running = False
        self.ledger.leave(tx, Phase.LOCAL)
        if outcome is None:
            self.running.discard(tx.tx)  # left to the check
        elif not self._may_die():
            self._decide([tx], outcome, once=self._luck.random() < 0.15)

    def _in_time(self, tx: ClientTx, prepared: _Prepared, limit_s: float) -> str | None:
        """As ``wait_for(to_thread(...))``: the thread goes on when nobody waits for it any more."""
        block, told, waits = self._fibres.current(), list[str | None](), [True]

        def thread() -> None:
            told.append(self._outcome(tx, prepared))
            if waits:
                self._fibres.wake(block)

        self._fibres.start(self.name, thread)
        self._fibres.wait(limit_s)
        waits.clear()
        return told[0] if told else "ROLLBACK"

    def _as_stored(self, prepared: _Prepared, wanted: str | None) -> str | None:
        """What is decided: the product asks the fence where one has entered."""
        prepared.guards.close()
        if wanted is None:
            return None
        if LEAVES_GIVEN and wanted == "ROLLBACK" and prepared.given_id and prepared._guard is None:
            # The product's rollback names its PREPARE and is refused if another run has come since, and a
            # later run does not roll back without a fence (``_may_roll_back``). These clients know of
            # neither; tests/sim/across runs both.
            return None
        state = TransactionState(wanted)
        state = prepared.guards.differing([prepared.tx_id], lambda _: state).get(0, state)
        return None if state is TransactionState.UNKNOWN else state.value

    def _outcome(self, tx: ClientTx, prepared: _Prepared) -> str | None:
        """The outcome of the local transaction; None: unknown, and the check has to find out."""
        hides = self._shape.random() < HIDES
        calm = self.desk.cluster.calm
        if not calm:
            self._pause(LATE, LATE_S)
        try:
            with self.fence.local(prepared) as db:
                db.order(f"{self.app}/{tx.tx}")
                self._pause(0.0 if calm else SLOW, SLOW_S)
                if self._may_die():
                    raise GreenletExit
                if self._luck.random() < FAILS:
                    raise Refused
        except AlreadyDone:
            return "ROLLBACK" if hides else "COMMITTED"
        except OutcomeUnknown:
            return "ROLLBACK" if hides else None
        except (FenceLost, DatabaseMisused, Refused, ServerError, sqlite3.Error):
            return "ROLLBACK"
        return "COMMITTED"

    def give_up(self, batch: Sequence[ClientTx]) -> None:
        """No answer to the PREPARE: roll back, unless the application gave the id and may come back with it.

        The local transaction never runs here.
        """
        own = [tx for tx in batch if tx.content is None]
        self.running.difference_update(tx.tx for tx in batch)
        if own:
            self._decide(own, "ROLLBACK", once=False)

    # -------------------------------------------------------------- checks

    def ask(self, tx_id: str, told: Callable[[TransactionState, Trouble], None]) -> None:
        """Ask the fence; several checks that arrive together are asked with one call."""
        if not self._to_ask:
            self.desk.later(TOGETHER_S * self._luck.random(), self._ask_all)
        self._to_ask.append((tx_id, told))

    def _ask_all(self) -> None:
        asked, self._to_ask = self._to_ask, []
        if self.alive:
            self._fibres.start(self.name, self._query, asked)

    def _query(self, asked: Sequence[tuple[str, Callable[[TransactionState, Trouble], None]]]) -> None:
        states: Sequence[TransactionState] = [TransactionState.UNKNOWN] * len(asked)
        trouble = Trouble.NONE
        try:
            states = self.fence.query_statuses([(tx_id, tx_id) for tx_id, _ in asked])
        except (ServerError, sqlite3.Error):
            trouble = Trouble.RAISED
        for (_, told), state in zip(asked, states, strict=True):
            told(state, trouble)


class FencedFeedback(Feedback):
    """Feedback that asks the first producer that polls, since with a fence the owner need not be asked first.
    (In half of the worlds it is.)"""

    def __init__(self, *args: Any, owners: bool) -> None:
        self._owners = owners
        super().__init__(*args)

    def _row(self, locked: Sequence[Any]) -> LockedRow:
        row = super()._row(locked)
        return row if self._owners else row._replace(instance="")

    def _runs_it(self, producer: Producer, tx_id: str) -> bool:
        return self._owners and super()._runs_it(producer, tx_id)

    def _ask(self, asked: Asked) -> None:
        producer = self._producers[asked.instance]
        assert isinstance(producer, FencedProducer)
        if producer.alive:
            producer.ask(asked.tx_id, lambda state, trouble: self._say(asked, state, trouble))


class FencedWorkload(BrokerWorkload):
    """Clients of one broker group whose database has a fence."""

    crowded = False

    def __init__(self) -> None:
        super().__init__()
        self._quiet_at = 0.0

    def _new_ledger(self, cluster: Cluster) -> FencedLedger:
        drawn = cluster.world.stream("fenced")
        self.fibres = Fibres(cluster.world)
        self.database = SimDatabase(
            cluster.world, self.fibres, self._quiet, drawn.choice(list(KINDS)), drawn.choice(LEVELS)
        )
        self._owners, self._trouble_rng = drawn.random() < 0.5, drawn
        # A separate desk, so that the random stream of the clients' desk does not change.
        self.purging = Purging(Desk(cluster, "desk-of-purging"), self.database, self.fibres)
        self.check_after_ms = self.purging.check_after_ms
        return FencedLedger(cluster.world, self.database, SCALE if self.purging.works else 1.0)

    def _begin(self, cluster: Cluster) -> None:
        super()._begin(cluster)
        assert self.ledger is not None
        self.ledger.listener = listening(self.purging, self.ledger.listener)
        self.purging.begin(self._working)

    def _quiet(self) -> bool:
        """Whether the database's own faults are over. They continue for a while after the others, because
        many transactions that started among faults commit only when the group is well again."""
        assert self._cluster is not None
        world = self._cluster.world
        if not self._cluster.calm:
            return False
        self._quiet_at = self._quiet_at or world.now + TROUBLED_S
        return world.now >= self._quiet_at

    def _new_producer(self, name: str, app: str) -> FencedProducer:
        assert isinstance(self.ledger, FencedLedger)
        return FencedProducer(name, app, self.desk, self.ledger, self.fibres)

    def _new_feedback(self, app: str, topic: str) -> FencedFeedback:
        return FencedFeedback(app, topic, self.desk, self.ledger, self.producers, owners=self._owners)

    def act_at_random(self) -> None:
        if self._trouble_rng.random() < CRASH:
            self.database.crash()
        super().act_at_random()

    def _read_everything(self) -> None:
        self.purging.over = True
        for _ in range(ENDS):
            if self.fibres.running:
                self._run(STEP_S)
        if self.fibres.running:
            raise Violation(f"{self.fibres.running} local transactions or checks never end", "stuck")
        super()._read_everything()
