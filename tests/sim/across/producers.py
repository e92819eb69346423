"""Producers of a world of several groups: the real queues, blocks, flows and channels, in virtual time.

What is not real here is the caller: local transactions are moments in an app's database, and a producer dies
at any point, or comes back with an id that it gave itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.actors.producer.blocks import Outcome
from escrowmq.actors.producer.config import ProducerConfig
from escrowmq.actors.producer.core import ProducerCore
from escrowmq.actors.producer.encoder import Encoder, TxPlan
from escrowmq.actors.producer.transaction_base import Phase as Stands
from escrowmq.actors.producer.transaction_base import TransactionBase
from escrowmq.replication.errors import EscrowMQError, OutcomeUnknown, TransactionConflict
from escrowmq.replication.model import Message, RecordMetadata, group_of
from tests.history.events import Sent, body
from tests.sim.across.ledger import AcrossTx
from tests.sim.across.turns import WorldTurns
from tests.sim.coverage import AcrossPhase, Phase
from tests.sim.producers import DEATH, OF_PRODUCERS, SIZES

if TYPE_CHECKING:
    from tests.sim.across.workload import AcrossWorkload

GIVEN = 0.3  # share of ids that the application gives
COMES_BACK_S = 0.3
TRIES = 3  # with one id


class _Stored:
    """Who waits for a plain message's place."""

    def __init__(self, told: Callable[[RecordMetadata | None], None]) -> None:
        self._told = told

    def set_result(self, result: RecordMetadata, /) -> None:
        self._told(result)

    def set_exception(self, exception: BaseException, /) -> None:
        self._told(None)


