"""What a running replica answers: requests, reads, and questions about its state.

The methods are what the Broker actor offers by the same names: thread-safe, blocking for a bounded
time, answering plain tuples. Everything that touches the replica runs in the driver's thread; reads of
committed messages do not, and may run in any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import asdict
from typing import Any

from escrowmq.replication.errors import (
    Closed,
    CorruptLog,
    DiskFailed,
    EscrowMQError,
    InvalidMessage,
    Overloaded,
    Unavailable,
)
from escrowmq.replication.host.inspection import Inspection
from escrowmq.replication.host.repair import damage_offered, may_be_offered, offered_files
from escrowmq.replication.host.running import NOT_STARTED, Status
from escrowmq.replication.replica import fetching
from escrowmq.replication.replica.answers import (
    DUE_MAX,
    FETCH_BYTES_MAX,
    FETCH_ENDS_MAX,
    FILE_PART_BYTES_MAX,
    LEASE_S_MAX,
)
from escrowmq.replication.replica.checkpoints import snapshot_name
from escrowmq.replication.replica.fetching import FetchRequest, FetchResult, Join, in_bytes
from escrowmq.replication.replica.validation import brings_new_work, parse_request
from escrowmq.replication.state.machine import StateMachine

#: A request is answered within this time or its outcome is unknown to the caller (it may still happen).
SUBMIT_WAIT_S = 15.0


class BrokerService(Inspection):
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
        except (CorruptLog, DiskFailed) as error:
            raise self._leaves(error) from error

    def fetch_ends(
        self, topic: str, partition: int, offset: int, until: int, max_bytes: int, count: int
    ) -> tuple[int, list[int]]:
        """Where the next fetches end (see fetching.py), at most ``FETCH_ENDS_MAX`` of them."""
        self._check_started()
        max_bytes, count = min(max_bytes, FETCH_BYTES_MAX), min(count, FETCH_ENDS_MAX)
        return fetching.fetch_ends(self.replica.state, topic, partition, offset, until, max_bytes, count)

    def _leaves(self, error: EscrowMQError) -> Unavailable:
        """What it has stored cannot be read: it ends, and the next start repairs it."""
        self._end(error)
        return Unavailable(f"replica {self.rid} of group {self.gid} leaves for repair", 1.0)

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

    # -------------------------------------------------------------- checks

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
        try:
            return self._disk.open(name).read(pos, min(size, FILE_PART_BYTES_MAX))
        except DiskFailed as error:
            raise self._leaves(error) from error

    def checkpoint_suspect(self, name: str, size: int) -> None:
        """A peer found the copy of a file damaged. If ours is, this replica leaves for repair."""
        try:
            damage = damage_offered(self._disk, name, size)
        except DiskFailed as error:
            raise self._leaves(error) from error
        if damage is not None:
            self._end(CorruptLog(f"{damage} (found by a peer)"))
