"""The transaction table: open transactions, where their messages are, and the outcomes of settled ones.

One transition table: absent -> open -> settled (committed or rolled back); a settled transaction
never changes. Records are immutable tuples, so a snapshot never sees half a change. Everything here is
applied identically on every replica: no clock (``now_ms`` comes from the entry), no randomness, no
configuration that could differ.
"""

from __future__ import annotations

import itertools
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

from escrowmq.replication.calling.answers import Standing
from escrowmq.replication.format.ops import BY_CLAIM, BY_HOME, BY_PRODUCER, BY_TIMEOUT, Inquire
from escrowmq.replication.format.settings import Settings
from escrowmq.replication.model import ResultCode, TransactionState
from escrowmq.replication.state.decided import AcrossGroups, Decided
from escrowmq.replication.state.dedup import TwoGenerations
from escrowmq.replication.state.open_tx import STEP, Entry, OpenTable, OpenTx, OpenTxs, Run

# ------------------------------------------------------------------------------------------------------------
# What is kept about settled transactions: when prepared, how often checked, decided by whom, and when.
#
# The memory of settled transactions has an id, a digest and an outcome for each, some hundred bytes, and
# holds a million. The rest of a transaction's history takes several times that, and only people ask for it,
# about few. So it is kept for the most recent ones only. One ring has those decided by their producers or
# their home group, the usual case; another has those decided by a check, an operator or a policy, so that the
# usual case does not push out the ones that people ask about.
#
# A ring stores the records of one decision unchanged, and interprets them only when asked: deciding costs
# one ring entry for all of its transactions.

#: Transactions in each ring, the usual case first: records kept there longer leave the processor's caches
#: (20,000 cost a producer's transactions 3 to 6 % of the time to apply them, 2,000 at most 1 %). The other
#: ring is off the hot path: 20,000 take 8 to 16 MB.
LIVES_KEPT = 2_000, 20_000


class Life(NamedTuple):
    """A transaction as it was when it was settled. Times in ms since the epoch; ``checked_ms`` 0: no check
    was answered without a decision."""

    topic: str
    query_id: str
    messages: int
    prepared_ms: int
    checks: int
    checked_ms: int


class Lived(OpenTxs):
    """The records of one decision. Those of a block are made when somebody asks for them."""

    __slots__ = ("_runs",)

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def __iter__(self) -> Iterator[OpenTx]:
        return chain.from_iterable(self._runs)


class Settling(NamedTuple):
    """One decision: the ids of its transactions and, in the same order, their records."""

    at_ms: int
    by: str
    app: str
    outcome: int
    tx_ids: Sequence[str]
    records: Sequence[OpenTx | Life]


Copy: TypeAlias = list[list[Settling]]


class TransactionHistory:
    """Changed in the applying thread only; any thread may read."""

    __slots__ = ("_counts", "_kept", "_rings")

    def __init__(self, kept: tuple[int, int] = LIVES_KEPT) -> None:
        """``kept``: transactions in each ring, the usual case first."""
        self._kept = kept
        self._rings: tuple[deque[Settling], deque[Settling]] = deque(), deque()
        self._counts = [0, 0]

    def add(self, settling: Settling, *, rule: bool) -> None:
        """``rule``: decided in the usual way. Beyond the ring's bound the oldest decisions are dropped,
        whole; the newest one stays even if it alone is larger."""
        which = 0 if rule else 1
        ring = self._rings[which]
        ring.append(settling)
        count = self._counts[which] + len(settling.tx_ids)
        while count > self._kept[which] and len(ring) > 1:
            count -= len(ring.popleft().tx_ids)
        self._counts[which] = count

    def find(self, app: str, tx_id: str) -> tuple[Settling, Life] | None:
        """The newest with that id: an id may be used again. Searches both rings."""
        found: tuple[Settling, Life] | None = None
        for ring in self._rings:
            for settling in reversed(list(ring)):  # a copy in one step: the ring may change meanwhile
                if settling.app == app and tx_id in settling.tx_ids:
                    if found is None or settling.at_ms > found[0].at_ms:
                        i = list(settling.tx_ids).index(tx_id)
                        found = settling, life_of(settling.records[i])
                    break
        return found

    # -------------------------------------------------------------- snapshots

    def copy(self) -> Copy:
        """Both rings as they are now; their items never change."""
        return [list(ring) for ring in self._rings]

    def restore(self, which: int, settlings: Iterable[Settling]) -> None:
        """Load a snapshot's items of one ring, in order, into rings that are not in use yet."""
        for settling in settlings:
            self._rings[which].append(settling)
            self._counts[which] += len(settling.tx_ids)


