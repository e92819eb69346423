"""Share consumers' calls for leases, in threads of the broker: who waits how long, and reading the messages.

The dispatcher in the replica's thread decides (replica/lease_dispatcher.py); here a thread waits for it,
and then reads the bodies, as fetches do. Half of the threads may wait for messages; further callers are
answered at once with what there is, and told when to ask again.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from operator import le, lt
from typing import TYPE_CHECKING, Any

from escrowmq.replication.calling.answers import AcquiredRow, PartitionRanges, Reply
from escrowmq.replication.errors import (
    Closed,
    CorruptLog,
    DamagedEntry,
    DiskFailed,
    OffsetGone,
    Overloaded,
    Unavailable,
)
from escrowmq.replication.format.internal_topics import owner_problem
from escrowmq.replication.format.settings import LEASE_MS
from escrowmq.replication.host.reads import MENDING_S
from escrowmq.replication.host.running_replica import NOT_RUNNING, RunningReplica
from escrowmq.replication.replica.fetching import FETCH_BYTES_MAX, Join, in_bytes, read_runs
from escrowmq.replication.replica.lease_dispatcher import AcquireRequest
from escrowmq.replication.sharing.pieces import UNNUMBERED
from escrowmq.replication.sharing.ranges import Range

if TYPE_CHECKING:
    from escrowmq.replication.replica.lease_dispatcher import HandedOut

#: The beginning of an ``AcquireRequest``: group, member, topics, messages, bytes, lease in ms.
Asked = tuple[str, str, tuple[str, ...], int, int, int]
#: Bounds of one call: each costs the replica's thread a few milliseconds at most.
TOPICS_MAX, RECORDS_MAX, PARTITIONS_MAX, RANGES_MAX = 1_000, 10_000, 1_000, 10_000
WAIT_S_MAX = 60.0
#: A member's id: 16 random bytes as hex.
MEMBER_CHARS = 32
#: Longer than a leader without a majority carries on.
ROUND_S = 10.0
#: Calls a second that find no slot to wait in, over all such callers; and bounds of what each is told to
#: wait.
TURNED_AWAY_PER_S, AGAIN_S = 500.0, (0.05, 10.0)


class Sharing:
    """Leases at one replica. Thread-safe; leader only."""

    def __init__(self, running: RunningReplica) -> None:
        self._running, self._desk = running, running.replica.lease_dispatcher
        self._slots = max(1, running.setup.config.share_threads // 2)
        self._lock = threading.Lock()
        self._waiting, self._turned, self._turned_at = 0, 0.0, 0.0

    def acquire(
        self,
        group: str,
        member: str,
        topics: Sequence[str],
        max_records: int,
        max_bytes: int,
        lease_s: float | None,
        wait_s: float,
        join: Join = in_bytes,
        call: int = UNNUMBERED,
        received: int = UNNUMBERED,
    ) -> Reply:
        """Messages for a member, leased to it; see calling/answers.py. ``lease_s`` None: as the group has it
        set. Raises Unavailable while what it would read is being mended, and once the replica is closed."""
        problem = _problem(group, member) or _acquire_problem(topics, max_records, max_bytes, lease_s, wait_s)
        if type(call) is not int or type(received) is not int:
            problem = "calls and answers have numbers"
        if problem:
            return "malformed", problem
        self._running.check_open()
        lease_ms = self._running.replica.state.shares.settings(group).lease_ms
        if lease_s is not None:
            lease_ms = int(min(max(lease_s * 1000, LEASE_MS[0]), LEASE_MS[1]))  # the product may be infinite
        asked = group, member, tuple(topics), max_records, min(max_bytes, FETCH_BYTES_MAX), lease_ms
        wait_s = min(wait_s, WAIT_S_MAX)
        may_wait = wait_s > 0 and self._take_slot()
        try:
            answer, number = self._ask(asked, wait_s if may_wait else 0.0, call, received)
        finally:
            if may_wait:
                self._free_slot()
        if answer[0] != "ok":
            return answer
        rows = self._read(group, member, answer[1], join)
        again_s = 0.0 if rows or may_wait or not wait_s else self._turned_away()
        return "ok", rows, lease_ms / 1000, again_s, number

    def extend(self, group: str, member: str, parts: Sequence[PartitionRanges], lease_s: float) -> Reply:
        """``("ok", parts)``: what the member does not hold (any more); the rest is leased for ``lease_s``
        from now on."""
        problem = _problem(group, member) or _ranges_problem(parts) or _seconds_problem("lease_s", lease_s)
        if problem:
            return "malformed", problem
        lease_ms, running, desk = int(min(lease_s * 1000, LEASE_MS[1])), self._running, self._desk

        def extend(topic: str, number: int, ranges: list[Range]) -> list[Range]:
            until_ms = running.replica.monotonic_ms() + lease_ms
            return desk.extend(group, member, topic, number, ranges, until_ms)

        return self._for_each(parts, extend)

    def release(
        self, group: str, member: str, parts: Sequence[PartitionRanges], call: int = UNNUMBERED
    ) -> Reply:
        """``("ok", parts)``: what the member does not hold (any more), or not from ``call`` or an earlier
        one; the rest may be handed out at once."""
        problem = _problem(group, member) or _ranges_problem(parts)
        if type(call) is not int:
            problem = "calls have numbers"
        if problem:
            return "malformed", problem
        desk = self._desk

        def release(topic: str, number: int, ranges: list[Range]) -> list[Range]:
            return desk.release(group, member, topic, number, ranges, call)

        return self._for_each(parts, release)

    def _for_each(
        self, parts: Sequence[PartitionRanges], do: Callable[[str, int, list[Range]], list[Range]]
    ) -> Reply:
        def all_of_them() -> list[PartitionRanges]:
            lost = list[PartitionRanges]()
            for topic, number, flat in parts:
                ranges = do(topic, number, list(zip(flat[::2], flat[1::2], strict=True)))
                if ranges:
                    lost.append((topic, number, [offset for each in ranges for offset in each]))
            return lost

        return self._running.led(all_of_them)

    # -------------------------------------------------------------- waiting
    def _ask(self, asked: Asked, wait_s: float, call: int, received: int) -> tuple[Reply, int]:
        """The desk's answer and its number, after ``wait_s`` at the latest if there is nothing."""
        running, answer = self._running, Future[tuple[Reply, int]]()

        def ask() -> None:
            now_ms = running.replica.monotonic_ms()
            until_ms = now_ms + int(wait_s * 1000)
            made = AcquireRequest(
                *asked, until_ms, lambda reply: answer.set_result((reply, made.number)), call, received
            )
            self._desk.acquire(made, now_ms)

        try:
            running.driver.submit(ask)
            return answer.result(2 * wait_s + ROUND_S)
        except Overloaded as error:
            return ("overloaded", error.retry_after_s), UNNUMBERED
        except Closed:
            return NOT_RUNNING, UNNUMBERED
        except FutureTimeout as error:
            raise Unavailable(f"{running.setup} does not answer", 1.0) from error

    def _take_slot(self) -> bool:
        with self._lock:
            if self._waiting >= self._slots:
                return False
            self._waiting += 1
            return True

    def _free_slot(self) -> None:
        with self._lock:
            self._waiting -= 1

    def _turned_away(self) -> float:
        """When such a caller asks again. All of them count, those of the last second most: so a thousand
        callers make no more than some hundred calls a second together."""
        with self._lock:
            now = self._running.setup.monotonic()
            self._turned = self._turned * math.exp(min(self._turned_at - now, 0.0)) + 1
            self._turned_at = now
            return min(max(self._turned / TURNED_AWAY_PER_S, AGAIN_S[0]), AGAIN_S[1])

    # -------------------------------------------------------------- reading
    def _read(
        self, group: str, member: str, handed_out: Sequence[HandedOut], join: Join
    ) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        journal = self._running.journal
        for found in handed_out:
            size = sum(run.size for run in found.runs)
            try:
                blob = join(read_runs(journal, found.runs), size)
            except OffsetGone:  # retention overtook this read
                self._give_back(group, member, [found])
                continue
            except DamagedEntry as error:  # it is being mended
                self._give_back(group, member, handed_out)
                raise Unavailable(str(error), MENDING_S) from error
            except (CorruptLog, DiskFailed) as error:
                raise self._running.leave(error) from error
            runs = [(run.base, run.messages, run.time_ms, run.size) for run in found.runs]
            leased = [number for taken in found.taken for number in taken]
            row = AcquiredRow(found.topic, found.number, found.code, found.topic_id, runs, blob, leased)
            rows.append(tuple(row))
        return rows

    def _give_back(self, group: str, member: str, handed_out: Sequence[HandedOut]) -> None:
        parts = [
            (found.topic, found.number, [offset for taken in found.taken for offset in taken[:2]])
            for found in handed_out
            if found.taken
        ]
        if parts:
            self.release(group, member, parts)


