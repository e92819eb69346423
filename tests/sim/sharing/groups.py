"""The world of share groups: topics and producers, the groups' settings and internal topics, the members, and
an operator who redrives dead letters. Others are in operators.py.

Everything goes into the common history, whose rules are in tests/history/sharing.py. In the calm the members
go on until nothing is left to do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from escrowmq.actors.admin.topic_creation import topic_settings
from escrowmq.actors.client.results import outcome
from escrowmq.actors.client.share_groups import Submit
from escrowmq.actors.share_consumer.held_batches import TopicIdPartition
from escrowmq.replication.errors import UnknownGroup, UnknownTopic
from escrowmq.replication.format import ops, share_ops
from escrowmq.replication.format.codec import encode_row
from escrowmq.replication.format.internal_topics import dead_topic, retry_topic
from escrowmq.replication.format.settings import Value
from escrowmq.replication.format.share_ops import ANY_NUMBER
from escrowmq.replication.model import NO_ID, ResultCode
from tests.history.events import Recorder, body
from tests.sim.clients.desk import Desk
from tests.sim.clients.workload import Cluster
from tests.sim.environment.replayed import Replayed
from tests.sim.environment.world import Violation
from tests.sim.faults.carrying_out import fill_disk
from tests.sim.group.broker_app import BrokerApplication
from tests.sim.sharing.clients import Client, Clients
from tests.sim.sharing.deletions import GroupDeletions, Making, internal_topics
from tests.sim.sharing.end import GroupsEnd
from tests.sim.sharing.layout import Layout
from tests.sim.sharing.members import GONE, Member
from tests.sim.sharing.operators import SettingsChanges, TopicDeletions
from tests.sim.sharing.records import CHORES, TOPIC, Address, Taken, life_prefix, named, rows_of
from tests.sim.sharing.redirects import TARGETS, Redirects
from tests.sim.sharing.tags import Tags

SHARE = 0.4  # of schedules with such groups
GROUPS = ("mail", "bill")
MEMBERS = 3  # of each group, at each broker group; with several of these, fewer beside the real clients
MEMBERS_BESIDE, CLIENTS = 1, 2
BACK_S = 0.5  # approximate time until another member comes for one that has left
SENT_MAX = 150
#: Share of the steps with failures under way in which their leader's disk is full for a while.
FULL = 0.03
PAUSE_S = 0.03  # between two batches, on average
COUNTS = (1, 1, 3, 10)
SETTINGS: dict[str, Value] = {"kind": "share", "max_attempts": 3, "delays_ms": [50, 200, 500]}
REDRIVES_S = 1.0  # between two redrives, on average
KEEPS: tuple[dict[str, int], ...] = ({}, {}, {}, {"retention_ms": 3_000})
DONE = (ResultCode.OK, ResultCode.DUPLICATE)

Then = Callable[[list[Any]], None]


class ShareGroups:
    """All of it, over the broker groups of one world. ``clients``: what the clients' own code needs; None:
    there are only simple members."""

    def __init__(
        self, clusters: Sequence[Cluster], recorder: Recorder, clients: Clients | None = None
    ) -> None:
        world = clusters[0].world
        self.rng, self.recorder, self._clients = world.stream("sharing"), recorder, clients
        self.desks = [Desk(one, "desk-of-sharing") for one in clusters]
        self.topics, self.groups = (TOPIC, CHORES), GROUPS
        #: Ids of the topics as their users know them; of CHORES only while it is not being deleted.
        self.ids = dict[str, int]()
        self.done: Counter[str] = Counter()
        self.nacking = 0  # failures without an answer
        self.ready = False
        self._members: list[Member | Client] = []
        #: Offsets from which on a group has to handle a partition: where its first begin was answered.
        self._starts: dict[tuple[int, str, str, int], int] = {}
        self._sent = self._names = 0
        self._sequence: Counter[str] = Counter()
        self._sending: set[str] = set()
        self._next_s = self._redrives_s = 0.0
        #: Dead letters that were not asked to be redriven: (group, broker group) -> up to this offset.
        self._redriven: Counter[tuple[str, int]] = Counter()
        self.layout = Layout(world, len(self.desks), clients=clients is not None)
        self._deletions = TopicDeletions(self)
        self.changes = SettingsChanges(self, GROUPS)
        self.deletions, self._making = GroupDeletions(self, GROUPS, SETTINGS), Making(self)
        self.tags = Tags(world, GROUPS)
        self.ids_at: dict[Address, str] = {}  # of all messages that were handed out
        self._end = GroupsEnd(self, GROUPS)
        self.redirects = Redirects(self, clusters)
        if self.rng.random() < SHARE:
            self.desks[0].later(0.0, self._begin)

    # -------------------------------------------------------------- at the start

    def act(self) -> None:
        """One step, if it is time."""
        now_s = self.desks[0].world.elapsed_s
        if not self.ready or self.calm:
            return
        if now_s >= self._next_s and self._sent < SENT_MAX:
            self._next_s = now_s + self.rng.expovariate(1 / PAUSE_S)
            self._send()
        if now_s >= self._redrives_s:
            self._redrives_s = now_s + self.rng.expovariate(1 / REDRIVES_S)
            self._redrive()
        self._deletions.act(now_s)
        self.deletions.act(now_s)
        self.changes.act(now_s)
        self.redirects.act(now_s)
        if self.nacking and self.rng.random() < FULL:
            desk = self.rng.choice(self.desks)
            found = desk.any_leader()
            if found is not None:
                fill_disk(desk.cluster, found[0], self.rng)

    @property
    def calm(self) -> bool:
        return self.desks[0].cluster.calm

    def _begin(self) -> None:
        """Everything in group 0, which gives ids and numbers, and then the same in the others."""
        keep, count = self.rng.choice(KEEPS), len(self.desks)
        todo = {
            topic: topic_settings(partitions, transaction_timeout_ms=500, **keep)
            for topic, partitions in self.layout.partitions.items()
        }
        internal = topic_settings(count, transaction_timeout_ms=500)
        todo |= {topic(group): internal for group in GROUPS for topic in (retry_topic, dead_topic)}
        if self.redirects.works:
            todo |= dict.fromkeys(TARGETS, topic_settings(1, transaction_timeout_ms=500))
        self.ids = dict.fromkeys(todo, NO_ID)

        def begun(results: list[Any]) -> None:
            _check("the first request", results, *DONE, ResultCode.RETRY)
            self.ids = {name: result[1] for name, result in zip(todo, results, strict=False)}
            numbers = [result[1][1] for result in results[len(todo) :]]
            self._elsewhere(self._setting_up(todo, numbers))

        self.desks[0].call(self._setting_up(todo, [ANY_NUMBER] * len(GROUPS)), begun, lambda: True)

    def _setting_up(self, todo: Mapping[str, Any], numbers: Sequence[int]) -> bytes:
        frames = [ops.create_topic(name, settings, 0, self.ids[name]) for name, settings in todo.items()]
        pairs = zip(GROUPS, numbers, strict=True)
        frames += [share_ops.group_settings(group, SETTINGS, number) for group, number in pairs]
        return b"".join(frames)

    def _elsewhere(self, request: bytes) -> None:
        """In the other broker groups."""
        left = len(self.desks) - 1

        def answered(results: list[Any]) -> None:
            nonlocal left
            _check("a request to a further group", results, *DONE)
            left -= 1
            if left == 0:
                self._open()

        for desk in self.desks[1:]:
            desk.call(request, answered, lambda: True)
        if left == 0:
            self._open()

    def _open(self) -> None:
        self.ready = True
        members = MEMBERS if self._clients is None else MEMBERS_BESIDE
        for group in GROUPS:
            told: dict[str, Any] = {key: SETTINGS[key] for key in ("max_attempts", "delays_ms")}
            if group in self.tags.wanted:
                told["tags"] = list(self.tags.wanted[group])
            self.recorder.ok(self.recorder.invoke("share-group", group=group, **told))
            for gid in filter(self.layout.has_members, range(len(self.desks))):
                self._members += [self._hire(gid, group) for _ in range(members)]
            if self._clients is not None:
                self._members += [self._employ(self._clients, group) for _ in range(CLIENTS)]

    def since_ms(self, gid: int) -> int:
        """The time of the newest entry that a replica has applied: no later entry has an earlier one."""
        return max((app.replica.state.now_ms for _, app in self.desks[gid].replicas()), default=0)

    # -------------------------------------------------------------- who acts

    def _hire(self, gid: int, group: str) -> Member:
        self._names += 1
        return Member(self, gid, group, f"{self._names:032x}")

    def _employ(self, clients: Clients, group: str) -> Client:
        self._names += 1
        return Client(self, clients, group, f"{self._names:032x}")

    def gone(self, member: Member | Client, why: str) -> None:
        """Another one takes its address: at once if it died, since the end needs somebody."""
        member.alive = False
        self.done[why] += 1
        self._members.remove(member)
        pause_s = 0.0 if why == "died" else self.rng.expovariate(1 / BACK_S)
        self.desks[0].later(pause_s, self._replace, member)

    def _replace(self, member: Member | Client) -> None:
        if isinstance(member, Member):
            self._members.append(self._hire(member.gid, member.group))
        elif self._clients is not None:
            self._members.append(self._employ(self._clients, member.group))

    def begin(self, group: str, topic: str, number: int, topic_id: int) -> None:
        """A member was told that its group has not begun with a partition. Two of them may do it at once."""
        create = share_ops.EARLIEST if self.rng.random() < 0.5 else share_ops.LATEST
        request = share_ops.share_create(group, topic, number, create, topic_id)
        life = self._life(group)

        def begun(results: list[Any]) -> None:
            _check("a begin", results, *DONE, *(GONE if topic == CHORES else ()))
            if results[0][0] in DONE and life == self._life(group):
                self._starts.setdefault((life, group, named(topic, topic_id), number), results[0][1])

        def call() -> None:
            self.desks[number % len(self.desks)].call(request, begun, lambda: True)

        if group == self.deletions.group:
            self._making.make(group, call)
        else:
            call()

    def _life(self, group: str) -> int:
        return self.deletions.life if group == self.deletions.group else 0

    def start_of(self, group: str, topic: str, number: int) -> int | None:
        """From which offset on a group has to handle a partition, called as in the history; None: not known,
        since it began amid a deletion, or a member of another kind began."""
        return self._starts.get((self._life(group), group, topic, number))

    # -------------------------------------------------------------- lives of a group

    def sleep(self, group: str, seconds: float) -> None:
        """All members of a group stand still."""
        for member in self._members:
            if member.group == group:
                member.pause(seconds)

    def forget(self, group: str) -> None:
        """Another life of the group may begin: its topics may be other ones."""
        for name in internal_topics(group):
            self.ids.pop(name, None)
        for gid in range(len(self.desks)):
            self._redriven.pop((group, gid), None)
        self.changes.forget(group)

    def ask(self, gid: int, request: bytes, replayed: Replayed) -> None:
        """Send the next request of blocking steps."""
        self.desks[gid].call(request, lambda results: replayed.answered(outcome(results[0])), lambda: True)

    def may_be_gone(self, topic: str) -> bool:
        """Whether a topic may be deleted while members use it."""
        mine = self.deletions.group
        return topic == CHORES or (mine is not None and topic in internal_topics(mine))

    def is_gone(self, group: str, error: Exception) -> bool:
        """Whether a client may be told that what it means was deleted."""
        if isinstance(error, UnknownGroup):
            return group == self.deletions.group
        topics = CHORES, *(internal_topics(group) if group == self.deletions.group else ())
        return isinstance(error, UnknownTopic) and any(topic in str(error) for topic in topics)

    def begin_all(self, group: str, submit: Submit, create: str) -> set[TopicIdPartition]:
        """A client whose group was deleted begins with all partitions again, which are returned."""
        life, every = self._life(group), set[TopicIdPartition]()
        for topic in self.topics:
            topic_id = self.ids.get(topic)
            for number in range(self.layout.partitions[topic]) if topic_id is not None else ():
                source = topic, number, topic_id
                gid = number % len(self.desks)
                code, start = submit(gid, share_ops.share_create(group, topic, number, create, topic_id))
                if code not in DONE:
                    _check("a begin", [[code, start]], *(GONE if topic == CHORES else ()))
                    continue
                every.add(source)
                if life == self._life(group):
                    self._starts.setdefault((life, group, named(topic, topic_id), number), start)
        return every

    def lacks(self, group: str, topic: str, result: Any) -> bool:
        """Whether a failure got this answer since a topic of the group is missing that the copy goes to."""
        code, *rest = result[1][0][1:] if result[0] == ResultCode.PARTIAL else result
        missing = rest[0][0] if code == ResultCode.UNKNOWN_TOPIC and rest and rest[0] else topic
        return group == self.deletions.group and missing != topic and missing in internal_topics(group)

    def make(self, group: str, then: Callable[[], None]) -> None:
        """As whoever needs topics of a group that are missing."""
        self._making.make(group, then)

    def gone_of(self, group: str, topic: str) -> tuple[ResultCode, ...]:
        """Answers to members that what they mean was deleted."""
        codes = GONE if self.may_be_gone(topic) else ()
        return (*codes, ResultCode.UNKNOWN_SHARE) if group == self.deletions.group else codes

    def took(self, taken: Sequence[Taken]) -> None:
        """Messages were handed out."""
        self.done["taken"] += len(taken)
        self.ids_at |= {each.record.address: each.id for each in taken}
        self.done["retries"] += sum(each.attempt > 1 for each in taken)

    def settled_unasked(self, group: str, addresses: Sequence[Address]) -> int:
        """A member acks these, since they have no tag that it wants; returns the operation."""
        tags = [self.tags.of(self.ids_at[address]) for address in addresses]
        self.done["passed over"] += len(addresses)
        return self.recorder.invoke("share-pass", group=group, records=addresses, tags=tags)

    def polled(self, group: str, addresses: Sequence[Address]) -> None:
        """An application gets these messages."""
        if group in self.tags.wanted and addresses:
            tags = [self.tags.of(self.ids_at[address]) for address in addresses]
            self.recorder.ok(self.recorder.invoke("share-poll", group=group, records=addresses, tags=tags))

    def _send(self) -> None:
        topic = self.rng.choice(self.topics)
        number = self.rng.randrange(self.layout.partitions[topic])
        if topic not in self.ids:
            return
        topic_id = self.ids[topic]
        name = f"{named(topic, topic_id)}/{number}"
        if name in self._sending:
            return
        self._sending.add(name)
        count = self.rng.choice(COUNTS)
        first = life_prefix(topic_id) if topic == CHORES else "job"
        names = [f"{first}{self._sent + n}" for n in range(count)]
        rows = [
            encode_row(None, body(each, self.rng.choice((1, 60, 300))), self.tags.headers(each), None)
            for each in names
        ]
        self._sent += count

        def sent(results: list[Any]) -> None:
            _check("a MESSAGE", results, *DONE, *(GONE if topic == CHORES else ()))
            self._sequence[name] += 1
            self._sending.discard(name)

        request = ops.message(topic, number, name, 0, self._sequence[name], rows, -1, topic_id)
        self.desks[number % len(self.desks)].call(request, sent, lambda: True)

    def _redrive(self) -> None:
        """Ask, perhaps twice, for all dead letters that nobody has asked for yet."""
        group, gid = self.rng.choice(GROUPS), self.rng.randrange(len(self.desks))
        found, topic = self.desks[gid].any_leader(), dead_topic(group)
        if found is None or topic not in self.ids or (group == self.deletions.group and self.deletions.busy):
            return
        topic_id = self.ids[topic]
        present = found[1].replica.state.topics.topics.get(topic)
        if present is None or present.info.topic_id != topic_id:
            return  # this one lags
        result = found[1].fetch(topic, gid, self._redriven[group, gid])
        rows = [] if result is None else rows_of(result[5], result[6])
        rows = [row for row in rows if row[0] >= self._redriven[group, gid]]
        if not rows:
            return
        self._redriven[group, gid] = rows[-1][0] + 1
        offsets, many = [row[0] for row in rows], len(rows)
        partition = named(topic, topic_id), gid
        asked = {"records": [(*partition, offset) for offset in offsets], "ids": [row[1] for row in rows]}
        op = self.recorder.invoke("share-redrive", group=group, **asked)
        delays, reasons = [share_ops.BY_TABLE] * many, [""] * many
        request = share_ops.nack(group, topic, gid, offsets, delays, reasons, "", "test", topic_id)

        def redriven(results: list[Any]) -> None:
            gone = self.gone_of(group, topic)
            _check("a redrive", results, ResultCode.OK, ResultCode.PARTIAL, *gone)
            if results[0][0] in gone:
                return
            if _has_more(results[0]):  # as many as fit into an entry: the others again
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
        asked = sum(desk.waiting for desk in self.desks) + self.redirects.waiting
        return asked + (sum(map(self._end.left, range(len(self.desks)))) if self.ready else 0)

    def check(self, leaders: Sequence[BrokerApplication]) -> bool:
        """Record what is left in the end; False: a replica found damage, and has ended."""
        if not self.ready:
            return True
        return self._end.tell(leaders) and all(map(self.redirects.check, leaders))

    def close(self) -> None:
        """End what still runs."""
        if self._clients is not None:
            self._clients.fibres.close()


def _check(what: str, results: list[Any], *allowed: ResultCode) -> None:
    if any(result[0] not in allowed for result in results):
        raise Violation(f"{what} was answered {results}", "unexpected-answer")


def _has_more(result: Any) -> bool:
    """Whether a redrive has left some: no room, or others hold them. What an earlier copy of the request, or
    somebody else, has redriven is a duplicate."""
    problems = result[1] if result[0] == ResultCode.PARTIAL else ()
    codes = {code for _, code, _ in problems}
    again = {ResultCode.RETRY, ResultCode.OFFSETS_PENDING}
    if codes - again - {ResultCode.DUPLICATE}:
        raise Violation(f"a redrive was answered {result}", "unexpected-answer")
    return bool(codes & again)


def _ignored(results: list[Any]) -> None:
    """The second of two equal requests is answered."""
