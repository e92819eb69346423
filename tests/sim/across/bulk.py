"""``send_transactions`` in a world of several groups: the real code for a batch, without a waiting thread.

A real call waits for its whole batch, runs its callback for what is prepared, and waits again. Here the next
step is an event that is triggered by the last answer. Without a callback there is no local transaction: what
is prepared is committed at once, and if the producer dies, either outcome is correct for the application.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from escrowmq.actors.producer.bulk.bulk import BulkRun
from escrowmq.actors.producer.bulk.bulk_blocks import BlockUnit, BulkUnit, PlanUnit, SpreadUnit
from escrowmq.actors.producer.core import ProducerCore
from escrowmq.actors.producer.transactions.local_transaction import TransactionRequest
from escrowmq.actors.producer.transactions.results import TransactionResult
from escrowmq.replication.errors import OutcomeUnknown, TransactionConflict
from escrowmq.replication.model import Message, TransactionState
from tests.history.events import Sent
from tests.sim.across.ledger import AcrossTx
from tests.sim.running.coverage import AcrossPhase, Phase

if TYPE_CHECKING:
    from tests.sim.across.producers import AcrossProducer

UNDECIDED = 0.05  # share of a callback's decisions: left to the check
COMMITTED, ROLLBACK, UNKNOWN = TransactionState.COMMITTED, TransactionState.ROLLBACK, TransactionState.UNKNOWN
_PHASE = {COMMITTED: Phase.COMMITTING, ROLLBACK: Phase.ROLLING_BACK}

#: A transaction's content and messages, and its id if the application gave one.
Wanted = tuple[list[Sent], list[Message], str | None]


class _Told:
    """Stands for a caller's waiting thread: calls a function instead of waking it."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then

    def done(self, value: object) -> None:
        self._then()


class _Run(BulkRun):
    """A batch whose steps are events."""

    def __init__(self, core: ProducerCore, call: BulkCall, *, pipelined: bool) -> None:
        super().__init__(core, 0, pipelined=pipelined)
        self._call = call

    def go_on(self, then: Callable[[], None]) -> None:
        """Continue with ``then`` when ``wait`` would return."""
        if self._under_way == 0:
            then()
            return
        self._waiter = _Told(then)  # type: ignore[assignment]

    def wait(self) -> None:
        """Returns at once; what follows is done in ``go_on``."""

    def units(self) -> Sequence[BulkUnit]:
        return self._units

    def _prepared(self, unit: BulkUnit) -> None:
        if self._pipelined:
            self._call.prepared(unit.indexes[i] for i in unit.still_open())
        super()._prepared(unit)


