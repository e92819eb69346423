"""What operators and other actors may ask about a replica's state: transactions, decisions, positions.

Lists are bounded by the caller's limit. Work that could take long runs in the
caller's thread, on a view of the table that is held meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from heapq import nlargest
from itertools import islice
from operator import itemgetter
from typing import Any

import msgspec

from escrowmq.replication.calling.answers import (
    AcrossReport,
    AuditEntry,
    FinalRanges,
    FoundTransaction,
    GivenIdsReport,
    OpenTransactions,
    PeerReport,
    ReplicaReport,
    Reply,
    ScheduledMessages,
    ScrubReport,
    SettledTransaction,
    SharePlace,
    SharePlaces,
    TimersReport,
)
from escrowmq.replication.calling.metrics_report import (
    CarryMetrics,
    HistogramReport,
    LedMetrics,
    MetricsReport,
    Named,
)
from escrowmq.replication.errors import Closed
from escrowmq.replication.format.internal_topics import dead_topic, retry_topic
from escrowmq.replication.host.finding import Finder
from escrowmq.replication.host.member_changes import report_of
from escrowmq.replication.host.requests import RequestCounts
from escrowmq.replication.host.running_replica import RunningReplica
from escrowmq.replication.model import OpenTransaction, TransactionState
from escrowmq.replication.replica.releases import NEVER
from escrowmq.replication.state.due_queue import overdue
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.open_tx import OpenTable, OpenTx, View
from escrowmq.replication.state.topics import Partition
from escrowmq.replication.state.transactions import STATE_OF
from escrowmq.replication.timers.record import KEY_BYTES, RECORD, TIME_MAX, last_key


def politely(items: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """All items, letting the replica's own thread run in between: otherwise it waits 5 ms for every turn."""
    for number, item in enumerate(items):
        if number % 256 == 255:
            time.sleep(0)
        yield item


