"""One app and topic at one broker group: takes what was locked there, and settles what was answered.

Answers become COMMIT, ROLLBACK or CHECKED in the log, in a task that runs only while there is work, so
an idle pair costs nothing. The shard does the locking, for all pairs at once (``due_watch``). Branches of
other groups' transactions are not locked. This must never submit a decision that no answer or policy made.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from escrowmq.feedback.brokers import GroupLeader
from escrowmq.feedback.config import FeedbackConfig
from escrowmq.feedback.policy import Route, Verdict, endless, route
from escrowmq.replication.calling.answers import LockedRow, Standing
from escrowmq.replication.errors import Unavailable
from escrowmq.replication.format import ops
from escrowmq.replication.model import ResultCode, TransactionState

# ------------------------------------------------------------------------------------------------------------
# Before a check commits: whether all of the transaction is prepared, in every participating group.
#
# The application's answer is about its own key, and it may have used that key again under another transaction
# id: then "committed" is true, but this transaction was never prepared everywhere. Committing it would
# publish a part of it. So every group is asked through its log. What is prepared cannot vanish before home
# decides, so there is no race between this inquiry and the COMMIT.

#: Answers come within milliseconds; while a group elects a leader, it is asked again later.
PATIENCE_S = 2.0


@dataclass(slots=True)
class PreparedCheck:
    """``alone``: in one group. ``across``: over several groups and complete, with home's record of each.
    ``lacking``: why one cannot be committed. ``later``: a group has not answered."""

    alone: list[str] = field(default_factory=list)
    across: dict[str, int] = field(default_factory=dict)
    lacking: dict[str, str] = field(default_factory=dict)
    later: list[str] = field(default_factory=list)


async def look(
    leaders: Mapping[int, GroupLeader], home: int, app: str, tx_ids: Sequence[str]
) -> PreparedCheck:
    """The states of these transactions, whose home is ``home``. Raises Unavailable if home does not
    answer."""
    found = PreparedCheck()
    if len(leaders) == 1:
        found.alone += tx_ids  # its leader checks the parts itself
        return found
    rows = await _inquire(leaders[home], app, dict.fromkeys(tx_ids, -1))
    wanted: dict[int, dict[str, int]] = {}
    for tx_id, row in rows.items():
        if row.state != TransactionState.PREPARE.value or not row.groups:
            found.alone.append(tx_id)
            continue
        found.across[tx_id] = row.home_index
        if not row.whole:
            found.lacking[tx_id] = row.lacking(home)
        for group in row.groups:
            wanted.setdefault(group, {})[tx_id] = row.home_index
    await asyncio.gather(*(_look_at(leaders, group, home, app, ids, found) for group, ids in wanted.items()))
    for tx_id in (*found.lacking, *found.later):
        found.across.pop(tx_id, None)
    found.later = [tx_id for tx_id in dict.fromkeys(found.later) if tx_id not in found.lacking]
    return found


async def _look_at(
    leaders: Mapping[int, GroupLeader],
    group: int,
    home: int,
    app: str,
    ids: Mapping[str, int],
    found: PreparedCheck,
) -> None:
    try:
        rows = await _inquire(leaders[group], app, ids)
    except Unavailable:
        found.later += ids
        return
    for tx_id in ids:
        if not rows[tx_id].is_branch_of(home):
            found.lacking[tx_id] = rows[tx_id].lacking(group, home)


async def _inquire(leader: GroupLeader, app: str, ids: Mapping[str, int]) -> dict[str, Standing]:
    """Raises Unavailable."""
    request = ops.inquire(app, list(ids), list(ids.values()))
    status, *rest = await leader.ask("submit", request, patience_s=PATIENCE_S)
    if status != "ok" or rest[0][0][0] != ResultCode.OK:
        raise Unavailable(f"group {leader.gid} answers {status} to INQUIRE", 0.5)
    return {tx_id: Standing(*row) for tx_id, row in zip(ids, rest[0][0][1], strict=True)}


log = logging.getLogger(__name__)

#: ``by`` of a rollback that the topic's policy demands; shown in the audit trail.
BY_POLICY = "policy:check_max"
#: An answer is kept and tried again (``settle_keep_s``) if one submit, with its retries, took this long.
SUBMIT_PATIENCE_S = 10.0


#: A check about which no producer was asked is due again after this time.
RELEASED_S = 1.0


class CheckHolder(Protocol):
    """What one group's part needs from its topic."""

    def locked(self, gid: int, rows: Sequence[LockedRow]) -> None: ...
    def settled(self, gid: int, tx_ids: Iterable[str]) -> None: ...


