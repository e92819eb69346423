"""Producers in a world of several groups: the real queues, blocks, flows and channels, in virtual time.

Only the caller is simulated: local transactions are events in an app's database, and a producer dies at any
point, or comes back with an id that the application gave.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.actors.producer.config import Compression, ProducerConfig
from escrowmq.actors.producer.encoding.blocks import Block, DecisionBlock, Outcome
from escrowmq.actors.producer.encoding.encoder import Encoder, TxPlan
from escrowmq.actors.producer.encoding.value_packer import ValueEncoder, ValuePacker
from escrowmq.replication.errors import EscrowMQError, OutcomeUnknown, TransactionConflict, UnknownTopic
from escrowmq.replication.format.packing import METHODS
from escrowmq.replication.model import Message, RecordMetadata
from tests.history.events import Sent, body
from tests.sim.across.bulk import BulkCall, Wanted
from tests.sim.across.cores import VirtualCore
from tests.sim.across.ledger import AcrossTx
from tests.sim.across.stepping import SteppedTransaction
from tests.sim.across.turns import WorldTurns
from tests.sim.clients.producers import DEATH, OF_PRODUCERS, SIZES
from tests.sim.environment.world import Violation
from tests.sim.running.coverage import AcrossPhase, Phase

if TYPE_CHECKING:
    from tests.sim.across.workload import AcrossWorkload

GIVEN = 0.3  # share of ids that the application gives
TWICE = 0.1  # share of those: another live process runs the same transaction at the same time
TWICE_S = (0.0, 0.02, 0.3)
SHARED = 0.02  # share of what a producer begins: its id is also given to another transaction
BULK = 0.05  # share of what a producer begins: a call of ``send_transactions``
BULK_COUNTS = (2, 5, 10, 40)
COMES_BACK_S = 0.3
COMPRESSING = 0.3  # share of the processes that compress values
TRIES = 3  # with one id


class SimCore(VirtualCore):
    """``rolling_back``: ids of which it has sent, or wanted to send, a rollback."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rolling_back: set[str] = set()

    def enqueue(self, gid: int, block: Block) -> None:
        if isinstance(block, DecisionBlock) and not block.commit:
            self.rolling_back.update(block.tx_ids)
        super().enqueue(gid, block)


class _Packer(ValuePacker):
    """Counts for everybody."""

    did: Counter[str]

    def pack(self, row: bytes) -> bytes:
        made = super().pack(row)
        self.did["compressed"] += made is not row
        return made


