"""One process that claims a name: what its caller does, and what it knows of the name's database.

See named.py, which judges it. ``works`` says whether it can do something; whatever it begins ends in a
callback, unless it has died.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.actors.producer.claiming import Ask, Claimed, steps
from escrowmq.actors.producer.config import ProducerConfig
from escrowmq.actors.producer.encoding.blocks import Outcome
from escrowmq.actors.producer.encoding.encoder import Encoder
from escrowmq.actors.producer.transactions import numbered
from escrowmq.replication.errors import EscrowMQError, ProducerFenced, TransactionSettled
from escrowmq.replication.format import ops
from escrowmq.replication.format.ops import claim_group
from escrowmq.replication.model import Message, RecordMetadata, TransactionState
from tests.sim.across.cores import VirtualCore
from tests.sim.across.stepping import SteppedNumbered, SteppedTransaction
from tests.sim.across.turns import StoppableTurns

if TYPE_CHECKING:
    from tests.sim.across.named import NamedProducers

APP, TOPIC, TOPIC_TIMEOUT_S = "named", "named", 0.5
LOCAL_S = 0.4  # the longest time between a PREPARE and its decision
#: Transactions without a local one: times to the decision, one of them about the topic's time-out (None: they
#: are left open), and time-outs (None: the topic's). The long one never passes: only a claim ends these.
TAKES_S = (0.0, 0.1, 0.55, 1.0, 2.0, None)
LONG_S = 365 * 86_400.0
TIMEOUTS_S = (None, LONG_S, LONG_S)


@dataclass(slots=True)
class Batch:
    """What the database has under a number."""

    number: int
    ids: list[str]
    messages: list[Message]
    done: bool = False


@dataclass(slots=True)
class Name:
    """What the database knows of a name. ``newest``: the instance that took it over last."""

    name: str
    instances: list[Instance] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)

    @property
    def newest(self) -> Instance:
        return self.instances[-1]


@dataclass(slots=True)
class Sent:
    """A message, or those of the transaction ``tx``. ``after``: another instance had a later claim of the
    name in all groups when it was sent. ``timeout_s``: 0 beside a local transaction."""

    by: Instance
    ids: list[str]
    after: bool
    tx: str = ""
    acked: bool = False
    timeout_s: float = 0.0


class Instance:
    """One process that claims a name."""

    def __init__(self, named: NamedProducers, of: Name, number: int) -> None:
        self.named, self.of, self.number = named, of, number
        clients, scene = named.clients, named.clients.scene
        world = clients.many.world
        config = ProducerConfig(delivery_timeout_s=scene.delivery_timeout_s, part_bytes=scene.part_bytes)
        info = ClusterInfo("sim", "sim", scene.groups, scene.size)
        rng = world.stream(f"{of.name}.{number}")
        self._turns = StoppableTurns(world, clients.wire, info, config.channel, rng)
        self.core = VirtualCore(
            info, APP, config, clock=lambda: world.now, turns=self._turns, instance=f"{of.name}.{number}"
        )
        self.core.encoder = Encoder(config, lambda topic: scene.groups, named.group_of)
        self.alive, self.fenced, self.waits = True, False, 0
        self.claimed: Claimed | None = None
        self.sending = False  # a number
        self._steps = steps(of.name, scene.groups)
        self._ask(next(self._steps))

    @property
    def works(self) -> bool:
        """Whether its caller can do something now."""
        there = self.alive and not self.fenced and self.claimed is not None
        return there and self.named.clients.many.world.now >= self._turns.stopped_until

    def stop(self, seconds: float) -> None:
        self._turns.stopped_until = self.named.clients.many.world.now + seconds

    def die(self) -> None:
        self.alive, self._turns.dead, self.waits = False, True, 0

    def _fenced(self) -> None:
        self.fenced = True

    # -------------------------------------------------------------- claiming

    def _ask(self, ask: Ask) -> None:
        answers: dict[int, Sequence[Any]] = {}
        for gid in ask.groups if self.alive else ():
            request = ops.claim(self.of.name, ask.epoch, self.core.instance)
            future = self.core.router.submit(gid, request, self.core.config.delivery_timeout_s)
            future.add_done_callback(partial(self._told, ask, gid, answers))

    def _told(self, ask: Ask, gid: int, answers: dict[int, Sequence[Any]], future: Future[Any]) -> None:
        if not self.alive:
            return
        if future.exception() is not None:
            self.die()  # its constructor raises
            return
        (answers[gid],) = future.result()
        if len(answers) < len(ask.groups):
            return
        try:
            ask = self._steps.send(answers)
        except StopIteration as ended:
            self._begin(ended.value)
        except ProducerFenced:
            self._fenced()
        else:
            if hangs_s := self.named.hangs_s():
                self.named.later(hangs_s, self._ask, ask)
            else:
                self._ask(ask)

    def _begin(self, claimed: Claimed) -> None:
        self.core.take(claimed)
        self.claimed = claimed
        self.named.claims(self)

    # -------------------------------------------------------------- sending

    def send(self, message: Message, id: str) -> None:
        """A plain message."""
        sent = self.named.begin(self, [id])
        partition, row = self.core.encoder.plain(message)
        future = self.core.send(TOPIC, partition, row)
        if future is not None:
            self.waits += 1
            future.add_done_callback(partial(self._sent, sent))

    def _sent(self, sent: Sent, future: Future[RecordMetadata]) -> None:
        if not self.alive:
            return
        self.waits -= 1
        error = future.exception()
        if error is None:
            sent.acked = True
        elif isinstance(error, ProducerFenced):
            self._fenced()

    def transact(self, messages: Sequence[Message], ids: list[str]) -> None:
        """A transaction with a local one, which takes a while."""
        tx = SteppedTransaction(self.core, None, None, None, False)
        tx.add(list(messages))
        self._prepare(tx, self.named.begin(self, ids, tx.tx_id), lambda code: self._refused(code))

    def transact_alone(self, messages: Sequence[Message], ids: list[str]) -> None:
        """A transaction without a local one."""
        timeout_s = self.named.alone.choice(TIMEOUTS_S)
        tx = SteppedTransaction(self.core, None, None, timeout_s, False, local=False)
        tx.add(list(messages))
        sent = self.named.begin(self, ids, tx.tx_id)
        sent.timeout_s = timeout_s or TOPIC_TIMEOUT_S
        self._prepare(tx, sent, self._refused)

    def _takes_s(self, tx: SteppedTransaction, sent: Sent) -> float | None:
        """Time between a PREPARE and its decision. A process may be stopped here, too, although nothing else
        happens."""
        rng = self.named.rng
        if sent.timeout_s:
            takes_s = self.named.alone.choice(TAKES_S)
            return None if takes_s is None else takes_s * (0.8 + 0.4 * self.named.alone.random())
        if isinstance(tx, numbered.Numbered) and rng.random() >= 0.3:
            return 0.0 * rng.random()
        return LOCAL_S * rng.random()

    def _prepare(self, tx: SteppedTransaction, sent: Sent, refused: Callable[[Any], None]) -> None:
        if (plan := tx.plan()) is None:
            refused(None)
            return
        self.waits += 1

        def prepared(outcome: Outcome) -> None:
            if not self.alive:
                return
            self.waits -= 1
            try:
                settled = tx.after_prepare(plan, outcome)
            except (EscrowMQError, numbered.LeftOpen) as error:
                refused(error)
                return
            if settled is not None:
                sent.acked = isinstance(tx, numbered.Numbered) or settled is TransactionState.COMMITTED
                refused(None)
            elif (takes_s := self._takes_s(tx, sent)) is not None:
                self.named.later(takes_s, decide)

        def decide() -> None:
            if self.alive:
                self.waits += 1
                tx.start_decision(True, decided)

        def decided(outcome: Outcome) -> None:
            if not self.alive:
                return
            self.waits -= 1
            try:
                tx.after_decision(outcome)
            except EscrowMQError as error:
                if isinstance(error, TransactionSettled):
                    self.named.rolled_back(sent)
                refused(error)
            else:
                sent.acked = True
                refused(None)

        tx.start_prepare(plan, prepared)

    def _refused(self, error: Any) -> None:
        if isinstance(error, ProducerFenced):
            self._fenced()

    def send_number(self, batch: Batch) -> None:
        """The batch, until it is known to be in: ``numbered.send`` in virtual time."""
        assert self.claimed is not None
        self.sending = True
        digest = numbered.digest_of(batch.messages)
        attempt = SteppedNumbered(self.core, self.claimed, batch.number, digest)
        attempt.add(list(batch.messages))
        sent = self.named.begin(self, [])

        def ended(error: Any) -> None:
            if sent.acked:
                batch.done, self.sending = True, False
            elif isinstance(error, numbered.LeftOpen):
                home = claim_group(self.of.name, self.named.clients.scene.groups)
                request = ops.rollback(error.app, [error.tx_id])
                future = self.core.router.submit(home, request, self.core.config.delivery_timeout_s)
                future.add_done_callback(lambda _: self._again(batch))
            else:
                self._refused(error)
                self._again(batch)

        self._prepare(attempt, sent, ended)

    def _again(self, batch: Batch) -> None:
        if self.alive and not self.fenced:
            self.named.later(0.05, self._once_more, batch)
        else:
            self.sending = False

    def _once_more(self, batch: Batch) -> None:
        if self.works:
            self.send_number(batch)
        else:
            self.sending = False