def life_of(record: OpenTx | Life) -> Life:
    """A record's history."""
    if isinstance(record, Life):
        return record
    return Life(
        record.topic,
        record.query_id,
        record.messages,
        record.prepared_ms,
        record.checks,
        record.checked_ms,
    )


def to_snapshot(settling: Settling) -> list[object]:
    """Its form in a snapshot."""
    return [*settling[:5], [life_of(record) for record in settling.records]]


def from_snapshot(fields: Sequence[object]) -> Settling:
    """Inverse of ``to_snapshot``. Raises ValueError or TypeError for anything else."""
    at_ms, by, app, outcome, tx_ids, lives = fields
    records = [Life(*life) for life in lives]  # type: ignore[attr-defined]
    if len(records) != len(tx_ids):  # type: ignore[arg-type]
        raise ValueError("a decision has a life for each of its transactions")
    return Settling(at_ms, by, app, outcome, tx_ids, records)  # type: ignore[arg-type]


# ------------------------------------------------------------------ ids that applications give
# How long settled ids that the application chose are remembered: by time, and by number.
#
# Ids that producers generate are used once, and a late copy of their PREPARE is refused by time. An id such
# as an order number comes back: a service that restarts repeats the order, minutes or hours later. So these
# are remembered for ``remember_ids_s``, apart from the others, which would push them out in seconds.
#
# Two generations as in dedup.py, over all apps together. The younger becomes the older after that
# time; or when it holds half of ``remember_ids_max``, unless ids are remembered strictly: then PREPAREs of
# new ids are refused once that maximum is reached (counting open ones too). Everything here is replicated
# or derived from it.


#: What an app with such ids counts in addition to them: at most some 4,000 apps stay, since all apps are
#: visited ten times a second.
APP_AS_GIVEN_IDS = 500
#: Most that one entry may add to the counted time. A leader's clock that is a day ahead ages ids by a minute,
#: not a day; where entries are rarer than this, ids are remembered for longer.
STEP_MS_MAX = 60_000


class GivenIds:
    """Counts over all apps, and when to forget. The ids themselves are in the apps' tables."""

    __slots__ = ("age_ms", "forgotten_ms", "old", "opened", "turned_ms", "young")

    def __init__(self) -> None:
        #: When ids were last forgotten, or the first was remembered; -1: never. Time of entries.
        self.turned_ms = -1
        #: The value of ``turned_ms`` before that: producers that prepared forgotten ids had not heard of
        #: anything later, so a PREPARE whose producer has not either may be a late copy. -1: none forgotten.
        self.forgotten_ms = -1
        self.age_ms = 0  # time that has passed since ``turned_ms``; see ``STEP_MS_MAX``
        self.young = self.old = 0  # remembered ids of both generations, including what apps count as
        self.opened = 0  # open transactions with such an id

    def settled(self, count: int, *, first_of_app: bool) -> None:
        """``count`` open ones have settled and are remembered from now on."""
        self.opened -= count
        self.young += count + (APP_AS_GIVEN_IDS if first_of_app else 0)

    def pass_time(self, step_ms: int) -> None:
        """An entry is applied whose time is later by ``step_ms`` than that of the previous one."""
        if self.turned_ms >= 0:
            self.age_ms += min(step_ms, STEP_MS_MAX)

    def is_time_to_forget(self, settings: Settings, now_ms: int) -> bool:
        """Whether to forget the older generation now; the caller then calls ``turned``."""
        if self.turned_ms < 0:
            self.turned_ms = now_ms
        full = self.young >= settings.remember_ids_max // 2 and not settings.remember_ids_strictly
        return full or self.age_ms >= settings.remember_ids_s * 1000

    def turned(self, now_ms: int) -> None:
        """The older generation was forgotten, and the younger one is now the older."""
        self.forgotten_ms, self.turned_ms, self.age_ms = self.turned_ms, now_ms, 0
        self.old, self.young = self.young, 0

    def reach_ms(self, settings: Settings, now_ms: int) -> int | None:
        """For how long before ``now_ms`` settled ids are remembered, if that is less than ``remember_ids_s``;
        None: the full time, or nothing was forgotten. It is less after too many ids arrived, or after the
        setting was raised: then a transaction that is repeated under an older id runs again."""
        if self.forgotten_ms < 0:
            return None
        reach_ms = max(now_ms - self.forgotten_ms, 0)
        return reach_ms if reach_ms < settings.remember_ids_s * 1000 else None

    def has_room(self, settings: Settings) -> bool:
        """Whether PREPAREs of more such ids are accepted."""
        remembered = self.opened + self.old + self.young
        return not settings.remember_ids_strictly or remembered < settings.remember_ids_max