class AcrossProducer:
    """One process of an app."""

    def __init__(self, name: str, app: str, clients: AcrossWorkload) -> None:
        self.name, self.app, self.alive = name, app, True
        self._clients, self._world = clients, clients.many.world
        self.ledger, self.recorder = clients.ledger, clients.ledger.recorder
        self.later = clients.later
        self.rng = self._world.stream(f"producer-{name}")
        scene = clients.scene
        config = ProducerConfig(
            delivery_timeout_s=scene.delivery_timeout_s,
            part_bytes=scene.part_bytes,
            request_bytes=self.rng.choice((500, 4_000, 96 << 10)),
            bulk_calls_in_flight=10_000,  # nor for another call to end
        )
        info = ClusterInfo("sim", "sim", scene.groups, scene.size)
        self._turns = WorldTurns(self._world, clients.wire, info, config.channel, self.rng)
        self.core = SimCore(
            info, app, config, clock=lambda: self._world.now, turns=self._turns, instance=name
        )
        self.core.ids = map(f"x{{}}{scene.ids_end}".format, iter(clients.number, None))
        self.core.encoder = self._encoder(config)
        self.core.encoder.time_of = self.core.delays.time_of
        self._mine: list[AcrossTx] = []
        #: Operations that wait for their answer.
        self.preparing: dict[int, AcrossTx] = {}
        self.deciding: set[int] = set()
        #: How often its caller is about to come back with an id.
        self.returning = 0

    def _encoder(self, config: ProducerConfig) -> Encoder:
        """Some producers compress values, each in its own way, so that an id that two of them use has rows of
        several kinds."""
        luck = self._world.stream(f"compression-{self.name}")
        catalog = self._clients.later_across.partitions, self._clients.later_across.group_of
        if luck.random() >= COMPRESSING:
            return Encoder(config, *catalog)
        how = Compression(luck.choice(tuple(METHODS)), least=luck.choice((1, 200)))
        packer = _Packer(how)
        packer.did = self._clients.did
        return ValueEncoder(config, *catalog, None, packer)

    def die(self) -> None:
        """End the process, with everything that it had in memory."""
        self.alive, self._turns.dead = False, True
        for tx in self.preparing.values():  # its flow may already have sent a rollback
            self.ledger.no_row(self.app, tx.tx)
            self._note_recall(tx)
        for tx in self._mine:
            tx.running = tx.awaits_answer = False
            self.ledger.leave(tx, *OF_PRODUCERS)
            if not tx.decided and tx.here:
                self.ledger.enter(tx, Phase.ORPHANED)
        self._mine.clear()

    def may_die(self) -> bool:
        if self.alive and not self._clients.many.calm and self.rng.random() < DEATH:
            self.die()
        return not self.alive

    # -------------------------------------------------------------- transactions

    def transact(self) -> None:
        """Prepare a transaction, run its local part, decide it; or many at once."""
        rng = self.rng
        if rng.random() < BULK:
            count, local = rng.choice(BULK_COUNTS), rng.random() < 0.6
            self._clients.did["bulk" if local else "bulk without a callback"] += 1
            BulkCall(self, [self._of_a_batch() for _ in range(count)], local=local)
            return
        if rng.random() < SHARED and self._clients.may_share_ids(self.app):
            self._share_an_id()
            return
        given = rng.random() < GIVEN
        tx_id = f"g{self._clients.number()}" if given else next(self.core.ids)
        sent, messages, count = self._content(tx_id)
        messages += self._clients.later_across.messages(self, tx_id, sent)
        record = AcrossTx(self.app, tx_id, sent, count, self.name)
        self.prepare(record, messages, given, tries=1)
        if given and rng.random() < TWICE and (other := self._clients.another(self)) is not None:
            self._clients.did["one id twice"] += 1
            record.fenced = True  # its owner does not know the state of the other process's local transaction
            self.later(rng.choice(TWICE_S), other.prepare, record, messages, True, TRIES)

    def _of_a_batch(self) -> Wanted:
        name = f"g{self._clients.number()}"
        sent, messages, _ = self._content(name)
        return sent, messages, name if self.rng.random() < GIVEN else None

    def _content(self, name: str) -> tuple[list[Sent], list[Message], int]:
        """The content of a transaction, and the number of its partitions."""
        rng, scene = self.rng, self._clients.scene
        if rng.random() < self._clients.share_across(self.app):
            every = scene.partitions()
            partitions = rng.sample(every, min(rng.choice((2, 2, 3, 4)), len(every)))
        else:
            mine = scene.partitions(rng.randrange(scene.groups))
            partitions = rng.sample(mine, min(rng.choice((1, 1, 2)), len(mine)))
        sent, messages = self._messages(name, partitions)
        return sent, messages, len(partitions)

    def _messages(self, name: str, partitions: Sequence[tuple[str, int]]) -> tuple[list[Sent], list[Message]]:
        rng, scene = self.rng, self._clients.scene
        sent: list[Sent] = []
        messages: list[Message] = []
        for tp in partitions:
            for _ in range(rng.choice((1, 1, 2))):
                id = f"{name}.{len(sent)}"
                sent.append(Sent(id, *tp, group=scene.group_of(*tp)))
                messages.append(Message(tp[0], body(id, rng.choice(SIZES)), partition=tp[1]))
        return sent, messages

    def _share_an_id(self) -> None:
        """A mistake of the application: two processes give one id to different transactions.

        Their home groups differ, and a group where both have a branch has to tell them apart.
        """
        rng, scene, other = self.rng, self._clients.scene, self._clients.another(self)
        if other is None:
            return
        self._clients.did["one id for two things"] += 1
        first, second, both = rng.sample(range(scene.groups), 3)
        wire, starts = f"g{self._clients.number()}", list[Callable[[], None]]()
        for producer, home, name in ((self, first, wire), (other, second, f"{wire}+")):
            sent, messages = self._messages(name, [rng.choice(scene.partitions(gid)) for gid in (home, both)])
            record = AcrossTx(self.app, name, sent, 2, producer.name, wire=wire, shares_id=True)
            starts.append(partial(producer.prepare, record, messages, True, TRIES))
        self._clients.start_together((first, second), starts)

    def begins(self, record: AcrossTx, parts_in: dict[int, int]) -> None:
        """Record that a transaction is about to be prepared."""
        self._mine.append(record)
        self.ledger.add(record, parts_in)

    def prepare(self, record: AcrossTx, messages: list[Message], given: bool, tries: int) -> None:
        if not self.alive:
            return
        tx = SteppedTransaction(self.core, record.tx, record.wire, None, None)
        if not given:
            tx.has_own_id()
        tx.add(messages)
        if (plan := tx.plan()) is None:
            return
        parts_in = {gid: 1 if plan.parts is None else len(plan.parts[gid]) for gid in plan.groups}
        op = self.recorder.invoke("prepare", app=self.app, tx=record.tx, messages=record.sent)
        self.preparing[op] = record
        self.begins(record, parts_in)
        again = partial(self.prepare, record, messages, given, tries + 1) if given and tries < TRIES else None
        tx.start_prepare(plan, partial(self._prepared, tx, plan, record, op, again))

    def _prepared(
        self,
        tx: SteppedTransaction,
        plan: TxPlan,
        record: AcrossTx,
        op: int,
        again: Callable[[], None] | None,
        outcome: Outcome,
    ) -> None:
        """Record the result of a prepare. After an error the local transaction does not run."""
        recorder = self.recorder
        if not self.alive:
            return
        del self.preparing[op]
        try:
            settled = tx.after_prepare(plan, outcome)
        except OutcomeUnknown:  # a given id stays open until the producer comes back, or a check
            recorder.unknown(op, "no answer in time")
            if record.shares_id:  # refused because of the other one; whether the rollback worked is unknown
                self._rolled_back_by_client(record)
                return
            if record.wire in self.core.rolling_back:  # a branch refused it, and the rollback has no answer
                self.recall(record)
            if again is not None and self.rng.random() < 0.7:
                self.returning += 1
                self.later(COMES_BACK_S * self.rng.random(), self._come_back, again)
            else:
                self.leave(record)
            return
        except UnknownTopic as error:  # all groups have created both topics before clients begin
            raise Violation(f"PREPARE of {record.tx}: {error}", "unexpected-answer") from error
        except EscrowMQError as error:
            recorder.unknown(op, f"not prepared: {error}")
            self._rolled_back_by_client(record)
            return
        if settled is not None:
            recorder.unknown(op, "it was decided before")
            self.leave(record)
            return
        recorder.ok(op)
        record.prepared = True
        self.ledger.leave(record, Phase.PREPARED, Phase.PREPARING, Phase.PREPARED_IN_PART)
        self.ledger.leave(record, AcrossPhase.HOME_ONLY, AcrossPhase.SOME_BRANCHES)
        if not self.may_die():
            self._run_locally(tx, record)

    def _come_back(self, again: Callable[[], None]) -> None:
        self.returning -= 1
        again()

    def _rolled_back_by_client(self, record: AcrossTx) -> None:
        """Refused or without answer: the flow itself rolls back what was prepared."""
        self.recall(record)
        self.leave(record)

    def recall(self, record: AcrossTx) -> None:
        """Record a rollback by the flow itself, which nothing waits for; the local transaction never runs."""
        self._rolls_back(record)
        self._note_recall(record)

    def _note_recall(self, record: AcrossTx) -> None:
        op = self.recorder.invoke("decide", app=self.app, tx=record.tx, outcome="ROLLBACK", by="producer")
        self.recorder.unknown(op, "the client's own roll-back")
        record.asked = True

    def leave(self, record: AcrossTx) -> None:
        """Forget a transaction that is left to the check, or finished."""
        record.awaits_answer = False
        self.ledger.leave(record, *OF_PRODUCERS, AcrossPhase.HOME_ONLY, AcrossPhase.SOME_BRANCHES)

    def _run_locally(self, tx: SteppedTransaction, record: AcrossTx) -> None:
        rng = self.rng
        duration = rng.choice((0.0, 0.02, 0.1, 0.1)) if rng.random() < 0.8 else 0.4 + 1.5 * rng.random()
        record.running = True
        if not record.decided:
            self.ledger.enter(record, Phase.LOCAL)
        self.later(duration * rng.random(), self.settle_somehow, record)
        self.later(duration, self._local_done, tx, record)

    def settle_somehow(self, record: AcrossTx) -> None:
        """End the local transaction, with a random outcome."""
        if not self.alive:
            return
        if self.rng.random() < 0.25:
            self._rolls_back(record)
        else:
            self.ledger.settle_locally(self.app, record.tx, "COMMITTED")

    def _rolls_back(self, record: AcrossTx) -> None:
        """Roll back locally; that leaves no row, unless the application writes a fence."""
        if record.has_local:
            self.outcome_of(record)

    def outcome_of(self, record: AcrossTx) -> str:
        """The outcome of a finished local transaction."""
        ledger = self.ledger
        if self._has_fence(record):
            return ledger.settle_locally(self.app, record.tx, "ROLLBACK")
        return ledger.local(self.app, record.tx) or ledger.no_row(self.app, record.tx)

    def _has_fence(self, record: AcrossTx) -> bool:
        return self._clients.scene.fence or record.fenced

    @staticmethod
    def _is_refused(record: AcrossTx) -> bool:
        """Half of all applications do not look for the row of an earlier run: a unique key refuses theirs."""
        return record.has_local and zlib.crc32(record.tx.encode()) % 2 == 0

    def _local_done(self, tx: SteppedTransaction, record: AcrossTx) -> None:
        if not self.alive or self.may_die():
            return
        record.running = False
        self.ledger.leave(record, Phase.LOCAL)
        outcome = self.outcome_of(record)
        commit, once = outcome == "COMMITTED", self.rng.random() < 0.15
        if tx.repeated and (self._is_refused(record) if commit else not self._has_fence(record)):
            if not tx.must_roll_back(KeyError("the row is there already")):
                self.leave(record)
                return
            outcome, commit = "ROLLBACK", False
        recorder = self.recorder
        op = recorder.invoke("decide", app=self.app, tx=record.tx, outcome=outcome, by="producer")
        record.asked = True
        if not record.decided:
            self.ledger.enter(record, Phase.COMMITTING if commit else Phase.ROLLING_BACK)
        # Only a commit goes one-way. A rollback of a repetition is right here: its fence was asked.
        if once and commit and tx.commits_one_way():
            recorder.unknown(op, "sent one-way")
            record.awaits_answer = False
            self.may_die()
            return
        self.deciding.add(op)
        tx.start_decision(commit, partial(self._decided, tx, record, op, outcome))
        self.may_die()

    def _decided(
        self, tx: SteppedTransaction, record: AcrossTx, op: int, wanted: str, outcome: Outcome
    ) -> None:
        if not self.alive:
            return
        self.deciding.discard(op)
        recorder = self.recorder
        self.ledger.leave(record, Phase.COMMITTING, Phase.ROLLING_BACK, Phase.COMMITTED, Phase.ROLLED_BACK)
        try:
            tx.after_decision(outcome)
        except TransactionConflict as conflict:
            record.told = conflict.recorded_state
            recorder.ok(op, outcome=record.told)
        except OutcomeUnknown:
            recorder.unknown(op, "no answer in time")
        else:
            record.told = wanted
            recorder.ok(op, outcome=wanted)

    # -------------------------------------------------------------- plain messages

    def send(self) -> None:
        """Send one plain message through the partition's stream."""
        tp = self.rng.choice(self._clients.scene.partitions())
        id = f"m{self._clients.number()}"
        recorder = self.recorder
        sent = Sent(id, *tp, group=self._clients.scene.group_of(*tp))
        message = Message(tp[0], body(id, self.rng.choice(SIZES)), partition=tp[1])
        op = recorder.invoke("send", producer=self.name, messages=[sent])

        def told(future: Future[RecordMetadata]) -> None:
            del self._clients.sends[op]
            if not self.alive:
                return
            if future.exception() is not None:
                recorder.unknown(op, "no answer in time")
            else:
                recorder.ok(op, places=[[*tp, future.result().offset]])

        partition, row = self.core.encoder.plain(message)
        future = self.core.send(tp[0], partition, row)
        if future is None:
            recorder.fail(op, "the buffer is full")
        else:
            self._clients.sends[op] = future
            future.add_done_callback(told)
