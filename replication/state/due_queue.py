"""When transactions are checked, and which checks are due: derived, never replicated.

``next_due_ms`` is part of the replicated rules (its result is stored in the table). Every replica rebuilds
the queues from the table; leases exist only in the leader's memory, since losing them merely
means that a check is asked twice.

Queues hold bare ids, in chunks that share the table's own strings, and are only hints: when an id's time
comes it is looked up in the table. Nothing is removed when a transaction settles, since most
settle long before their check. ``tidy`` does that, a bounded step at a time, whenever more than half of
what is queued may be dead: memory follows the number of open transactions, not rate times time-out.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from escrowmq.replication.calling.answers import OverdueReport
from escrowmq.replication.model import TopicInfo
from escrowmq.replication.state.open_tx import OpenTx

if TYPE_CHECKING:
    from escrowmq.replication.state.transactions import AppTransactions, TransactionTable

# ------------------------------------------------------------------ branches that are due
# Branches that have come due: open transactions whose home is another group, which has to be asked.
#
# Queued by home group, so that a home without a leader delays no other. Like the queues of due checks they
# are derived, kept by the leader only, and hold bare ids; an id is looked up in the table of open
# transactions when its turn comes.


class BranchQueue:
    """Due branches, oldest first."""

    __slots__ = ("_homes",)

    def __init__(self) -> None:
        self._homes: dict[int, deque[tuple[str, str]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._homes.values()))

    def add(self, home: int, app: str, tx_id: str) -> None:
        """The branch has come due."""
        queue = self._homes.get(home)
        if queue is None:
            queue = self._homes[home] = deque()
        queue.append((app, tx_id))

    def homes(self) -> list[int]:
        """Home groups of branches that are due. In one step: other threads read it too."""
        return list(self._homes)

    def take(self, home: int, limit: int, table: TransactionTable) -> list[tuple[str, str, OpenTx]]:
        """Remove up to ``limit`` ids of this home group; those still open as (app, tx_id, record)."""
        queue = self._homes.get(home)
        taken: list[tuple[str, str, OpenTx]] = []
        while queue and len(taken) < limit:
            app, tx_id = queue.popleft()
            record = table.look(app).open.get(tx_id)
            if record is not None and record.home_group == home:
                taken.append((app, tx_id, record))
        if not queue:
            self._homes.pop(home, None)
        return taken

    def drain(self) -> dict[str, list[str]]:
        """Remove all of them; returned by app."""
        homes, self._homes = self._homes, {}
        found: dict[str, list[str]] = {}
        for queue in homes.values():
            for app, tx_id in queue:
                found.setdefault(app, []).append(tx_id)
        return found


# ------------------------------------------------------------------ due queue


#: Back-off of repeated checks: 1 s, 2 s, 4 s ... 30 s. RocketMQ waits 30 s from the first; UNKNOWN mostly
#: means "still running", and a second later the transaction is often settled.
CHECK_BACKOFF_MS = 1_000
CHECK_BACKOFF_MAX_MS = 30_000
BUCKET_MS = 250
#: Ids per chunk where they do not arrive in chunks: what one step of ``tidy`` or ``advance`` handles.
CHUNK = 1_000
#: Ids that one ``tidy`` handles: 2 ms ten times a second, four times as fast as they can arrive.
TIDY_IDS = 20_000
#: Dead ids that are tolerated: 5 MB.
TIDY_SLACK = 50_000
#: How many removed buckets may still be in the heap of bucket numbers.
GONE_BUCKETS = 1_000

TxKey = tuple[str, str]  # app, tx_id


def next_due_ms(now_ms: int, checks: int, info: TopicInfo | None) -> int:
    """Time of the next check after ``checks`` unanswered ones; -1 = parked (policy hold, none left)."""
    if info is not None and checks >= info.check_max:
        return now_ms if info.on_check_exhausted == "rollback" else -1
    return now_ms + min(CHECK_BACKOFF_MS << min(checks - 1, 20), CHECK_BACKOFF_MAX_MS)


def _bucket(due_ms: int) -> int:
    return due_ms // BUCKET_MS + 1


class DueQueue:
    """Buckets of future checks, queues of due ones by (app, topic), leases of handed-out ones."""

    def __init__(self, table: TransactionTable, *, tidy_slack: int = TIDY_SLACK) -> None:
        self.news = DueNews()  # the pairs in ``queues``
        self._table = table
        self.slack = tidy_slack
        self.branches = BranchQueue()
        self.expired: deque[TxKey] = deque()  # due, and nobody is asked about them
        self.buckets: dict[int, deque[tuple[str, Sequence[str]]]] = {}
        self.order: list[int] = []  # heap of bucket numbers; may contain removed ones
        self.queues: dict[TxKey, deque[str]] = {}  # (app, topic) -> tx ids, oldest first
        self.leases: dict[TxKey, tuple[str, int]] = {}  # (app, tx_id) -> owner, expiry
        self._again: set[TxKey] = set()  # parked ones that an operator wants checked once more
        self.queued = 0  # ids in buckets and due queues
        self._untidied: list[tuple[int | TxKey, int]] = []  # what this round of tidying has still to visit

    # -------------------------------------------------------------- every replica

    def schedule(self, app: str, tx_ids: Sequence[str], due_ms: int) -> None:
        """Check these when ``due_ms`` has come. Keeps a reference to the sequence: it must not change."""
        if due_ms < 0 or not tx_ids:
            return
        bucket = _bucket(due_ms)
        chunks = self.buckets.get(bucket)
        if chunks is None:
            chunks = self.buckets[bucket] = deque()
            heapq.heappush(self.order, bucket)
        chunks.append((app, tx_ids))
        self.queued += len(tx_ids)

    def tidy(self, budget: int = TIDY_IDS) -> None:
        """Forget ids that need no check any more, if there may be too many; handles at most ``budget``
        (and the rest of one chunk)."""
        if len(self.order) > 2 * len(self.buckets) + GONE_BUCKETS:
            self.order = sorted(self.buckets)  # a replica that never leads removes none; sorted is a heap
        if self.queued <= 2 * self._table.open_count() + self.slack:
            return
        if not self._untidied:
            self._untidied = [(bucket, len(chunks)) for bucket, chunks in self.buckets.items()]
            self._untidied += [(key, len(queue)) for key, queue in self.queues.items()]
        while self._untidied and budget > 0:
            key, left = self._untidied.pop()
            if isinstance(key, int):
                left, budget = self._tidy_bucket(key, left, budget)
            else:
                left, budget = self._tidy_due(key, left, budget)
            if left > 0:
                self._untidied.append((key, left))

    def _tidy_bucket(self, bucket: int, left: int, budget: int) -> tuple[int, int]:
        chunks = self.buckets.get(bucket)
        while chunks and left > 0 and budget > 0:
            app, tx_ids = chunks.popleft()
            settled = self._table.look(app).open.has_none(tx_ids)  # the usual case, at a tenth of the cost
            live = [] if settled else [t for t in tx_ids if self._needed(app, t, bucket)]
            budget -= len(tx_ids) + 1
            left -= 1
            self.queued -= len(tx_ids) - len(live)
            if live:
                chunks.append((app, live))
        if not chunks:
            self.buckets.pop(bucket, None)
            return 0, budget
        return left, budget

    def _needed(self, app: str, tx_id: str, bucket: int) -> bool:
        record = self._table.look(app).open.get(tx_id)
        due_ms = -1 if record is None else self._due_ms(app, tx_id, record)
        return due_ms >= 0 and _bucket(due_ms) <= bucket

    def _tidy_due(self, key: TxKey, left: int, budget: int) -> tuple[int, int]:
        """Rotates the queue once, so that its order stays."""
        queue = self.queues.get(key)
        opened = self._table.look(key[0]).open
        while queue and left > 0 and budget > 0:
            tx_id = queue.popleft()
            budget -= 1
            left -= 1
            if tx_id in opened:
                queue.append(tx_id)
            else:
                self.queued -= 1
        if not queue:
            self.queues.pop(key, None)
            self.news.remove(key)
            return 0, budget
        return left, budget

    def forget(self, app: str, tx_id: str) -> None:
        """Drop the lease of a transaction that was settled or whose check was answered."""
        self.leases.pop((app, tx_id), None)
        if self._again:
            self._again.discard((app, tx_id))

    def has_leases(self) -> bool:
        """Whether ``forget`` has anything to do: lets the hot path skip it."""
        return bool(self.leases or self._again)

    def rebuild(self) -> None:
        """From the table alone, as after a restart."""
        self.buckets.clear()
        self.order.clear()
        self.queues.clear()
        self.news.clear()
        self.branches = BranchQueue()
        self.expired.clear()
        self.leases.clear()
        self._again.clear()
        self._untidied.clear()
        self.queued = 0
        gathered: dict[tuple[str, int], list[str]] = {}
        for app, tx_id, record in self._table.iterate_open():
            if record.due_ms < 0:
                continue
            key = app, _bucket(record.due_ms)
            ids = gathered.get(key)
            if ids is None:
                ids = gathered[key] = []
            ids.append(tx_id)
            if len(ids) >= CHUNK:
                self.schedule(app, gathered.pop(key), record.due_ms)
        for (app, bucket), ids in gathered.items():
            self.schedule(app, ids, (bucket - 1) * BUCKET_MS)

    # -------------------------------------------------------------- the leader

    def advance(self, now_ms: int, budget: int = 5_000) -> bool:
        """Move transactions that have come due into the queues, at most ``budget`` (and the rest of one
        chunk); True if any were moved."""
        moved = seen = 0
        current = now_ms // BUCKET_MS
        while self.order and seen < budget and self.order[0] <= current:
            chunks = self.buckets.get(self.order[0])
            if not chunks:
                self.buckets.pop(heapq.heappop(self.order), None)
                continue
            app, tx_ids = chunks.popleft()
            self.queued -= len(tx_ids)
            seen += len(tx_ids)
            moved += self._enqueue(app, tx_ids, now_ms)
        return moved > 0

    def _enqueue(self, app: str, tx_ids: Iterable[str], now_ms: int) -> int:
        moved = 0
        opened = self._table.look(app).open
        for tx_id in tx_ids:
            record = opened.get(tx_id)
            if record is None or self._leased(app, tx_id, now_ms):
                continue  # the end of its lease is scheduled
            due_ms = self._due_ms(app, tx_id, record)
            if due_ms < 0:
                continue
            if due_ms > now_ms + BUCKET_MS:
                continue  # checked meanwhile; a later bucket holds it
            if record.home_group >= 0:
                self.branches.add(record.home_group, app, tx_id)
                continue
            if (app, tx_id) in self._table.unattended:
                self.expired.append((app, tx_id))
                continue
            queue = self.queues.get((app, record.topic))
            if queue is None:
                queue = self.queues[app, record.topic] = deque()
                self.news.add((app, record.topic))
            queue.append(tx_id)
            moved += 1
        self.queued += moved
        return moved

    def next_ms(self) -> int | None:
        """The earliest time at which ``advance`` has something to do; None: nothing is scheduled."""
        return self.order[0] * BUCKET_MS if self.order else None

    def check_again(self, app: str, tx_id: str, now_ms: int) -> bool:
        """Check a parked transaction once more, as soon as a producer can be asked; False: no parked
        transaction has this id. It stays parked until the check is answered; asking again changes nothing."""
        record = self._table.look(app).open.get(tx_id)
        if record is None or record.due_ms >= 0 or record.home_group >= 0:
            return False
        if (app, tx_id) not in self._again:
            self._again.add((app, tx_id))
            self.schedule(app, (tx_id,), now_ms)
        return True

    def _due_ms(self, app: str, tx_id: str, record: OpenTx) -> int:
        """When the next check is due; -1: it is parked, and no other check was requested."""
        due_ms = record.due_ms
        return 0 if due_ms < 0 and self._again and (app, tx_id) in self._again else due_ms

    def _leased(self, app: str, tx_id: str, now_ms: int) -> bool:
        lease = self.leases.get((app, tx_id)) if self.leases else None
        return lease is not None and lease[1] > now_ms

    def lock(
        self, app: str, topic: str, limit: int, owner: str, lease_ms: int, now_ms: int
    ) -> list[tuple[str, OpenTx]]:
        """Lease up to ``limit`` due transactions to ``owner``; no other caller gets them until the lease
        ends."""
        queue = self.queues.get((app, topic))
        opened = self._table.look(app).open
        taken: list[tuple[str, OpenTx]] = []
        while queue and len(taken) < limit:
            tx_id = queue.popleft()
            self.queued -= 1
            record = opened.get(tx_id)
            if record is None or record.topic != topic:
                continue
            due_ms = self._due_ms(app, tx_id, record)
            if due_ms > now_ms + BUCKET_MS:
                # The group's time may be behind that by which it came due.
                self.schedule(app, (tx_id,), due_ms)
                continue
            if due_ms < 0:
                continue
            if self._leased(app, tx_id, now_ms):  # it is queued twice, or its lease ended by such a time
                self.schedule(app, (tx_id,), self.leases[app, tx_id][1])
                continue
            self.leases[app, tx_id] = (owner, now_ms + lease_ms)
            taken.append((tx_id, record))
        if not queue:
            self.queues.pop((app, topic), None)
            self.news.remove((app, topic))
        self.schedule(app, [tx_id for tx_id, _ in taken], now_ms + max(lease_ms, BUCKET_MS))
        return taken

    def take_branches(
        self, home: int, limit: int, lease_ms: int, now_ms: int
    ) -> list[tuple[str, str, OpenTx]]:
        """Up to ``limit`` due branches of this home group: (app, tx_id, record). They come due again after
        ``lease_ms``, unless they are settled or put off."""
        taken: list[tuple[str, str, OpenTx]] = []
        for branch in self.branches.take(home, limit, self._table):
            app, tx_id, _ = branch
            if not self._leased(app, tx_id, now_ms):  # it may be queued twice
                self.put_off(app, tx_id, now_ms + lease_ms)
                taken.append(branch)
        return taken

    def take_expired(self, limit: int, lease_ms: int, now_ms: int) -> dict[str, dict[str, int]]:
        """Up to ``limit`` transactions that the leader has to roll back: app -> id -> log index of its newest
        PREPARE. Those that are still open after ``lease_ms`` come again."""
        taken: dict[str, dict[str, int]] = {}
        while self.expired and limit > 0:
            app, tx_id = self.expired.popleft()
            record = self._table.look(app).open.get(tx_id)
            if record is None or record.due_ms > now_ms + BUCKET_MS or self._leased(app, tx_id, now_ms):
                continue  # settled, or prepared again since, or queued twice
            self.put_off(app, tx_id, now_ms + lease_ms)
            taken.setdefault(app, {})[tx_id] = record.newest_index
            limit -= 1
        return taken

    def put_off(self, app: str, tx_id: str, until_ms: int) -> None:
        """A branch that was taken does not come due before this time."""
        self.leases[app, tx_id] = ("", until_ms)
        self.schedule(app, [tx_id], until_ms)

    def release(
        self, app: str, tx_ids: Sequence[str], owner: str, now_ms: int, waits_ms: Sequence[int] = ()
    ) -> None:
        """Return leases without an answer; the transactions come due again in a second (so that no caller
        spins), or after the time in ``waits_ms`` for each."""
        for tx_id, wait_ms in zip(tx_ids, waits_ms or [CHECK_BACKOFF_MS] * len(tx_ids), strict=True):
            lease = self.leases.get((app, tx_id))
            if lease is not None and lease[0] == owner:
                # Not leased until then, so that the expiry that ``lock`` scheduled does nothing.
                self.leases[app, tx_id] = ("", now_ms + wait_ms)
                self.schedule(app, [tx_id], now_ms + wait_ms)

    def resign(self, now_ms: int) -> None:
        """This replica no longer leads: leases end, and due checks wait for its next leadership."""
        self.leases.clear()
        self._again.clear()
        due, self.queues = self.queues, {}
        self.news.clear()
        for (app, _), queue in due.items():
            self.queued -= len(queue)
            self.schedule(app, list(queue), now_ms + BUCKET_MS)
        for app, tx_ids in self.branches.drain().items():
            self.schedule(app, tx_ids, now_ms + BUCKET_MS)
        while self.expired:
            app, tx_id = self.expired.popleft()
            self.schedule(app, (tx_id,), now_ms + BUCKET_MS)


# ------------------------------------------------------------------ who is told of due checks
# Which pairs of app and topic have due checks, numbered in the order in which they got them.
#
# A caller that watches many pairs asks for the news since the last number it has seen, and gets each pair
# once instead of all pairs every time. Derived, and only in the leader's memory, like the queues. The
# answer is a hint: a pair may be reported again, and may no longer have anything due.
#
# Numbers of pairs that no longer have anything due are gaps. The oldest pairs are renumbered before the
# gaps become many, so that a look at a bounded range of numbers always makes progress. Work per call must
# be a few steps for each pair that changes: it is called in the thread that sends heartbeats.


#: Numbers that one call of ``after`` reads: half a millisecond.
LOOK_MAX = 1_000
#: Gaps that are tolerated, however few pairs there are.
GAPS_MAX = 1_000

Pair = tuple[str, str]  # app, topic


class DueNews:
    """The pairs with due checks. Not thread-safe, except ``topics``."""

    def __init__(self) -> None:
        self._number: dict[Pair, int] = {}
        self._pairs: OrderedDict[int, Pair] = OrderedDict()  # by number, rising
        self._topics: dict[str, dict[str, None]] = {}  # of these pairs, by app
        self._last = 0

    def add(self, pair: Pair) -> None:
        """The pair has due checks, and had none just before."""
        app, topic = pair
        self._topics.setdefault(app, {})[topic] = None
        self._renumber(pair)
        for _ in range(2):  # the second round reduces the gaps
            oldest = next(iter(self._pairs))
            if self._last - oldest <= 2 * len(self._pairs) + GAPS_MAX:
                return
            self._renumber(self._pairs[oldest])

    def remove(self, pair: Pair) -> None:
        """The pair no longer has any; it may never have had any."""
        number = self._number.pop(pair, None)
        if number is None:
            return
        del self._pairs[number]
        app, topic = pair
        topics = self._topics[app]
        del topics[topic]
        if not topics:
            del self._topics[app]

    def clear(self) -> None:
        """No pair has any. Numbers continue to rise."""
        self._number.clear()
        self._pairs.clear()
        self._topics.clear()

    def after(self, seen: int, wanted: Callable[[Pair], bool]) -> tuple[int, list[Pair]]:
        """Pairs that are ``wanted`` among the next ``LOOK_MAX`` numbers above ``seen``, and the last number
        read. There is more to read while that number is below ``last``."""
        first = max(min(seen, self._last) + 1, next(iter(self._pairs), self._last + 1))
        end = min(first + LOOK_MAX, self._last + 1)
        numbered = (self._pairs.get(number) for number in range(first, end))
        return end - 1, [pair for pair in numbered if pair is not None and wanted(pair)]

    def topics(self, app: str) -> list[str]:
        """Topics in which the app has due checks. In one step of the interpreter: other threads read it
        too."""
        return list(self._topics.get(app, ()))

    @property
    def last(self) -> int:
        """The highest number given out."""
        return self._last

    def __len__(self) -> int:
        return len(self._number)

    def _renumber(self, pair: Pair) -> None:
        number = self._number.get(pair)
        if number is not None:
            del self._pairs[number]
        self._last += 1
        self._number[pair] = self._last
        self._pairs[self._last] = pair


# ------------------------------------------------------------------ overdue transactions
# Which open transactions were due for a check long ago, and were not checked.
#
# It looks into the table of open transactions, and not into the queues of due checks, so that it also finds
# a transaction that a defect has lost from the queues, or that nobody takes out of them. It reads what the
# applying thread changes meanwhile, so the answer is approximate; it must never change anything.


#: Two of the longest intervals between checks. Leases (``feedback.lock_lease_s``, 4 s) and waits for an owner
#: (``feedback.owner_gone_s``, 20 s) are shorter.
OVERDUE_MS = 2 * CHECK_BACKOFF_MAX_MS
#: Open transactions that one look reads: those of each app that were opened first. What is overdue is among
#: them, unless as many older ones are parked. A few milliseconds, in the caller's thread.
OVERDUE_LOOK_MAX = 20_000
#: Of each app so many are read, even if other apps have used that number up.
APP_LOOK_MIN = 8
APPS_MAX = 10_000


def overdue(
    table: TransactionTable,
    now_ms: int,
    politely: Callable[[Iterable[tuple[str, AppTransactions]]], Iterable[tuple[str, AppTransactions]]] = iter,
    *,
    late_ms: int = 0,
    look_max: int = OVERDUE_LOOK_MAX,
) -> OverdueReport:
    """How many are overdue by more than ``late_ms`` (0: ``OVERDUE_MS``), and the one that has waited longest,
    of about ``look_max`` that are read.

    Branches do not count: their home's transaction is checked, and home is asked about them. Parked ones do
    not count either: they wait for a person. ``politely`` wraps the iteration over apps, to let other threads
    run. For any thread.
    """
    limit_ms = now_ms - (late_ms or OVERDUE_MS)
    count, left, limited = 0, look_max, False
    first_ms, whose = limit_ms, ("", "", "")
    # The list is made in one step of the interpreter: the applying thread changes the map meanwhile.
    apps = list(islice(table.apps.items(), APPS_MAX))
    for app, transactions in politely(apps):
        opened = transactions.open
        records = opened.first(max(left, APP_LOOK_MIN))
        left -= len(records)
        limited = limited or len(records) < len(opened)
        for tx_id, record in records:
            if 0 <= record.due_ms < limit_ms and record.home_group < 0:
                count += 1
                if record.due_ms < first_ms:
                    first_ms, whose = record.due_ms, (app, record.topic, tx_id)
    if not count:
        return OverdueReport()
    name, topic, tx_id = whose
    return OverdueReport(
        count=count, oldest_ms=now_ms - first_ms, app=name, topic=topic, tx_id=tx_id, limited=limited
    )
