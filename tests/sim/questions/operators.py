"""Operators who search and trace, every third of a second or so, whatever happens to the brokers meanwhile.

Searches go to any replica and traces to one that believes it leads, about any message that it has: also of
topics that are deleted and created again, of internal topics, and of partitions that retention shortens.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from escrowmq.replication.format.codec import Op
from escrowmq.replication.model import NO_ID
from escrowmq.replication.state.topics import Partition
from tests.history.events import INVOKE, OK
from tests.sim.clients.desk import Desk
from tests.sim.clients.ledger import ClientTx, LiveRecorder
from tests.sim.clients.searching import BLOCK
from tests.sim.clients.workload import Cluster
from tests.sim.environment.world import Violation
from tests.sim.group.broker_app import BrokerApplication
from tests.sim.group.replica import SimReplica
from tests.sim.questions.log_model import LogModel
from tests.sim.questions.progress import ask_progress
from tests.sim.questions.searches import search, search_for_earlier
from tests.sim.questions.traces import SimMessages, Tracing
from tests.sim.sharing.records import named

if TYPE_CHECKING:
    from tests.sim.sharing.groups import ShareGroups

SHARE = 0.5  # of schedules with such operators
PAUSE_S = 0.3  # between two questions, on average
SEARCHES = 0.5  # share of questions that are searches
OF_SHARES = 0.6  # share of traces that are about a share group's message, where there are such groups
AT_THE_END = 4  # questions of each kind at each replica
_GroupPartition = tuple[str, str, int]


class Questions:
    """The questions of one world. ``desks`` of all its groups."""

    def __init__(
        self,
        clusters: Sequence[Cluster],
        recorder: LiveRecorder,
        transactions: Mapping[tuple[str, str], ClientTx],
        shares: ShareGroups | None,
    ) -> None:
        world = clusters[0].world
        self._desks = [Desk(one, "desk-of-questions") for one in clusters]
        self._rng = world.stream("questions")
        self._works = self._rng.random() < SHARE
        self._recorder, self._shares = recorder, shares
        self._log = LogModel()
        self._tracing = Tracing(self._log, transactions)
        self._next_s, self._read = 0.0, 0
        self._ids: defaultdict[str, set[int]] = defaultdict(set)  # of all topics that had a name
        #: Where groups have committed, by group, topic and partition: certainly, and perhaps.
        self._lowest, self._highest = dict[_GroupPartition, int](), dict[_GroupPartition, int]()
        self._committing: dict[int, tuple[_GroupPartition, int]] = {}
        self.done: Counter[str] = Counter()

    def heard(self, gid: int, index: int, now_ms: int, ops: Sequence[Op]) -> None:
        """A replica applies this entry."""
        if self._works:
            self._log.heard(gid, index, now_ms, ops)

    def act(self) -> None:
        """Ask something, if it is time."""
        now_s = self._desks[0].world.elapsed_s
        if not self._works or now_s < self._next_s or self._desks[0].cluster.calm:
            return
        self._next_s = now_s + self._rng.expovariate(1 / PAUSE_S)
        desk = self._rng.choice(self._desks)
        searches = self._rng.random() < SEARCHES
        found = desk.replicas() if searches else [one for one in desk.leaders() if one[0].node.ready]
        if found:
            self._ask(*self._rng.choice(found), searches)

    def check(self) -> None:
        """In the end, at every replica."""
        for desk in self._desks if self._works else ():
            for replica, app in desk.replicas():
                for n in range(2 * AT_THE_END):
                    if n < AT_THE_END or replica.node.ready:
                        self._ask(replica, app, n < AT_THE_END)
                self._swept(app)

    def _ask(self, replica: SimReplica, app: BrokerApplication, searches: bool) -> None:
        partitions = [
            one for one in app.replica.state.topics.slots.values() if one.index.end > one.index.start
        ]
        if not partitions:
            return
        shared = [one for one in partitions if self._shares is not None and one.topic in self._shares.topics]
        if shared and not searches and self._rng.random() < OF_SHARES:
            partitions = shared
        partition = self._rng.choice(partitions)
        if not searches:
            offset = self._rng.randrange(partition.index.start, partition.index.end)
            self._trace(replica, app, partition, offset)
            return
        earlier = self._ids[partition.topic] - {partition.topic_id, NO_ID}
        if earlier:
            search_for_earlier(app, partition, self._rng.choice(sorted(earlier)))
        self._ids[partition.topic].add(partition.topic_id)
        self.done["searches"] += search(self._rng, replica.name, app, partition)

    # -------------------------------------------------------------- traces

    def _trace(self, replica: SimReplica, app: BrokerApplication, partition: Partition, offset: int) -> None:
        self._catch_up()
        row = self._tracing.ask(replica, app, partition, offset)
        if row is None or not replica.up:
            return
        self.done["traces"] += 1
        self._stream_offsets(replica, app, partition)
        if self._shares is not None and self._shares.ready and partition.topic in self._shares.topics:
            checker = self._recorder.checker
            tp = named(partition.topic, partition.topic_id), partition.number
            began = {group: self._shares.start_of(group, *tp) for group in self._shares.groups}
            asked = replica, app, partition, row, began, checker.shares
            self.done["traces of share groups"] += ask_progress(*asked)

    def _catch_up(self) -> None:
        """Note who has asked for what, and where groups may be."""
        events, asked_by = self._recorder.events, self._tracing.asked_by
        for event in events[self._read :]:
            if event.phase == INVOKE and event.kind == "decide" and event.fields["outcome"] == "COMMITTED":
                key = event.fields["app"], event.fields["tx"]
                asked_by.setdefault(key, set()).add(event.fields["by"])
            elif event.phase == INVOKE and event.kind == "offset-commit":
                fields = event.fields
                asked = (fields["group"], fields["topic"], fields["partition"]), fields["offset"]
                which, offset = self._committing[event.op] = asked
                self._highest[which] = max(offset, self._highest.get(which, 0))
            elif event.phase == OK and event.op in self._committing:
                which, offset = self._committing.pop(event.op)
                self._lowest[which] = max(offset, self._lowest.get(which, 0))
        self._read = len(events)

    def _stream_offsets(self, replica: SimReplica, app: BrokerApplication, partition: Partition) -> None:
        """How far groups that read by offsets have come."""
        topic, number = partition.topic, partition.number
        reply = replica.guarded(lambda: SimMessages(replica, app).group_places(topic, number))
        if reply is None or reply[0] != "ok":
            return
        for group, found in reply[1].items():
            which = group, topic, number
            if which not in self._highest:
                continue  # of others, which record nothing, or something else
            lowest = self._lowest.get(which, 0) if self._is_newest(app) else 0
            self.done["places of groups"] += 1
            if not lowest <= found <= self._highest[which]:
                text = f"{replica.name}: {which} is at {found}, not from {lowest} to {self._highest[which]}"
                raise Violation(text, "trace-false")

    def _is_newest(self, app: BrokerApplication) -> bool:
        """Whether this leader has applied all that was acknowledged. Another may lead without its knowing."""
        cluster = self._desks[app.replica.state.gid].cluster
        return app.applied_index >= max(cluster.checker.acknowledged, default=0)

    def _swept(self, app: BrokerApplication) -> None:
        """No file may be left of offsets that are gone."""
        finder, slots = app.searching.finder, app.replica.state.topics.slots
        finder._opened()  # as a process does at its start that finds files
        finder.sweep()
        left = [
            (slot, block)
            for slot, block in app.searching.files()
            if slot not in slots or (block + 1) * BLOCK <= slots[slot].index.start
        ]
        if left:
            raise Violation(f"find files of blocks that are gone: {left}", "find-left")