class Inspection:
    """Questions about one replica. Thread-safe."""

    def __init__(self, running: RunningReplica) -> None:
        self._running, self._state = running, running.replica.state

    # -------------------------------------------------------------- transactions

    def tx_states(self, app: str, tx_ids: Sequence[str]) -> Reply:
        """``("ok", ["PREPARE" | "COMMITTED" | "ROLLBACK" | "UNKNOWN", ...])``; leader only."""

        def read() -> list[str]:
            table = self._state.transactions.apps.get(app)
            if table is None:
                return ["UNKNOWN"] * len(tx_ids)
            outcomes = [table.outcome(tx_id) for tx_id in tx_ids]
            return [
                "PREPARE" if tx_id in table.open else STATE_OF[outcome].value if outcome else "UNKNOWN"
                for tx_id, outcome in zip(tx_ids, outcomes, strict=True)
            ]

        return self._running.led(read)

    def transactions(
        self, state: str | None = None, app: str | None = None, topic: str | None = None, limit: int = 1000
    ) -> Reply:
        """``("ok", OpenTransactions)``; leader only.

        ``state``: None or "PREPARE" = all open, "PARKED" = only those that are no longer checked.
        """
        apps = self._state.transactions.apps
        held: list[tuple[str, OpenTable, View]] = []

        def hold() -> None:
            held.extend((n, t.open, t.open.hold()) for n, t in apps.items() if app in (None, n) and t.open)

        def release() -> None:
            for _, table, _ in held:
                table.release()

        try:  # in this thread: a million rows take seconds, during which the replica continues
            status = self._running.led(hold)
            if status[0] != "ok":
                return status
            found = (
                _open_row(name, tx_id, r)
                for name, _, view in held
                for tx_id, r in politely(view.items())
                if topic in (None, r.topic) and not (state == "PARKED" and r.due_ms >= 0)
            )
            return ("ok", OpenTransactions.of(islice(found, limit)))
        finally:  # runs after ``hold`` even if nobody waited for that any more
            self._running.later(release)

    def find_transaction(self, tx_id: str, app: str | None = None) -> Reply:
        """``("ok", [FoundTransaction, ...])``: the apps' transactions with this id; leader only."""

        def read() -> list[FoundTransaction]:
            found: list[FoundTransaction] = []
            for name, table in self._state.transactions.apps.items():
                if app not in (None, name):
                    continue
                opened, outcome = table.open.get(tx_id), table.outcome(tx_id)
                if opened is not None:
                    entry = OpenTransaction(*_open_row(name, tx_id, opened))
                    prepared = TransactionState.PREPARE
                    found.append(FoundTransaction(name, prepared, entry, checked_ms=opened.checked_ms))
                elif outcome is not None:
                    found.append(FoundTransaction(name, STATE_OF[outcome], None))
            return found

        answer = self._running.led(read)
        if answer[0] != "ok":
            return answer
        return ("ok", [self._with_life(one, tx_id) if one.open is None else one for one in answer[1]])

    def _with_life(self, found: FoundTransaction, tx_id: str) -> FoundTransaction:
        """Adds its history. In the caller's thread: this searches all that is kept."""
        known = self._state.transactions.lives.find(found.app, tx_id)
        if known is None or STATE_OF[known[0].outcome] is not found.state:
            return found  # the history of an earlier transaction with this id
        settling, life = known
        settled = SettledTransaction(
            query_id=life.query_id,
            topic=life.topic,
            messages=life.messages,
            prepared_ms=life.prepared_ms,
            checks=life.checks,
            checked_ms=life.checked_ms,
            by=settling.by,
            decided_ms=settling.at_ms,
        )
        return FoundTransaction(found.app, found.state, None, settled)

    def audit(self) -> Reply:
        """``("ok", [AuditEntry, ...])``: decisions made by hand or by policy; leader only."""
        return self._running.led(lambda: [AuditEntry(*entry) for entry in self._state.transactions.audit])

    # -------------------------------------------------------------- status

    def status(self) -> ReplicaReport:
        """Positions and role of this replica, for operators."""
        running = self._running

        def read() -> ReplicaReport:
            node, state, journal = running.node, self._state, running.journal
            leader, room = node.leader_id, running.room
            return ReplicaReport(
                gid=running.gid,
                rid=running.rid,
                role="leader" if node.is_leader else "follower",
                ready=node.ready,
                leader=None if leader is None else int(leader),
                term=node.term,
                commit_index=node.commit_index,
                applied_index=state.applied_index,
                first_index=journal.first_index,
                last_index=journal.last_index,
                durable_index=journal.durable_index,
                recovered_index=running.recovered_index,
                open_transactions=state.transactions.open_count(),
                topics=len(state.topics.topics),
                log_bytes=sum(segment.size for segment in journal.segments()),
                snapshots=list(running.checkpoints.indexes),
                waiting=running.replica.admission.waiting(),
                address="{}:{}".format(*running.address),
                disk_full=running.driver.disk_full or running.scarce(),
                free_bytes=room.free_bytes or 0,
                reserve_bytes=running.setup.config.disk_reserve_bytes,
                room_problem=room.problem,
                peers=[PeerReport(p.peer, p.connected, p.match_index) for p in node.progress()],
                learner=running.learner,
                incarnation=node.marks.own.number,
                scrub=_scrub(running),
                level=state.level,
                across=_across(state),
                given_ids=_given_ids(state),
                timers=_timers(running),
                members=report_of(running),
            )

        try:
            report = running.driver.call(read)
            if not report.ready:
                return report
            late = overdue(self._state.transactions, running.now_ms(), politely)  # in this thread
            return msgspec.structs.replace(report, overdue=late)
        except Closed:
            return status_without_replica(running.gid, running.rid)


def _scrub(running: RunningReplica) -> ScrubReport:
    state, holes = running.scrubber.state, running.journal.holes
    return ScrubReport(
        done_ms=state.done_ms,
        done_bytes=state.last_bytes,
        begun_ms=state.begun_ms,
        bytes=state.bytes,
        found=holes.found,
        mended=holes.mended,
        damaged=len(holes.all()),
    )


def _across(state: StateMachine) -> AcrossReport:
    across = state.transactions.across
    return AcrossReport(
        undone=across.decided,
        oldest_ms=across.oldest_ms(),
        branches=across.branches,
        due=len(state.due.branches),
    )


def _given_ids(state: StateMachine) -> GivenIdsReport:
    given, settings = state.transactions.given, state.settings
    return GivenIdsReport(
        count=given.old + given.young,
        most=settings.remember_ids_max,
        short_ms=given.reach_ms(settings, state.now_ms),
    )


def _timers(running: RunningReplica) -> TimersReport:
    timers = running.replica.state.timers
    due_ms = running.replica.admission.releases.next_ms if running.node.ready else 0
    waiting = timers.counts.total
    return TimersReport(
        waiting=waiting,
        most=running.setup.config.timers_max,
        next_ms=0 if not waiting else due_ms if 0 < due_ms < NEVER else None,
    )


def status_without_replica(gid: int, rid: int) -> ReplicaReport:
    """The status while no replica runs: it is being opened or repaired, or was closed."""
    return ReplicaReport(gid=gid, rid=rid, role="starting")


def _open_row(app: str, tx_id: str, r: OpenTx) -> tuple[Any, ...]:
    """The fields of ``OpenTransaction``, in order."""
    return (
        app, tx_id, r.query_id, r.topic, r.prepared_ms, r.timeout_ms, r.checks,
        r.due_ms < 0, r.messages, r.home_group,
        r.home_record if r.participants or r.home_group >= 0 else -1, r.parked_for if r.due_ms < 0 else "",
        r.fence.hex(),
    )  # fmt: skip


