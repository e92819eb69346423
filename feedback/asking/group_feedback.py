"""One app and topic at one broker group: locks what is due there, and settles what was answered.

Two endless loops beside that of ``Branches``: locking (long poll at the leader) and settling (answers
become COMMIT, ROLLBACK or CHECKED in the log). Nothing is locked while no producer could answer, so
checks are not used up. It must never submit a decision that nobody took.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from escrowmq.feedback.asking.branches import Branches
from escrowmq.feedback.brokers import GroupLeader
from escrowmq.feedback.config import FeedbackConfig
from escrowmq.feedback.endless import endless
from escrowmq.feedback.policy import Route, Verdict, lock_pause_s, route
from escrowmq.replication.calling.answers import LockedChecks, LockedRow
from escrowmq.replication.errors import Unavailable
from escrowmq.replication.format import ops
from escrowmq.replication.model import ResultCode

log = logging.getLogger(__name__)

#: ``by`` of a rollback that the topic's policy demands; it shows in the audit trail.
BY_POLICY = "policy:check_max"
#: An answer is kept and tried again (``settle_keep_s``) when one submit, with its retries, took so long.
SUBMIT_PATIENCE_S = 10.0


#: A check that nobody was asked about is due again after so long.
RELEASED_S = 1.0


class Desk(Protocol):
    """What one group's loops need of the topic they belong to."""

    def room(self, gid: int) -> int: ...
    def anyone_online(self) -> bool: ...
    def locked(self, gid: int, rows: Sequence[LockedRow]) -> None: ...
    def settled(self, gid: int, tx_ids: Iterable[str]) -> None: ...


@dataclass(frozen=True, slots=True)
class PendingVerdict:
    """An answer on its way into the log. Dropped after ``until``: the check is then repeated.

    ``index``: a rollback holds for this PREPARE only (0: for any); ``wait_s``: when a check that is put off
    is due.
    """

    tx_id: str
    verdict: Verdict
    until: float
    index: int = 0
    wait_s: float = RELEASED_S