# ------------------------------------------------------------------ transactions


#: What an app with settled ids counts in addition to them, for its tables, which every pass over all apps
#: visits. So of apps that come and go (each batch write of Spark is one) at most some 20,000 stay.
APP_AS_IDS = 50
#: Operator decisions kept for audit in the state (the log itself keeps them until retention).
AUDIT_KEPT = 1_000
#: Heap entries corrected at a time, a few times a second: a fraction of a millisecond.
FRONTS_STEP = 256

#: Prefix of the decider of a branch whose home group decided; the home group's number follows.

COMMITTED, ROLLED_BACK = 1, 2
STATE_OF = {COMMITTED: TransactionState.COMMITTED, ROLLED_BACK: TransactionState.ROLLBACK}


class AppTransactions:
    """Transactions of one app: open ones by id, settled ones as ``digest << 2 | outcome``.

    ``given``: settled ones whose ids the application chose, which are remembered by time. ``decided``:
    settled ones that branches in other groups have still to carry out; see decided.py.
    """

    __slots__ = ("decided", "given", "open", "open_by_topic", "parked", "queued", "settled")

    def __init__(self) -> None:
        self.open = OpenTable()
        self.settled: TwoGenerations[str, int] = TwoGenerations(sys.maxsize)  # the table turns it
        self.given: TwoGenerations[str, int] = TwoGenerations(sys.maxsize)  # this one too
        self.open_by_topic: dict[str, int] = {}
        self.parked: set[str] = set()  # of the open ones; derived from their records
        self.decided: dict[str, Decided] = {}
        self.queued = False  # in ``TransactionTable._fronts``

    def mark(self, tx_id: str) -> int | None:
        """``digest << 2 | outcome`` of a settled transaction, or None."""
        mark = self.settled.get(tx_id)
        if mark is None and self.given:
            mark = self.given.get(tx_id)
        if mark is None and self.decided:
            decided = self.decided.get(tx_id)
            return None if decided is None else decided.digest << 2 | decided.outcome
        return mark

    def outcome(self, tx_id: str) -> int | None:
        """COMMITTED, ROLLED_BACK, or None when it is open, unknown or forgotten."""
        mark = self.mark(tx_id)
        return None if mark is None else mark & 3

    def knows_none(self, tx_ids: Sequence[str]) -> bool:
        """Whether none is open or remembered; False also for some that are neither."""
        settled, given = self.settled, self.given
        return (
            self.open.has_none(tx_ids)
            and settled.young.keys().isdisjoint(tx_ids)
            and (not settled.old or settled.old.keys().isdisjoint(tx_ids))
            and (not given.young or given.young.keys().isdisjoint(tx_ids))
            and (not given.old or given.old.keys().isdisjoint(tx_ids))
            and (not self.decided or self.decided.keys().isdisjoint(tx_ids))
        )

    def settle(self, run: Run, outcome: int) -> None:
        """Move these from the open ones, where they must be, into the memory; the caller remembers those that
        have branches."""
        self.open.take_run(run)
        block = run.block
        if block is None:
            for tx_id, record in zip(run.tx_ids, run.records, strict=True):
                self.open_by_topic[record.topic] -= 1
                if not record.participants:
                    self.memory(given=record.given)[tx_id] = record.digests[0] << 2 | outcome
            return
        self.open_by_topic[block.topic] -= len(run)
        marks = [digest << 2 | outcome for digest in run.digests()]
        self.memory(given=block.given).update(zip(run.tx_ids, marks, strict=True))

    def memory(self, *, given: bool) -> dict[str, int]:
        """The young generation, written directly: the table does the turning."""
        return (self.given if given else self.settled).young

    @property
    def idle(self) -> bool:
        """Whether it is empty and no view is held."""
        return not (self.open or self.open.in_use or self.settled or self.given or self.decided)

    def insert(self, tx_id: str, record: OpenTx) -> None:
        """Insert a snapshot's record, in log order, into a table that is not in use yet."""
        self.open.old[tx_id] = record
        self.open_by_topic[record.topic] = self.open_by_topic.get(record.topic, 0) + 1
        if record.due_ms < 0:
            self.parked.add(tx_id)


