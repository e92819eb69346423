"""One broker group, as seen by a process that hosts many apps and topics: it asks what came due, and locks
it.

One call is parked at the leader, which names the pairs of app and topic that have got due checks. Pairs
whose producers accept checks are then locked, many in one call. What the leader has named is remembered until
a lock call has emptied it, so nothing is asked twice and nothing is missed: a new leader names everything
again, and an app that comes back is looked up (``find``). This must never lock what no producer could accept.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Any, Protocol

from escrowmq.feedback.brokers import GroupLeader
from escrowmq.feedback.config import FeedbackConfig
from escrowmq.feedback.policy import endless, lock_pause_s
from escrowmq.replication.calling.answers import DuePairs, LockedChecks, LockedRow, OpenPairs
from escrowmq.replication.errors import Unavailable

log = logging.getLogger(__name__)

#: Pairs in one lock call: a tenth of a millisecond of the leader, in addition to what it finds due.
PAIRS_PER_CALL = 128
#: Apps in one look-up.
APPS_PER_CALL = 128
#: Answers come within milliseconds.
PATIENCE_S = 2.0


Pair = tuple[str, str]  # app, topic


class Pairs(Protocol):
    """What it needs from the process. ``news``: number of the group's latest news on a pair; None: nothing is
    due. ``free_slots``: waits until there may be further pairs, and returns how many."""

    async def free_slots(self) -> int: ...
    def due(self, gid: int, pair: Pair) -> None: ...
    def nothing_due(self, gid: int, pair: Pair, news: int) -> None: ...
    def news(self, gid: int, pair: Pair) -> int | None: ...
    def room(self, gid: int, pair: Pair) -> int: ...
    def take(self, gid: int, pair: Pair, rows: Sequence[LockedRow]) -> None: ...


class DueWatch:
    """All pairs of one process at broker group ``gid``. One event loop, three loops."""

    def __init__(
        self,
        leader: GroupLeader,
        pairs: Pairs,
        part: int,
        parts: int,
        owner: str,
        config: FeedbackConfig,
    ) -> None:
        self.gid, self.counts = leader.gid, Counter[str]()
        self._leader, self._pairs, self._config = leader, pairs, config
        self._part, self._parts, self._owner = part, parts, owner
        self._term = self._seen = 0
        self._empty_in_a_row = 0
        self._wanting: dict[Pair, None] = {}
        self._finding: dict[str, None] = {}
        self._to_lock, self._to_find = asyncio.Event(), asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        steps = {"watching": self._watch, "locking": self._lock, "finding": self._find}
        what = f"feedback process {self._part} at group {self.gid}"
        await asyncio.gather(*(endless(step, self.counts, f"{what}, {n}") for n, step in steps.items()))

    def want(self, pair: Pair) -> None:
        """It may have something due here, and its producers accept checks."""
        self._wanting[pair] = None
        self._to_lock.set()

    def find(self, app: str) -> None:
        """A producer of an unknown ``app`` came: find out what the app has open here, and what the leader has
        named while the app was unknown."""
        self._finding[app] = None
        self._to_find.set()

    # ---------------------------------------------------------------- the loops

    async def _watch(self) -> None:
        wait_s, asked_at = self._config.lock_wait_s, _now()
        status, *rest = await self._leader.ask(
            "due_pairs",
            self._term,
            self._seen,
            self._part,
            self._parts,
            wait_s,
            patience_s=2 * wait_s + 2.0,  # a poll may have to start again at another leader
        )
        found: DuePairs = self._ok("due_pairs", status, rest)
        self._term, self._seen = found.term, found.seen
        for app, topic in found.pairs:
            self._pairs.due(self.gid, (app, topic))
        if found.pairs:
            self._empty_in_a_row = 0
            return
        self._empty_in_a_row += 1
        pause = lock_pause_s(self._empty_in_a_row, _now() - asked_at, wait_s)
        if pause > 0:  # the leader has no room for another parked call
            self.counts["not_parked"] += 1
            await asyncio.sleep(pause)
        else:
            self._empty_in_a_row = 0

    async def _lock(self) -> None:
        if not self._wanting:
            self._to_lock.clear()
            await self._to_lock.wait()
        asked = self._next_to_lock(min(await self._pairs.free_slots(), PAIRS_PER_CALL))
        if not asked:
            return
        wanted = [(*pair, room) for pair, room, _ in asked]
        try:
            status, *rest = await self._leader.ask(
                "lock_pairs", wanted, self._config.lock_lease_s, self._owner, patience_s=PATIENCE_S
            )
            found: list[LockedChecks] = self._ok("lock_pairs", status, rest)
        except BaseException:
            for pair, _, _ in asked:
                self.want(pair)
            raise
        self.counts["lock_calls"] += 1
        for pair, _, _ in asked[len(found) :]:
            self.want(pair)
        for (pair, room, at), checks in zip(asked, found, strict=False):
            if len(checks.tx_ids) < room:
                self._pairs.nothing_due(self.gid, pair, at)
            self._pairs.take(self.gid, pair, checks.rows())

    def _next_to_lock(self, most: int) -> list[tuple[Pair, int, int]]:
        """The pairs that have waited longest: pair, how many it may lock, and the number of its news."""
        asked: list[tuple[Pair, int, int]] = []
        for pair in list(islice(self._wanting, most)):
            del self._wanting[pair]
            at, room = self._pairs.news(self.gid, pair), self._pairs.room(self.gid, pair)
            if at is not None and room > 0:
                asked.append((pair, room, at))
        return asked

    async def _find(self) -> None:
        if not self._finding:
            self._to_find.clear()
            await self._to_find.wait()
        apps = list(self._finding)[:APPS_PER_CALL]
        status, *rest = await self._leader.ask(
            "open_pairs", apps, self._part, self._parts, patience_s=PATIENCE_S
        )
        found: OpenPairs = self._ok("open_pairs", status, rest)
        for app in apps[: found.apps]:
            self._finding.pop(app, None)
        for app, topic in found.pairs:
            self._pairs.due(self.gid, (app, topic))

    def _ok(self, method: str, status: str, rest: Sequence[Any]) -> Any:
        if status != "ok":
            raise Unavailable(f"group {self.gid} answers {status} to {method}")
        return rest[0]

    def status(self) -> dict[str, Any]:
        """For operators."""
        return {
            "gid": self.gid,
            "leader": self._leader.leader,
            "term": self._leader.term,
            "to_lock": len(self._wanting),
            "to_find": len(self._finding),
            "counts": dict(self.counts),
        }


def _now() -> float:
    return asyncio.get_running_loop().time()
