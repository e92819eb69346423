"""Operators who redrive dead letters into a topic, as transactions that hold them (admin/dead_letters.py).

They ask for letters that others redrive at the same time, to the group or into another topic; they die before
they have decided, or decide when the transaction's time may be over. Rules are in tests/history/sharing.py: a
letter arrives once at most, where it was reported, and is then final. In worlds with one broker group: how
the messages of a transaction get into other groups is the same for all transactions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import decode_rows, encode_row
from escrowmq.replication.format.internal_topics import dead_topic
from escrowmq.replication.format.ops import ROLLBACK, PrepareExtra
from escrowmq.replication.format.share_ops import pre_letters
from escrowmq.replication.model import ResultCode
from tests.history.events import body, identify
from tests.sim.clients.desk import Desk
from tests.sim.clients.ledger import REDIRECTS as APP
from tests.sim.clients.workload import Cluster
from tests.sim.environment.world import Violation
from tests.sim.group.broker_app import BrokerApplication
from tests.sim.sharing.records import named, rows_of

if TYPE_CHECKING:
    from tests.sim.sharing.groups import ShareGroups

SHARE = 0.5  # of worlds with share groups
TARGETS = ("lost", "found")
EVERY_S = 0.3  # between two of them, on average
TIMEOUT_MS = 500
#: Letters that one asks for, and from which of the newest ones.
MANY, NEWEST = (1, 1, 2, 4), 8
#: Share of those that are final already, as far as it can see, that it asks for.
FINAL = 0.1
#: What becomes of it once it holds them, and when. What is left has neither COMMIT nor ROLLBACK.
DIES, ROLLS_BACK, DECIDES_S = 0.2, 0.15, (0.0, 0.0, 0.05, 0.3, 0.8)
AGAIN_S = 0.03
DONE = (ResultCode.OK, ResultCode.DUPLICATE)
#: The group's topics were deleted, or others have the letters, or settle them just now.
REFUSED = (
    *(ResultCode.UNKNOWN_TOPIC, ResultCode.OTHER_TOPIC, ResultCode.OFFSETS_MOVED, ResultCode.OUT_OF_RANGE),
    *(ResultCode.OFFSETS_PENDING, ResultCode.RETRY, ResultCode.STALE),
)


class Redirects:
    """Those of one world."""

    def __init__(self, world: ShareGroups, clusters: Sequence[Cluster]) -> None:
        self._world, first = world, clusters[0]
        self._rng = first.world.stream("redirects-of-sharing")
        #: With random streams of its own: others' do not move.
        self._desk = Desk(first, "desk-of-redirects")
        self.works = len(clusters) == 1 and self._rng.random() < SHARE
        self._next_s, self._begun = 0.0, 0

    def act(self, now_s: float) -> None:
        """Begin with the next one, if it is time."""
        if not self.works or now_s < self._next_s:
            return
        self._next_s = now_s + self._rng.expovariate(1 / EVERY_S)
        group, to = self._rng.choice(self._world.groups), self._rng.choice(TARGETS)
        leader, topic = self._leader(), dead_topic(group)
        deleted = group == self._world.deletions.group and self._world.deletions.busy
        if leader is None or topic not in self._world.ids or deleted:
            return
        state, topic_id = leader.replica.state, self._world.ids[topic]
        present = state.topics.topics.get(topic)
        if present is None or present.info.topic_id != topic_id:
            return
        end = present.partitions[0].index.end
        result = leader.fetch(topic, 0, max(end - NEWEST, 0)) if end else None
        rows = [] if result is None else rows_of(result[5], result[6])
        pair = state.shares.get(group, present.partitions[0])
        final = {row[0] for row in rows if pair is not None and pair.has(row[0])}
        rows = [row for row in rows if row[0] not in final or self._rng.random() < FINAL]
        many = min(self._rng.choice(MANY), len(rows))
        if many:
            self._prepare(group, to, topic_id, sorted(self._rng.sample(rows, many)), state.now_ms)

    def _leader(self) -> BrokerApplication | None:
        return next((app for replica, app in self._desk.leaders() if replica.node.ready), None)

    def _prepare(
        self, group: str, to: str, topic_id: int, rows: Sequence[tuple[int, str, int, int]], now_ms: int
    ) -> None:
        world, name = self._world, named(dead_topic(group), topic_id)
        self._begun += 1
        tx_id = f"redirect{self._begun}"
        addresses = [(name, 0, row[0]) for row in rows]
        copies = [
            encode_row(f"{group} {name} {offset}".encode(), body(id, 60), None, tx_id)
            for offset, id, *_ in rows
        ]
        extra = PrepareExtra("", heard_ms=now_ms, on_timeout=ROLLBACK)
        request = ops.prepare(APP, to, [tx_id], None, TIMEOUT_MS, 0, [self._begun], -1, 2, extra)
        sizes = [len(copy) for copy in copies]
        request += ops.pre_message(to, 0, [0] * len(rows), sizes, copies, world.ids[to])
        ranges = [offset for row in rows for offset in (row[0], row[0])]
        request += pre_letters(group, 0, ranges, topic_id, to, "operator:test")
        op = world.recorder.invoke(
            "share-redirect", group=group, to=to, records=addresses, ids=[row[1] for row in rows]
        )

        def prepared(results: list[Any]) -> None:
            code = _code(results[0])
            if code in REFUSED:
                world.done[f"redirects refused: {ResultCode(code).name}"] += 1
                world.recorder.ok(op, refused=True)
                return
            if code not in DONE:
                raise Violation(f"the PREPARE of {tx_id} was answered {results}", "unexpected-answer")
            chance = self._rng.random()
            if chance < DIES:
                world.done["redirects left"] += 1
                world.recorder.ok(op, refused=True)
                return
            commits = chance >= DIES + ROLLS_BACK
            pause_s = self._rng.choice(DECIDES_S) * self._rng.random()
            self._desk.later(pause_s, self._decide, op, tx_id, commits)

        self._desk.call(request, prepared, lambda: True)

    def _decide(self, op: int, tx_id: str, commits: bool) -> None:
        decide = ops.commit if commits else ops.rollback

        def decided(results: list[Any]) -> None:
            code = _code(results[0])
            if code == ResultCode.RETRY:
                self._desk.later(AGAIN_S, self._decide, op, tx_id, commits)
                return
            refused = not commits or code == ResultCode.TX_CONFLICT  # its time was over
            if code not in DONE and not refused:
                raise Violation(f"the decision on {tx_id} was answered {results}", "unexpected-answer")
            self._world.done["redirects undone" if refused else "redirects done"] += 1
            self._world.recorder.ok(op, refused=refused)

        self._desk.call(decide(APP, [tx_id]), decided, lambda: True)

    # -------------------------------------------------------------- at the end

    @property
    def waiting(self) -> int:
        """Requests without an answer, and transactions that are open. 1 if nobody can be asked."""
        if not self.works:
            return 0
        leader = self._leader()
        if leader is None:
            return 1
        table = leader.replica.state.transactions.apps.get(APP)
        return self._desk.waiting + (0 if table is None else len(table.open))

    def check(self, leader: BrokerApplication) -> bool:
        """Record what is in the topics; False: a replica found damage, and has ended."""
        held = leader.replica.state.letters.by_tx
        if held:
            raise Violation(f"held, though nothing is open: {dict(held)}", "held-for-ever")
        found: list[tuple[str, str, list[Any]]] = []
        for topic in TARGETS if self.works and TARGETS[0] in leader.replica.state.topics.topics else ():
            rows = _rows(leader, topic)
            if rows is None:
                return False
            for group in self._world.groups:
                found.append((group, topic, [row[1:] for row in rows if row[0] == group]))
        for group, topic, records in found:
            op = self._world.recorder.invoke("share-end", group=group)
            told = {"topic": topic, "partition": 0, "start": 0, "ranges": (), "end": 0, "of": "redirected"}
            self._world.recorder.ok(op, **told, records=records)
        return True


def _rows(app: BrokerApplication, topic: str) -> list[tuple[str, str, tuple[str, int, int]]] | None:
    """Group, id and dead letter of all that is in a topic; None: it cannot be read."""
    index = app.replica.state.topics.topics[topic].partitions[0].index
    found, at = list[tuple[str, str, tuple[str, int, int]]](), index.start
    while at < index.end:
        result = app.fetch(topic, 0, at)
        if result is None:
            return None
        before, pos = at, 0
        for base, count, _, size in result[5]:
            for n, row in enumerate(decode_rows(result[6][pos : pos + size], count)):
                if base + n >= at:
                    group, name, offset = bytes(row[0] or b"").decode().split()
                    found.append((group, identify(row[1]), (name, 0, int(offset))))
                    at = base + n + 1
            pos += size
        if at == before:
            break
    return found


def _code(result: Any) -> int:
    """That of the only transaction of a request."""
    code: int = result[1][0][1] if result[0] == ResultCode.PARTIAL else result[0]
    return code