class BulkCall:
    """One call of ``send_transactions`` by one producer."""

    def __init__(self, producer: AcrossProducer, batch: Sequence[Wanted], *, local: bool) -> None:
        self._producer, self._local = producer, local
        self._rng = producer.rng
        self._run = _Run(producer.core, self, pipelined=not local)
        for index, (_, messages, tx_id) in enumerate(batch):
            self._run.add(index, TransactionRequest(messages, tx_id=tx_id))
        self._run.send_rest()
        self._records: dict[int, AcrossTx] = {}
        self._ops: dict[int, int] = {}  # of the prepares, and later of the decisions
        self._deciding: dict[int, TransactionState] = {}
        for unit in self._run.units():
            for i, index in enumerate(unit.indexes):
                self._register(unit, i, index, batch[index][0])
        self._run.go_on(self._all_prepared)

    def _register(self, unit: BulkUnit, i: int, index: int, sent: list[Sent]) -> None:
        """Nothing has been sent yet: that is another event."""
        producer, parts_in = self._producer, _parts_in(unit)
        record = AcrossTx(producer.app, unit.tx_ids[i], sent, sum(parts_in.values()), producer.name)
        record.has_local = self._local
        self._records[index] = record
        producer.begins(record, parts_in)
        op = producer.recorder.invoke("prepare", app=record.app, tx=record.tx, messages=sent)
        producer.preparing[op] = record
        self._ops[index] = op

    # -------------------------------------------------------------- prepared

    def prepared(self, indexes: Any) -> None:
        """Record that these are prepared; without a callback they are committed now."""
        if not self._producer.alive:
            return
        for index in indexes:
            self._take_prepared(index)
            self._decide(index, COMMITTED)

    def _take_prepared(self, index: int) -> None:
        producer, record, op = self._producer, self._records[index], self._ops.pop(index)
        producer.recorder.ok(op)
        del producer.preparing[op]
        record.prepared = True
        producer.ledger.leave(record, Phase.PREPARED, Phase.PREPARING, Phase.PREPARED_IN_PART)
        producer.ledger.leave(record, AcrossPhase.HOME_ONLY, AcrossPhase.SOME_BRANCHES)

    def _all_prepared(self) -> None:
        producer = self._producer
        if not producer.alive:
            return
        if not self._local:
            self._all_decided()
            return
        opened = [tx.index for tx in self._run.opened()]
        for index in opened:
            self._take_prepared(index)
        self._take_refusals()
        if not opened:
            self._run.end()
            return
        duration = self._rng.choice((0.0, 0.02, 0.1, 0.4, 1.5)) * self._rng.random()
        for index in opened:
            record = self._records[index]
            record.running = True
            if not record.decided:
                producer.ledger.enter(record, Phase.LOCAL)
            producer.later(duration * self._rng.random(), producer.settle_somehow, record)
        producer.later(duration, self._local_done, opened)

    def _take_refusals(self) -> None:
        """Record the transactions that were not prepared, as their caller is told."""
        for unit in self._run.units():
            for i, result in unit.exceptions.items():
                index = unit.indexes[i]
                if index in self._ops and index not in self._deciding:
                    self._refused(self._records[index], self._ops.pop(index), result)

    def _refused(self, record: AcrossTx, op: int, result: TransactionResult) -> None:
        producer = self._producer
        del producer.preparing[op]
        producer.recorder.unknown(op, f"not prepared: {result.state.value} {result.error}")
        if result.error is not None and not isinstance(result.error, OutcomeUnknown):
            producer.recall(record)
        producer.leave(record)

    # -------------------------------------------------------------- decided

    def _local_done(self, opened: Sequence[int]) -> None:
        producer, decisions = self._producer, list[TransactionState]()
        if not producer.alive or producer.may_die():
            return
        for index in opened:
            record = self._records[index]
            record.running = False
            producer.ledger.leave(record, Phase.LOCAL)
            if self._rng.random() < UNDECIDED:
                decisions.append(UNKNOWN)
                producer.leave(record)
                continue
            decisions.append(TransactionState(producer.outcome_of(record)))
            self._decide(index, decisions[-1])
        self._run.decide(self._run.opened(), decisions)
        self._run.go_on(self._all_decided)
        producer.may_die()

    def _decide(self, index: int, wanted: TransactionState) -> None:
        producer, record = self._producer, self._records[index]
        recorder = producer.recorder
        op = recorder.invoke("decide", app=record.app, tx=record.tx, outcome=wanted.value, by="producer")
        record.asked = True
        if not record.decided:
            producer.ledger.enter(record, _PHASE[wanted])
        self._ops[index], self._deciding[index] = op, wanted
        producer.deciding.add(op)

    def _all_decided(self) -> None:
        """The call returns."""
        producer = self._producer
        if not producer.alive:
            return
        self._run.end()
        self._take_refusals()
        results = self._run.results()
        for index, wanted in self._deciding.items():
            self._decided(self._records[index], self._ops[index], wanted, results[index])

    def _decided(
        self, record: AcrossTx, op: int, wanted: TransactionState, result: TransactionResult
    ) -> None:
        producer = self._producer
        producer.deciding.discard(op)
        producer.ledger.leave(record, *_PHASE.values(), Phase.COMMITTED, Phase.ROLLED_BACK)
        if result.error is None:
            record.told = wanted.value
        elif isinstance(result.error, TransactionConflict):
            record.told = result.error.recorded_state
        else:
            producer.recorder.unknown(op, f"no answer in time: {result.error}")
            return
        producer.recorder.ok(op, outcome=record.told)


def _parts_in(unit: BulkUnit) -> dict[int, int]:
    """Group -> number of parts of a transaction of the unit, the home group first."""
    if isinstance(unit, BlockUnit):
        return {unit.gid: 1}
    if isinstance(unit, SpreadUnit):
        return dict.fromkeys(unit._groups, 1)
    assert isinstance(unit, PlanUnit)
    plan = unit._plan
    return {gid: 1 if plan.parts is None else len(plan.parts[gid]) for gid in plan.groups}
