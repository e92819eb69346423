"""Named producers: instances of a name follow each other while earlier ones go on, are paused, or have
requests under way.

Each is a real producer's core. Its caller claims the name (``claiming.steps``), sends plain messages and
transactions, and numbered batches from a database that the instances of a name share: as a relay does, it
takes the next number only while it is the newest there. Transactions without a local one may be left open.
At the end:

``fenced-wrote``: a message can be read that an instance sent after another one had a later claim in all
groups, or that is stored or prepared behind the later CLAIM in its group's log;
``fenced-alive``: an instance was refused although no other one has claimed its name after it;
``claimed-again``: a CLAIM takes the name of an instance that had it already, so a late copy does;
``same-epoch``: two instances have claimed a name with the same epoch;
``number-twice``, ``number-lost``, ``number-torn``, ``number-order``: a batch is readable twice, not although
it was acknowledged, in part, or before one with a lower number;
``named-lost``: an acknowledged message of another kind is not readable;
``torn``, ``torn-across``: only a part of a transaction is readable, with one group or several;
``overtaken-open``: a transaction without a local one is still open, long after another instance has claimed
its name in the group that decides it;
``invented-decision``: a transaction that its instance commits was rolled back, although it has a local one,
or although nobody has claimed the name since, and its time-out has not passed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from escrowmq.actors.admin.topic_creation import topic_settings
from escrowmq.replication.format.codec import Op
from escrowmq.replication.format.operation import OpType
from escrowmq.replication.format.ops import BY_CLAIM
from escrowmq.replication.model import Message
from tests.history.events import body
from tests.sim.across.named_instance import APP, LONG_S, TOPIC, TOPIC_TIMEOUT_S, Batch, Instance, Name, Sent
from tests.sim.clients.delayed_end import readable
from tests.sim.clients.producers import SIZES
from tests.sim.clients.topics import Topics
from tests.sim.environment.world import Violation
from tests.sim.group.broker_app import BrokerApplication
from tests.support.places import by_name

if TYPE_CHECKING:
    from tests.sim.across.workload import AcrossWorkload

SHARE = {"worlds": 0.5}  # of the worlds that have such producers
NAMES = ("shard-0", "shard-1")
PAUSE_S = 0.03  # between two actions, on average
STARTS, PAUSES, DIES = 0.08, 0.12, 0.03  # shares of actions
STOPPED_S = (0.1, 0.5, 2.0)
#: So often there is a transaction without a local one, too; and an instance hangs between two groups' claims.
ALONE = {"share": 0.3, "hangs": 0.2}
HANGS_S = (0.1, 0.5, 1.5)
END_S = 10.0  # within which nothing overtaken is open any more, in the calm


class NamedProducers:
    """All named producers of one world."""

    def __init__(self, clients: AcrossWorkload) -> None:
        self.clients = clients
        self.rng, self.alone = clients.many.world.stream("named"), clients.many.world.stream("alone")
        self._works = self.rng.random() < SHARE["worlds"]
        self._names = [Name(name) for name in NAMES]
        self._sent: list[Sent] = []
        self._next_s = 0.0
        self._numbers = 0
        timeout_ms = int(TOPIC_TIMEOUT_S * 1000)
        settings = topic_settings(clients.scene.groups, transaction_timeout_ms=timeout_ms)
        self._topics = Topics(clients.desks, {TOPIC: settings})
        self._broken: Violation | None = None
        #: (group, name) -> (log index, epoch) of each CLAIM that took the name there.
        self._claims: dict[tuple[int, str], list[tuple[int, int]]] = {}
        #: (group, transaction) -> log index of its first PREPARE.
        self._prepared: dict[tuple[int, str], int] = {}
        #: (group that decides it, transaction without a local one) -> name and epoch.
        self._unasked: dict[tuple[int, str], tuple[str, int]] = {}
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
        if not self._works or now_s < self._next_s or not self._topics.are_there():
            return
        self._next_s = now_s + self.rng.expovariate(1 / PAUSE_S)
        for _ in range(self.rng.choice((1, 2, 4))):
            self._act(self.rng.choice(self._names), self.clients.many.calm)

    def _act(self, name: Name, calm: bool) -> None:
        luck = self.rng.random()
        if not name.instances or (luck < STARTS and not calm) or self._over(name.newest):
            name.instances.append(Instance(self, name, len(name.instances) + 1))
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

    def _over(self, newest: Instance) -> bool:
        return not newest.alive or newest.fenced

    def _work(self, name: Name, one: Instance) -> None:
        what = self.rng.random()
        if what < 0.35:
            ((message,), (id,)) = self._content(1)
            one.send(message, id)
        elif what < 0.6:
            one.transact(*self._content(self.rng.choice((1, 2, 3))))
        elif not one.sending:
            if not name.batches or (name.batches[-1].done and one is name.newest):
                messages, ids = self._content(self.rng.choice((1, 2, 4)))
                name.batches.append(Batch(len(name.batches) + 1, ids, messages))
            one.send_number(name.batches[-1])
        if self.alone.random() < ALONE["share"]:
            one.transact_alone(*self._content(self.alone.choice((1, 2, 3)), self.alone))

    def _content(self, count: int, rng: random.Random | None = None) -> tuple[list[Message], list[str]]:
        rng = rng or self.rng
        messages, ids = [], []
        for _ in range(count):
            self._numbers += 1
            ids.append(f"{APP}{self._numbers}")
            number = rng.randrange(self.clients.scene.groups)
            messages.append(Message(TOPIC, body(ids[-1], rng.choice(SIZES)), partition=number))
        return messages, ids

    def begin(self, by: Instance, ids: list[str], tx: str = "") -> Sent:
        """These are about to be sent, in the transaction ``tx`` ("": as plain messages)."""
        assert by.claimed is not None
        claims = [one.claimed for one in by.of.instances if one.claimed is not None]
        sent = Sent(by, ids, max(claim.epoch for claim in claims) > by.claimed.epoch, tx)
        self._sent.append(sent)
        self.done["sent when fenced"] += sent.after
        return sent

    def rolled_back(self, sent: Sent) -> None:
        """Its instance has just learned so, from the answer to its commit."""
        by = sent.by
        newest = by.claimed is not None and self._newest_epoch(by.of.name) == by.claimed.epoch
        if sent.tx and (not sent.timeout_s or (sent.timeout_s == LONG_S and newest)):
            beside = "alone" if sent.timeout_s else "beside a local transaction"
            text = (
                f"{sent.tx} of {by.core.instance}, which ran {beside}, was rolled back: nobody asked for that"
            )
            self.break_("invented-decision", text)
        self.done["rolled back"] += 1

    def _newest_epoch(self, name: str) -> int:
        """With which it was claimed in any group."""
        return max(epoch for (_, of), known in self._claims.items() if of == name for _, epoch in known)

    def hangs_s(self) -> float:
        """For how long an instance hangs while it claims; mostly 0."""
        hangs = self.alone.random() < ALONE["hangs"] and not self.clients.many.calm
        return self.alone.choice(HANGS_S) if hangs else 0.0

    def claims(self, one: Instance) -> None:
        """An instance has its name in all groups."""
        assert one.claimed is not None
        others = [other.claimed for other in one.of.instances if other is not one]
        if any(other is not None and other.epoch == one.claimed.epoch for other in others):
            self.break_(
                "same-epoch", f"{one.core.instance} is not the only one with epoch {one.claimed.epoch}"
            )
        self.done["claimed"] += 1

    def heard(self, gid: int, index: int, found: Sequence[Op]) -> None:
        """An entry is applied."""
        for op in found:
            meta = op.meta
            if op.type == OpType.CLAIM:
                known = self._claims.setdefault((gid, meta.name), [])
                if not known or meta.epoch > known[-1][1]:
                    known.append((index, meta.epoch))
                    self._taken(meta.name, meta.epoch, meta.claimant)
            elif op.type == OpType.PREPARE and meta.app == APP:
                for tx_id in meta.tx_ids:
                    self._prepared.setdefault((gid, tx_id), index)
                    if meta.extra.on_timeout and meta.extra.claim is not None and meta.home_group < 0:
                        self._unasked[gid, tx_id] = meta.extra.claim[:2]
            elif op.type == OpType.ROLLBACK and meta.app == APP and meta.by == BY_CLAIM:
                self.done["overtaken"] += len(meta.tx_ids)

    def _taken(self, wanted: str, epoch: int, claimant: str) -> None:
        one = next(one for name in self._names for one in name.instances if one.core.instance == claimant)
        if one.claimed is not None and epoch > one.claimed.epoch:
            text = f"{claimant} has {wanted} with epoch {one.claimed.epoch}, and takes it with {epoch}"
            self.break_("claimed-again", text)

    # -------------------------------------------------------------- at the end

    def let_go(self) -> None:
        """Wait until nothing is open any more that another claim has overtaken where it is decided."""
        until = self.clients.many.world.now + END_S
        while self._unasked and (text := self._overtaken(self.clients.wait_until_all_agree())):
            if self.clients.many.world.now > until:
                raise Violation(text, "overtaken-open")

    def _overtaken(self, leaders: Sequence[BrokerApplication]) -> str | None:
        opened = [leader.replica.state.transactions.look(APP).open for leader in leaders]
        for (gid, tx_id), (name, epoch) in self._unasked.items():
            newest = self._claims[gid, name][-1][1]
            if epoch < newest and tx_id in opened[gid]:
                return f"{tx_id} of epoch {epoch} is open in group {gid}, where {name} has epoch {newest}"
        return None

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
            for position, (_, id) in enumerate(rows):
                where.setdefault(id, []).append((number, position))
        self._judge_sent(where)
        for one in (one for name in self._names for one in name.instances if one.fenced):
            if one.claimed is not None and self._newest_epoch(one.of.name) <= one.claimed.epoch:
                text = f"{one.core.instance}, with the newest epoch {one.claimed.epoch}, was fenced"
                raise Violation(text, "fenced-alive")
        for name in self._names:
            self._judge_batches(name, where)
        self.done["read"] += sum(map(len, self._found.values()))

    def _judge_sent(self, where: dict[str, list[tuple[int, int]]]) -> None:
        for sent in self._sent:
            there = [id for id in sent.ids if id in where]
            if sent.tx and 0 < len(there) < len(sent.ids):
                kind = "torn-across" if self.clients.scene.groups > 1 else "torn"
                raise Violation(f"of {sent.ids} in {sent.tx} only {there} are readable", kind)
            if sent.acked and len(there) < len(sent.ids):
                raise Violation(f"{sent.ids} were acknowledged, and only {there} are readable", "named-lost")
            if there and sent.after:
                text = f"{there} of {sent.by.core.instance} were sent after another had claimed its name"
                raise Violation(text, "fenced-wrote")
            for id in there:
                for number, position in where[id]:
                    self._judge_epoch(sent, number, self._found[number][position])

    def _judge_epoch(self, sent: Sent, number: int, row: tuple[int, str]) -> None:
        by, gid, (index, id) = sent.by, self.group_of(TOPIC, number), row
        assert by.claimed is not None
        index = self._prepared[gid, sent.tx] if sent.tx else index
        for at, epoch in self._claims.get((gid, by.of.name), ()):
            if epoch > by.claimed.epoch and at < index:
                text = f"{id} of epoch {by.claimed.epoch} is in entry {index}; {epoch} was claimed in {at}"
                raise Violation(text, "fenced-wrote")

    def _judge_batches(self, name: Name, where: dict[str, list[tuple[int, int]]]) -> None:
        last: dict[int, tuple[int, int]] = {}
        for batch in name.batches:
            found = [position for id in batch.ids for position in where.get(id, ())]
            text = f"number {batch.number} of {name.name}: {batch.ids} are at {found}"
            if len(found) > len(batch.ids):
                raise Violation(text, "number-twice")
            if len(found) < len(batch.ids) and batch.done:
                raise Violation(text, "number-lost")
            if found and len(found) < len(batch.ids):
                raise Violation(text, "number-torn")
            for partition, position in found:
                number, before = last.get(partition, (0, -1))
                if number < batch.number and position < before:
                    raise Violation(f"{text}, behind number {number}", "number-order")
            for partition, position in found:
                highest = max(position, last.get(partition, (0, -1))[1])
                last[partition] = batch.number, highest
            self.done["numbers"] += batch.done