class TransactionTable:
    """All apps' transactions, and the audit trail of decisions that no producer made."""

    def __init__(self) -> None:
        self.apps: dict[str, AppTransactions] = {}
        self.audit: list[tuple[int, str, str, str, str]] = []  # now_ms, by, app, tx_id, outcome
        #: Replicated; the state machine keeps them up to date.
        self.settings = Settings()
        self._open = 0  # of all apps; derived from them
        self.young = 0  # settled ids in the apps' young generations; derived from them
        self.given = GivenIds()
        #: History of the most recently settled ones.
        self.lives = TransactionHistory()
        self.across = AcrossGroups()
        #: Open ones that the leader rolls back when their time has passed: (app, id).
        self.unattended: dict[tuple[str, str], None] = {}
        #: A heap with each app that has open transactions, and an index not above that of its oldest. The
        #: number only breaks ties.
        self._fronts: list[tuple[int, int, AppTransactions]] = []
        self._number = itertools.count()
        #: Apps' tables with changes that have still to be merged.
        self._untidy: list[OpenTable] = []

    def look(self, name: str) -> AppTransactions:
        """The app's transactions, for reading: an empty table is not kept."""
        return self.apps.get(name) or AppTransactions()

    def app(self, name: str) -> AppTransactions:
        """The app's transactions, for opening some; created on first use."""
        table = self.apps.get(name)
        if table is None:
            table = self.apps[name] = AppTransactions()
        return table

    def opened(self, table: AppTransactions, count: int, like: Entry) -> None:
        """``count`` transactions were added to the open ones of an app, all of them ``like`` this one."""
        if not table.queued:
            table.queued = True
            heappush(self._fronts, (like.log_index, next(self._number), table))
        table.open_by_topic[like.topic] = table.open_by_topic.get(like.topic, 0) + count
        self._open += count
        if like.given:
            self.given.opened += count
        if like.participants:
            self.across.opened += count
        elif like.home_group >= 0:
            self.across.branches += count

    def note_unattended(self, app: str, tx_ids: Iterable[str], on_timeout: str) -> None:
        """These were opened with this ``on_timeout``; see ``PrepareExtra``."""
        if on_timeout:
            self.unattended.update(((app, tx_id), None) for tx_id in tx_ids)

    def still_unattended(self, app: str, tx_id: str, on_timeout: str) -> bool:
        """It was prepared again, with this ``on_timeout``. Nobody is asked as long as every PREPARE said so:
        beside another one a local transaction may be running."""
        if not on_timeout:
            self.unattended.pop((app, tx_id), None)
        return (app, tx_id) in self.unattended

    def settle(
        self,
        now_ms: int,
        table: AppTransactions,
        app: str,
        tx_ids: Sequence[str],
        runs: Sequence[Run],
        outcome: int,
        by: str,
    ) -> bool:
        """The only way out of the table of open transactions, in which all of these must be, as ``runs``. One
        with branches waits for them, the others are remembered; their history is kept for a while. Returns
        True if what settled before the previous turn was forgotten, in all apps."""
        before, given_before = len(table.settled.young), len(table.given.young)
        self._open -= len(tx_ids)
        if table.parked:
            table.parked.difference_update(tx_ids)
        if self.unattended:
            for tx_id in tx_ids:
                self.unattended.pop((app, tx_id), None)
        for run in runs:
            table.settle(run, outcome)
            for tx_id, record in zip(run.tx_ids, run.records, strict=False):  # none in a block has branches
                if record.participants:
                    self._wait(now_ms, table, app, tx_id, record, outcome)
                elif record.home_group >= 0:
                    self.across.branches -= 1
        self.lives.add(Settling(now_ms, by, app, outcome, tx_ids, Lived(runs)), rule=_is_rule(by))
        return self._remembered(now_ms, table, before, given_before)

    def _wait(
        self, now_ms: int, table: AppTransactions, app: str, tx_id: str, record: OpenTx, outcome: int
    ) -> None:
        decided = Decided(
            outcome, record.digests[0], record.log_index, record.participants, now_ms, record.given
        )
        table.decided[tx_id] = decided
        self.across.opened -= 1
        self.across.add(app, tx_id, decided)

    def done(
        self, now_ms: int, app: str, tx_ids: Sequence[str], home_indexes: Sequence[int], group: int
    ) -> bool:
        """Branch group ``group`` has carried out these decisions. A decision that no longer waits for any
        group is remembered like any settled transaction. Others are ignored: they were done before, or belong
        to another transaction with that id."""
        table = self.look(app)
        before, given_before = len(table.settled.young), len(table.given.young)
        for tx_id, home_index in zip(tx_ids, home_indexes, strict=True):
            decided = table.decided.get(tx_id)
            if decided is None or decided.home_index != home_index or group not in decided.waiting:
                continue
            self.across.told(app, tx_id, group)
            waiting = tuple(other for other in decided.waiting if other != group)
            if waiting:
                table.decided[tx_id] = decided._replace(waiting=waiting)
            else:
                del table.decided[tx_id]
                self.across.decided -= 1
                memory = table.given if decided.given else table.settled
                memory.young[tx_id] = decided.digest << 2 | decided.outcome
        return self._remembered(now_ms, table, before, given_before)

    def remember(self, now_ms: int, app: str, tx_ids: Sequence[str], outcome: int) -> bool:
        """Remember decisions on transactions that were never open here, so that they cannot be opened.
        Their digests are not known: a later PREPARE is told what is recorded."""
        table = self.app(app)
        before, given_before = len(table.settled.young), len(table.given.young)
        table.settled.young.update(dict.fromkeys(tx_ids, outcome))
        return self._remembered(now_ms, table, before, given_before)

    def _remembered(self, now_ms: int, table: AppTransactions, before: int, given_before: int) -> bool:
        """Count what the young generations of an app have grown by; this may make older ids forgotten."""
        after = len(table.settled.young)
        self.young += after - before + (APP_AS_IDS if after and not before else 0)
        if (given := len(table.given.young)) != given_before:
            self.given.settled(given - given_before, first_of_app=not given_before)
            self.forget_given(now_ms)
        if self.young < self.settings.settled_generation:
            return False
        self._turn()
        return True

    def forget_given(self, now_ms: int) -> None:
        """Forget ids that applications chose, if it is time."""
        if self.given.is_time_to_forget(self.settings, now_ms):
            for table in self.apps.values():
                table.given.turn()
            self._drop_idle()
            self.given.turned(now_ms)

    def _turn(self) -> None:
        for table in self.apps.values():
            table.settled.turn()
            table.open_by_topic = {topic: n for topic, n in table.open_by_topic.items() if n}
        self._drop_idle()
        self.young = 0

    def _drop_idle(self) -> None:
        # An empty table is equivalent to a missing one, so a reader may keep its reference for longer. But no
        # caller may hold an app's table across a call that gets here: what it opened in it would be lost.
        idle = [name for name, table in self.apps.items() if table.idle]
        for name in idle:
            self.apps.pop(name).queued = False
        if idle:
            self._fronts = [front for front in self._fronts if front[2].queued]
            heapify(self._fronts)

    def count(self) -> None:
        """Recompute the counts after the tables were filled from a snapshot."""
        self._fronts = []
        self._open = sum(len(table.open) for table in self.apps.values())
        for table in self.apps.values():
            first = table.open.oldest()
            table.queued = first is not None
            if first is not None:
                heappush(self._fronts, (first.log_index, next(self._number), table))
        self.across = AcrossGroups()
        self.across.opened = sum(bool(record.participants) for _, _, record in self.iterate_open())
        self.across.branches = sum(
            record.home_group >= 0 and not record.participants for _, _, record in self.iterate_open()
        )
        for app, table in self.apps.items():
            for tx_id, decided in table.decided.items():
                self.across.add(app, tx_id, decided)
        young = [len(table.settled.young) for table in self.apps.values() if table.settled.young]
        self.young = sum(young) + APP_AS_IDS * len(young)
        tables = [table.given for table in self.apps.values()]
        self.given.young = sum(len(t.young) + APP_AS_GIVEN_IDS for t in tables if t.young)
        self.given.old = sum(len(t.old) + APP_AS_GIVEN_IDS for t in tables if t.old)
        waiting = sum(decided.given for t in self.apps.values() for decided in t.decided.values())
        self.given.opened = waiting + sum(record.given for _, _, record in self.iterate_open())

    def record_decision(self, now_ms: int, by: str, app: str, tx_ids: Sequence[str], outcome: int) -> None:
        """Record the decider, except for producers, feedback, time-outs, claims and home groups: the usual
        case."""
        if by in ("feedback", BY_TIMEOUT, BY_CLAIM) or _is_rule(by):
            return
        name = STATE_OF[outcome].value
        self.audit.extend((now_ms, by, app, tx_id, name) for tx_id in tx_ids)
        del self.audit[:-AUDIT_KEPT]

    def record_act(self, now_ms: int, by: str, group: str, tx_id: str, outcome: str) -> None:
        """Record what an operator has done with messages of a consumer group."""
        self.audit.append((now_ms, by, group, tx_id, outcome))
        del self.audit[:-AUDIT_KEPT]

    def oldest_index(self) -> int | None:
        """Log index of the oldest open transaction's PREPARE: retention must not pass it.

        Transactions enter the table in log order and keep their place, so each app's first is its oldest.
        Only in the applying thread. Heap entries of apps whose oldest has changed are corrected,
        each once; ``tidy`` has done that for most.
        """
        return self._fronts[0][0] if self._look_at_front() else None

    def oldest(self) -> OpenTx | None:
        """The first of all open transactions in log order. Only in the applying thread."""
        return self._fronts[0][2].open.oldest() if self._look_at_front() else None

    def _look_at_front(self) -> bool:
        """Whether any transaction is open; if so, the first of the heap is then the oldest of all."""
        while self._fronts:
            if self._front_is_right():
                return True
        return False

    def _front_is_right(self) -> bool:
        """Whether the first of the heap is the oldest of all; if not, it is moved to its place or removed."""
        index, number, table = self._fronts[0]
        first = table.open.oldest()
        if first is None:
            heappop(self._fronts)
            table.queued = False
        elif first.log_index != index:
            heapreplace(self._fronts, (first.log_index, number, table))
        return first is not None and first.log_index == index

    def release(self, app: str) -> None:
        """A view of an app's open transactions is no longer used."""
        table = self.app(app).open
        table.release()
        if table.untidy:
            self._untidy.append(table)

    def tidy(self) -> None:
        """A bounded step of housekeeping; readers see no difference, so it may run at any time."""
        budget = STEP
        while self._untidy and budget > 0:
            table = self._untidy[-1]
            budget = table.tidy(budget) - 1
            if table.in_use or not table.untidy:  # one that is held again comes back when released
                self._untidy.pop()
        for _ in range(FRONTS_STEP):
            if not self._fronts or self._front_is_right():
                return

    def open_count(self) -> int:
        """Open transactions of all apps. Any thread."""
        return self._open

    def iterate_open(self) -> Iterator[tuple[str, str, OpenTx]]:
        """(app, tx_id, record) of every open transaction; only in the applying thread."""
        for app, table in self.apps.items():
            for tx_id, record in table.open.items():
                yield app, tx_id, record


