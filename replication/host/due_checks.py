"""Transaction checks that have come due: announcing them, and leasing them. Leader only.

A feedback process asks for all of its pairs of app and topic at once: ``due_pairs`` parks until some pair
gets due checks, and names it; ``lock_pairs`` leases as many as its producers can take. A parked call leases
nothing, so one whose caller has died delays no check. In the driver's thread no work here grows with the
number of pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from escrowmq.replication.calling.answers import (
    DuePairs,
    LockedChecks,
    OpenPairs,
    PartitionBounds,
    PartitionSpans,
    Reply,
    part_of,
)
from escrowmq.replication.errors import InvalidMessage
from escrowmq.replication.host.running_replica import RunningReplica
from escrowmq.replication.model import ResultCode
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.topics import Partition

#: Maximum size of one answer, whatever its caller asks for.
DUE_MAX = 10_000
LEASE_S_MAX = 86_400.0
#: Maximum time by which a check is put off.
WAIT_MS_MAX = 60_000
#: An answer of ``lock_pairs`` with this many transactions takes no further pair: a millisecond of that
#: thread.
LOCKED_ENOUGH = 1_024
#: Pairs, or apps, that one call may name: half a millisecond of the driver's thread.
NAMED_MAX = 256
#: An answer of ``open_pairs`` with this many pairs takes no further app.
OPEN_PAIRS_ENOUGH = 10_000
PARTS_MAX = 1_024


class DueChecks:
    """Due checks of one replica. Thread-safe."""

    def __init__(
        self,
        running: RunningReplica,
        *,
        locked_enough: int = LOCKED_ENOUGH,
        open_pairs_enough: int = OPEN_PAIRS_ENOUGH,
    ) -> None:
        self._running, self._replica = running, running.replica
        self._locked_enough, self._open_pairs_enough = locked_enough, open_pairs_enough

    def due_pairs(self, term: int, seen: int, part: int, parts: int, wait_s: float) -> Reply:
        """``("ok", DuePairs)``: pairs of this ``part`` of all (``part_of``) that got due checks
        after the caller had seen number ``seen`` in ``term``. Waits up to ``wait_s`` for one."""
        _check_part(part, parts)
        running, news = self._running, self._replica.state.due.news
        at = DuePairs(term, seen)

        def look() -> tuple[DuePairs, bool]:
            now = running.node.term
            upto, pairs = news.after(at.seen if at.term == now else 0, lambda p: part_of(*p, parts) == part)
            return DuePairs(now, upto, pairs), upto >= news.last

        def attempt() -> Reply | None:
            nonlocal at
            while True:
                status, *rest = running.led(look)
                if status != "ok":
                    return status, *rest
                at, at_end = rest[0]
                if at.pairs:
                    return "ok", at
                if at_end:
                    return None

        return running.checks_due.wait_for(attempt, wait_s) or ("ok", at)

    def lock_pairs(self, wanted: Sequence[tuple[str, str, int]], lease_s: float, owner: str) -> Reply:
        """``("ok", [LockedChecks, ...])``, one for each (app, topic, maximum), without waiting; only for the
        first ones if those were many.

        Raises InvalidMessage if more pairs are named than one call may name.
        """
        _check_count(wanted, "pairs")
        running, state = self._running, self._replica.state
        lease_s = min(lease_s, LEASE_S_MAX)

        def lock() -> list[list[tuple[Any, ...]]]:
            found, total, now_ms = list[list[tuple[Any, ...]]](), 0, running.now_ms()
            for app, topic, max_n in wanted:
                if total >= self._locked_enough:
                    break
                rows = lock_due(state, app, topic, min(max_n, DUE_MAX), lease_s, owner, now_ms)
                found.append(rows)
                total += len(found[-1])
            return found

        status, *rest = running.led(lock)
        return ("ok", [LockedChecks.of(rows) for rows in rest[0]]) if status == "ok" else (status, *rest)

    def open_pairs(self, apps: Sequence[str], part: int, parts: int) -> Reply:
        """``("ok", OpenPairs)``: the pairs of this ``part`` in which the apps have open transactions, or
        transactions that came due and were not locked.

        The latter count even if all of them were settled since: ``due_pairs`` has named such a pair, and does
        not name it again when more come due, before it was locked. A caller that ignored the name, since it
        did not know the app yet, would never ask about these.

        In the caller's thread, since an app may have any number of topics.
        """
        _check_part(part, parts)
        _check_count(apps, "apps")

        def read(state: StateMachine) -> OpenPairs:
            pairs: list[tuple[str, str]] = []
            answered = 0
            for app in apps:
                if len(pairs) >= self._open_pairs_enough:
                    break
                answered += 1
                table = state.transactions.apps.get(app)
                # In one step of the interpreter: the driver's thread changes it meanwhile.
                counts = [] if table is None else list(table.open_by_topic.items())
                topics = dict.fromkeys(topic for topic, n in counts if n > 0)
                topics.update(dict.fromkeys(state.due.news.topics(app)))
                pairs += [(app, topic) for topic in topics if part_of(app, topic, parts) == part]
            return OpenPairs(answered, pairs)

        return self._running.if_leading(read)

    def release_locks(
        self, app: str, topic: str, tx_ids: Sequence[str], owner: str, waits_ms: Sequence[int] = ()
    ) -> Reply:
        """Return leases without an answer; the transactions come due again in a second, or after
        ``waits_ms``."""
        running, due = self._running, self._replica.state.due
        waits = [min(max(int(wait), 0), WAIT_MS_MAX) for wait in waits_ms]
        return running.led(lambda: due.release(app, tx_ids, owner, running.now_ms(), waits))

    def check_again(self, app: str, tx_id: str) -> Reply:
        """``("ok", whether a parked transaction has this id)``: check it once more. Kept in this leader's
        memory only: the next leader does not know of it."""
        running, due = self._running, self._replica.state.due
        return running.led(lambda: due.check_again(app, tx_id, running.now_ms()))


def _check_part(part: int, parts: int) -> None:
    if not 0 <= part < parts <= PARTS_MAX:
        raise InvalidMessage(f"part must be below parts, and parts at most {PARTS_MAX}")


def _check_count(named: Sequence[Any], what: str) -> None:
    if len(named) > NAMED_MAX:
        raise InvalidMessage(f"one call names at most {NAMED_MAX} {what}, not {len(named)}")


def lock_due(
    state: StateMachine,
    app: str,
    topic: str,
    max_n: int,
    lease_s: float,
    owner: str,
    now_ms: int,
) -> list[tuple[Any, ...]]:
    """Lease due checks to ``owner``; rows with the fields of ``LockedRow``. In the applying thread."""
    known = state.topics.topics.get(topic)
    rolls_back = known is not None and known.info.on_check_exhausted == "rollback"
    check_max = known.info.check_max if known else 0
    found = state.due.lock(app, topic, max_n, owner, int(lease_s * 1000), now_ms)
    return [
        (
            *(tx, r.query_id, r.prepared_ms, r.checks, r.home_group),
            # A parked one is here because an operator wants the application to be asked again.
            rolls_back and r.checks >= check_max and r.due_ms >= 0,
            *(r.instance, r.newest_index, max(now_ms - r.prepared_ms, 0), r.fence),
        )
        for tx, r in found
    ]


# ------------------------------------------------------------------ watching
# Questions from planners of bulk reads: bounds of many partitions, changes of them, bytes of offset ranges.
#
# A streaming query asks all day whether there is anything new. ``watch`` answers that with a few numbers
# per partition and no messages, and waits for news instead of being called again and again. The leader
# answers, since a follower's end may lag: an end that moved backwards then means that the topic was deleted
# and created again. ``spans`` reads only the index, whole runs at a time, never bodies.


#: Maximum partitions of one call: bounds the work that a parked call repeats at each piece of news.
PARTITIONS_MAX = 10_000

WatchRequest = tuple[str, int, int]  # topic, partition, the end that the caller knows (-1: none)
SpanRequest = tuple[str, int, int, int, int]  # topic, partition, start, end, maximum bytes


class Watching:
    """Both calls for one replica. Thread-safe; ``watch`` parks where fetches park."""

    def __init__(self, running: RunningReplica) -> None:
        self._running = running

    def watch(self, requests: Sequence[WatchRequest], wait_s: float) -> Reply:
        """``("ok", PartitionBounds)`` once an end differs from the known one, or after ``wait_s``."""
        running = self._running
        known = [end for _, _, end in requests[:PARTITIONS_MAX]]

        def read(state: StateMachine) -> PartitionBounds:
            return bounds(state, requests)

        def attempt() -> Reply | None:
            answer = running.if_leading(read)
            if answer[0] == "ok" and answer[1].ends == known:
                return None
            return running.confirmed(read)

        # Also "nothing new" is an answer that a leader without a majority may not give.
        return running.news.wait_for(attempt, wait_s) or running.confirmed(read)

    def spans(self, requests: Sequence[SpanRequest]) -> Reply:
        """``("ok", PartitionSpans)``: see :func:`span`."""

        def read(state: StateMachine) -> PartitionSpans:
            found = PartitionSpans([], [], [])
            for request in requests[:PARTITIONS_MAX]:
                code, offset, size = span(state, *request)
                found.codes.append(code)
                found.offsets.append(offset)
                found.sizes.append(size)
            return found

        return self._running.if_leading(read)


def bounds(state: StateMachine, requests: Sequence[WatchRequest]) -> PartitionBounds:
    """All read at one moment: all of a transaction or nothing of it."""
    found = PartitionBounds([], [], [])
    with state.cut:
        for topic, number, _ in requests[:PARTITIONS_MAX]:
            partition = state.topics.find(topic, number)
            if isinstance(partition, Partition):
                code, start, end = int(ResultCode.OK), partition.index.start, partition.index.end
            else:
                code, start, end = int(partition), 0, 0
            found.codes.append(code)
            found.starts.append(start)
            found.ends.append(end)
    return found


def span(
    state: StateMachine, topic: str, number: int, start: int, end: int, max_bytes: int
) -> tuple[int, int, int]:
    """``(code, offset, bytes)``: how far ``max_bytes`` reach from ``start`` towards ``end``, and the
    bytes up to there. A run that does not fit is split as if all its messages had the same size.
    """
    partition = state.topics.find(topic, number)
    if not isinstance(partition, Partition):
        return int(partition), 0, 0
    return int(ResultCode.OK), *partition.index.span(start, end, max_bytes)
