"""The world of share groups: a topic, its producers, the groups' settings and internal topics, the members,
and an operator who redrives dead letters.

Everything goes into the common history, whose rules are in tests/history/sharing.py. In the calm the members
go on until nothing is left to do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from escrowmq.actors.admin.topic_creation import topic_settings
from escrowmq.replication.format import ops, share_ops
from escrowmq.replication.format.codec import encode_row
from escrowmq.replication.format.internal_topics import dead_topic, retry_topic
from escrowmq.replication.format.share_ops import LEVEL_OF_SHARES
from escrowmq.replication.format.share_settings import Value
from escrowmq.replication.model import NO_ID, ResultCode
from tests.history.events import Recorder, body
from tests.sim.broker_app import BrokerApplication
from tests.sim.desk import Desk
from tests.sim.sharing.members import Member, rows_of
from tests.sim.workload import Cluster
from tests.sim.world import Violation

SHARE = 0.4  # of schedules with such groups, where the format level allows it
TOPIC = "jobs"
GROUPS = ("mail", "bill")
PARTITIONS = 2  # in each broker group
MEMBERS = 3  # of each group, at each broker group
SENT_MAX = 150
PAUSE_S = 0.05  # between two batches, on average
COUNTS = (1, 1, 3, 10)
SETTINGS: dict[str, Value] = {"kind": "share", "max_attempts": 3, "delays_ms": [50, 200, 500]}
REDRIVES_S = 1.0  # between two redrives, on average
KEEPS: tuple[dict[str, int], ...] = ({}, {}, {}, {"retention_ms": 3_000})
DONE = (ResultCode.OK, ResultCode.DUPLICATE)

Then = Callable[[list[Any]], None]


class ShareGroups:
    """All of it, over the broker groups of one world."""

    def __init__(self, clusters: Sequence[Cluster], recorder: Recorder) -> None:
        world = clusters[0].world
        self.rng, self.recorder = world.stream("sharing"), recorder
        self.works = self.rng.random() < SHARE
        self.desks = [Desk(one, "desk-of-sharing") for one in clusters]
        self.topic, self.ids = TOPIC, dict[str, int]()
        self.done: Counter[str] = Counter()
        self._creating = self._ready = False
        self._members: list[Member] = []
        self._begun: set[tuple[str, str, int]] = set()  # pairs that are being begun
        #: Offsets from which on a group has to handle a partition: where its first begin was answered.
        self._starts: dict[tuple[str, str, int], int] = {}
        self._sent = self._names = 0
        self._sequence: Counter[int] = Counter()
        self._sending: set[int] = set()
        self._next_s = self._redrives_s = 0.0
        #: Dead letters that were not asked to be redriven: (group, broker group) -> up to this offset.
        self._redriven: Counter[tuple[str, int]] = Counter()

    # -------------------------------------------------------------- at the start

    def act(self) -> None:
        """One step, if it is time."""
        now_s = self.desks[0].world.elapsed_s
        if not self.works or self.desks[0].cluster.calm:
            return
        if not self._creating:
            self._begin()
        if not self._ready:
            return
        if now_s >= self._next_s and self._sent < SENT_MAX:
            self._next_s = now_s + self.rng.expovariate(1 / PAUSE_S)
            self._send()
        if now_s >= self._redrives_s:
            self._redrives_s = now_s + self.rng.expovariate(1 / REDRIVES_S)
            self._redrive()

    def _begin(self) -> None:
        leaders = [desk.any_leader() for desk in self.desks]
        if any(one is None or one[1].replica.state.level < LEVEL_OF_SHARES for one in leaders):
            return
        self._creating = True
        keep, count = self.rng.choice(KEEPS), len(self.desks)
        todo = [(TOPIC, topic_settings(PARTITIONS * count, transaction_timeout_ms=500, **keep))]
        for group in GROUPS:
            settings = topic_settings(count, transaction_timeout_ms=500)
            todo += [(retry_topic(group), settings), (dead_topic(group), settings)]
        self._create(todo)

    def _create(self, todo: list[tuple[str, Any]]) -> None:
        """All topics, first in group 0, which gives them ids."""

        def created(results: list[Any]) -> None:
            _check("CREATE_TOPIC", results, *DONE)
            self.ids = {name: result[1] for (name, _), result in zip(todo, results, strict=True)}
            frames = [ops.create_topic(name, settings, 0, self.ids[name]) for name, settings in todo]
            self._in_all(b"".join(frames), 1, self._set)

        frames = [ops.create_topic(name, settings, 0, NO_ID) for name, settings in todo]
        self.desks[0].call(b"".join(frames), created, lambda: True)

    def _set(self) -> None:
        """The settings of the groups, in the same way."""

        def were_set(results: list[Any]) -> None:
            _check("GROUP_SETTINGS", results, *DONE, ResultCode.RETRY)
            numbers = [result[1][1] for result in results]
            pairs = zip(GROUPS, numbers, strict=True)
            frames = [share_ops.group_settings(group, SETTINGS, number) for group, number in pairs]
            self._in_all(b"".join(frames), 1, self._open)

        frames = [share_ops.group_settings(group, SETTINGS) for group in GROUPS]
        self.desks[0].call(b"".join(frames), were_set, lambda: True)

    def _open(self) -> None:
        self._ready = True
        for group in GROUPS:
            told = {key: SETTINGS[key] for key in ("max_attempts", "delays_ms")}
            self.recorder.ok(self.recorder.invoke("share-group", group=group), **told)
            for gid in range(len(self.desks)):
                self._members += [self._hire(gid, group) for _ in range(MEMBERS)]

    def _in_all(self, request: bytes, gid: int, then: Callable[[], None]) -> None:
        """The same in this broker group and in those behind it."""
        if gid == len(self.desks):
            then()
            return

        def answered(results: list[Any]) -> None:
            _check("a request to a further group", results, *DONE)
            self._in_all(request, gid + 1, then)

        self.desks[gid].call(request, answered, lambda: True)

    def since_ms(self, gid: int) -> int:
        """The time of the newest entry that a replica has applied: no later entry has an earlier one."""
        return max((app.replica.state.now_ms for _, app in self.desks[gid].replicas()), default=0)

    # -------------------------------------------------------------- who acts

    def _hire(self, gid: int, group: str) -> Member:
        self._names += 1
        return Member(self, gid, group, f"{self._names:032x}")

    def died(self, member: Member) -> None:
        """Another one takes its place."""
        member.alive = False
        self.done["died"] += 1
        self._members[self._members.index(member)] = self._hire(member.gid, member.group)

    def begin(self, group: str, topic: str, number: int) -> None:
        """A member was told that its group has not begun with a partition. Two of them may do it at once."""
        create = share_ops.EARLIEST if self.rng.random() < 0.5 else share_ops.LATEST
        request = share_ops.share_create(group, topic, number, create, self.ids[topic])

        def begun(results: list[Any]) -> None:
            _check("a begin", results, *DONE)
            self._starts.setdefault((group, topic, number), results[0][1])

        self.desks[number % len(self.desks)].call(request, begun, lambda: True)

    def took(self, group: str, records: Sequence[Sequence[Any]]) -> None:
        """Messages were handed out."""
        self.done["taken"] += len(records)
        self.done["retries"] += sum(record[4] > 1 for record in records)

    def _send(self) -> None:
        number = self.rng.randrange(PARTITIONS * len(self.desks))
        if number in self._sending:
            return
        self._sending.add(number)
        count = self.rng.choice(COUNTS)
        names = [f"job{self._sent + n}" for n in range(count)]
        rows = [encode_row(None, body(name, self.rng.choice((1, 60, 300))), None, None) for name in names]
        self._sent += count

        def sent(results: list[Any]) -> None:
            _check("a MESSAGE", results, *DONE)
            self._sequence[number] += 1
            self._sending.discard(number)

        name, sequence = f"jobs{number}", self._sequence[number]
        request = ops.message(TOPIC, number, name, 0, sequence, rows, -1, self.ids[TOPIC])
        self.desks[number % len(self.desks)].call(request, sent, lambda: True)

    def _redrive(self) -> None:
        """Ask, perhaps twice, for all dead letters that nobody has asked for yet."""
        group, gid = self.rng.choice(GROUPS), self.rng.randrange(len(self.desks))
        found, topic = self.desks[gid].any_leader(), dead_topic(group)
        if found is None:
            return
        result = found[1].fetch(topic, gid, self._redriven[group, gid])
        rows = [] if result is None else [r for r in rows_of(result) if r[0] >= self._redriven[group, gid]]
        if not rows:
            return
        self._redriven[group, gid] = rows[-1][0] + 1
        offsets, many = [row[0] for row in rows], len(rows)
        asked = {"records": [(topic, gid, offset) for offset in offsets], "ids": [row[1] for row in rows]}
        op = self.recorder.invoke("share-redrive", group=group, **asked)
        delays, reasons = [share_ops.BY_TABLE] * many, [""] * many
        request = share_ops.nack(group, topic, gid, offsets, delays, reasons, "", "test", self.ids[topic])

        def redriven(results: list[Any]) -> None:
            _check("a redrive", results, ResultCode.OK, ResultCode.PARTIAL)
            if results[0][0] == ResultCode.PARTIAL:  # as many as fit into an entry: the others again
                self.desks[gid].later(0.05, self._redrive_again, gid, request, redriven)
                return
            self.done["redriven"] += many
            self.recorder.ok(op)

        for _ in range(self.rng.choice((1, 1, 2))):
            self._redrive_again(gid, request, redriven)
            redriven = _ignored

    def _redrive_again(self, gid: int, request: bytes, then: Then) -> None:
        self.desks[gid].call(request, then, lambda: True)

    # -------------------------------------------------------------- at the end

    @property
    def waiting(self) -> int:
        """Requests without an answer, and messages that are neither done nor dead letters."""
        asked = sum(desk.waiting for desk in self.desks)
        return asked + (sum(map(self._left, range(len(self.desks)))) if self._ready else 0)

    def _left(self, gid: int) -> int:
        leader = next((app for replica, app in self.desks[gid].leaders() if replica.node.ready), None)
        if leader is None:
            return 1
        state = leader.replica.state
        slots = {state.topics.topics[retry_topic(group)].partitions[gid].slot for group in GROUPS}
        left = sum(timers for slot, timers in _timers(state.timers.counts.flat()) if slot in slots)
        for group in GROUPS:
            for topic in (TOPIC, retry_topic(group)):
                for partition in state.topics.topics[topic].partitions.values():
                    pair = state.shares.get(group, partition)
                    left += 0 if pair is None else pair.waiting
        return left

    def check(self, leaders: Sequence[BrokerApplication]) -> bool:
        """Record what is left in the end; False: a replica found damage, and has ended."""
        if not self._ready:
            return True
        for leader in leaders:
            for group in GROUPS:
                for topic, of in ((TOPIC, None), (retry_topic(group), "retry"), (dead_topic(group), "dead")):
                    for number in leader.replica.state.topics.topics[topic].partitions:
                        if not self._tell_end(leader, group, topic, number, of):
                            return False
        return True

    def _tell_end(self, app: BrokerApplication, group: str, topic: str, number: int, of: str | None) -> bool:
        partition = app.replica.state.topics.topics[topic].partitions[number]
        pair = app.replica.state.shares.get(group, partition)
        begin, end = self._starts.get((group, topic, number), 0), partition.index.end
        records, at = list[Any](), partition.index.start
        while at < end:
            result = app.fetch(topic, number, at)
            if result is None:
                return False
            rows = [row for row in rows_of(result) if row[0] >= at]
            if not rows:
                break
            records += [row[:3] if of else row[:2] for row in rows if pair is not None and row[0] >= begin]
            at = rows[-1][0] + 1
        flat = [] if pair is None else pair.flat()
        start, ranges = end if pair is None else pair.start, list(zip(flat[::2], flat[1::2], strict=True))
        told: dict[str, Any] = {"topic": topic, "partition": number, "start": start, "ranges": ranges}
        told |= {"end": end, "records": records}
        if of:
            told["of"] = of
        self.recorder.ok(self.recorder.invoke("share-end", group=group), **told)
        return True


def _timers(flat: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The slot and the number of those that wait, of what ``TimerCounts.flat`` says."""
    return zip(flat[::4], flat[2::4], strict=True)


def _check(what: str, results: list[Any], *allowed: ResultCode) -> None:
    if any(result[0] not in allowed for result in results):
        raise Violation(f"{what} was answered {results}", "unexpected-answer")


def _ignored(results: list[Any]) -> None:
    """The second of two equal requests is answered."""
