"""The checks on hand: locked at a broker group, queued, handed to a producer, being settled.

Pure: takes ``now`` in seconds, decides, and returns what is to be done; ``TopicFeedback`` does it. A check
is held by at most one producer at a time. Losing this table costs a delay of one lease and nothing
else, so it is never stored. It must never count a check that no producer had a chance to answer.

A check is *free* if any producer of the app may be asked. One whose transaction has an owner (the producer
that prepared it) is reserved for the owner at first. It becomes free when the owner has said that it does not
run the local transaction, which stays true under the same PREPARE, or when the owner is gone (``owners``),
which holds until the owner is back. An owner without room is asked anyway, but only whether it runs the
transaction.
"""

from __future__ import annotations

import enum
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from escrowmq.feedback.asking.live_producers import CheckKey, LiveProducer, LiveProducers, Owners
from escrowmq.feedback.config import FeedbackConfig
from escrowmq.feedback.policy import Trouble, Verdict, absent_pause_s, judge, pick, running_pause_s
from escrowmq.replication.calling.answers import LockedRow
from escrowmq.replication.errors import InvalidMessage
from escrowmq.replication.format.ops import FENCE_BYTES
from escrowmq.replication.limits import GROUPS_MAX, NAME_CHARS_MAX
from escrowmq.replication.model import TransactionState

# ------------------------------------------------------------------------------------------------------------
# Arguments of producers' calls to a feedback process, all of them checked before anything is kept.
#
# The process is shared by all producers of many apps, so one malformed value in its tables would end the
# polls of all of them. The sender of one gets InvalidMessage, which names the argument; nothing has changed.

#: Checks that a producer can take or work on at a time, and answers in one call: far above any real number.
CHECKS_MAX = 1_000_000
ANSWERS_MAX = 10_000

#: (group, topic) that a check is from, and transaction id.
TopicKey = tuple[tuple[int, str], str]
#: A check under one PREPARE: its key, and the log index of the transaction's newest PREPARE.
AskedCheck = tuple[CheckKey, int]
TopicCheck = tuple[TopicKey, int]
TopicAnswer = tuple[TopicKey, TransactionState, Trouble, int]


def app_of(value: Any) -> str:
    """The name of an app."""
    return _text("app", value, NAME_CHARS_MAX)


def instance_of(value: Any) -> str:
    """The name of a producer instance."""
    return _text("instance", value, NAME_CHARS_MAX)


def room_of(value: Any) -> int:
    """How many checks the producer accepts now."""
    if type(value) is not int or not 0 <= value <= CHECKS_MAX:
        raise InvalidMessage(f"room must be a whole number from 0 to {CHECKS_MAX}, not {_shown(value)}")
    return value


def working_of(value: Any) -> list[TopicCheck]:
    """The checks that it works on: ((group, topic), transaction id, index of the PREPARE) for each."""
    rows = _rows("working", value, 3, CHECKS_MAX)
    return [(_key("working", source, tx_id), _index("working", index)) for source, tx_id, index in rows]


def fence_of(value: Any) -> bytes:
    """The name of the table that the producer answers from; empty: none."""
    if type(value) is not bytes or len(value) not in (0, FENCE_BYTES):
        raise InvalidMessage(f"fence must have {FENCE_BYTES} bytes, or none, not {_shown(value)}")
    return value


def idle_of(value: Any) -> bool:
    """Whether a producer that leaves runs no local transaction any more."""
    if type(value) is not bool:
        raise InvalidMessage(f"idle must be True or False, not {_shown(value)}")
    return value


def wait_of(value: Any) -> float:
    """How long a poll may wait, in seconds."""
    if type(value) not in (int, float) or not value >= 0:  # not "value < 0", which is False for NaN
        raise InvalidMessage(f"wait_s must be a number of seconds, 0 or more, not {_shown(value)}")
    return float(min(value, 1e9))


def answers_of(value: Any) -> list[TopicAnswer]:
    """Answers: ((group, topic), transaction id, state, trouble, index of the PREPARE) for each."""
    found = []
    for source, tx_id, state, trouble, index in _rows("answers", value, 5, ANSWERS_MAX):
        try:
            said = TransactionState(state), Trouble(trouble)
        except (ValueError, TypeError):  # TypeError: it is not even hashable
            raise InvalidMessage(
                f"answers must hold a state and a trouble by name, not {_shown(state)}, {_shown(trouble)}"
            ) from None
        found.append((_key("answers", source, tx_id), *said, _index("answers", index)))
    return found


