"""Broker groups in memory behind the network's edge: the state, the rules and the admission are real.

What is not: Raft (an entry is committed when composed, the leader is whom the test names) and the
wire (a call takes a millisecond, a dead replica answers after a second and a half as with Ray, a frozen
one never).
"""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from typing import Any

from escrowmq.feedback.brokers import BrokerUnreachable
from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import OpType, encode_row
from escrowmq.replication.model import OpenTransaction, group_of
from escrowmq.replication.replica.admission import Admission, Submission
from escrowmq.replication.replica.validation import parse_request
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.transactions import STATE_OF
from tests.support.clock import now

RAY_NOTICES_DEATH_S = 1.5


class MemoryLog:
    """Commands by index: what admission reads of a journal."""

    def __init__(self) -> None:
        self.commands: dict[int, bytes] = {}

    @property
    def last_index(self) -> int:
        return len(self.commands)

    def segment_start(self, index: int) -> int:
        return 1

    def read_range(self, index: int, pos: int, size: int) -> bytes:
        return self.commands[index][pos : pos + size]


class GroupDouble:
    """One broker group."""

    def __init__(self, gid: int, groups: int, replicas: int = 3) -> None:
        self.gid, self.groups, self.replicas = gid, groups, replicas
        self.leader: int | None = 0
        self.term = 1
        self.dead: set[int] = set()
        self.frozen: set[int] = set()
        self.state = StateMachine(gid, groups)
        self.log = MemoryLog()
        self.admission = self._admission()
        self.calls: Counter[str] = Counter()
        self.checked: Counter[str] = Counter()  # transaction -> CHECKED operations
        self.lose_next_reply = False
        self.refuse: list[tuple[Any, ...]] = []  # answers for the next submits instead of doing them
        self.poll_places = 8

    def _admission(self) -> Admission:
        return Admission(self.state, self.log, open_max=10_000, queue_bytes_max=1 << 30, copy_bytes=64)

    # ------------------------------------------------------------ what tests do

    def now_ms(self) -> int:
        return int(now() * 1000)

    def apply(self, request: bytes) -> list[Any]:
        """One entry, committed at once; its results."""
        parsed = parse_request(request)
        for op in parsed:
            if op.type == OpType.CHECKED:
                self.checked.update(op.meta[1])
        answers: list[tuple[Any, ...]] = []
        self.admission.offer(Submission(request, parsed, answers.append))
        entry = self.admission.compose(self.now_ms())
        assert entry is not None
        index = self.log.last_index + 1
        self.log.commands[index] = entry.command
        self.admission.applied(entry, self.state.apply(index, entry.command))
        results: list[Any] = answers[0][1]
        return results

    def create_topic(self, name: str, **settings: object) -> None:
        self.apply(ops.create_topic(name, {"partitions": self.groups, **settings}))

    def prepare(
        self,
        tx_id: str,
        *,
        app: str = "shop",
        topic: str = "orders",
        query_id: str | None = None,
        timeout_ms: int = 100,
        home_group: int = -1,
    ) -> None:
        """A transaction of one message, as a producer that then vanished left it behind."""
        here = next(n for n in range(self.groups) if group_of(topic, n, self.groups) == self.gid)
        row = encode_row(None, tx_id.encode(), None, tx_id)
        request = ops.prepare(
            app, topic, [tx_id], [query_id or tx_id], timeout_ms, 0, [zlib.crc32(row)], home_group, 1
        ) + ops.pre_message(topic, here, [0], [len(row)], [row])
        assert self.apply(request) == [[0]]

    def outcome(self, tx_id: str, app: str = "shop") -> str:
        table = self.state.transactions.app(app)
        settled = table.outcome(tx_id)
        return "PREPARE" if tx_id in table.open else STATE_OF[settled].value if settled else "UNKNOWN"

    def open(self, tx_id: str, app: str = "shop") -> Any:
        return self.state.transactions.app(app).open[tx_id]

    def fail_over(self, to: int) -> None:
        """Another replica leads; leases and what was being decided are forgotten."""
        self.leader, self.term = to, self.term + 1
        self.state.due.rebuild()
        self.admission = self._admission()

    # ------------------------------------------------------------ the replicas' methods

    async def call(self, rid: int, method: str, *args: Any) -> Any:
        self.calls[method] += 1
        if rid in self.frozen:
            await asyncio.get_running_loop().create_future()
        if rid in self.dead:
            await asyncio.sleep(RAY_NOTICES_DEATH_S)
            raise BrokerUnreachable("dead")
        await asyncio.sleep(0.001)
        reply = await getattr(self, f"_{method}")(rid, *args)
        await asyncio.sleep(0.001)
        if rid in self.frozen:
            await asyncio.get_running_loop().create_future()
        if rid in self.dead:
            await asyncio.sleep(RAY_NOTICES_DEATH_S)
            raise BrokerUnreachable("died while answering")
        return reply

    def _not_leader(self, rid: int) -> tuple[Any, ...] | None:
        return None if rid == self.leader else ("not_leader", self.leader, self.term)

    async def _whoami(self, rid: int) -> tuple[bool, int | None, int]:
        return rid == self.leader, self.leader, self.term

    async def _submit(self, rid: int, request: bytes) -> tuple[Any, ...]:
        refused = self._not_leader(rid)
        if refused is not None:
            return refused
        if self.refuse:
            return self.refuse.pop(0)
        results = self.apply(request)
        if self.lose_next_reply:
            self.lose_next_reply = False
            return ("unknown",)
        return ("ok", results)

    async def _lock_due(
        self, rid: int, app: str, topic: str, max_n: int, lease_s: float, wait_s: float, owner: str
    ) -> tuple[Any, ...]:
        until = now() + wait_s
        if self.poll_places <= 0:
            until = now()
        self.poll_places -= 1
        try:
            while True:
                refused = self._not_leader(rid)
                if refused is not None:
                    return refused
                self.state.due.advance(self.now_ms())
                rows = self.state.due.lock(app, topic, max_n, owner, int(lease_s * 1000), self.now_ms())
                if rows or now() >= until:
                    return ("ok", [self._row(topic, tx_id, record) for tx_id, record in rows])
                await asyncio.sleep(0.05)
        finally:
            self.poll_places += 1

    def _row(self, topic: str, tx_id: str, record: Any) -> tuple[Any, ...]:
        info = self.state.topics.topics[topic].info
        exhausted = info.on_check_exhausted == "rollback" and record.checks >= info.check_max
        return (tx_id, record.query_id, record.prepared_ms, record.checks, record.home_group, exhausted)

    async def _release_locks(
        self, rid: int, app: str, topic: str, tx_ids: list[str], owner: str
    ) -> tuple[Any, ...]:
        self.state.due.release(app, tx_ids, owner, self.now_ms())
        return self._not_leader(rid) or ("ok", None)

    async def _tx_states(self, rid: int, app: str, tx_ids: list[str]) -> tuple[Any, ...]:
        return self._not_leader(rid) or ("ok", [self.outcome(tx_id, app) for tx_id in tx_ids])

    async def _open_topics(self, rid: int, app: str) -> tuple[Any, ...]:
        table = self.state.transactions.app(app)
        found = [topic for topic, n in table.open_by_topic.items() if n > 0]
        return self._not_leader(rid) or ("ok", found)

    async def _transactions(
        self, rid: int, state: str | None, app: str, topic: str, limit: int
    ) -> tuple[Any, ...]:
        opened = self.state.transactions.app(app).open.items()
        rows = [
            (app, tx, r.query_id, topic, r.prepared_ms, r.timeout_ms, r.checks, r.due_ms < 0, 1, r.home_group)
            for tx, r in opened
            if r.topic == topic
        ]
        assert all(OpenTransaction(*row) for row in rows)
        return self._not_leader(rid) or ("ok", rows[:limit])


class BrokersDouble:
    """All groups; ``Brokers`` for the code under test."""

    def __init__(self, groups: int = 1, replicas: int = 3) -> None:
        self.groups = [GroupDouble(gid, groups, replicas) for gid in range(groups)]

    async def call(self, gid: int, rid: int, method: str, *args: Any) -> Any:
        return await self.groups[gid].call(rid, method, *args)