def _is_rule(by: str) -> bool:
    """Whether it was decided in the usual way."""
    return by == BY_PRODUCER or by.startswith(BY_HOME)


def decide_result(table: AppTransactions, tx_id: str, wanted: int) -> list[object] | None:
    """Result of a decision that found ``tx_id`` not open: None = it is already decided as wanted.

    The first durable decision wins; the other side is told what is recorded.
    """
    outcome = table.outcome(tx_id)
    if outcome is None:
        return [int(ResultCode.UNKNOWN_TX), None]
    if outcome == wanted:
        return None
    return [int(ResultCode.TX_CONFLICT), STATE_OF[outcome].value]


def refused_ids(table: AppTransactions, tx_ids: Sequence[str], wanted: int) -> list[list[object]]:
    """Problems of a decision that took no effect: [position, code, info] for each id that is not decided as
    wanted; RETRY for one that is still open."""
    problems: list[list[object]] = []
    for i, tx_id in enumerate(tx_ids):
        if tx_id in table.open:
            problems.append([i, int(ResultCode.RETRY), None])
        elif (problem := decide_result(table, tx_id, wanted)) is not None:
            problems.append([i, *problem])
    return problems


# ------------------------------------------------------------------ branches
# The identity of a record of a transaction over several groups: (id, home group, home index), and its
# state.
#
# An id may be used again after its group has forgotten it, while a branch of its first transaction is still
# open somewhere. So the identity includes the log index at which home opened its record, and the group of
# that log: PREPAREs and decisions of branches carry both, and do nothing to a record that has others.


