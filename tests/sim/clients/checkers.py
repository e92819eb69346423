"""Feedback in the simulator: the real table of checks, the real locks at the leader, unreliable queriers.

One ``Feedback`` is the feedback actor of one app and topic. It locks due transactions at a replica that
believes itself leader, passes them to producers that poll, and has their answers carried out. Producers look
into the app's database: in time or late, twice, with UNKNOWN first, with an error, or not at all, because
they died with the check. If transactions name their owners, the querier is a plain one, which interprets "no
row" as ROLLBACK. Otherwise, and if two live processes run one id, it writes a fence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from escrowmq.feedback.asking.checks import Check, CheckTable
from escrowmq.feedback.config import FeedbackConfig
from escrowmq.feedback.policy import Trouble, Verdict
from escrowmq.replication.calling.answers import LockedRow
from escrowmq.replication.format import ops
from escrowmq.replication.model import TransactionState
from tests.sim.clients.decisions import Decision
from tests.sim.clients.desk import Desk
from tests.sim.clients.ledger import Ledger
from tests.sim.clients.producers import Producer
from tests.sim.running.coverage import Phase

#: All times are shorter than in production, like those of the transactions.
CONFIG = FeedbackConfig(
    lock_lease_s=0.9,
    confirm_s=0.4,
    answer_s=1.2,
    silent_s=0.8,
    owner_gone_s=1.6,
    poll_wait_max_s=5.0,
    lock_batch=8,
)
POLL_S = 0.1
ROOM = 6  # checks that a producer accepts at a time
DELAYS_S = (0.0, 0.02, 0.02, 0.1, 0.1, 0.5, 2.0)
STATES = {"COMMITTED": TransactionState.COMMITTED, "ROLLBACK": TransactionState.ROLLBACK}


@dataclass(frozen=True, slots=True)
class Asked:
    """A check that a producer works on, with its PREPARE and the incarnation of the actor that sent it."""

    instance: str
    tx_id: str
    index: int
    table: CheckTable


class Feedback:
    """All checks of one app and topic. ``restart`` simulates the death of the actor."""

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
        """Lose everything in memory; leases at the leader expire by themselves."""
        self._restarts += 1
        self._owner = f"{self.app}-{self.topic}-{self._restarts}"
        self._table = CheckTable(CONFIG, self._now)

    @property
    def _now(self) -> float:
        return self._desk.world.now

    def _tick(self) -> None:
        self._desk.later(POLL_S * (0.5 + self._rng.random()), self._tick)
        now, table = self._now, self._table
        for producer in self._producers.values():
            if producer.app == self.app and producer.polls(now):
                seat = table.arrive(producer.name, ROOM, (), now)
                if seat is not None:
                    seat.parked = True
        expired = table.expire(now)
        if expired.counted:
            self._count([tx_id for _, tx_id in expired.counted])
        self._put_off(dict.fromkeys((tx_id for _, tx_id in expired.released), 1.0))
        if room := table.room(0, now):
            self._lock(room)
        for instance, checks in table.assign(now).items():
            seat = table.seats.get(instance)
            if seat is not None:
                table.unparked(instance, now)  # its poll is answered
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
        self._table.locked(0, map(self._row, rows or ()), self._now)

    def _row(self, locked: Sequence[Any]) -> LockedRow:
        return LockedRow(*locked)

    def _put_off(self, waits_s: dict[str, float]) -> None:
        """Make checks that no producer is asked now due again later."""
        waits_s |= {tx_id: wait_s for (_, tx_id), wait_s in self._table.take_put_off()}
        found = self._desk.any_leader()
        if found is not None and waits_s:
            replica, app = found
            waits_ms = [int(wait_s * 1000) for wait_s in waits_s.values()]
            replica.guarded(lambda: app.release(self.app, list(waits_s), self._owner, waits_ms))

    def _count(self, tx_ids: list[str]) -> None:
        table = self._table
        self._desk.call(
            ops.checked(self.app, tx_ids), lambda results: table.settled(0, tx_ids), self._alive(table)
        )

    def _alive(self, table: CheckTable) -> Any:
        return lambda: table is self._table

    # -------------------------------------------------------------- at the producer

    def _producer_gets(self, instance: str, checks: list[Check]) -> None:
        """The producer gets the checks of one poll.

        It says at once whose local transactions are running here, and works on the others one by one; its
        next poll shows that they arrived.
        """
        producer, working = self._producers[instance], []
        for check in checks:
            tx = self._ledger.transactions[self.app, check.row.tx_id]
            if not tx.decided:
                self._ledger.enter(tx, Phase.CHECK_OUT)
            asked = Asked(instance, check.row.tx_id, check.row.newest_index, self._table)
            if self._runs_it(producer, check.row.tx_id):
                self._say(asked, TransactionState.UNKNOWN, Trouble.RUNNING)
            elif check.brief:
                self._say(asked, TransactionState.UNKNOWN, Trouble.BUSY)
            else:
                working.append((check.key, check.row.newest_index))
                self._desk.later(self._rng.choice(DELAYS_S), self._ask, asked)
        if producer.polls(self._now):
            self._table.arrive(instance, ROOM, working, self._now)

    def _runs_it(self, producer: Producer, tx_id: str) -> bool:
        return tx_id in producer.running

    def _ask(self, asked: Asked) -> None:
        """A producer's querier looks; its answer is sent back, sometimes twice."""
        if not self._producers[asked.instance].alive:
            return
        said = self._look_up(asked.tx_id)
        self._say(asked, *said)
        if self._rng.random() < 0.1:
            self._desk.later(self._rng.random(), self._say, asked, *said)

    def _look_up(self, tx_id: str) -> tuple[TransactionState, Trouble]:
        stands, chance = self._ledger.local(self.app, tx_id), self._rng.random()
        if self._desk.cluster.calm:
            chance = 1.0  # after six UNKNOWN answers in a row, the next check would come after the end
        if chance < 0.08:
            return TransactionState.UNKNOWN, Trouble.RAISED
        if chance < 0.2:
            return TransactionState.UNKNOWN, Trouble.NONE
        tx = self._ledger.transactions[self.app, tx_id]
        if not tx.fenced:
            return STATES[stands or self._ledger.no_row(self.app, tx_id)], Trouble.NONE
        # A local transaction may still run in another process; the fence decides which of the two wins.
        return STATES[stands or self._ledger.settle_locally(self.app, tx_id, "ROLLBACK")], Trouble.NONE

    def _say(self, asked: Asked, state: TransactionState, trouble: Trouble) -> None:
        table, tx_id = asked.table, asked.tx_id
        if table is not self._table or not self._producers[asked.instance].alive:
            return  # the actor or the producer has ended
        tx = self._ledger.transactions[self.app, tx_id]
        verdict = table.answer(asked.instance, (0, tx_id), state, trouble, asked.index, self._now)
        if verdict is None:
            self._put_off({})
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
                index=asked.index,
            )
        elif verdict is Verdict.COUNT:
            self._count([tx_id])
        elif verdict is Verdict.RELEASE:
            self._put_off({tx_id: 1.0})
