"""Feedback in the simulator: the real table of checks, the real locks at the leader, flawed answerers.

One ``Feedback`` is the feedback actor of one app and topic. It locks due transactions at a replica that
believes to lead, hands them to producers that poll, and has their answers carried out. Producers look
into the app's database: in time or late, twice, with UNKNOWN first, with an error, or not at all,
because they died with the check in hand.
"""

from __future__ import annotations

from typing import Any

from escrowmq.feedback.asking.checks import Check, CheckTable
from escrowmq.feedback.config import FeedbackConfig
from escrowmq.feedback.policy import Trouble, Verdict
from escrowmq.replication.calling.answers import LockedRow
from escrowmq.replication.format import ops
from escrowmq.replication.model import TransactionState
from tests.sim.coverage import Phase
from tests.sim.decisions import Decision
from tests.sim.desk import Desk
from tests.sim.ledger import Ledger
from tests.sim.producers import Producer

#: Everything is shorter than in production, as the transactions are.
CONFIG = FeedbackConfig(lock_lease_s=0.9, confirm_s=0.4, answer_s=1.2, silent_s=0.8, lock_batch=8)
POLL_S = 0.1
ROOM = 6  # checks that a producer takes at a time
DELAYS_S = (0.0, 0.02, 0.02, 0.1, 0.1, 0.5, 2.0)
STATES = {"COMMITTED": TransactionState.COMMITTED, "ROLLBACK": TransactionState.ROLLBACK}


class Feedback:
    """All checks of one app and topic. ``restart`` is what the death of the actor comes to."""

    def __init__(
        self, app: str, topic: str, desk: Desk, ledger: Ledger, producers: dict[str, Producer]
    ) -> None:
        self.app, self.topic = app, topic
        self._desk, self._ledger, self._producers = desk, ledger, producers
        self._rng = desk.world.stream(f"feedback-{app}-{topic}")
        self._restarts = 0
        self.restart()
        desk.later(self._rng.random() * POLL_S, self._tick)

    def restart(self) -> None:
        """Everything that it knew is gone; leases at the leader end by themselves."""
        self._restarts += 1
        self._owner = f"{self.app}-{self.topic}-{self._restarts}"
        self._table = CheckTable(CONFIG)

    @property
    def _now(self) -> float:
        return self._desk.world.now

    def _tick(self) -> None:
        self._desk.later(POLL_S * (0.5 + self._rng.random()), self._tick)
        now, table = self._now, self._table
        for producer in self._producers.values():
            if producer.alive and producer.app == self.app:
                seat = table.arrive(producer.name, ROOM, (), now)
                if seat is not None:
                    seat.parked = True
        expired = table.expire(now)
        if expired.counted:
            self._count([tx_id for _, tx_id in expired.counted])
        self._release([tx_id for _, tx_id in expired.released])
        if room := table.room(0, now):
            self._lock(room)
        for instance, checks in table.assign(now).items():
            seat = table.seats.get(instance)
            if seat is not None:
                seat.parked = False  # its poll is answered
            self._producer_gets(instance, checks)

    # -------------------------------------------------------------- at the leader

    def _lock(self, room: int) -> None:
        found = self._desk.any_leader()
        if found is None:
            return
        replica, app = found
        rows = replica.guarded(
            lambda: app.lock_due(self.app, self.topic, room, CONFIG.lock_lease_s, self._owner)
        )
        self._table.locked(0, (LockedRow(*row) for row in rows or ()), self._now)

    def _release(self, tx_ids: list[str]) -> None:
        found = self._desk.any_leader()
        if found is not None and tx_ids:
            replica, app = found
            replica.guarded(lambda: app.release(self.app, tx_ids, self._owner))

    def _count(self, tx_ids: list[str]) -> None:
        table = self._table
        self._desk.call(
            ops.checked(self.app, tx_ids), lambda results: table.settled(0, tx_ids), self._alive(table)
        )

    def _alive(self, table: CheckTable) -> Any:
        return lambda: table is self._table

    # -------------------------------------------------------------- at the producer

    def _producer_gets(self, instance: str, checks: list[Check]) -> None:
        """The checks of one answered poll, worked off one by one."""
        now = self._now
        for check in checks:
            tx = self._ledger.transactions[self.app, check.row.tx_id]
            if not tx.decided:
                self._ledger.enter(tx, Phase.CHECK_OUT)
            self._desk.later(self._rng.choice(DELAYS_S), self._ask, instance, check.row.tx_id, self._table)
        if self._producers[instance].alive:  # the next poll shows that they arrived
            self._table.arrive(instance, ROOM, [check.key for check in checks], now)

    def _ask(self, instance: str, tx_id: str, table: CheckTable) -> None:
        """The querier of a producer looks; its answer goes back, now and then twice."""
        if not self._producers[instance].alive:
            return
        state, trouble = self._look_up(instance, tx_id)
        self._answer(instance, tx_id, state, trouble, table)
        if self._rng.random() < 0.1:
            self._desk.later(self._rng.random(), self._answer, instance, tx_id, state, trouble, table)

    def _look_up(self, instance: str, tx_id: str) -> tuple[TransactionState, Trouble]:
        tx = self._ledger.transactions[self.app, tx_id]
        if tx.running and tx.producer == instance:
            return TransactionState.UNKNOWN, Trouble.RUNNING
        stands, chance = self._ledger.local(self.app, tx_id), self._rng.random()
        if self._desk.cluster.calm:
            chance = 1.0  # six unlucky answers in a row, and the next check would be later than the end
        if chance < 0.08:
            return TransactionState.UNKNOWN, Trouble.RAISED
        if chance < 0.2:
            return TransactionState.UNKNOWN, Trouble.NONE
        # A local transaction may still run in another process; the fence decides which of the two wins.
        return STATES[stands or self._ledger.settle_locally(self.app, tx_id, "ROLLBACK")], Trouble.NONE

    def _answer(
        self, instance: str, tx_id: str, state: TransactionState, trouble: Trouble, table: CheckTable
    ) -> None:
        if table is not self._table:
            return  # the actor that asked is gone
        tx = self._ledger.transactions[self.app, tx_id]
        verdict = table.answer(instance, (0, tx_id), state, trouble, self._now)
        if verdict is None:
            return
        self._ledger.leave(tx, Phase.CHECK_OUT)
        if verdict in (Verdict.COMMIT, Verdict.ROLLBACK):
            if not tx.decided:
                self._ledger.enter(tx, Phase.CHECK_ANSWERED)
            Decision(
                self._desk,
                self._ledger,
                [tx],
                "COMMITTED" if verdict is Verdict.COMMIT else "ROLLBACK",
                "check",
                self._alive(table),
                then=lambda: table.settled(0, [tx_id]),
            )
        elif verdict is Verdict.COUNT:
            self._count([tx_id])
        elif verdict is Verdict.RELEASE:
            self._release([tx_id])