_CONFLICT = [int(ResultCode.TX_CONFLICT), "PREPARE"]


def another(
    record: OpenTx, home_group: int, home_index: int, participants: tuple[int, ...]
) -> list[Any] | None:
    """Why a PREPARE does not belong to the open transaction ``record``; None: it may.

    A record with a lower home index is an older transaction that home has forgotten: it will be rolled back
    when it asks there, so RETRY. With a higher home index, this PREPARE is the late one.
    """
    if record.home_group != home_group or record.participants != participants:
        return _CONFLICT
    if record.home_index == home_index:
        return None
    if 0 <= record.home_index < home_index:
        return [int(ResultCode.RETRY), None]
    return _CONFLICT


def with_home_indexes(
    table: AppTransactions, tx_ids: Sequence[str], problems: list[list[Any]], index: int, *, all_fresh: bool
) -> list[Any]:
    """The result of a PREPARE at home of several groups, or of ids that the application gave: its client must
    know whether they were open before. If it opened all its transactions: also its own log
    index. Otherwise that index and then, for each transaction, the log index at which it was opened, by this
    PREPARE or an earlier one; -1 for those that are refused, whatever else has their ids."""
    if all_fresh:
        return [0, index]
    refused = {problem[0] for problem in problems}
    indexes = [index]
    for i, tx_id in enumerate(tx_ids):
        record = None if i in refused else table.open.get(tx_id)
        indexes.append(-1 if record is None else record.log_index)
    return [int(ResultCode.PARTIAL), problems, indexes] if problems else [0, indexes]


def standing(table: AppTransactions, tx_id: str, home_index: int) -> Standing:
    """State of (id, home index) in this group; -1: of whatever has this id."""
    record = table.open.get(tx_id)
    if record is not None and home_index in (-1, record.home_record):
        have, groups = len(record.digests), record.participants
        return Standing("PREPARE", record.home_record, have, record.parts, record.home_group, list(groups))
    decided = table.decided.get(tx_id)
    if decided is not None and home_index in (-1, decided.home_index):
        state = STATE_OF[decided.outcome].value
        return Standing(state, decided.home_index, groups=list(decided.waiting))
    outcome = table.outcome(tx_id)
    return Standing("UNKNOWN" if outcome is None else STATE_OF[outcome].value)


def standings(transactions: TransactionTable, asked: Inquire) -> list[Any]:
    """The result of an INQUIRE. It changes nothing, and is in the log because a deposed leader that answered
    from its state could be wrong."""
    table = transactions.look(asked.app)
    pairs = zip(asked.tx_ids, asked.home_indexes, strict=True)
    return [0, [standing(table, tx_id, index) for tx_id, index in pairs]]
