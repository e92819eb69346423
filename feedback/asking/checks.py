"""The checks on hand: locked at a broker group, queued, handed to a producer, being settled.

Pure: takes ``now`` in seconds, decides and says what is to be done; ``TopicFeedback`` does it. A check
is held by at most one producer at a time. Losing this table costs a delay of one lease and nothing
else, so it is never written down. It must never count a check that no producer had a chance to answer.
"""

from __future__ import annotations

import enum
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from escrowmq.feedback.asking.seats import CheckKey, ProducerSeat, Seats
from escrowmq.feedback.config import FeedbackConfig
from escrowmq.feedback.policy import Trouble, Verdict, judge, pick
from escrowmq.replication.calling.answers import LockedRow
from escrowmq.replication.model import TransactionState


class Stage(enum.Enum):
    """Where a check is."""

    QUEUED = "queued"
    HANDED = "handed"
    SETTLING = "settling"  # answered; the broker has not confirmed yet


#: The transition table. A check enters as QUEUED, and leaves from QUEUED (released, lapsed) or
#: SETTLING (settled).
_MOVES = frozenset(
    {
        (Stage.QUEUED, Stage.HANDED),
        (Stage.HANDED, Stage.QUEUED),
        (Stage.QUEUED, Stage.SETTLING),
        (Stage.HANDED, Stage.SETTLING),
    }
)


@dataclass(slots=True)
class Check:
    """One locked transaction that a producer is to be asked about.

    ``instance`` is set exactly while it is HANDED; ``tried`` names those that were asked under this lock.
    """

    gid: int
    row: LockedRow
    lease_until: float
    stage: Stage = Stage.QUEUED
    instance: str | None = None
    handed_at: float = 0.0
    confirmed: bool = False
    tried: set[str] = field(default_factory=set)

    @property
    def key(self) -> CheckKey:
        return self.gid, self.row.tx_id


@dataclass(slots=True)
class Expired:
    """What the passing of time made of the checks."""

    counted: list[CheckKey] = field(default_factory=list)
    released: list[CheckKey] = field(default_factory=list)
    lost_producers: list[str] = field(default_factory=list)
    returned: int = 0