class GroupFeedback:
    """Feedback of one app and topic at broker group ``gid``. One event loop, no Ray."""

    def __init__(
        self,
        gid: int,
        app: str,
        topic: str,
        owner: str,
        leaders: Mapping[int, GroupLeader],
        desk: Desk,
        config: FeedbackConfig,
    ) -> None:
        self.gid, self.app, self.topic, self.owner = gid, app, topic, owner
        self.counts: Counter[str] = Counter()
        self.wake = asyncio.Event()  # set when locking may have become worthwhile
        self._leaders, self._leader = leaders, leaders[gid]
        self._desk, self._config = desk, config
        self._outbox: deque[PendingVerdict] = deque()
        self._to_settle = asyncio.Event()
        self._branches = Branches(gid, app, topic, leaders, self.settle, desk.anyone_online, config)
        self._empty_in_a_row = 0

    async def run(self) -> None:
        """Until cancelled."""
        what = f"feedback of app {self.app!r}, topic {self.topic!r} at group {self.gid}"
        steps = {"locking": self._lock_once, "settling": self._settle_once, "branches": self._branches.step}
        await asyncio.gather(*(endless(step, self.counts, f"{what}, {n}") for n, step in steps.items()))

    # ---------------------------------------------------------------- locking

    async def _lock_once(self) -> None:
        room = self._desk.room(self.gid)
        if room <= 0:
            self.wake.clear()
            await self.wake.wait()
            return
        config = self._config
        asked_at = _now()
        status, *rest = await self._leader.ask(
            "lock_due",
            self.app,
            self.topic,
            room,
            config.lock_lease_s,
            config.lock_wait_s,
            self.owner,
            patience_s=2 * config.lock_wait_s + 2.0,  # a poll may start anew at another leader
        )
        if status != "ok":
            raise Unavailable(f"group {self.gid} answers {status} to lock_due")
        locked: LockedChecks = rest[0]
        if locked.tx_ids:
            self._empty_in_a_row = 0
            self._take(locked.rows())
            return
        self._empty_in_a_row += 1
        pause = lock_pause_s(self._empty_in_a_row, _now() - asked_at, config.lock_wait_s)
        if pause > 0:
            await asyncio.sleep(pause)
        else:
            self._empty_in_a_row = 0

    def _take(self, rows: Sequence[LockedRow]) -> None:
        self.counts["locked"] += len(rows)
        for_producers = []
        for row in rows:
            kind = route(row)
            if kind is Route.PRODUCER:
                for_producers.append(row)
            elif kind is Route.TOPIC_POLICY:
                self.settle(row.tx_id, Verdict.EXPIRE, row.newest_index)
            else:
                self._branches.locked(row)
        if for_producers:
            self._desk.locked(self.gid, for_producers)

    # ---------------------------------------------------------------- settling

    def has_room(self) -> bool:
        """Whether ``settle`` takes another answer."""
        return len(self._outbox) < self._config.settle_queue_max

    def settle(self, tx_id: str, verdict: Verdict, index: int = 0, wait_s: float = RELEASED_S) -> bool:
        """Queue an answer; False when the queue is full (the caller comes back). See ``PendingVerdict``."""
        if not self.has_room():
            return False
        until = _now() + self._config.settle_keep_s
        self._outbox.append(PendingVerdict(tx_id, verdict, until, index, wait_s))
        self._to_settle.set()
        return True

    async def _settle_once(self) -> None:
        if not self._outbox:
            self._to_settle.clear()
            await self._to_settle.wait()
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
        except Exception:  # a bug: these checks are repeated, the others must not wait behind them
            self._desk.settled(self.gid, [item.tx_id for item in batch])
            raise
        finally:
            await self._count_and_put_off(list(dict.fromkeys(counted)), put_off)

    async def _submit_decisions(self, decided: Mapping[Verdict, Mapping[str, int]]) -> None:
        """``decided``: for each verdict, transactions and the PREPARE that it holds for."""
        frames, asked = [], []
        for verdict, indexes in decided.items():
            for ids, frame in self._frames(verdict, indexes):
                asked.append((verdict, ids))
                frames.append(frame)
        results = await self._submit(b"".join(frames), repeatable=True)
        for (verdict, ids), result in zip(asked, results, strict=True):
            self._note(verdict, ids, result)
            self._desk.settled(self.gid, ids)

    def _frames(self, verdict: Verdict, indexes: Mapping[str, int]) -> Iterator[tuple[Sequence[str], bytes]]:
        """The operations of one verdict. A rollback names the PREPAREs that it holds for, where the group's
        format level knows them: what was prepared again since the check began is not rolled back by it."""
        if verdict is Verdict.COMMIT:
            yield list(indexes), ops.commit(self.app, list(indexes), by="feedback")
            return
        by = BY_POLICY if verdict is Verdict.EXPIRE else "feedback"
        under = {tx_id: index for tx_id, index in indexes.items() if index > 0}
        plain = [tx_id for tx_id, index in indexes.items() if index <= 0]
        if plain:
            yield plain, ops.rollback(self.app, plain, by=by)
        if under:
            yield list(under), ops.rollback_under(self.app, list(under), by, list(under.values()))

    def _note(self, verdict: Verdict, ids: Sequence[str], result: Sequence[Any]) -> None:
        """A refused decision is final, too: the first durable one stands."""
        self.counts[verdict.value] += len(ids)
        if result[0] != ResultCode.PARTIAL:
            return
        for place, code, info in result[1]:
            if code == ResultCode.RETRY:
                self.counts["prepared_again"] += (
                    1  # or another decision is on its way: asked again, if need be
                )
            if code == ResultCode.TX_CONFLICT:
                self.counts["conflicts"] += 1
                log.warning(
                    "the answer %s for transaction %r of app %r came too late: it is recorded as %s",
                    verdict.value,
                    ids[place],
                    self.app,
                    info,
                )

    async def _count_and_put_off(self, counted: list[str], put_off: Mapping[str, float]) -> None:
        """Not repeated when their fate is unknown: a check counted twice would be half used up, and what is
        neither counted nor put off just comes back when its lease ends."""
        try:
            if counted:
                await self._submit(ops.checked(self.app, counted), repeatable=False)
                self.counts["unknown"] += len(counted)
            if put_off:
                waits_ms = [int(wait_s * 1000) for wait_s in put_off.values()]
                args = (self.app, self.topic, list(put_off), self.owner, waits_ms)
                await self._leader.ask("release_locks", *args, patience_s=2.0)
        except Unavailable:
            self.counts["unavailable"] += 1
        finally:
            self._desk.settled(self.gid, counted)

    def _keep(self, items: Iterable[PendingVerdict]) -> None:
        """Put decisions back that could not be submitted, unless they are too old."""
        now = _now()
        for item in reversed(list(items)):
            if now < item.until:
                self._outbox.appendleft(item)
            else:
                self._desk.settled(self.gid, [item.tx_id])

    async def _submit(self, request: bytes, *, repeatable: bool) -> Sequence[Sequence[Any]]:
        """The results of a request, through overload and lost leaders; Unavailable in the end."""
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
