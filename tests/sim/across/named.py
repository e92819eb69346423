"""Named producers: instances of a name follow each other while earlier ones go on, are paused, or have
requests under way.

Each is a real producer's core. Its caller claims the name (``claiming.steps``), sends plain messages and
transactions, and numbered batches from a database that the instances of a name share: as a relay does, it
takes the next number only while it is the newest there. At the end:

``fenced-wrote``: a message can be read that an instance sent after another one had a later claim in all
groups, or that is stored or prepared behind the later CLAIM in its group's log;
``fenced-alive``: an instance was refused although no other one has claimed its name after it;
``claimed-again``: a CLAIM takes the name of an instance that had it already, so a late copy does;
``same-epoch``: two instances have claimed a name with the same epoch;
``number-twice``, ``number-lost``, ``number-torn``, ``number-order``: a batch is readable twice, not although
it was acknowledged, in part, or before one with a lower number;
``named-lost``: an acknowledged message of another kind is not readable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from escrowmq.actors.admin.topic_creation import topic_settings
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.actors.producer import numbered
from escrowmq.actors.producer.blocks import Outcome
from escrowmq.actors.producer.claiming import Ask, Claimed, steps
from escrowmq.actors.producer.config import ProducerConfig
from escrowmq.actors.producer.encoder import Encoder
from escrowmq.actors.producer.transaction_base import TransactionBase
from escrowmq.replication.errors import EscrowMQError, ProducerFenced
from escrowmq.replication.format import claim_ops, ops
from escrowmq.replication.format.claim_ops import LEVEL_OF_CLAIMS, claim_group
from escrowmq.replication.format.codec import Op, OpType
from escrowmq.replication.model import Message, RecordMetadata, ResultCode, TransactionState
from tests.history.events import body
from tests.sim.across.cores import VirtualCore
from tests.sim.across.turns import StoppableTurns
from tests.sim.broker_app import BrokerApplication
from tests.sim.delayed_end import readable
from tests.sim.producers import SIZES
from tests.sim.world import Violation
from tests.support.places import by_name

if TYPE_CHECKING:
    from tests.sim.across.workload import AcrossWorkload

APP, TOPIC = "named", "named"
SHARE = {"worlds": 0.5}  # of the worlds that have such producers, where the format level allows it
NAMES = ("shard-0", "shard-1")
PAUSE_S = 0.03  # between two actions, on average
STARTS, PAUSES, DIES = 0.08, 0.12, 0.03  # shares of actions
STOPPED_S = (0.1, 0.5, 2.0)
LOCAL_S = 0.4  # the longest time between a PREPARE and its decision


@dataclass(slots=True)
class _Batch:
    """What the database has under a number."""

    number: int
    ids: list[str]
    messages: list[Message]
    done: bool = False


@dataclass(slots=True)
class _Name:
    """What the database knows of a name. ``newest``: the instance that took it over last."""

    name: str
    instances: list[_Instance] = field(default_factory=list)
    batches: list[_Batch] = field(default_factory=list)

    @property
    def newest(self) -> _Instance:
        return self.instances[-1]


@dataclass(slots=True)
class _Sent:
    """A message, or those of the transaction ``tx``. ``after``: another instance had a later claim of the
    name in all groups when it was sent."""

    by: _Instance
    ids: list[str]
    after: bool
    tx: str = ""
    acked: bool = False


class _Instance:
    """One process that claims a name."""

    def __init__(self, named: NamedProducers, of: _Name, number: int) -> None:
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
        for gid in ask.groups:
            request = claim_ops.claim(self.of.name, ask.epoch, self.core.instance)
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
            self._ask(self._steps.send(answers))
        except StopIteration as ended:
            self._begin(ended.value)
        except ProducerFenced:
            self._fenced()

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

    def _sent(self, sent: _Sent, future: Future[RecordMetadata]) -> None:
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
        tx = TransactionBase(self.core, None, None, None, False)
        tx._add(list(messages))
        self._prepare(tx, self.named.begin(self, ids, tx.tx_id), lambda code: self._refused(code))

    def _prepare(self, tx: TransactionBase, sent: _Sent, refused: Callable[[Any], None]) -> None:
        plan = tx._plan()
        assert plan is not None
        if not self.core.try_reserve(plan.size):
            tx._not_prepared()
            refused(None)
            return
        self.waits += 1

        def prepared(outcome: Outcome) -> None:
            if not self.alive:
                return
            self.waits -= 1
            try:
                settled = tx._after_prepare(plan, outcome)
            except (EscrowMQError, numbered.LeftOpen) as error:
                refused(error)
                return
            if settled is not None:
                sent.acked = isinstance(tx, numbered.Numbered) or settled is TransactionState.COMMITTED
                refused(None)
            else:
                rng = self.named.rng  # a process may be stopped here, too, although nothing else happens
                local_s = LOCAL_S if not isinstance(tx, numbered.Numbered) or rng.random() < 0.3 else 0.0
                self.named.later(local_s * rng.random(), decide)

        def decide() -> None:
            if self.alive:
                self.waits += 1
                tx._start_decision(True, decided)

        def decided(outcome: Outcome) -> None:
            if not self.alive:
                return
            self.waits -= 1
            try:
                tx._after_decision(outcome)
            except EscrowMQError as error:
                refused(error)
            else:
                sent.acked = True
                refused(None)

        tx._start_prepare(plan, prepared)

    def _refused(self, error: Any) -> None:
        if isinstance(error, ProducerFenced):
            self._fenced()

    def send_number(self, batch: _Batch) -> None:
        """The batch, until it is known to be in: ``numbered.send`` in virtual time."""
        assert self.claimed is not None
        self.sending = True
        digest = numbered.digest_of(batch.messages)
        attempt = numbered.Numbered(self.core, self.claimed, batch.number, digest)
        attempt._add(list(batch.messages))
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

    def _again(self, batch: _Batch) -> None:
        if self.alive and not self.fenced:
            self.named.later(0.05, self._once_more, batch)
        else:
            self.sending = False

    def _once_more(self, batch: _Batch) -> None:
        if self.works:
            self.send_number(batch)
        else:
            self.sending = False


class NamedProducers:
    """All named producers of one world."""

    def __init__(self, clients: AcrossWorkload) -> None:
        self.clients = clients
        self.rng = clients.many.world.stream("named")
        self._works = self.rng.random() < SHARE["worlds"]
        self._names = [_Name(name) for name in NAMES]
        self._sent: list[_Sent] = []
        self._next_s = 0.0
        self._numbers = self._created = 0
        self._broken: Violation | None = None
        #: (group, name) -> (log index, epoch) of each CLAIM that took the name there.
        self._claims: dict[tuple[int, str], list[tuple[int, int]]] = {}
        #: (group, transaction) -> log index of its first PREPARE.
        self._prepared: dict[tuple[int, str], int] = {}
        #: Number of a partition -> (log index, id) of each message, at the end.
        self._found: dict[int, list[tuple[int, str]]] = {}
        self.done: Counter[str] = Counter()
        self.later = clients.later

    def group_of(self, topic: str, partition: int) -> int:
        """As the clients' catalog."""
        return by_name(TOPIC, partition, self.clients.scene.groups)

    @property
    def waiting(self) -> int:
        """Operations without an answer, and names whose newest producer has shown nothing in the calm."""
        return sum(one.waits + one.sending for name in self._names for one in name.instances if one.alive)

    def break_(self, kind: str, text: str) -> None:
        """Raised with the next action: callbacks of futures must not raise."""
        self._broken = self._broken or Violation(text, kind)

    # -------------------------------------------------------------- what they do

    def act(self) -> None:
        """Do one or several things, if it is time."""
        if self._broken is not None:
            raise self._broken
        now_s = self.clients.many.world.elapsed_s
        if not self._works or now_s < self._next_s or not self._is_there():
            return
        self._next_s = now_s + self.rng.expovariate(1 / PAUSE_S)
        for _ in range(self.rng.choice((1, 2, 4))):
            self._act(self.rng.choice(self._names), self.clients.many.calm)

    def _act(self, name: _Name, calm: bool) -> None:
        luck = self.rng.random()
        if not name.instances or (luck < STARTS and not calm) or self._over(name.newest):
            name.instances.append(_Instance(self, name, len(name.instances) + 1))
            self.done["started"] += 1
            return
        able = [one for one in name.instances[-3:] if one.works]
        if not able:
            return
        one = self.rng.choice(able)
        if luck < STARTS + PAUSES and not calm:
            one.stop(self.rng.choice(STOPPED_S) * (0.5 + self.rng.random()))
        elif luck < STARTS + PAUSES + DIES and not calm:
            one.die()
        else:
            self._work(name, one)

    def _over(self, newest: _Instance) -> bool:
        return not newest.alive or newest.fenced

    def _work(self, name: _Name, one: _Instance) -> None:
        what = self.rng.random()
        if what < 0.35:
            ((message,), (id,)) = self._content(1)
            one.send(message, id)
        elif what < 0.6:
            one.transact(*self._content(self.rng.choice((1, 2, 3))))
        elif not one.sending:
            if not name.batches or (name.batches[-1].done and one is name.newest):
                messages, ids = self._content(self.rng.choice((1, 2, 4)))
                name.batches.append(_Batch(len(name.batches) + 1, ids, messages))
            one.send_number(name.batches[-1])

    def _content(self, count: int) -> tuple[list[Message], list[str]]:
        messages, ids = [], []
        for _ in range(count):
            self._numbers += 1
            ids.append(f"{APP}{self._numbers}")
            number = self.rng.randrange(self.clients.scene.groups)
            messages.append(Message(TOPIC, body(ids[-1], self.rng.choice(SIZES)), partition=number))
        return messages, ids

    def begin(self, by: _Instance, ids: list[str], tx: str = "") -> _Sent:
        """These are about to be sent, in the transaction ``tx`` ("": as plain messages)."""
        assert by.claimed is not None
        claims = [one.claimed for one in by.of.instances if one.claimed is not None]
        sent = _Sent(by, ids, max(claim.epoch for claim in claims) > by.claimed.epoch, tx)
        self._sent.append(sent)
        self.done["sent when fenced"] += sent.after
        return sent

    def claims(self, one: _Instance) -> None:
        """An instance has its name in all groups."""
        assert one.claimed is not None
        others = [other.claimed for other in one.of.instances if other is not one]
        if any(other is not None and other.epoch == one.claimed.epoch for other in others):
            self.break_(
                "same-epoch", f"{one.core.instance} is not the only one with epoch {one.claimed.epoch}"
            )
        self.done["claimed"] += 1

    def _is_there(self) -> bool:
        """Whether all groups have the topic and take claims."""
        groups = self.clients.scene.groups
        if self._created == groups:
            return True
        found = [desk.any_leader() for desk in self.clients.desks]
        if any(one is None or one[1].replica.state.level < LEVEL_OF_CLAIMS for one in found):
            return False
        settings = topic_settings(groups, transaction_timeout_ms=500)
        for desk in self.clients.desks if self._created == 0 else ():
            desk.call(ops.create_topic(TOPIC, settings), self._told, lambda: True)
            self._created = -groups  # being created
        return False

    def _told(self, results: list[Any]) -> None:
        if results[0][0] not in (ResultCode.OK, ResultCode.DUPLICATE):
            raise Violation(f"CREATE_TOPIC was answered {results[0]}", "unexpected-answer")
        self._created += 1
        if self._created == 0:
            self._created = self.clients.scene.groups

    def heard(self, gid: int, index: int, found: Sequence[Op]) -> None:
        """An entry is applied."""
        for op in found:
            if op.type == OpType.CLAIM:
                known = self._claims.setdefault((gid, op.meta[0]), [])
                if not known or op.meta[1] > known[-1][1]:
                    known.append((index, op.meta[1]))
                    self._taken(*op.meta)
            elif op.type == OpType.PREPARE and op.meta[0] == APP:
                for tx_id in op.meta[2]:
                    self._prepared.setdefault((gid, tx_id), index)

    def _taken(self, wanted: str, epoch: int, claimant: str) -> None:
        one = next(one for name in self._names for one in name.instances if one.core.instance == claimant)
        if one.claimed is not None and epoch > one.claimed.epoch:
            text = f"{claimant} has {wanted} with epoch {one.claimed.epoch}, and takes it with {epoch}"
            self.break_("claimed-again", text)

    # -------------------------------------------------------------- at the end

    def read(self, gid: int, leader: BrokerApplication) -> bool:
        """Take what is readable in a group; False: its replica found damage, and has ended."""
        known = leader.replica.state.topics.topics.get(TOPIC)
        for number in range(self.clients.scene.groups) if known is not None else ():
            if self.group_of(TOPIC, number) == gid:
                ids = readable(leader, (TOPIC, number))
                if ids is None:
                    return False
                runs = known.partitions[number].index.runs_from(0, 1 << 30)
                at = [run.log_index for run in runs for _ in range(run.messages)]
                self._found[number] = [(index, id) for index, (id, _) in zip(at, ids, strict=True)]
        return True

    def judge(self) -> None:
        """Compare what is readable with what was sent."""
        if self._broken is not None:
            raise self._broken
        where: dict[str, list[tuple[int, int]]] = {}
        for number, rows in self._found.items():
            for place, (_, id) in enumerate(rows):
                where.setdefault(id, []).append((number, place))
        self._judge_sent(where)
        for one in (one for name in self._names for one in name.instances if one.fenced):
            epochs = [
                epoch
                for (_, name), known in self._claims.items()
                for _, epoch in known
                if name == one.of.name
            ]
            if one.claimed is not None and max(epochs) <= one.claimed.epoch:
                text = f"{one.core.instance}, with the newest epoch {one.claimed.epoch}, was fenced"
                raise Violation(text, "fenced-alive")
        for name in self._names:
            self._judge_batches(name, where)
        self.done["read"] += sum(map(len, self._found.values()))

    def _judge_sent(self, where: dict[str, list[tuple[int, int]]]) -> None:
        for sent in self._sent:
            there = [id for id in sent.ids if id in where]
            if sent.acked and len(there) < len(sent.ids):
                raise Violation(f"{sent.ids} were acknowledged, and only {there} are readable", "named-lost")
            if there and sent.after:
                text = f"{there} of {sent.by.core.instance} were sent after another had claimed its name"
                raise Violation(text, "fenced-wrote")
            for id in there:
                for number, place in where[id]:
                    self._judge_place(sent, number, self._found[number][place])

    def _judge_place(self, sent: _Sent, number: int, row: tuple[int, str]) -> None:
        by, gid, (index, id) = sent.by, self.group_of(TOPIC, number), row
        assert by.claimed is not None
        index = self._prepared[gid, sent.tx] if sent.tx else index
        for at, epoch in self._claims.get((gid, by.of.name), ()):
            if epoch > by.claimed.epoch and at < index:
                text = f"{id} of epoch {by.claimed.epoch} is in entry {index}; {epoch} was claimed in {at}"
                raise Violation(text, "fenced-wrote")

    def _judge_batches(self, name: _Name, where: dict[str, list[tuple[int, int]]]) -> None:
        last: dict[int, tuple[int, int]] = {}
        for batch in name.batches:
            found = [place for id in batch.ids for place in where.get(id, ())]
            text = f"number {batch.number} of {name.name}: {batch.ids} are at {found}"
            if len(found) > len(batch.ids):
                raise Violation(text, "number-twice")
            if len(found) < len(batch.ids) and batch.done:
                raise Violation(text, "number-lost")
            if found and len(found) < len(batch.ids):
                raise Violation(text, "number-torn")
            for partition, place in found:
                number, before = last.get(partition, (0, -1))
                if number < batch.number and place < before:
                    raise Violation(f"{text}, behind number {number}", "number-order")
            for partition, place in found:
                highest = max(place, last.get(partition, (0, -1))[1])
                last[partition] = batch.number, highest
            self.done["numbers"] += batch.done
