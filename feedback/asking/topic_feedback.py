"""Feedback of one app and topic: locked transactions are matched with producers, and their answers settled.

A plain class, hosted with many others in one process (``shard``), which tells it of producers that poll and
of what was locked for it. It has its own bounds and its own state, all of it in memory, and all of it may be
lost: leases end, and producers come back. It must never hand one check to two producers at a time, nor hold
more than its bounds.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from typing import Any, Protocol

from escrowmq.feedback.asking.checks import AskedCheck, Check, CheckTable
from escrowmq.feedback.asking.group_feedback import GroupFeedback, Way
from escrowmq.feedback.asking.live_producers import CheckKey, Owners
from escrowmq.feedback.policy import Trouble, Verdict
from escrowmq.feedback.states import feedback_name
from escrowmq.replication.calling.answers import LockedRow
from escrowmq.replication.model import TransactionState

log = logging.getLogger(__name__)

#: How often the log repeats that nobody has the table of some transactions.
SAY_EVERY_S = 60.0
#: Where a check comes from: broker group and topic. Producers return it unchanged with their answers.
GroupTopic = tuple[int, str]
#: What a poll hands out per check: where it comes from, transaction id, query id, checks so far, seconds to
#: answer (0: only whether the producer runs it), log index of its newest PREPARE, the table whose rows decide
#: (empty: none).
Handed = tuple[GroupTopic, str, str, int, float, int, bytes]


class Host(Protocol):
    """What a TopicFeedback needs from its process."""

    def hand(self, pair: TopicFeedback, instance: str, checks: list[Handed]) -> None: ...
    def lost(self, pair: TopicFeedback, instance: str) -> None: ...
    def changed(self, pair: TopicFeedback) -> None: ...
    def lacks(self, app: str, fence: bytes) -> None: ...
    def now(self) -> float: ...


class TopicFeedback:
    """One event loop. Nothing runs here on its own except settling; ``close`` ends that."""

    def __init__(self, app: str, topic: str, way: Way, host: Host, owners: Owners) -> None:
        self.app, self.topic = app, topic
        self.counts: Counter[str] = Counter()
        #: Since when it has had nothing to do.
        self.idle_since = host.now()
        self._way, self._host, self._config = way, host, way.config
        self._table = CheckTable(way.config, owners=owners)
        self._groups: dict[int, GroupFeedback] = {}
        self._say_strange_at = float("-inf")

    async def close(self) -> None:
        """End what is under way. Leases end by themselves."""
        for group in self._groups.values():
            await group.close()

    @property
    def working(self) -> bool:
        """Whether checks are on hand, which need time to be finished."""
        return len(self._table) > 0 or any(group.busy for group in self._groups.values())

    # ---------------------------------------------------------------- of producers

    def arrive(
        self,
        instance: str,
        room: int,
        working: Iterable[AskedCheck],
        now: float,
        *,
        parked: bool,
        fence: bytes = b"",
    ) -> None:
        """A producer of the app polled at ``now``: it takes ``room`` checks, and works on ``working``."""
        seat = self._table.arrive(instance, room, working, now, fence)
        if seat is not None:
            seat.parked = parked

    def wants(self, instance: str) -> bool:
        """Whether checks wait for this owner: then it is not sent away, however many are here."""
        return self._table.wanted(instance)

    def depart(self, instance: str, now: float) -> None:
        """Its poll ended; it may poll again in a moment, or not."""
        self._table.unparked(instance, now)

    def leave(self, instance: str, *, idle: bool) -> None:
        """It closed: its checks go to the others; also those of its own transactions, if it runs none."""
        self._table.leave(instance, idle=idle)

    def forget_but(self, online: Set[str]) -> None:
        """Remove all that are not ``online``: they have left, as far as the process knows."""
        for instance in [name for name in self._table.seats.names() if name not in online]:
            self._table.leave(instance, idle=False)

    def answer(
        self, instance: str, key: CheckKey, state: TransactionState, trouble: Trouble, index: int
    ) -> bool:
        """An answer; False: too many wait for their submit, send it again."""
        group = self._group(key[0])
        if group is None:
            return True
        if not group.has_room():
            return False
        self.counts[f"answered_{state.value}"] += 1
        verdict = self._table.answer(instance, key, state, trouble, index, self._host.now())
        if verdict is not None:
            group.settle(key[1], verdict, index)
        return True

    def match(self) -> None:
        """Hand queued checks to parked producers; put off at the leader what no producer can answer yet."""
        for (gid, tx_id), wait_s in self._table.take_put_off():
            self.counts["put_off"] += 1
            group = self._group(gid)
            if group is not None:
                group.settle(tx_id, Verdict.PUT_OFF, wait_s=wait_s)
        for instance, checks in self._table.assign(self._host.now()).items():
            self.counts["handed"] += len(checks)
            self._host.hand(self, instance, [self._handed(check) for check in checks])
        if self._table.strange is not None:
            self._say_strange(*self._table.strange)
            self._table.strange = None

    def _say_strange(self, tx_id: str, fence: bytes) -> None:
        self.counts["without_their_table"] += 1
        self._host.lacks(self.app, fence)
        now = self._host.now()
        if now >= self._say_strange_at:
            self._say_strange_at = now + SAY_EVERY_S
            log.warning(
                "transactions of app %r, topic %r, such as %r, wait for a producer whose fence has the table "
                "%s: those that are online have another one, or none, or their connections lead elsewhere "
                "(their logs say where). Start one with that database, or decide with escrowmq txn",
                *(self.app, self.topic, tx_id, fence.hex()),
                extra={"tx_id": tx_id, "app": self.app, "topic": self.topic},
            )

    def _handed(self, check: Check) -> Handed:
        row = check.row
        answer_s = 0.0 if check.brief else self._config.answer_s
        source = check.gid, self.topic
        return source, row.tx_id, row.query_id, row.checks, answer_s, row.newest_index, row.fence

    # ---------------------------------------------------------------- of broker groups

    def room(self, gid: int) -> int:
        """How many transactions are worth locking at this group now."""
        return self._table.room(gid, self._host.now())

    def take(self, gid: int, rows: Sequence[LockedRow]) -> None:
        """Transactions were locked for it: find producers for them."""
        group = self._group(gid)
        if group is not None and rows:
            group.take(rows)

    def locked(self, gid: int, rows: Sequence[LockedRow]) -> None:
        """See ``CheckHolder``."""
        self._table.locked(gid, rows, self._host.now())
        self.match()

    def settled(self, gid: int, tx_ids: Iterable[str]) -> None:
        """See ``CheckHolder``. The broker accepted the answers: there may be room for more."""
        self._table.settled(gid, tx_ids)
        self._host.changed(self)

    def _group(self, gid: int) -> GroupFeedback | None:
        group = self._groups.get(gid)
        if group is None and gid in self._way.leaders:
            group = self._groups[gid] = GroupFeedback(gid, self.app, self.topic, self._way, self)
        return group

    # ---------------------------------------------------------------- time

    def tick(self) -> None:
        """Deadlines. Call it several times a second while it is ``working``."""
        expired = self._table.expire(self._host.now())
        for instance in expired.lost_producers:
            self._host.lost(self, instance)
        self.counts["producers_lost"] += len(expired.lost_producers)
        self.counts["checks_returned"] += expired.returned
        for gid, tx_id in expired.counted:
            self._settle_expired(gid, tx_id, Verdict.COUNT)
        for gid, tx_id in expired.released:
            group = self._group(gid)
            if group is not None:
                group.settle(tx_id, Verdict.RELEASE)
        self.match()

    def _settle_expired(self, gid: int, tx_id: str, verdict: Verdict) -> None:
        group = self._group(gid)
        if group is None or not group.settle(tx_id, verdict):
            self.settled(gid, [tx_id])  # no room to count it: its lease ends, and it is asked again

    def status(self) -> dict[str, Any]:
        """For operators: producers online, checks on hand, and event counts."""
        now = self._host.now()
        return {
            "name": feedback_name(self.app, self.topic),
            "app": self.app,
            "topic": self.topic,
            "producers": sorted(seat.instance for seat in self._table.seats.online(now)),
            "checks": self._table.counts(),
            "counts": dict(self.counts),
            "groups": [group.status() for group in self._groups.values()],
        }