def _rows(name: str, value: Any, columns: int, rows_max: int) -> Any:
    if type(value) not in (list, tuple) or len(value) > rows_max:
        raise InvalidMessage(f"{name} must be a list of at most {rows_max}, not {_shown(value)}")
    for row in value:
        if type(row) not in (list, tuple) or len(row) != columns:
            raise InvalidMessage(f"{name} must hold tuples of {columns}, not {_shown(row)}")
    return value


def _key(name: str, source: Any, tx_id: Any) -> TopicKey:
    if type(source) not in (list, tuple) or len(source) != 2:
        raise InvalidMessage(f"{name} must name a group and a topic, not {_shown(source)}")
    gid, topic = source
    if type(gid) is not int or not 0 <= gid < GROUPS_MAX:
        raise InvalidMessage(f"{name} must name a group by its number, not {_shown(gid)}")
    topic = _text(f"a topic in {name}", topic, NAME_CHARS_MAX)
    return (gid, topic), _text(f"a transaction id in {name}", tx_id, NAME_CHARS_MAX)


def _index(name: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise InvalidMessage(f"{name} must name a log index, not {_shown(value)}")
    return value


def _text(name: str, value: Any, characters_max: int) -> str:
    if type(value) is not str or not 0 < len(value) <= characters_max:
        raise InvalidMessage(f"{name} must be 1 to {characters_max} characters, not {_shown(value)}")
    if any("\ud800" <= c <= "\udfff" for c in value):
        raise InvalidMessage(f"{name} must be text that UTF-8 can hold, not {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    """A short text for any value."""
    if type(value) in (str, int, float, bool, type(None)):
        text = ascii(value) if type(value) is not int or value.bit_length() < 200 else "a huge number"
        return text if len(text) <= 60 else text[:57] + "..."
    size = f" of {len(value)}" if type(value) in (list, tuple, dict, bytes) else ""
    return f"{type(value).__name__}{size}"


#: Checks of its own transactions that a producer gets with one poll, with room or without.
OWN_PER_POLL = 256
#: Owners that are admitted beyond the bounds of seats and polls, because checks wait for them.
WANTED_MAX = 256
#: Checks that were free, remembered for late answers.
FREE_REMEMBERED = 4_096


class Stage(enum.Enum):
    """Where a check is."""

    QUEUED = "queued"
    HANDED = "handed"
    SETTLING = "settling"  # answered; the broker has not confirmed yet


#: The transition table. A check enters as QUEUED, and leaves from QUEUED (released, lapsed, put off) or
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
    """One locked transaction about which a producer is to be asked.

    ``instance`` is set exactly while it is HANDED; ``tried`` names those that were asked under this lock.
    ``free``: any producer may be asked; ``idle``: because the owner does not run it. ``brief``: the question
    is only whether the producer runs it.
    """

    gid: int
    row: LockedRow
    locked_at: float
    lease_until: float
    free: bool
    stage: Stage = Stage.QUEUED
    idle: bool = False
    instance: str | None = None
    handed_at: float = 0.0
    confirmed: bool = False
    brief: bool = False
    tried: set[str] = field(default_factory=set)

    @property
    def key(self) -> CheckKey:
        return self.gid, self.row.tx_id

    @property
    def owner(self) -> str:
        """The producer that prepared it; "": not known."""
        return self.row.instance


@dataclass(slots=True)
class Expired:
    """What has expired with time."""

    counted: list[CheckKey] = field(default_factory=list)
    released: list[CheckKey] = field(default_factory=list)
    lost_producers: list[str] = field(default_factory=list)
    returned: int = 0


class CheckTable:
    """All checks of one app and topic, and the producers they may go to. ``owners``: when owners polled last,
    shared by all topics of an app; without it this table starts listening at ``now``."""

    def __init__(self, config: FeedbackConfig, now: float = 0.0, owners: Owners | None = None) -> None:
        self._config = config
        self._checks: dict[CheckKey, Check] = {}
        self._queue: OrderedDict[CheckKey, None] = OrderedDict()  # free ones
        self._own: dict[str, OrderedDict[CheckKey, None]] = {}  # owner -> checks that wait for it alone
        self._on_hand: Counter[int] = Counter()
        self._put_off: list[tuple[CheckKey, float]] = []
        #: The last transaction whose table no producer here has, or comes upon, with that table's name.
        self.strange: tuple[str, bytes] | None = None
        self._were_free: OrderedDict[AskedCheck, None] = OrderedDict()
        self.owners = Owners(config.owner_gone_s, now) if owners is None else owners
        self._wanted = self.owners.wanted
        self.seats = LiveProducers(config.producers_max, config.silent_s, config.answer_s)

    # ---------------------------------------------------------------- in and out

    def room(self, gid: int, now: float) -> int:
        """Transactions worth locking in group ``gid`` now: none while no producer would accept them."""
        config = self._config
        takers = self.seats.room(now) - len(self._queue)
        return max(min(config.lock_batch, config.checks_per_group_max - self._on_hand[gid], takers), 0)

    def locked(self, gid: int, rows: Iterable[LockedRow], now: float) -> None:
        """These were locked. A row that is already on hand only has its lease renewed; one that was prepared
        again meanwhile is another check."""
        lease_until = now + self._config.lock_lease_s
        for row in rows:
            known = self._checks.get((gid, row.tx_id))
            if known is not None:
                if known.stage is Stage.SETTLING or known.row.newest_index == row.newest_index:
                    known.lease_until = lease_until
                    continue
                self._give_up(known)
            check = Check(gid, row, now, lease_until, free=not row.instance)
            self._checks[check.key] = check
            self._on_hand[gid] += 1
            self._line(check)[check.key] = None
            if not check.free:
                self._look_for_owner(check, now)

    def settled(self, gid: int, tx_ids: Iterable[str]) -> None:
        """The broker has accepted the answers (or they were given up): forget these checks."""
        for tx_id in tx_ids:
            check = self._checks.get((gid, tx_id))
            if check is not None and check.stage is Stage.SETTLING:
                self._drop(check)

    def take_put_off(self) -> list[tuple[CheckKey, float]]:
        """Checks that are to be locked again after this many seconds; each is returned once."""
        found, self._put_off = self._put_off, []
        return found

    # ---------------------------------------------------------------- producers

    def arrive(
        self, instance: str, room: int, working: Iterable[AskedCheck], now: float, fence: bytes = b""
    ) -> LiveProducer | None:
        """A poll: the producer is alive, has room for ``room`` checks, and works on ``working``, whose local
        transactions it does not run. ``fence``: the table that it answers from."""
        self.owners.heard(instance, now)
        seat = self.seats.arrive(instance, room, now, self.wanted(instance))
        if seat is None:
            return None
        seat.fence = fence
        for key, index in working:
            check = self._checks.get(key)
            if check is None or check.row.newest_index != index:
                continue
            if check.owner == instance:
                self._is_idle(check)
            if (
                check.stage is Stage.QUEUED and check.free and seat.may_answer(check.row.fence)
            ):  # its producer was believed dead, and is not
                self._hand(check, seat, now)
            if check.instance == instance:
                check.confirmed = True
        return seat

    def wanted(self, instance: str) -> bool:
        """Whether checks wait for this owner: then it is not sent away, however many are here."""
        return instance in self._wanted or instance in self._own

    def unparked(self, instance: str, now: float) -> None:
        """Its poll ended: it was online until now."""
        self.owners.heard(instance, now)
        seat = self.seats.get(instance)
        if seat is not None:
            seat.parked, seat.last_seen = False, now

    def leave(self, instance: str, *, idle: bool) -> None:
        """The producer closed: its checks go back to the queue. ``idle``: it runs no local
        transaction."""
        if idle:
            self.owners.closed(instance)
        self._unseat(instance)

    def assign(self, now: float) -> dict[str, list[Check]]:
        """Hand queued checks to parked producers; returns the checks by producer."""
        handed: dict[str, list[Check]] = {}
        for owner in list(self._own):
            seat = self.seats.get(owner)
            if seat is not None and seat.parked:
                own = [self._checks[key] for key in islice(self._own[owner], OWN_PER_POLL)]
                for check in own:
                    self._hand(check, seat, now)
                    check.brief = seat.room <= 0
                    seat.room = max(seat.room - 1, 0)
                handed[owner] = own
                self._wanted.pop(owner, None)
        if not self._queue:
            return handed
        taking = self.seats.taking(now)
        for key in list(self._queue):
            if not any(seat.parked and seat.room > 0 for seat in taking):
                break
            check = self._checks[key]
            if not self._is_anyones(check, now):
                self._give_to_owner(check, now)
                continue
            fence = check.row.fence
            able = [seat for seat in taking if seat.may_answer(fence)] if fence else taking
            if not able and not any(seat.may_answer(fence) for seat in self.seats.online(now)):
                self._wait_for_its_table(check, now)
                continue
            seat = pick(able, check.tried)
            if seat is None:
                continue
            self._hand(check, seat, now)
            check.brief = False
            seat.room -= 1
            handed.setdefault(seat.instance, []).append(check)
        return handed

    def answer(
        self, instance: str, key: CheckKey, state: TransactionState, trouble: Trouble, index: int, now: float
    ) -> Verdict | None:
        """What to do about an answer; None: nothing, because it is late, repeated, or another producer is
        asked.

        ``index``: the PREPARE under which it was asked. A late COMMITTED is as true as an early one, so it
        counts whichever producer holds the check now, even if none does. So does a late ROLLBACK, if others
        than the owner were asked because the owner does not run it.
        """
        check = self._checks.get(key)
        if check is None or check.row.newest_index != index:
            return self._late(key, state, index)
        if check.stage is Stage.SETTLING:
            return None
        running = trouble is Trouble.RUNNING and state not in _DECISIVE
        if instance == check.owner and not running:
            self._is_idle(check)
        if state is TransactionState.ROLLBACK and not self._is_anyones(check, now):
            check.tried.add(instance)
            self._give_to_owner(check, now)
            return None
        if (
            state not in _DECISIVE
            and check.instance != instance
            and not (running and instance == check.owner)
        ):
            return None
        check.tried.add(instance)
        others = check.free and self.seats.others(now, check.tried, check.row.fence)
        verdict = judge(state, trouble, others=others)
        if verdict is Verdict.PUT_OFF:
            self._put_off.append((key, running_pause_s(check.row.age_ms / 1000 + now - check.locked_at)))
            if trouble is Trouble.ELSEWHERE:
                self.strange = check.row.tx_id, check.row.fence
        self._apply(check, verdict)
        return None if verdict in (Verdict.ASK_ANOTHER, Verdict.PUT_OFF) else verdict

    def _late(self, key: CheckKey, state: TransactionState, index: int) -> Verdict | None:
        """An answer to a check that is no longer on hand."""
        if state is TransactionState.COMMITTED:
            return Verdict.COMMIT
        if state is TransactionState.ROLLBACK and (key, index) in self._were_free:
            return Verdict.ROLLBACK
        return None

    # ---------------------------------------------------------------- time

    def expire(self, now: float) -> Expired:
        """Silent producers, overdue answers, lapsed leases. Call it several times a second."""
        expired = Expired()
        for instance in self.seats.silent(now):
            expired.returned += self._unseat(instance)
            expired.lost_producers.append(instance)
        for check in list(self._checks.values()):
            if check.stage is Stage.HANDED:
                self._expire_handed(check, now, expired)
        for owner in list(self._own):
            for key in list(self._own[owner]):
                self._expire_own(self._checks[key], now)
        nobody = next(self.seats.online(now), None) is None
        for key in list(self._queue):
            check = self._checks[key]
            if nobody:
                expired.released.append(key)
                self._drop(check)
            elif self._has_lapsed(check, now):
                self._drop(check)
        return expired

    def _expire_handed(self, check: Check, now: float, expired: Expired) -> None:
        instance = check.instance
        assert instance is not None
        if not check.confirmed and now >= check.handed_at + self._config.confirm_s:
            check.tried.add(instance)
            self._back(check)
            expired.returned += 1
        elif now >= check.handed_at + self._config.answer_s:
            others = check.free and self.seats.others(now, check.tried | {instance}, check.row.fence)
            verdict = judge(TransactionState.UNKNOWN, Trouble.TIMED_OUT, others=others)
            check.tried.add(instance)
            self._apply(check, verdict)
            if verdict is Verdict.COUNT:
                expired.counted.append(check.key)

    def _expire_own(self, check: Check, now: float) -> None:
        if self._has_lapsed(check, now):
            self._drop(check)
        else:
            self._look_for_owner(check, now)

    def _has_lapsed(self, check: Check, now: float) -> bool:
        """It was not locked again: it is settled, or will come back."""
        return now >= check.lease_until + self._config.confirm_s

    # ---------------------------------------------------------------- owners

    def _is_anyones(self, check: Check, now: float) -> bool:
        """Whether others than the owner may answer ROLLBACK: not while the owner may run the local
        transaction. An owner that was gone may have come back."""
        owner = check.owner
        if not owner or check.idle:
            return True
        return not self.seats.there(owner, now) and self.owners.gone_in_s(owner, now) <= 0

    def _give_to_owner(self, check: Check, now: float) -> None:
        """Take it from whichever producer has it: the owner is back."""
        self._back(check)
        self._set_free(check, False)
        self._look_for_owner(check, now)

    def _look_for_owner(self, check: Check, now: float) -> None:
        """A queued check waits for its owner. If the owner is offline the check is put off; once it is gone
        the check is free."""
        owner = check.owner
        if check.free or self.seats.there(owner, now):
            return
        gone_in_s = self.owners.gone_in_s(owner, now)
        if gone_in_s <= 0:
            self._set_free(check, True)
            return
        self._put_off.append((check.key, absent_pause_s(self.owners.silent_s(owner, now), gone_in_s)))
        self._drop(check)
        self._wanted[owner] = None
        self._wanted.move_to_end(owner)
        if len(self._wanted) > WANTED_MAX:
            self._wanted.popitem(last=False)

    def _wait_for_its_table(self, check: Check, now: float) -> None:
        """Nobody here has the table whose rows decide: others would find no row in theirs, and say ROLLBACK.
        It is put off, and not counted."""
        age_s = check.row.age_ms / 1000 + now - check.locked_at
        self._put_off.append((check.key, running_pause_s(age_s)))
        self.strange = check.row.tx_id, check.row.fence
        self._drop(check)

    def _is_idle(self, check: Check) -> None:
        """The owner does not run it: from now on any producer may be asked."""
        if not check.idle:
            check.idle = True
            self._set_free(check, True)
            self._remember_free(check)

    def _remember_free(self, check: Check) -> None:
        self._were_free[check.key, check.row.newest_index] = None
        if len(self._were_free) > FREE_REMEMBERED:
            self._were_free.popitem(last=False)

    # ---------------------------------------------------------------- the only mutators of a check

    def _line(self, check: Check) -> OrderedDict[CheckKey, None]:
        """The queue in which it waits when it is QUEUED."""
        if check.free:
            return self._queue
        return self._own.setdefault(check.owner, OrderedDict())

    def _out_of_line(self, check: Check) -> None:
        line = self._line(check)
        line.pop(check.key, None)
        if not line and not check.free:
            del self._own[check.owner]

    def _set_free(self, check: Check, free: bool) -> None:
        if check.free is free:
            return
        if check.stage is Stage.QUEUED:
            self._out_of_line(check)
        check.free = free
        if check.stage is Stage.QUEUED:
            self._line(check)[check.key] = None

    def _move(self, check: Check, stage: Stage) -> None:
        assert (check.stage, stage) in _MOVES, f"{check.key}: {check.stage} -> {stage}"
        if check.instance is not None:
            seat = self.seats.get(check.instance)
            if seat is not None:
                seat.holding.pop(check.key, None)
            check.instance = None
        check.stage = stage
        if stage is Stage.QUEUED:
            line = self._line(check)
            line[check.key] = None
            line.move_to_end(check.key, last=False)  # it has waited longest
        else:
            self._out_of_line(check)

    def _hand(self, check: Check, seat: LiveProducer, now: float) -> None:
        self._move(check, Stage.HANDED)
        check.instance, check.handed_at, check.confirmed = seat.instance, now, False
        seat.holding[check.key] = None
        if not check.owner:
            self._remember_free(check)

    def _back(self, check: Check) -> None:
        if check.stage is not Stage.QUEUED:
            self._move(check, Stage.QUEUED)

    def _apply(self, check: Check, verdict: Verdict) -> None:
        if verdict in (Verdict.ASK_ANOTHER, Verdict.RELEASE, Verdict.PUT_OFF):
            self._back(check)
            if verdict is not Verdict.ASK_ANOTHER:
                self._drop(check)
        else:
            self._move(check, Stage.SETTLING)

    def _unseat(self, instance: str) -> int:
        seat = self.seats.remove(instance)
        if seat is None:
            return 0
        held = [self._checks[key] for key in reversed(seat.holding)]  # so that the oldest ends up in front
        for check in held:
            check.tried.add(instance)
            self._move(check, Stage.QUEUED)
        return len(held)

    def _give_up(self, check: Check) -> None:
        self._back(check)
        self._drop(check)

    def _drop(self, check: Check) -> None:
        assert check.stage is not Stage.HANDED
        self._out_of_line(check)
        del self._checks[check.key]
        self._on_hand[check.gid] -= 1

    def __len__(self) -> int:
        return len(self._checks)

    def counts(self) -> dict[str, int]:
        """Checks by stage, for operators."""
        found = Counter(check.stage.value for check in self._checks.values())
        return {stage.value: found[stage.value] for stage in Stage}


_DECISIVE = (TransactionState.COMMITTED, TransactionState.ROLLBACK)
