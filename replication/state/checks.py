"""When a transaction is to be checked, and which checks are due: derived, never replicated.

``next_due_ms`` is part of the replicated rules (its result stands in the table). The due queues are
rebuilt from the table by every replica; leases exist only in the leader's memory, since losing them
merely means that a check is asked twice.
"""

from __future__ import annotations

from collections.abc import Iterable

from escrowmq.replication.model import TopicInfo
from escrowmq.replication.state.transactions import OpenTx, TransactionTable

#: Back-off of repeated checks: 1 s, 2 s, 4 s ... 30 s. RocketMQ waits 30 s from the first; the
#: common UNKNOWN is "still running", which a second later is often settled.
CHECK_BACKOFF_MS = 1_000
CHECK_BACKOFF_MAX_MS = 30_000
BUCKET_MS = 250

Key = tuple[str, str]  # app, tx_id


def next_due_ms(now_ms: int, checks: int, info: TopicInfo | None) -> int:
    """Time of the next check after ``checks`` unanswered ones; -1 = parked (policy hold, used up)."""
    if info is not None and checks >= info.check_max:
        return now_ms if info.on_check_exhausted == "rollback" else -1
    return now_ms + min(CHECK_BACKOFF_MS << min(checks - 1, 20), CHECK_BACKOFF_MAX_MS)


class DueQueue:
    """Buckets of future checks, queues of due ones by (app, topic), leases of handed-out ones."""

    def __init__(self, table: TransactionTable) -> None:
        self._table = table
        self._buckets: dict[int, list[Key]] = {}
        self._next_bucket: int | None = None
        self._due: dict[Key, dict[str, None]] = {}  # (app, topic) -> ordered tx ids
        self._leases: dict[Key, tuple[str, int]] = {}  # (app, tx_id) -> owner, expiry

    def schedule(self, app: str, tx_ids: Iterable[str], due_ms: int) -> None:
        """Have these looked at when ``due_ms`` has come. Settled ones are skipped then."""
        if due_ms < 0:
            return
        bucket = due_ms // BUCKET_MS + 1
        if self._next_bucket is None or bucket < self._next_bucket:
            self._next_bucket = bucket
        entries = self._buckets.get(bucket)
        if entries is None:
            entries = self._buckets[bucket] = []
        entries.extend([(app, tx_id) for tx_id in tx_ids])

    def advance(self, now_ms: int, budget: int = 5_000) -> bool:
        """Move what has come due into the queues, at most ``budget``; True if anything was moved."""
        moved = 0
        current = now_ms // BUCKET_MS
        while self._buckets and moved < budget:
            bucket = min(self._buckets) if self._next_bucket not in self._buckets else self._next_bucket
            assert bucket is not None
            if bucket > current:
                self._next_bucket = bucket
                break
            entries = self._buckets[bucket]
            take = entries[-budget:]
            del entries[-budget:]  # from the end: a bucket of a million is not copied for every step
            if not entries:
                del self._buckets[bucket]
            moved += self._enqueue(take, now_ms)
        return moved > 0

    def _enqueue(self, keys: Iterable[Key], now_ms: int) -> int:
        moved = 0
        for app, tx_id in keys:
            record = self._table.app(app).open.get(tx_id)
            if record is None or record.due_ms < 0:
                continue
            lease = self._leases.get((app, tx_id))
            if lease is not None and lease[1] > now_ms:
                continue  # its own expiry is scheduled
            if record.due_ms > now_ms + BUCKET_MS:
                continue  # was checked meanwhile; a later bucket holds it
            self._due.setdefault((app, record.topic), {})[tx_id] = None
            moved += 1
        return moved

    def lock(
        self, app: str, topic: str, limit: int, owner: str, lease_ms: int, now_ms: int
    ) -> list[tuple[str, OpenTx]]:
        """Hand out up to ``limit`` due transactions; nobody else gets them until the lease ends."""
        queue = self._due.get((app, topic))
        if not queue:
            return []
        opened = self._table.app(app).open
        taken: list[tuple[str, OpenTx]] = []
        done: list[str] = []
        for tx_id in queue:
            if len(taken) >= limit:
                break
            done.append(tx_id)
            record = opened.get(tx_id)
            if record is None or record.topic != topic or not 0 <= record.due_ms <= now_ms + BUCKET_MS:
                continue
            self._leases[app, tx_id] = (owner, now_ms + lease_ms)
            taken.append((tx_id, record))
        for tx_id in done:
            del queue[tx_id]
        if not queue:
            del self._due[app, topic]
        self.schedule(app, [tx_id for tx_id, _ in taken], now_ms + lease_ms)
        return taken

    def release(self, app: str, tx_ids: Iterable[str], owner: str, now_ms: int) -> None:
        """Give leases back early; the transactions are due again in a second (so that nobody spins)."""
        for tx_id in tx_ids:
            lease = self._leases.get((app, tx_id))
            if lease is not None and lease[0] == owner:
                # Nobody's for a second, so that the expiry that ``lock`` scheduled does not bring it back.
                self._leases[app, tx_id] = ("", now_ms + CHECK_BACKOFF_MS)
                self.schedule(app, [tx_id], now_ms + CHECK_BACKOFF_MS)

    def forget(self, app: str, tx_id: str) -> None:
        """Drop the lease of a transaction that was settled or whose check was answered."""
        self._leases.pop((app, tx_id), None)

    def has_leases(self) -> bool:
        """Whether any lease is out: lets the hot path skip ``forget``."""
        return bool(self._leases)

    def due_count(self, app: str, topic: str) -> int:
        """Due and not handed out."""
        return len(self._due.get((app, topic), ()))

    def rebuild(self) -> None:
        """From the table alone, as after a restart."""
        self._buckets.clear()
        self._due.clear()
        self._leases.clear()
        self._next_bucket = None
        for app, tx_id, record in self._table.iterate_open():
            self.schedule(app, (tx_id,), record.due_ms)