@dataclass(frozen=True, slots=True)
class Way:
    """The way to the broker groups, shared by all apps and topics of one process.

    ``owner`` names this incarnation of the process: a predecessor must not release its
    successor's leases. ``slots``: limits submits under way at a time, first come, first served.
    """

    owner: str
    leaders: Mapping[int, GroupLeader]
    slots: Mapping[int, asyncio.Semaphore]
    config: FeedbackConfig


@dataclass(frozen=True, slots=True)
class PendingVerdict:
    """An answer on its way into the log. Dropped after ``until``: then the check is repeated.

    ``index``: a rollback applies only to this PREPARE; ``wait_s``: when a check that is put off is due.
    """

    tx_id: str
    verdict: Verdict
    until: float
    index: int = 0
    wait_s: float = RELEASED_S


class GroupFeedback:
    """Feedback of one app and topic at broker group ``gid``. One event loop, no Ray."""

    def __init__(self, gid: int, app: str, topic: str, way: Way, desk: CheckHolder) -> None:
        self.gid, self.app, self.topic = gid, app, topic
        self.counts: Counter[str] = Counter()
        self._way, self._desk, self._config = way, desk, way.config
        self._leader = way.leaders[gid]
        self._outbox: deque[PendingVerdict] = deque()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def busy(self) -> bool:
        """Whether something is still to be settled here."""
        return bool(self._tasks)

    async def close(self) -> None:
        """End what is under way; what was not settled is asked again."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _run(self, name: str, step: Callable[[], Any], more: Callable[[], bool]) -> None:
        """Repeat ``step`` in a task while there is ``more``, unless that task is already running."""
        if name in self._tasks or not more():
            return
        what = f"feedback of app {self.app!r}, topic {self.topic!r} at group {self.gid}, {name}"
        task = asyncio.create_task(endless(step, self.counts, what, more))
        self._tasks[name] = task

        def ended(_: asyncio.Task[None]) -> None:
            del self._tasks[name]
            if not task.cancelled():
                self._run(name, step, more)  # for work that arrived after its last look
                self._desk.settled(self.gid, ())

        task.add_done_callback(ended)

    # ---------------------------------------------------------------- locking

    def take(self, rows: Sequence[LockedRow]) -> None:
        """These were locked. One that cannot be routed is left to its lease, and does not delay others."""
        self.counts["locked"] += len(rows)
        for_producers = []
        for row in rows:
            try:
                kind = route(row)
            except Exception:
                self.counts["errors"] += 1
                log.exception(
                    "transaction %r of app %r cannot be routed",
                    *(row.tx_id, self.app),
                    extra=self._logged(row.tx_id),
                )
                continue
            if kind is Route.PRODUCER:
                for_producers.append(row)
            else:
                self.settle(row.tx_id, Verdict.EXPIRE, row.newest_index)
        if for_producers:
            self._desk.locked(self.gid, for_producers)

    # ---------------------------------------------------------------- settling

    def has_room(self) -> bool:
        """Whether ``settle`` accepts another answer."""
        return len(self._outbox) < self._config.settle_queue_max

    def settle(self, tx_id: str, verdict: Verdict, index: int = 0, wait_s: float = RELEASED_S) -> bool:
        """Queue an answer; False if the queue is full (the caller comes back). See ``PendingVerdict``."""
        if not self.has_room():
            self.counts["outbox_full"] += 1
            return False
        until = _now() + self._config.settle_keep_s
        self._outbox.append(PendingVerdict(tx_id, verdict, until, index, wait_s))
        self._run("settling", self._settle_once, lambda: bool(self._outbox))
        return True

    async def _settle_once(self) -> None:
        async with self._way.slots[self.gid]:
            await self._settle_batch()

    async def _settle_batch(self) -> None:
        count = min(len(self._outbox), self._config.settle_batch)
        batch = [self._outbox.popleft() for _ in range(count)]
        decided: dict[Verdict, dict[str, int]] = {}
        counted: list[str] = []
        put_off: dict[str, float] = {}
        for item in batch:
            if item.verdict is Verdict.COUNT:
                counted.append(item.tx_id)
            elif item.verdict in (Verdict.RELEASE, Verdict.PUT_OFF):
                put_off[item.tx_id] = item.wait_s
            else:
                decided.setdefault(item.verdict, {})[item.tx_id] = item.index
        try:
            if decided:
                await self._submit_decisions(decided)
        except Unavailable:
            self._keep([item for item in batch if item.verdict in decided])
            raise
        except Exception:  # a bug: these checks are repeated, and the others must not wait behind them
            self._desk.settled(self.gid, [item.tx_id for item in batch])
            raise
        finally:
            await self._count_and_put_off(list(dict.fromkeys(counted)), put_off)

    async def _submit_decisions(self, decided: Mapping[Verdict, Mapping[str, int]]) -> None:
        """``decided``: for each verdict, transactions and the PREPARE that it applies to."""
        asked: list[tuple[Verdict, Sequence[str], bytes]] = []
        for verdict, indexes in decided.items():
            if verdict is Verdict.COMMIT:
                asked += [(verdict, *commit) for commit in await self._commits(list(indexes))]
            else:
                asked.append((verdict, list(indexes), self._rollback(verdict, indexes)))
        if not asked:
            return
        results = await self._submit(b"".join(frame for *_, frame in asked), repeatable=True)
        lacking: dict[str, str] = {}
        for (verdict, ids, _), result in zip(asked, results, strict=True):
            lacking.update(self._note(verdict, ids, result))
            self._desk.settled(self.gid, ids)
        await self._park(lacking)

    def _rollback(self, verdict: Verdict, indexes: Mapping[str, int]) -> bytes:
        """It names the PREPAREs that it applies to: a transaction that was prepared again since the check
        began is not rolled back by it."""
        by = BY_POLICY if verdict is Verdict.EXPIRE else "feedback"
        return ops.rollback(self.app, list(indexes), by, newest_index=list(indexes.values()))

    async def _commits(self, tx_ids: list[str]) -> list[tuple[list[str], bytes]]:
        """COMMITs of transactions that are prepared everywhere. Others are parked; if that cannot be
        determined now, they come back when their lease ends."""
        looked = await look(self._way.leaders, self.gid, self.app, tx_ids)
        self._desk.settled(self.gid, [*looked.later, *looked.lacking])
        await self._park(looked.lacking)
        commits: list[tuple[list[str], bytes]] = []
        if looked.alone:
            commits.append((looked.alone, ops.commit(self.app, looked.alone, by="feedback")))
        if looked.across:
            ids, indexes = list(looked.across), list(looked.across.values())
            commits.append((ids, ops.commit(self.app, ids, "feedback", indexes)))
        return commits

    async def _park(self, lacking: Mapping[str, str]) -> None:
        """Park these for a person: neither this check nor another one can decide them."""
        by_reason: dict[str, list[str]] = {}
        for tx_id, reason in lacking.items():
            by_reason.setdefault(reason, []).append(tx_id)
        for reason, ids in by_reason.items():
            self.counts["parked"] += len(ids)
            log.warning(
                "transactions of app %r are parked (%s), such as %r",
                *(self.app, reason, ids[0]),
                extra=self._logged(ids[0]),
            )
            await self._submit(ops.checked(self.app, ids, f"NotFullyPrepared: {reason}"), repeatable=True)

    def _note(self, verdict: Verdict, ids: Sequence[str], result: Sequence[Any]) -> dict[str, str]:
        """A refused decision is final too: the first durable one counts. Returns what is not prepared, and
        why."""
        self.counts[verdict.value] += len(ids)
        lacking: dict[str, str] = {}
        if result[0] != ResultCode.PARTIAL:
            return lacking
        for i, code, info in result[1]:
            if code == ResultCode.NOT_PREPARED:
                lacking[ids[i]] = f"parts are missing in group {self.gid}"
            if code == ResultCode.RETRY:  # or another decision is on its way: checked again, if need be
                self.counts["prepared_again"] += 1
            if code == ResultCode.TX_CONFLICT:
                self.counts["conflicts"] += 1
                log.warning(
                    "the answer %s for transaction %r of app %r came too late: it is recorded as %s",
                    verdict.value,
                    ids[i],
                    self.app,
                    info,
                    extra=self._logged(ids[i]),
                )
        return lacking

    def _logged(self, tx_id: str) -> dict[str, str]:
        """Keys of a line of JSON."""
        return {"tx_id": tx_id, "app": self.app, "topic": self.topic}

    async def _count_and_put_off(self, counted: list[str], put_off: Mapping[str, float]) -> None:
        """Not repeated if the outcome is unknown: a check that is counted twice would use up two, and one
        that is neither counted nor put off simply comes back when its lease ends."""
        try:
            if counted:
                await self._submit(ops.checked(self.app, counted), repeatable=False)
                self.counts["unknown"] += len(counted)
            if put_off:
                waits_ms = [int(wait_s * 1000) for wait_s in put_off.values()]
                args = (self.app, self.topic, list(put_off), self._way.owner, waits_ms)
                await self._leader.ask("release_locks", *args, patience_s=2.0)
        except Unavailable:
            self.counts["unavailable"] += 1
        finally:
            self._desk.settled(self.gid, counted)

    def _keep(self, items: Iterable[PendingVerdict]) -> None:
        """Put back decisions that could not be submitted, unless they are too old."""
        now = _now()
        for item in reversed(list(items)):
            if now < item.until:
                self._outbox.appendleft(item)
            else:
                self._desk.settled(self.gid, [item.tx_id])

    async def _submit(self, request: bytes, *, repeatable: bool) -> Sequence[Sequence[Any]]:
        """The results of a request, through overload and lost leaders; finally raises Unavailable."""
        give_up = _now() + SUBMIT_PATIENCE_S
        while True:
            patience = max(give_up - _now(), 0.0)
            answer = await self._leader.ask("submit", request, patience_s=patience, repeatable=repeatable)
            status = answer[0]
            if status == "ok":
                results: Sequence[Sequence[Any]] = answer[1]
                return results
            if status == "malformed":
                raise AssertionError(f"broker refused our own request: {answer[1]}")
            if status == "unknown" and not repeatable:
                raise Unavailable("the leader was lost while a check was being counted", 0.5)
            pause = float(answer[1]) if status in ("overloaded", "disk_full") else 0.05
            if _now() + pause >= give_up:
                raise Unavailable(f"group {self.gid} refuses answers ({status})", pause)
            await asyncio.sleep(pause)

    def status(self) -> dict[str, Any]:
        """For operators."""
        return {
            "gid": self.gid,
            "leader": self._leader.leader,
            "term": self._leader.term,
            "answers_waiting": len(self._outbox),
            "counts": dict(self.counts),
        }


def _now() -> float:
    return asyncio.get_running_loop().time()