# ------------------------------------------------------------------ scheduled messages
# Lists the delayed messages of a topic that wait in one broker group. Nothing here is in the replica's
# thread but one look at the state: the store may be read by any thread.


#: Records read at a time, and in one call: with many messages of other topics, the caller asks again.
READ_AT_ONCE, READ_MAX = 4_096, 200_000


class Scheduled:
    """Questions about one replica's waiting messages. Thread-safe."""

    def __init__(self, running: RunningReplica) -> None:
        self._running = running

    def messages(self, topic: str, before_ms: int | None, limit: int, after: bytes = b"") -> Reply:
        """``("ok", ScheduledMessages | None)``, in order of time; leader only. None: it has no such topic.
        ``before_ms``: only those that can be read before this time. ``after``: ``reached`` of an earlier
        answer."""
        timers = self._running.replica.state.timers

        def shares() -> tuple[dict[int, int], bytes] | None:
            known = self._running.replica.state.topics.topics.get(topic)
            if known is None:
                return None
            return {p.slot: number for number, p in known.partitions.items()}, timers.released

        status = self._running.led(shares)
        if status[0] != "ok" or status[1] is None:
            return status
        slots, released = status[1]
        until_ms = TIME_MAX if before_ms is None else before_ms - 1
        reached, end = max(after, released), last_key(until_ms)
        rows: list[Sequence[int]] = []
        read = 0
        while slots and reached < end and len(rows) < limit and read < READ_MAX:
            with self._running.leaving():
                records, reached = timers.store.listed(reached, until_ms, READ_AT_ONCE)
            read += len(records)
            for record in records:
                time_ms, slot, owner, ordinal, _, _, size = RECORD.unpack(record)
                if slot in slots:
                    rows.append((slots[slot], time_ms, owner, ordinal, size))
                    if len(rows) == limit:
                        reached = record[:KEY_BYTES]
                        break
            time.sleep(0)  # lets the replica's own thread run
        done = not slots or reached >= end
        return "ok", ScheduledMessages.of(rows, reached=b"" if done else reached)


# ------------------------------------------------------------------ share groups
# What operators may ask about share groups: how far a group is here, and what is final for it.
#
# Nothing is decoded: counts come from the state and from the leader's leases.


class ShareReports:
    """Questions about one replica's share groups. Thread-safe."""

    def __init__(self, running: RunningReplica) -> None:
        self._running, self._state = running, running.replica.state

    def places(self, group: str) -> Reply:
        """``("ok", SharePlaces)``: the partitions of this broker group that the group reads, and its internal
        topics; leader only."""

        def read() -> SharePlaces | None:
            later = self._later()
            rows = [self._row(group, partition, later) for partition in self._partitions(group)]
            return SharePlaces.of(rows) if rows else SharePlaces()

        return self._running.led(read)

    def members(self, group: str) -> Reply:
        """``("ok", [member, ...])``: who holds messages of the group at this leader, or waits for some."""
        return self._running.led(lambda: self._running.replica.lease_dispatcher.members(group))

    def final(self, group: str, topic: str, partition: int) -> Reply:
        """``("ok", FinalRanges | None)``; None: there is no such partition here, or the group has not begun
        to read it. Leader only."""

        def read() -> FinalRanges | None:
            found = self._state.topics.find(topic, partition)
            if not isinstance(found, Partition):
                return None
            pair = self._state.shares.get(group, found)
            if pair is None:
                return None
            return FinalRanges(pair.start, found.index.end, pair.flat(), found.topic_id)

        return self._running.led(read)

    def _partitions(self, group: str) -> list[Partition]:
        """Those that it has begun to read, and its own, by topic."""
        table = self._state.topics
        begun = [table.slots[slot] for name, slot in self._state.shares.pairs if name == group]
        for name in (retry_topic(group), dead_topic(group)):
            if (topic := table.topics.get(name)) is not None:
                begun += topic.partitions.values()
        return sorted({p.slot: p for p in begun}.values(), key=lambda p: (p.topic, p.number))

    def _row(self, group: str, partition: Partition, later: dict[int, int]) -> SharePlace:
        pair = self._state.shares.get(group, partition)
        assert pair is not None
        return SharePlace(
            partition.topic,
            partition.number,
            pair.start,
            partition.index.end,
            pair.waiting,
            self._running.replica.lease_dispatcher.leases.held((group, partition.slot)),
            later.get(partition.slot, 0),
            pair.expired,
            pair.ranges,
        )

    def _later(self) -> dict[int, int]:
        counts: dict[int, int] = {}
        flat = self._state.timers.counts.flat()
        for slot, timers in zip(flat[::4], flat[2::4], strict=True):
            counts[slot] = counts.get(slot, 0) + timers
        return counts