def _problem(group: Any, member: Any) -> str:
    """What is wrong with a caller's names; "": nothing."""
    problem = owner_problem("group", group) if type(group) is str else "a group's name is a string"
    if problem is not None:
        return problem
    if type(member) is not str or len(member) != MEMBER_CHARS or not member.isalnum():
        return f"a member is {MEMBER_CHARS} characters, 16 random bytes as hex"
    return ""


def _acquire_problem(topics: Any, max_records: Any, max_bytes: Any, lease_s: Any, wait_s: Any) -> str:
    if not 0 < len(topics) <= TOPICS_MAX or any(type(topic) is not str for topic in topics):
        return f"one call names 1 to {TOPICS_MAX} topics"
    if type(max_records) is not int or not 0 < max_records <= RECORDS_MAX:
        return f"max_records must be 1 to {RECORDS_MAX}, not {max_records!r}"
    if type(max_bytes) is not int or max_bytes < 1:
        return f"max_bytes must be at least 1, not {max_bytes!r}"
    return _seconds_problem("wait_s", wait_s) or (
        "" if lease_s is None else _seconds_problem("lease_s", lease_s)
    )


def _seconds_problem(name: str, seconds: Any) -> str:
    if type(seconds) not in (int, float) or not 0 <= seconds < math.inf:
        return f"{name} must be a number of seconds, not {seconds!r}"
    return ""


def _ranges_problem(parts: Any) -> str:
    ranges = 0
    for topic, number, flat in parts:
        ranges += len(flat) // 2
        if type(topic) is not str or type(number) is not int or len(flat) % 2:
            return "each part is a topic, a partition, and first and last offsets"
        if any(type(offset) is not int for offset in flat) or not _ascend([-1, *flat]):
            return "ranges of offsets must be in ascending order, and disjoint"
    if len(parts) > PARTITIONS_MAX or ranges > RANGES_MAX:
        return f"one call names at most {PARTITIONS_MAX} partitions and {RANGES_MAX} ranges"
    return ""


def _ascend(bounds: list[int]) -> bool:
    """Whether -1 < first <= last < first <= last < ..."""
    firsts, lasts = bounds[1::2], bounds[::2]
    return all(map(lt, lasts, firsts)) and all(map(le, firsts, bounds[2::2]))
