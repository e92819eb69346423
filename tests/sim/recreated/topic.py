"""The operators who delete the topic and create it again, perhaps with other partitions in other groups, and
all users of the topic.

One operator works at a time, in all groups in turn, as the admin client does. If one dies half-way, another
one repeats its work. They name the topic's id, and copies of their deletions arrive late. In one group,
another operator may create the topic while the deletion is on its way to the log. Late copies of a
creation are not simulated: one creates a topic that was deleted, with nothing in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from escrowmq.actors.admin.topic_creation import topic_settings
from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import Op
from escrowmq.replication.model import BY_NAME, NO_ID, ResultCode, TopicInfo, first_group, group_of
from tests.sim.clients.consumers import read_all
from tests.sim.clients.desk import Desk
from tests.sim.clients.workload import Cluster
from tests.sim.environment.world import Violation
from tests.sim.faults.plan import RECREATED
from tests.sim.group.broker_app import BrokerApplication
from tests.sim.group.replica import SimReplica
from tests.sim.recreated.clients import Clients
from tests.sim.recreated.group import GroupDeletions
from tests.sim.recreated.members import Member
from tests.sim.recreated.model import APP, TOPIC, Model

SHARE = 0.25  # of schedules that have such a topic
LIFE_S, PAUSE_S = 0.8, 0.05  # approximate length of a life, and of the time until the next one
DIES, DIES_S = 0.1, 0.3  # share of operators that die, and how soon
HASTY = 0.5  # share of deletions in one group during which another operator creates the topic
MEMBERS = 2
RETENTION_MS = (-1, -1, 300, 600)
COPIED, COPY_LATER_S = 0.4, (0.3, 1.0, 2.5)  # share of deletions that are copied; the delay
DONE = (ResultCode.OK, ResultCode.DUPLICATE, ResultCode.UNKNOWN_TOPIC, ResultCode.OTHER_TOPIC)


class RecreatedTopic:
    """The topic of one world. ``members``: whether a consumer group reads it, which uses a table entry.
    ``always``: every world has it."""

    def __init__(self, clusters: Sequence[Cluster], *, members: bool, always: bool = False) -> None:
        world = clusters[0].world
        self.rng = world.stream("recreated")
        self._works = self.rng.random() < SHARE or always
        self.desks = [Desk(one, "desk-of-recreated") for one in clusters]
        self.models = [Model(gid, len(clusters)) for gid in range(len(clusters))]
        self.done: Counter[str] = Counter()
        self.life_s = LIFE_S
        self.info: TopicInfo | None = (
            None  # as it was last created; None: it is being deleted, or does not exist
        )
        self._busy = self._began = False
        self._next_s = 0.0
        #: Settings, first group, and the id that group 0 gave; 0: it will give one.
        self._wanted: tuple[dict[str, int | str], int, int] | None = None
        self._meant = NO_ID  # id of the topic that is being deleted
        self._deleting = self._hasty = False
        self._clients = Clients(self)
        self._members = [Member(f"m{n}", self, static=n == 0) for n in range(MEMBERS)] if members else []
        self._group = GroupDeletions(self, self._members) if members else None
        for cluster in clusters:
            cluster.recreate = self.hasten

    @property
    def works(self) -> bool:
        """Whether this world has the topic."""
        return self._works

    @property
    def waiting(self) -> int:
        """Number of pending actions to wait for at the end."""
        return sum(desk.waiting for desk in self.desks) + self._clients.busy

    @property
    def topic_id(self) -> int:
        """The topic's id as clients know it; 0: they know none."""
        return NO_ID if self.info is None else self.info.topic_id

    def group_of(self, partition: int) -> int:
        """The group of a partition in this life."""
        assert self.info is not None
        return group_of(first_group(self.info), partition, len(self.desks))

    def heard(self, gid: int, index: int, now_ms: int, entry: Sequence[Op]) -> None:
        """An entry of a group is applied for the first time. All topics count, since each takes an id."""
        self.models[gid].heard(index, now_ms, entry)

    def leader(self, gid: int) -> tuple[SimReplica, BrokerApplication] | None:
        """The leader that can be asked, if there is one."""
        return next(((r, app) for r, app in self.desks[gid].leaders() if r.node.ready), None)

    # -------------------------------------------------------------- one step
    def act(self) -> None:
        """Let operators and clients act, if it is time."""
        if not self._works or self.desks[0].cluster.calm:
            return
        now_s = self.desks[0].world.elapsed_s
        if not self._busy and now_s >= self._next_s:
            self._operate(now_s)
        self._clients.act()
        for member in self._members if not self._began else ():
            member.act()
        if self._group is not None:
            self._group.act()
        self._began = True

    def is_streamed(self, life_s: float, pause_s: float) -> None:
        """Consumers read it: it lives for longer, and its clients send more often."""
        self.life_s, self._clients.pause_s = life_s, pause_s

    def hasten(self) -> bool:
        """Let an operator delete the topic at once; if there is none, one is created soon, also in a world
        that would have no such topic. Returns whether a deletion begins."""
        self._works, self._next_s = True, 0.0
        if self._busy or self.info is None:
            return False
        self._operate(self.desks[0].world.elapsed_s)
        return self._busy

    def _operate(self, now_s: float) -> None:
        rng = self.rng
        if self.info is not None:  # otherwise an operator died half-way
            self._meant = self.info.topic_id
            self.info, self._wanted, self._deleting = None, None, True
            self._hasty = len(self.desks) == 1 and rng.random() < HASTY
        if self._wanted is None and (self._hasty or not self._deleting):
            self._choose()
        self._busy = True
        alive = [True]
        if rng.random() < DIES:
            self.desks[0].later(DIES_S * rng.random(), self._die, alive)
        self._step(0, alive)

    def _choose(self) -> None:
        """Choose how the topic is created next."""
        first = self.rng.randrange(len(self.desks)) if len(self.desks) > 1 else BY_NAME
        settings = topic_settings(
            self.rng.randint(1, len(self.desks) + 2),
            transaction_timeout_ms=600_000,  # so long that no check comes due
            retention_ms=self.rng.choice(RETENTION_MS),
        )
        self._wanted = settings, first, NO_ID

    def _die(self, alive: list[bool]) -> None:
        if alive[0] and self._busy:
            alive[0] = self._busy = False
            self.done["cut short"] += 1

    def _step(self, gid: int, alive: list[bool]) -> None:
        """Do the same in the next group."""
        if gid == len(self.desks):
            self._end(alive)
            return
        request = ops.delete_topic(TOPIC, self._meant) if self._deleting else b""
        if self._deleting and self.rng.random() < COPIED:
            pause_s = self.rng.choice(COPY_LATER_S) * (0.5 + self.rng.random())
            self.desks[gid].later(pause_s, self._copy_arrives, gid, request)
        creates = not self._deleting or self._hasty
        if creates:
            assert self._wanted is not None
            request += ops.create_topic(TOPIC, *self._wanted)

        def answered(results: list[Any]) -> None:
            if any(result[0] not in DONE for result in results):
                raise Violation(f"creation or deletion was answered {results[0]}", "unexpected-answer")
            if self._deleting and results[0][0] in (ResultCode.OK, ResultCode.DUPLICATE):
                self.desks[gid].cluster.struck(RECREATED, TOPIC)
            if creates and gid == 0 and self._wanted is not None:
                self._wanted = *self._wanted[:2], results[-1][1]
            self._step(gid + 1, alive)

        self.desks[gid].call(request, answered, lambda: alive[0])

    def _copy_arrives(self, gid: int, request: bytes) -> None:
        self.done["late deletion"] += 1
        self.desks[gid].call(request, lambda results: None, lambda: True, once=True)

    def _end(self, alive: list[bool]) -> None:
        alive[0] = self._busy = False
        created = self._hasty or not self._deleting
        self._deleting = self._hasty = False
        if created:
            assert self._wanted is not None
            settings, first, topic_id = self._wanted
            self.info = TopicInfo(TOPIC, **settings, first_group=first, topic_id=topic_id)  # type: ignore[arg-type]
            self.done["created"] += 1
        mean_s = PAUSE_S if self.info is None else self.life_s
        self._next_s = self.desks[0].world.elapsed_s + self.rng.expovariate(1 / mean_s)

    def later(self, delay_s: float, fn: Callable[..., None], *args: Any) -> None:
        self.desks[0].later(delay_s, fn, *args)

    # -------------------------------------------------------------- at the end
    def check(self) -> None:
        """Check the end, when all replicas have applied everything."""
        if not self._works:
            return
        for model, desk in zip(self.models, self.desks, strict=True):
            for replica, app in desk.replicas():
                self._check_replica(model, replica, app)

    def _check_replica(self, model: Model, replica: SimReplica, app: BrokerApplication) -> None:
        state, life = app.replica.state, model.life
        if opened := [tx_id for name, tx_id, _ in state.transactions.iterate_open() if name == APP]:
            raise Violation(f"still open long after the calm: {opened[:5]}", "unresolved")
        known = state.topics.topics.get(TOPIC)
        held = {} if known is None else known.partitions
        if self.info is not None and (known is None or known.info.topic_id != self.info.topic_id):
            text = f"{replica.name} has {known and known.info} where {self.info} was created last"
            raise Violation(text, "lost-topic")
        if (known is None) != (life is None) or set(held) != (set() if life is None else set(life.held)):
            raise Violation(f"{replica.name} has the partitions {set(held)} of {TOPIC}", "namesake")
        if life is None:
            return
        for partition in held:
            read = read_all(app, (TOPIC, partition), 0, settled=True)
            if read is not None:  # otherwise the replica found damage and has ended
                start, end, records = read
                model.check_whole(partition, start, end, [id for _, id in records], replica.name)
        found = {
            group: by_topic[TOPIC] for group, by_topic in state.group_offsets.items() if TOPIC in by_topic
        }
        if self._members and found != life.offsets:
            text = f"groups are at {found} of {TOPIC} on {replica.name}, not {life.offsets}"
            raise Violation(text, "lost-offset")