class CheckTable:
    """All checks of one app and topic, and the producers they may go to."""

    def __init__(self, config: FeedbackConfig) -> None:
        self._config = config
        self._checks: dict[CheckKey, Check] = {}
        self._queue: OrderedDict[CheckKey, None] = OrderedDict()
        self._on_hand: Counter[int] = Counter()
        self.seats = Seats(config.producers_max, config.silent_s, config.answer_s)

    # ---------------------------------------------------------------- in and out

    def room(self, gid: int, now: float) -> int:
        """Transactions worth locking in group ``gid`` now: none while no producer would take them."""
        config = self._config
        takers = self.seats.room(now) - len(self._queue)
        return max(min(config.lock_batch, config.checks_per_group_max - self._on_hand[gid], takers), 0)

    def locked(self, gid: int, rows: Iterable[LockedRow], now: float) -> None:
        """Rows that ``lock_due`` returned. One that is on hand already just has its lease renewed."""
        lease_until = now + self._config.lock_lease_s
        for row in rows:
            key = (gid, row.tx_id)
            known = self._checks.get(key)
            if known is not None:
                known.lease_until = lease_until
                continue
            self._checks[key] = Check(gid, row, lease_until)
            self._queue[key] = None
            self._on_hand[gid] += 1

    def settled(self, gid: int, tx_ids: Iterable[str]) -> None:
        """The broker has taken the answers (or they were given up): forget these checks."""
        for tx_id in tx_ids:
            check = self._checks.get((gid, tx_id))
            if check is not None and check.stage is Stage.SETTLING:
                self._drop(check)

    # ---------------------------------------------------------------- producers

    def arrive(
        self, instance: str, room: int, working: Iterable[CheckKey], now: float
    ) -> ProducerSeat | None:
        """A poll: the producer lives, has room for so many checks, and works on ``working``."""
        seat = self.seats.arrive(instance, room, now)
        if seat is None:
            return None
        for key in working:
            check = self._checks.get(key)
            if check is None:
                continue
            if check.stage is Stage.QUEUED:  # it was believed dead, and is not
                self._hand(check, seat, now)
            if check.instance == instance:
                check.confirmed = True
        return seat

    def leave(self, instance: str) -> None:
        """The producer closed: what it held goes back to the queue."""
        self._unseat(instance)

    def assign(self, now: float) -> dict[str, list[Check]]:
        """Hand queued checks to parked producers; whom and what."""
        handed: dict[str, list[Check]] = {}
        if not self._queue:
            return handed
        taking = self.seats.taking(now)
        for key in list(self._queue):
            if not any(seat.parked and seat.room > 0 for seat in taking):
                break
            check = self._checks[key]
            seat = pick(taking, check.tried)
            if seat is None:
                continue
            self._hand(check, seat, now)
            seat.room -= 1
            handed.setdefault(seat.instance, []).append(check)
        return handed

    def answer(
        self, instance: str, key: CheckKey, state: TransactionState, trouble: Trouble, now: float
    ) -> Verdict | None:
        """What to do about an answer; None: nothing, it is late, repeated, or goes to another producer.

        A late COMMITTED or ROLLBACK is as true as an early one, so it counts whoever holds the check now,
        and even if nobody does.
        """
        check = self._checks.get(key)
        decisive = state in (TransactionState.COMMITTED, TransactionState.ROLLBACK)
        if check is None:
            return judge(state, trouble, others=False) if decisive else None
        if check.stage is Stage.SETTLING or (not decisive and check.instance != instance):
            return None
        check.tried.add(instance)
        verdict = judge(state, trouble, others=self.seats.others(now, check.tried))
        self._apply(check, verdict)
        return None if verdict in (Verdict.ASK_ANOTHER, Verdict.LEAVE) else verdict

    # ---------------------------------------------------------------- time

    def expire(self, now: float) -> Expired:
        """Dead producers, overdue answers, lapsed leases. To be called several times a second."""
        expired = Expired()
        for instance in self.seats.silent(now):
            expired.returned += self._unseat(instance)
            expired.lost_producers.append(instance)
        for check in list(self._checks.values()):
            if check.stage is Stage.HANDED:
                self._expire_handed(check, now, expired)
        nobody = next(self.seats.online(now), None) is None
        for key in list(self._queue):
            check = self._checks[key]
            if nobody:
                expired.released.append(key)
                self._drop(check)
            elif now >= check.lease_until + self._config.confirm_s:
                self._drop(check)  # nobody locked it again: it is settled, or will come back
        return expired

    def _expire_handed(self, check: Check, now: float, expired: Expired) -> None:
        instance = check.instance
        assert instance is not None
        if not check.confirmed and now >= check.handed_at + self._config.confirm_s:
            expired.returned += self._unseat(instance)
            expired.lost_producers.append(instance)
        elif now >= check.handed_at + self._config.answer_s:
            others = self.seats.others(now, check.tried | {instance})
            verdict = judge(TransactionState.UNKNOWN, Trouble.TIMED_OUT, others=others)
            check.tried.add(instance)
            self._apply(check, verdict)
            if verdict is Verdict.COUNT:
                expired.counted.append(check.key)

    # ---------------------------------------------------------------- the only mutators of a check

    def _move(self, check: Check, stage: Stage) -> None:
        assert (check.stage, stage) in _MOVES, f"{check.key}: {check.stage} -> {stage}"
        if check.instance is not None:
            seat = self.seats.get(check.instance)
            if seat is not None:
                seat.holding.pop(check.key, None)
            check.instance = None
        check.stage = stage
        if stage is Stage.QUEUED:
            self._queue[check.key] = None
            self._queue.move_to_end(check.key, last=False)  # it has waited longest
        else:
            self._queue.pop(check.key, None)

    def _hand(self, check: Check, seat: ProducerSeat, now: float) -> None:
        self._move(check, Stage.HANDED)
        check.instance, check.handed_at, check.confirmed = seat.instance, now, False
        seat.holding[check.key] = None

    def _apply(self, check: Check, verdict: Verdict) -> None:
        if verdict in (Verdict.ASK_ANOTHER, Verdict.RELEASE, Verdict.LEAVE):
            if check.stage is not Stage.QUEUED:
                self._move(check, Stage.QUEUED)
            if verdict is not Verdict.ASK_ANOTHER:
                self._drop(check)
        else:
            self._move(check, Stage.SETTLING)

    def _unseat(self, instance: str) -> int:
        seat = self.seats.remove(instance)
        if seat is None:
            return 0
        held = [self._checks[key] for key in reversed(seat.holding)]  # the oldest ends up in front
        for check in held:
            check.tried.add(instance)
            self._move(check, Stage.QUEUED)
        return len(held)

    def _drop(self, check: Check) -> None:
        assert check.stage is not Stage.HANDED
        self._queue.pop(check.key, None)
        del self._checks[check.key]
        self._on_hand[check.gid] -= 1

    def counts(self) -> dict[str, int]:
        """Checks by stage, for operators."""
        found = Counter(check.stage.value for check in self._checks.values())
        return {stage.value: found[stage.value] for stage in Stage}