# ------------------------------------------------------------------------------------------------------------
# Reads a replica's counters for the exporter. Nothing here runs in the driver's thread except one look
# at the oldest transaction.
#
# For apps and topics it reports the sums of all, and the names of a bounded number.

#: Names in one report: the apps with most open transactions, and the topics that were created first.
NAMES_MAX = 1_000


class Instruments:
    """Counters of one replica. Thread-safe."""

    def __init__(
        self,
        running: RunningReplica,
        requests: RequestCounts,
        finder: Finder,
        names_max: int = NAMES_MAX,
    ) -> None:
        self._running, self._requests, self._finder = running, requests, finder
        self._names_max = names_max

    def metrics(self) -> MetricsReport:
        """The present values. Raises Closed, Overloaded, and TimeoutError if the driver does not answer."""
        running, replica, driver = self._running, self._running.replica, self._running.driver
        histograms = {
            "driver_stall": driver.stall_s,
            "fsync": driver.fsync_s,
            "snapshot": running.checkpointing.seconds,
            "prepare": self._requests.prepare_s(),
            "commit": self._requests.commit_s(),
            "lateness": replica.admission.releases.lateness_s,
            "find_build": self._finder.build_s,
        }
        carrying = replica.admission.carrying
        refused = self._requests.refused()
        refused["too_many_open"] += replica.admission.too_many_open
        return MetricsReport(
            gid=running.gid,
            rid=running.rid,
            terms_led=replica.terms_led,
            link_connects=driver.counters.connects,
            clients=0 if driver.door is None else driver.door.clients,
            client_requests=0 if driver.door is None else driver.door.requests,
            client_unread_bytes=0 if driver.door is None else driver.door.unread.bytes,
            clients_cut=0 if driver.door is None else driver.door.unread.cut,
            prepared=replica.led.prepared,
            decided={
                f"{STATE_OF[outcome].value}/{who}": count
                for (outcome, who), count in replica.led.decided.copy().items()
            },
            refused={reason: count for reason, count in refused.items() if count},
            histograms={name: HistogramReport.of(histogram) for name, histogram in histograms.items()},
            disk_bytes=running.room.size_bytes,
            released=replica.admission.releases.released,
            cancelled=replica.admission.releases.cancelled,
            forwarded={kind: count for kind, count in replica.admission.shares.counts.items() if count},
            run_files=len(running.checkpoints.run_files),
            stored_descriptors=running.checkpoints.files.descriptors,
            find=self._finder.report(),
            carried=CarryMetrics(carrying.entries, carrying.carried, carrying.carried_bytes),
            led=self._led() if running.node.ready else None,
        )

    def _led(self) -> LedMetrics:
        running, state = self._running, self._running.replica.state

        def oldest_ms() -> int | None:
            record = state.transactions.oldest()
            return None if record is None else record.prepared_ms

        prepared_ms = running.driver.call(oldest_ms)
        age_ms = 0 if prepared_ms is None else max(running.now_ms() - prepared_ms, 0)
        # Each list is made in one step of the interpreter: the driver's thread changes these maps meanwhile.
        apps = [
            (name, len(table.open), len(table.parked))
            for name, table in politely(list(state.transactions.apps.items()))
        ]
        topics = []
        for name, topic in politely(list(state.topics.topics.items())):
            messages = size = 0
            for partition in topic.partitions.values():  # a loop: two sums take three times as long
                index = partition.index
                messages += index.end
                size += index.bytes
            topics.append((name, messages, size))
        most = nlargest(self._names_max, apps, key=itemgetter(1)) if len(apps) > self._names_max else apps
        return LedMetrics(
            apps=_named(apps, most),
            topics=_named(topics, topics[: self._names_max]),
            oldest_age_s=age_ms / 1000,
            overdue=overdue(state.transactions, running.now_ms(), politely),
            delayed=state.timers.counts.total,
            delayed_bytes=state.timers.counts.total_bytes,
            pinned_bytes=running.replica.admission.carrying.pinned_bytes,
            shares=(len(state.shares.pairs), state.shares.ranges),
        )


def _named(rows: Sequence[tuple[str, int, int]], told: Iterable[tuple[str, int, int]]) -> Named:
    chosen = list(told)
    firsts, seconds = [row[1] for row in chosen], [row[2] for row in chosen]
    rest = [sum(row[1] for row in rows) - sum(firsts), sum(row[2] for row in rows) - sum(seconds)]
    return Named(names=[row[0] for row in chosen], columns=[firsts, seconds], rest=rest, all=len(rows))
