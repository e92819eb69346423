"""Feedback of one app and topic: producers park here, broker groups are asked, checks meet producers.

The plain class inside the feedback actor. Producers call ``poll`` (long poll) and ``answer``; one
``GroupFeedback`` per broker group locks and settles. All state is in memory and may be lost: leases
end, and producers come back. It must never hand one check to two producers at a time, nor hold more
than its bounds.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from escrowmq.feedback.asking import arguments
from escrowmq.feedback.asking.checks import WANTED_MAX, Check, CheckTable
from escrowmq.feedback.asking.group_feedback import GroupFeedback
from escrowmq.feedback.asking.poll_pace import PollPace
from escrowmq.feedback.brokers import Brokers, GroupLeader
from escrowmq.feedback.config import FeedbackConfig
from escrowmq.feedback.endless import endless
from escrowmq.feedback.policy import Verdict
from escrowmq.replication.calling.answers import LockedRow

#: What a poll hands out per check: group, transaction id, query id, checks so far, seconds to answer (0: say
#: only whether its local transaction runs), and the index of the PREPARE, which comes back with the answer.
Handed = tuple[int, str, str, int, float, int]


class TopicFeedback:
    """One event loop. ``start`` before the first poll; ``close`` ends all loops."""

    def __init__(
        self,
        app: str,
        topic: str,
        groups: int,
        replicas: int,
        brokers: Brokers,
        config: FeedbackConfig,
        rng: random.Random,
    ) -> None:
        self.app, self.topic = app, topic
        self.counts: Counter[str] = Counter()
        self.last_poll_at = _now()
        self._config, self._rng = config, rng
        self._table = CheckTable(config, self.last_poll_at)
        self._pace = PollPace(config)
        self._parked: dict[str, asyncio.Future[list[Handed]]] = {}
        self._leaders = {
            gid: GroupLeader(gid, replicas, brokers, config.leader, rng) for gid in range(groups)
        }
        # Leases belong to this incarnation: one that was restarted must not release its own successor's.
        owner = f"{app}/{topic}/{rng.getrandbits(64):016x}"
        self._groups = {
            gid: GroupFeedback(gid, app, topic, owner, self._leaders, self, config) for gid in range(groups)
        }
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start the loops."""
        what = f"feedback of app {self.app!r}, topic {self.topic!r}"
        runs = [group.run() for group in self._groups.values()]
        runs.append(endless(self._tick, self.counts, f"{what}, deadlines"))
        self._tasks = [asyncio.create_task(run) for run in runs]

    async def close(self) -> None:
        """End the loops and send parked producers away. Leases end by themselves."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for leader in self._leaders.values():
            leader.close()
        for instance in list(self._parked):
            self._unpark(instance, [])

    # ---------------------------------------------------------------- producers call these

    async def poll(
        self, instance: str, room: int, working: Sequence[tuple[int, str, int]], wait_s: float
    ) -> tuple[str, Any]:
        """Checks for this producer, as soon as there are any: ``("ok", [Handed, ...])``, empty after the
        wait. ``room``: how many it takes; ``working``: (group, transaction, index) of those it has not
        answered yet, and does not run. ``("retry", seconds)``: too many producers are parked here, come back
        later.

        Raises InvalidMessage for arguments that make no sense, as ``answer`` and ``leave`` do.
        """
        instance, room = arguments.instance_of(instance), arguments.room_of(room)
        keys, wait_s = arguments.working_of(working), arguments.wait_of(wait_s)
        now = self.last_poll_at = _now()
        self._pace.arrive(instance, now)
        self._unpark(instance, [])  # a producer that polls again has given its older poll up
        places = self._config.polls_parked_max + (WANTED_MAX if self._table.wanted(instance) else 0)
        seat = self._table.arrive(instance, room, keys, now)
        if seat is None or len(self._parked) >= places:
            self.counts["polls_refused"] += 1
            return "retry", self._pace.retry_s() * self._rng.uniform(0.5, 1.5)
        waiting: asyncio.Future[list[Handed]] = asyncio.get_running_loop().create_future()
        self._parked[instance] = waiting
        seat.parked = True
        longest = min(wait_s, self._pace.wait_s()) * self._rng.uniform(0.8, 1.0)
        timer = asyncio.get_running_loop().call_later(longest, self._unpark, instance, [], waiting)
        self._match()
        try:
            return "ok", await waiting
        finally:
            timer.cancel()
            self._unpark(instance, [], waiting)

    def answer(self, instance: str, answers: Sequence[tuple[int, str, str, str, int]]) -> tuple[str, Any]:
        """Answers (group, transaction, state, trouble, index); ``("ok", n)``, or ``("retry", seconds)`` when
        too many wait for their submit (those before were taken; repeating all of them is harmless)."""
        instance, said = arguments.instance_of(instance), arguments.answers_of(answers)
        now = _now()
        for key, state, trouble, index in said:
            group = self._groups.get(key[0])
            if group is None:
                continue
            if not group.has_room():
                return "retry", 0.5
            self.counts[f"answered_{state.value}"] += 1
            verdict = self._table.answer(instance, key, state, trouble, index, now)
            if verdict is not None:
                group.settle(key[1], verdict, index)
        self._match()
        return "ok", None

    def leave(self, instance: str, idle: bool = False) -> None:
        """The producer closes: its checks go to the others at once. ``idle``: those of its own transactions
        too, since it runs none of them; else the others wait until it is gone."""
        instance, idle = arguments.instance_of(instance), arguments.idle_of(idle)
        self._unpark(instance, [])
        self._pace.leave(instance)
        self._table.leave(instance, idle=idle)
        self._match()

    # ---------------------------------------------------------------- the groups call these (Desk)

    def room(self, gid: int) -> int:
        """How many transactions are worth locking at this group now."""
        return self._table.room(gid, _now())

    def anyone_online(self) -> bool:
        """Whether a producer of the app can be asked."""
        return next(self._table.seats.online(_now()), None) is not None

    def locked(self, gid: int, rows: Sequence[LockedRow]) -> None:
        """Transactions were locked: find producers for them."""
        self._table.locked(gid, rows, _now())
        self._match()

    def settled(self, gid: int, tx_ids: Iterable[str]) -> None:
        """The broker took the answers: there may be room for more."""
        self._table.settled(gid, tx_ids)
        self._groups[gid].wake.set()

    # ---------------------------------------------------------------- within

    def _match(self) -> None:
        """Queued checks meet parked producers; what nobody can say yet is put off at the leader."""
        for (gid, tx_id), wait_s in self._table.take_put_off():
            self.counts["put_off"] += 1
            self._groups[gid].settle(tx_id, Verdict.PUT_OFF, wait_s=wait_s)
        for instance, checks in self._table.assign(_now()).items():
            self.counts["handed"] += len(checks)
            self._unpark(instance, [self._handed(check) for check in checks])
        for group in self._groups.values():
            group.wake.set()

    def _handed(self, check: Check) -> Handed:
        row = check.row
        answer_s = 0.0 if check.brief else self._config.answer_s
        return check.gid, row.tx_id, row.query_id, row.checks, answer_s, row.newest_index

    def _unpark(
        self, instance: str, checks: list[Handed], only: asyncio.Future[list[Handed]] | None = None
    ) -> None:
        """End the producer's parked poll (``only`` if it is still this one)."""
        waiting = self._parked.get(instance)
        if waiting is None or (only is not None and waiting is not only):
            return
        del self._parked[instance]
        self._table.unparked(instance, _now())
        if not waiting.done():
            waiting.set_result(checks)

    async def _tick(self) -> None:
        await asyncio.sleep(self._config.tick_s)
        expired = self._table.expire(_now())
        for instance in expired.lost_producers:
            self._unpark(instance, [])
        self.counts["producers_lost"] += len(expired.lost_producers)
        self.counts["checks_returned"] += expired.returned
        for gid, tx_id in expired.counted:
            self._settle_expired(gid, tx_id, Verdict.COUNT)
        for gid, tx_id in expired.released:
            self._groups[gid].settle(tx_id, Verdict.RELEASE)
        self._match()

    def _settle_expired(self, gid: int, tx_id: str, verdict: Verdict) -> None:
        if not self._groups[gid].settle(tx_id, verdict):
            self.settled(gid, [tx_id])  # no room to count it: its lease ends, and it is asked again

    def status(self) -> dict[str, Any]:
        """For operators: who is online, what is on hand, how often what happened."""
        now = _now()
        return {
            "app": self.app,
            "topic": self.topic,
            "producers": sorted(seat.instance for seat in self._table.seats.online(now)),
            "polls_parked": len(self._parked),
            "poll_wait_s": self._pace.wait_s(),
            "checks": self._table.counts(),
            "counts": dict(self.counts),
            "groups": [group.status() for group in self._groups.values()],
        }

    def idle_s(self) -> float:
        """How long no producer has polled."""
        return 0.0 if self._parked else _now() - self.last_poll_at


def _now() -> float:
    return asyncio.get_running_loop().time()
