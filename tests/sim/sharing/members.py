"""Members of share groups: they take messages, and handle them, or fail, or die with them.

They are simple: each knows one broker group, and has no state but the messages that it handles (the clients'
own code is in clients.py). A member may pause for longer than its leases run, and then go on with what it
had; or leave, and another one comes later. It asks whichever replica says that it leads, also a deposed one.

What it does with a record is drawn: acknowledge, fail, reject, give back, extend its lease, or forget it, as
a handler that hangs does. Acks and failures are repeated until they are answered, and copies of some arrive
much later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from escrowmq.replication.calling.answers import Reply
from escrowmq.replication.format import share_ops
from escrowmq.replication.model import ResultCode
from escrowmq.replication.replica.lease_dispatcher import AcquireRequest, HandedOut
from tests.sim.clients.desk import LOST
from tests.sim.environment.world import Violation
from tests.sim.group.broker_app import BrokerApplication
from tests.sim.group.replica import SimReplica
from tests.sim.sharing.records import Record, Taken, check_life, leadership, rows_of

if TYPE_CHECKING:
    from tests.sim.sharing.groups import ShareGroups

PAUSE_S = (0.0, 0.02, 0.1)  # between two calls
WAIT_S = (0.0, 0.1, 0.5)
RECORDS = (1, 2, 5, 20)
HANDLES_S = 0.2  # the longest time that a handler takes, unless it hangs
LEASE_MS = 300
#: Share of calls with whose messages the member dies, gives them back and leaves, or is stopped for a while.
DIES, LEAVES, PAUSES, PAUSED_S = 0.03, 0.02, 0.03, (0.2, 0.8, 2.0)
#: What becomes of a record, and how often.
FATES = {"ack": 50, "nack": 20, "later": 6, "reject": 4, "release": 6, "extend": 4, "hang": 8}
IN_THE_CALM = {"ack": 12, "nack": 1}
COPIED, COPY_LATER_S = 0.1, (0.3, 1.0, 2.5)
#: Answers to an ack or a failure that name one message and end it for this member.
REFUSALS = (ResultCode.LEASE_LOST,)
#: To whatever concerns a topic that is deleted meanwhile.
GONE = (ResultCode.UNKNOWN_TOPIC, ResultCode.BAD_PARTITION, ResultCode.OTHER_TOPIC)
#: Topic, partition, and the topic's id.
Unbegun = tuple[str, int, int]


class Member:
    """One member of a group, at one broker group."""

    def __init__(self, world: ShareGroups, gid: int, group: str, name: str) -> None:
        self.group, self.name, self.gid = group, name, gid
        self._world, self._desk = world, world.desks[gid]
        self._rng, self._recorder = world.rng, world.recorder
        self._call = 0  # an answer to an earlier one comes too late
        self.alive = True
        self._paused_until = 0.0
        self._later(self._rng.random() * 0.1, self._take)

    def _later(self, delay_s: float, work: Callable[..., None], *args: Any) -> None:
        """Do it then, or when a pause of this process is over."""
        self._desk.later(delay_s, self._awake, work, *args)

    def _awake(self, work: Callable[..., None], *args: Any) -> None:
        left_s = self._paused_until - self._desk.world.now
        if left_s > 0:
            self._desk.later(left_s, self._awake, work, *args)
        else:
            work(*args)

    def pause(self, seconds: float) -> None:
        """Its process stands still."""
        self._paused_until = max(self._paused_until, self._desk.world.now + seconds)

    # -------------------------------------------------------------- taking

    def _take(self) -> None:
        if not self.alive:
            return
        self._call += 1
        rng, wait_s = self._rng, self._rng.choice(WAIT_S)
        found = self._desk.any_leader()
        calm = self._desk.cluster.calm
        if found is not None and (calm or rng.random() >= LOST):
            asked = {"group": self.group, "member": self.name, "since_ms": self._world.since_ms(self.gid)}
            op = self._recorder.invoke("share-acquire", **asked)
            self._ask(*found, op, wait_s)
        self._later(wait_s + 0.3 + rng.random(), self._timed_out, self._call)

    def _ask(self, replica: SimReplica, app: BrokerApplication, op: int, wait_s: float) -> None:
        call = self._call

        def done(reply: Reply) -> None:
            if reply[0] == "ok":  # reading is another thread's work, and may end the process
                replica.later(0.0, partial(read, leadership(replica), reply[1]))

        def read(leader: str, handed_out: Sequence[HandedOut]) -> None:
            found = self._read(app, handed_out)
            if found is not None and (self._desk.cluster.calm or self._rng.random() >= LOST):
                self._later(0.0005, self._taken, call, op, leader, *found)

        def ask() -> None:
            now_ms = app.replica.monotonic_ms()
            until_ms = now_ms + int(wait_s * 1000)
            topics = self._world.topics
            count = self._rng.choice(RECORDS)
            asked = AcquireRequest(self.group, self.name, topics, count, 4_000, LEASE_MS, until_ms, done)
            app.replica.lease_dispatcher.acquire(asked, now_ms)

        replica.guarded(ask)
        if replica.up:
            replica.kick()

    def _read(
        self, app: BrokerApplication, handed_out: Sequence[HandedOut]
    ) -> tuple[list[Unbegun], list[Taken]] | None:
        """Partitions that the group has not begun, and the records; None: the replica has ended."""
        unknown, records = list[Unbegun](), list[Taken]()
        for found in handed_out:
            if found.code == ResultCode.UNKNOWN_SHARE:
                unknown.append((found.topic, found.number, found.topic_id))
            for first, last, _ in found.taken:
                at = first
                while at <= last:
                    result = app.fetch(found.topic, found.number, at)
                    if result is None:
                        return None
                    got = [row for row in rows_of(result[5], result[6]) if at <= row[0] <= last]
                    if not got:
                        break  # retention has overtaken it
                    records += [
                        Taken(Record(found.topic, found.number, row[0], found.topic_id), *row[1:])
                        for row in got
                    ]
                    at = got[-1][0] + 1
        return unknown, records

    def _timed_out(self, call: int) -> None:
        if call == self._call:
            self._take()

    def _taken(self, call: int, op: int, leader: str, unknown: list[Unbegun], taken: list[Taken]) -> None:
        if call != self._call or not self.alive:
            return  # these are leased to nobody who knows it
        self._call += 1
        self._recorder.ok(op, leader=leader, lease_ms=LEASE_MS, records=[each.told for each in taken])
        check_life(taken)
        self._world.took(taken)
        for source in unknown:
            self._world.begin(self.group, *source)
        if not self._desk.cluster.calm and self._leaves([each.record for each in taken]):
            return
        for each in taken:
            if self._world.tags.wants(self.group, each.id):
                self._later(self._rng.random() * HANDLES_S, self._handled, each.record)
            else:
                self._ack(each.record, self._world.settled_unasked(self.group, [each.record.address]))
        self._later(self._rng.choice(PAUSE_S), self._take)

    def _leaves(self, records: Sequence[Record]) -> bool:
        """Whether it is no member any more. Perhaps it only pauses, with all that it has."""
        chance = self._rng.random()
        if chance < DIES:
            self._world.gone(self, "died")
            return True
        if chance < DIES + LEAVES:
            for record in records:
                self._release(record)
            self._world.gone(self, "left")
            return True
        if chance < DIES + LEAVES + PAUSES:
            pause_s = self._rng.choice(PAUSED_S) * (0.5 + self._rng.random())
            self._paused_until = self._desk.world.now + pause_s
            self._world.done["paused"] += 1
        return False

    # -------------------------------------------------------------- handling

    def _handled(self, record: Record) -> None:
        if not self.alive:
            return
        fates = IN_THE_CALM if self._desk.cluster.calm else FATES
        (fate,) = self._rng.choices(list(fates), list(fates.values()))
        self._world.done[fate] += 1
        if fate == "ack":
            self._ack(record)
        elif fate in ("nack", "later", "reject"):
            table = {"nack": share_ops.BY_TABLE, "reject": share_ops.REJECT}
            self._nack(record, table.get(fate, self._rng.choice((0, 1, 50, 400))))
        elif fate == "release":
            self._release(record)
        elif fate == "extend":
            self._tell_leader("extend", record)
            self._later(self._rng.random() * HANDLES_S, self._handled, record)

    def _release(self, record: Record) -> None:
        op = self._recorder.invoke("share-release", group=self.group, records=[record.address])
        self._tell_leader("release", record)
        self._recorder.ok(op)

    def _ack(self, record: Record, op: int | None = None) -> None:
        if op is None:
            op = self._recorder.invoke("share-ack", group=self.group, records=[record.address])
        topic, number, offset, topic_id = record

        def acked(results: list[Any]) -> None:
            if results[0][0] in self._world.gone_of(self.group, topic):
                self._world.done["acked too late"] += 1
                self._recorder.ok(op, refused=[0])
                return
            if results[0][0] not in (ResultCode.OK, ResultCode.DUPLICATE):
                raise Violation(f"an ack of {record} was answered {results}", "unexpected-answer")
            self._recorder.ok(op)

        request = share_ops.share_ack(self.group, topic, number, [offset, offset], topic_id)
        self._send(request, acked)

    def _nack(self, record: Record, delay_ms: int) -> None:
        since_ms = self._world.since_ms(self.gid)
        asked = {"records": [record.address], "delays_ms": [delay_ms], "since_ms": since_ms}
        op = self._recorder.invoke("share-nack", group=self.group, **asked)
        topic, number, offset, topic_id = record
        why = ["it failed"]
        request = share_ops.nack(
            self.group, topic, number, [offset], [delay_ms], why, self.name, "test", topic_id
        )

        self._world.nacking += 1

        def nacked(results: list[Any]) -> None:
            code = results[0][1][0][1] if results[0][0] == ResultCode.PARTIAL else results[0][0]
            if code == ResultCode.RETRY:
                self._desk.later(0.03, self._send, request, nacked)
                return
            if self._world.lacks(self.group, topic, results[0]):
                self._world.make(self.group, lambda: self._desk.later(0.03, self._send, request, nacked))
                return
            self._world.nacking -= 1
            if code in REFUSALS or results[0][0] in self._world.gone_of(self.group, topic):
                self._recorder.ok(op, refused=[0])
            elif code == ResultCode.OK:
                self._recorder.ok(op)
            else:
                raise Violation(f"a NACK of {record} was answered {results}", "unexpected-answer")

        self._send(request, nacked)

    def _send(self, request: bytes, then: Any) -> None:
        """Repeat it until it is answered: the member may die, its requests live on."""
        self._desk.call(request, then, lambda: True)
        if self._rng.random() < COPIED and not self._desk.cluster.calm:
            pause_s = self._rng.choice(COPY_LATER_S) * (0.5 + self._rng.random())
            self._desk.later(pause_s, self._copy_arrives, request)

    def _copy_arrives(self, request: bytes) -> None:
        self._world.done["copied"] += 1
        self._desk.call(request, lambda results: None, lambda: True, once=True)

    def _tell_leader(self, what: str, record: Record) -> None:
        """Calls without effect on anything but leases: sent once."""
        found = self._desk.any_leader()
        if found is None or self._rng.random() < LOST:
            return
        replica, app = found
        topic, number, offset, _ = record
        desk, ranges = app.replica.lease_dispatcher, [(offset, offset)]

        def tell() -> None:
            if not replica.node.ready:
                return
            if what == "release":
                desk.release(self.group, self.name, topic, number, ranges)
            else:
                until_ms = app.replica.monotonic_ms() + 2 * LEASE_MS
                desk.extend(self.group, self.name, topic, number, ranges, until_ms)

        replica.guarded(tell)