class AcrossProducer:
    """One process of an app."""

    def __init__(self, name: str, app: str, clients: AcrossWorkload) -> None:
        self.name, self.app, self.alive = name, app, True
        self._clients, self._ledger, self._world = clients, clients.ledger, clients.many.world
        self._rng = self._world.stream(f"producer-{name}")
        scene = clients.scene
        config = ProducerConfig(
            delivery_timeout_s=scene.delivery_timeout_s,
            part_bytes=scene.part_bytes,
            request_bytes=self._rng.choice((500, 4_000, 96 << 10)),
        )
        info = ClusterInfo("sim", "sim", scene.groups, scene.size)
        self._turns = WorldTurns(self._world, clients.wire, info, config.channel, self._rng)
        self.core = ProducerCore(
            info, app, config, clock=lambda: self._world.now, turns=self._turns, instance=name
        )
        self.core.ids = map("x{}".format, iter(clients.number, None))
        self.core.encoder = Encoder(config, scene.groups, scene.topics.__getitem__)
        self._mine: list[AcrossTx] = []
        #: Operations that wait for their answer.
        self.preparing: dict[int, AcrossTx] = {}
        self.deciding: set[int] = set()

    def die(self) -> None:
        """The process is gone, with everything it had in memory."""
        self.alive, self._turns.dead = False, True
        for tx in self.preparing.values():  # its flow may have sent a roll-back by now
            self._recall(tx)
        for tx in self._mine:
            tx.running = tx.awaits_answer = False
            self._ledger.leave(tx, *OF_PRODUCERS)
            if not tx.decided and tx.here:
                self._ledger.enter(tx, Phase.ORPHANED)
        self._mine.clear()

    def _may_die(self) -> bool:
        if self.alive and not self._clients.many.calm and self._rng.random() < DEATH:
            self.die()
        return not self.alive

    # -------------------------------------------------------------- transactions

    def transact(self) -> None:
        """Prepare a transaction, run its local part, decide it."""
        rng, scene = self._rng, self._clients.scene
        given = rng.random() < GIVEN
        tx_id = f"g{self._clients.number()}" if given else next(self.core.ids)
        if rng.random() < self._clients.share_across(self.app):
            places = rng.sample(scene.places(), rng.choice((2, 2, 3, 4)))
        else:
            mine = scene.places(rng.randrange(scene.groups))
            places = rng.sample(mine, min(rng.choice((1, 1, 2)), len(mine)))
        sent: list[Sent] = []
        messages: list[Message] = []
        for place in places:
            for _ in range(rng.choice((1, 1, 2))):
                id = f"{tx_id}.{len(sent)}"
                sent.append(Sent(id, *place, group=group_of(*place, scene.groups)))
                messages.append(Message(place[0], body(id, rng.choice(SIZES)), partition=place[1]))
        record = AcrossTx(self.app, tx_id, sent, len(places), self.name)
        self._prepare(record, messages, given, tries=1)

    def _prepare(self, record: AcrossTx, messages: list[Message], given: bool, tries: int) -> None:
        if not self.alive:
            return
        tx = TransactionBase(self.core, None, record.tx, None, None)
        tx._given_id = given
        tx._add(messages)
        plan = tx._plan()
        assert plan is not None
        parts_in = {gid: 1 if plan.parts is None else len(plan.parts[gid]) for gid in plan.groups}
        if not self.core.try_reserve(plan.size):
            tx._not_prepared()
            return
        self._mine.append(record)
        op = self._ledger.recorder.invoke("prepare", app=self.app, tx=record.tx, messages=record.sent)
        self.preparing[op] = record
        self._ledger.add(record, parts_in)
        again = (
            partial(self._prepare, record, messages, given, tries + 1) if given and tries < TRIES else None
        )
        tx._start_prepare(plan, partial(self._prepared, tx, plan, record, op, again))

    def _prepared(
        self,
        tx: TransactionBase,
        plan: TxPlan,
        record: AcrossTx,
        op: int,
        again: Callable[[], None] | None,
        outcome: Outcome,
    ) -> None:
        """How the prepare ended, as a caller is told. After an error the local transaction does not run."""
        recorder = self._ledger.recorder
        if not self.alive:
            return
        del self.preparing[op]
        try:
            settled = tx._after_prepare(plan, outcome)
        except OutcomeUnknown:  # a given id: it stays open until the producer comes back, or a check asks
            recorder.unknown(op, "no answer in time")
            if again is not None and self._rng.random() < 0.7:
                self._clients.later(COMES_BACK_S * self._rng.random(), again)
            else:
                self._leave(record)
            return
        except EscrowMQError as error:
            recorder.unknown(op, f"not prepared: {error}")
            self._rolled_back_by_client(record)
            return
        if settled is not None:
            recorder.unknown(op, "it was decided before")
            self._leave(record)
            return
        recorder.ok(op)
        record.prepared = True
        self._ledger.leave(record, Phase.PREPARED, Phase.PREPARING, Phase.PREPARED_IN_PART)
        self._ledger.leave(record, AcrossPhase.HOME_ONLY, AcrossPhase.SOME_BRANCHES)
        if not self._may_die():
            self._run_locally(tx, record)

    def _rolled_back_by_client(self, record: AcrossTx) -> None:
        """Refused or without answer: what was prepared is being rolled back by the flow itself."""
        self._recall(record)
        self._leave(record)

    def _recall(self, record: AcrossTx) -> None:
        """A roll-back of the flow's own, which nobody waits for; the local transaction never runs."""
        self._ledger.settle_locally(self.app, record.tx, "ROLLBACK")
        recorder = self._ledger.recorder
        op = recorder.invoke("decide", app=self.app, tx=record.tx, outcome="ROLLBACK", by="producer")
        recorder.unknown(op, "the client's own roll-back")
        record.asked = True

    def _leave(self, record: AcrossTx) -> None:
        record.awaits_answer = False
        self._ledger.leave(record, *OF_PRODUCERS, AcrossPhase.HOME_ONLY, AcrossPhase.SOME_BRANCHES)

    def _run_locally(self, tx: TransactionBase, record: AcrossTx) -> None:
        rng = self._rng
        duration = rng.choice((0.0, 0.02, 0.1, 0.1)) if rng.random() < 0.8 else 0.4 + 1.5 * rng.random()
        record.running = True
        if not record.decided:
            self._ledger.enter(record, Phase.LOCAL)
        self._clients.later(duration * rng.random(), self._settle, record)
        self._clients.later(duration, self._local_done, tx, record)

    def _settle(self, record: AcrossTx) -> None:
        if self.alive:
            wanted = "ROLLBACK" if self._rng.random() < 0.25 else "COMMITTED"
            self._ledger.settle_locally(self.app, record.tx, wanted)

    def _local_done(self, tx: TransactionBase, record: AcrossTx) -> None:
        if not self.alive or self._may_die():
            return
        record.running = False
        self._ledger.leave(record, Phase.LOCAL)
        outcome = self._ledger.settle_locally(self.app, record.tx, "ROLLBACK")
        commit, once = outcome == "COMMITTED", self._rng.random() < 0.15
        recorder = self._ledger.recorder
        op = recorder.invoke("decide", app=self.app, tx=record.tx, outcome=outcome, by="producer")
        record.asked = True
        if not record.decided:
            self._ledger.enter(record, Phase.COMMITTING if commit else Phase.ROLLING_BACK)
        if once:
            tx._one_way_commit = True
            if tx._needs_no_answer(commit):
                recorder.unknown(op, "sent one-way")
                record.awaits_answer = False
                self._may_die()
                return
        self.deciding.add(op)
        if not tx._start_decision(commit, partial(self._decided, tx, record, op, outcome)):
            raise AssertionError("a transaction without messages was prepared")
        self._may_die()

    def _decided(self, tx: TransactionBase, record: AcrossTx, op: int, wanted: str, outcome: Outcome) -> None:
        if not self.alive:
            return
        self.deciding.discard(op)
        recorder = self._ledger.recorder
        self._ledger.leave(record, Phase.COMMITTING, Phase.ROLLING_BACK, Phase.COMMITTED, Phase.ROLLED_BACK)
        try:
            tx._after_decision(outcome)
        except TransactionConflict as conflict:
            record.told = conflict.recorded_state
            recorder.ok(op, outcome=record.told)
        except OutcomeUnknown:
            recorder.unknown(op, "no answer in time")
        else:
            assert tx._phase is Stands.DECIDED
            record.told = wanted
            recorder.ok(op, outcome=wanted)

    # -------------------------------------------------------------- plain messages

    def send(self) -> None:
        """One plain message, through the partition's stream."""
        place = self._rng.choice(self._clients.scene.places())
        id = f"m{self._clients.number()}"
        recorder = self._ledger.recorder
        sent = Sent(id, *place, group=group_of(*place, self._clients.scene.groups))
        message = Message(place[0], body(id, self._rng.choice(SIZES)), partition=place[1])
        op = recorder.invoke("send", producer=self.name, messages=[sent])

        def told(metadata: RecordMetadata | None) -> None:
            if not self.alive:
                return
            if metadata is None:
                recorder.unknown(op, "no answer in time")
            else:
                recorder.ok(op, places=[[*place, metadata.offset]])

        partition, row = self.core.encoder.plain(message)
        if not self.core.send(place[0], partition, row, _Stored(told)):
            recorder.fail(op, "the buffer is full")
