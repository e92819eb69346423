"""What a running replica answers: requests, reads, and questions about its state.

The methods are what the Broker actor offers by the same names: thread-safe, blocking for a bounded
time, answering plain tuples. Everything that touches the replica runs in the driver's thread; reads of
committed messages do not, and may run in any.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import asdict
from itertools import islice
from typing import Any

from escrowmq.replication import fetching
from escrowmq.replication.answers import DUE_MAX, FETCH_BYTES_MAX, FILE_PART_BYTES_MAX, LEASE_S_MAX, open_row
from escrowmq.replication.checkpoints import snapshot_name
from escrowmq.replication.errors import Closed, CorruptLog, InvalidMessage, Overloaded, Unavailable
from escrowmq.replication.fetching import FetchRequest, FetchResult, Join, in_bytes
from escrowmq.replication.hosting import NOT_STARTED, ReplicaHost, Status, politely
from escrowmq.replication.repair import damage_offered, may_be_offered, offered_files
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.open_table import OpenTable, View
from escrowmq.replication.state.transactions import STATE_OF
from escrowmq.replication.validation import brings_new_work, parse_request

#: A request is answered within this time or its outcome is unknown to the caller (it may still happen).
SUBMIT_WAIT_S = 15.0


class BrokerService(ReplicaHost):
    """One replica, running. Build it, ``start()``, call the rest from any thread, ``stop()``."""

    # -------------------------------------------------------------- requests

    def submit(self, request: bytes) -> Status:
        """Have operations done; see the contract in ops.py for frames and results.

        ``("ok", results)``, ``("not_leader", leader, term)``, ``("overloaded", s)``, ``("disk_full", s)``,
        ``("malformed", text)``, or ``("unknown",)``: it may or may not happen, send the same bytes again.
        """
        if type(request) is not bytes:
            return ("malformed", f"a request is bytes, not {type(request).__name__}")
        if len(request) > self.config.request_bytes_max:
            return ("malformed", f"request of {len(request)} bytes; at most {self.config.request_bytes_max}")
        try:
            ops = parse_request(request)
        except InvalidMessage as error:
            return ("malformed", str(error))
        if not self._started:
            return NOT_STARTED
        scarce = self._disk.free_bytes() < self.config.disk_reserve_bytes
        if self.driver.disk_full or (scarce and brings_new_work(ops)):
            return ("disk_full", 1.0)
        answer: Future[Status] = Future()
        try:
            self.driver.submit(lambda: self.replica.submit(request, ops, answer.set_result))
        except Overloaded as error:
            return ("overloaded", error.retry_after_s)
        except Closed:
            return NOT_STARTED
        try:
            return answer.result(SUBMIT_WAIT_S)
        except FutureTimeout:
            return ("unknown",)

    def fetch(
        self, requests: Sequence[FetchRequest], max_bytes: int, wait_s: float, join: Join = in_bytes
    ) -> list[FetchResult]:
        """Committed messages; waits up to ``wait_s`` if there are none and no error either.

        Raises Unavailable while the replica is starting.
        """
        self._check_started()
        max_bytes = min(max_bytes, FETCH_BYTES_MAX)

        def attempt() -> list[FetchResult] | None:
            results = self.replica.fetch(requests, max_bytes, join)
            return results if any(r[2] or r[5] for r in results) else None

        try:
            return self._fetch_lot.wait_for(attempt, wait_s) or self.replica.fetch(requests, max_bytes, join)
        except CorruptLog as error:
            self._end(error)
            raise Unavailable(f"replica {self.rid} of group {self.gid} leaves for repair", 1.0) from error

    def offsets(
        self, requests: Sequence[tuple[str, int, int]], leader: bool = False
    ) -> list[tuple[int, int]] | Status:
        """Per (topic, partition, ts_ms): (code, first offset at or after it); -1 = end, -2 = start.

        ``leader``: only if this replica leads, as ``("ok", [...])``: another one's end may lag.
        """

        def read(state: StateMachine) -> list[tuple[int, int]]:
            with state.cut:
                return [fetching.offset_for_time(state, *request) for request in requests]

        if leader:
            return self.if_leading(read)
        self._check_started()
        return read(self.replica.state)

    def if_leading(self, read: Callable[[StateMachine], Any]) -> Status:
        """``("ok", read(state))`` in this thread, or who leads; for what may be read beside the driver."""
        self._check_started()
        return ("ok", read(self.replica.state)) if self.node.ready else self.replica.not_leader()

    def wait_for_news(self, attempt: Callable[[], Status | None], wait_s: float) -> Status | None:
        """``attempt()`` until it gives something, at each change of the state, for at most ``wait_s``."""
        return self._fetch_lot.wait_for(attempt, wait_s)

    # -------------------------------------------------------------- topics and groups

    def topics(self, leader: bool = False) -> Status:
        """``("ok", [TopicInfo as dict, ...])``; from this replica's state, or the leader's if asked."""

        def read() -> list[dict[str, Any]]:
            return [asdict(topic.info) for topic in list(self.replica.state.topics.topics.values())]

        if leader:
            return self._led(read)
        self._check_started()
        return ("ok", read())

    def partition_bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        """partition -> (start, end) of those this group hosts."""
        known = self.replica.state.topics.topics.get(topic)
        if known is None:
            return {}
        return {n: (p.index.start, p.index.end) for n, p in known.partitions.items()}

    def partition_count(self, topic: str) -> int | None:
        """How many partitions the topic has in the whole cluster; None if it does not exist."""
        known = self.replica.state.topics.topics.get(topic)
        return None if known is None else known.info.partitions

    def committed(self, group: str, topics: Sequence[str] | None = None) -> Status:
        """``("ok", {topic: {partition: next offset}})`` of a consumer group; leader only."""
        return self._led(lambda: self.group_offsets(group, topics))

    def group_offsets(self, group: str, topics: Sequence[str] | None = None) -> dict[str, dict[int, int]]:
        """The same from this replica's state, without asking whether it leads."""
        offsets = self.replica.state.group_offsets.get(group, {})
        wanted = list(offsets) if topics is None else topics
        return {topic: dict(offsets.get(topic, {})) for topic in wanted}

    def group_names(self) -> list[str]:
        """Groups that have committed offsets."""
        return list(self.replica.state.group_offsets)

    # -------------------------------------------------------------- transactions

    def lock_due(self, app: str, topic: str, max_n: int, lease_s: float, wait_s: float, owner: str) -> Status:
        """``("ok", [(tx_id, query_id, prepared_ms, checks, home_group, exhausted), ...])``; leader only.

        Waits up to ``wait_s`` for one to come due. Each is nobody else's until its lease ends.
        """
        answer: Status = ("ok", [])
        max_n, lease_s = min(max_n, DUE_MAX), min(lease_s, LEASE_S_MAX)

        def attempt() -> Status | None:
            nonlocal answer
            answer = self._led(lambda: self._lock_due(app, topic, max_n, lease_s, owner))
            return None if answer == ("ok", []) else answer

        return self._due_lot.wait_for(attempt, wait_s) or answer

    def _lock_due(
        self, app: str, topic: str, max_n: int, lease_s: float, owner: str
    ) -> list[tuple[Any, ...]]:
        state = self.replica.state
        now_ms = self._now_ms()
        known = state.topics.topics.get(topic)
        rolls_back = known is not None and known.info.on_check_exhausted == "rollback"
        check_max = known.info.check_max if known else 0
        return [
            (tx, r.query_id, r.prepared_ms, r.checks, r.home_group, rolls_back and r.checks >= check_max)
            for tx, r in state.due.lock(app, topic, max_n, owner, int(lease_s * 1000), now_ms)
        ]

    def release_locks(self, app: str, topic: str, tx_ids: Sequence[str], owner: str) -> Status:
        """Give leases back without an answer; due again in a second."""
        return self._led(lambda: self.replica.state.due.release(app, tx_ids, owner, self._now_ms()))

    def open_topics(self, app: str) -> Status:
        """``("ok", [topic, ...])`` that have open transactions of ``app``."""

        def read() -> list[str]:
            table = self.replica.state.transactions.apps.get(app)
            return [] if table is None else [t for t, n in table.open_by_topic.items() if n > 0]

        return self._led(read)

    def tx_states(self, app: str, tx_ids: Sequence[str]) -> Status:
        """``("ok", ["PREPARE" | "COMMITTED" | "ROLLBACK" | "UNKNOWN", ...])``; leader only."""

        def read() -> list[str]:
            table = self.replica.state.transactions.apps.get(app)
            if table is None:
                return ["UNKNOWN"] * len(tx_ids)
            outcomes = [table.outcome(tx_id) for tx_id in tx_ids]
            return [
                "PREPARE" if tx_id in table.open else STATE_OF[outcome].value if outcome else "UNKNOWN"
                for tx_id, outcome in zip(tx_ids, outcomes, strict=True)
            ]

        return self._led(read)

    def transactions(
        self, state: str | None = None, app: str | None = None, topic: str | None = None, limit: int = 1000
    ) -> Status:
        """``("ok", [OpenTransaction as a tuple, ...])``, oldest first; leader only.

        ``state``: None or "PREPARE" = all open, "PARKED" = only those that are no longer checked.
        """
        apps = self.replica.state.transactions.apps if self._started else {}

        def hold() -> list[tuple[str, OpenTable, View]]:
            return [(n, t.open, t.open.hold()) for n, t in apps.items() if app in (None, n) and t.open]

        def release() -> None:
            for _, table, _ in held:
                table.release()

        status = self._led(hold)
        if status[0] != "ok":
            return status
        held: list[tuple[str, OpenTable, View]] = status[1]
        try:  # in this thread: a million rows take seconds, during which the replica goes on
            found = (
                open_row(name, tx_id, r)
                for name, _, view in held
                for tx_id, r in politely(view.items())
                if topic in (None, r.topic) and not (state == "PARKED" and r.due_ms >= 0)
            )
            return ("ok", list(islice(found, limit)))
        finally:
            with contextlib.suppress(Closed):  # then nobody minds
                self.driver.submit(release)

    def find_transaction(self, tx_id: str, app: str | None = None) -> Status:
        """``("ok", [(app, state, OpenTransaction as a tuple | None), ...])``: whose id it is; leader only."""

        def read() -> list[tuple[str, str, tuple[Any, ...] | None]]:
            found: list[tuple[str, str, tuple[Any, ...] | None]] = []
            for name, table in self.replica.state.transactions.apps.items():
                if app not in (None, name):
                    continue
                opened, outcome = table.open.get(tx_id), table.outcome(tx_id)
                if opened is not None:
                    found.append((name, "PREPARE", open_row(name, tx_id, opened)))
                elif outcome is not None:
                    found.append((name, STATE_OF[outcome].value, None))
            return found

        return self._led(read)

    def audit(self) -> Status:
        """``("ok", [(now_ms, by, app, tx_id, outcome), ...])``: decisions made by hand or by policy."""
        return self._led(lambda: list(self.replica.state.transactions.audit))

    # -------------------------------------------------------------- status

    def whoami(self) -> tuple[bool, int | None, int]:
        """(ready leader?, the leader's replica number if known, term). Cheap; any thread."""
        if not self._started:
            return False, None, 0
        node = self.node
        leader = node.leader_id
        return node.ready, None if leader is None else int(leader), node.term

    def raft_address(self) -> tuple[str, int]:
        """Where this replica's Raft link listens."""
        if not self._started or self.driver.address is None:
            raise Unavailable(f"replica {self.rid} of group {self.gid} is starting", 0.2)
        return self.driver.address

    # -------------------------------------------------------------- repair of a peer

    def checkpoint_manifest(self) -> Status:
        """``("ok", (leader, term, commit index, [(file, bytes), ...]))``: may be copied; leader only.

        A leader need not be ready for this: with both peers to be repaired it could never become so.
        """
        if not self._started or not self.node.is_leader:
            return NOT_STARTED

        def read() -> tuple[str, int, int, list[tuple[str, int]]]:
            segments = [(s.name, s.size) for s in self.journal.segments()]
            indexes = self.checkpoints.indexes
            newest = snapshot_name(indexes[-1]) if indexes else None
            node = self.node
            return str(self.rid), node.term, node.commit_index, offered_files(self._disk, segments, newest)

        answer: Status = ("ok", self.driver.call(read))
        return answer

    def checkpoint_read(self, name: str, pos: int, size: int) -> bytes:
        """Part of a file that ``checkpoint_manifest`` named; b"" past its end or when it is gone."""
        if pos < 0 or size <= 0 or not may_be_offered(self._disk, name):
            return b""
        return self._disk.open(name).read(pos, min(size, FILE_PART_BYTES_MAX))

    def checkpoint_suspect(self, name: str, size: int) -> None:
        """A peer found the copy of a file damaged. If ours is, this replica leaves for repair."""
        if (damage := damage_offered(self._disk, name, size)) is not None:
            self._end(CorruptLog(f"{damage} (found by a peer)"))

    # -------------------------------------------------------------- status

    def status(self) -> dict[str, Any]:
        """Positions and role of this replica, for operators."""
        if not self._started:
            return {"gid": self.gid, "rid": self.rid, "role": "starting", "ready": False, "leader": None}

        def read() -> dict[str, Any]:
            node, state, journal = self.node, self.replica.state, self.journal
            leader = node.leader_id
            return {
                "gid": self.gid,
                "rid": self.rid,
                "role": "leader" if node.is_leader else "follower",
                "ready": node.ready,
                "leader": None if leader is None else int(leader),
                "term": node.term,
                "commit_index": node.commit_index,
                "applied_index": state.applied_index,
                "first_index": journal.first_index,
                "last_index": journal.last_index,
                "durable_index": journal.durable_index,
                "recovered_index": self.recovered_index,
                "open_transactions": state.transactions.open_count(),
                "topics": len(state.topics.topics),
                "log_bytes": sum(segment.size for segment in journal.segments()),
                "snapshots": list(self.checkpoints.indexes),
                "waiting": self.replica.admission.waiting(),
                "address": "{}:{}".format(*(self.driver.address or ("", 0))),
                "disk_full": self.driver.disk_full,
                "free_bytes": self._disk.free_bytes(),
                "peers": [(p.peer, p.connected, p.match_index) for p in node.progress()],
            }

        result: dict[str, Any] = self.driver.call(read)
        return result
