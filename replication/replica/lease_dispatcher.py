"""Where share consumers ask a leader for messages: who waits, who is served, whose lease is over.

**Confirmed rounds.** A leader that was deposed without knowing it would hand out what was acknowledged to its
successor. So nothing is handed out before a round has shown that this replica still leads (``ReadIndex``).
One round serves all calls that wait for one. A call that finds nothing waits without a round, and takes part
in one when there is something.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from escrowmq.replication.calling.answers import Reply
from escrowmq.replication.format import share_ops
from escrowmq.replication.format.codec import Op
from escrowmq.replication.format.internal_topics import dead_topic, retry_topic
from escrowmq.replication.format.operation import OpType
from escrowmq.replication.model import ResultCode
from escrowmq.replication.sharing.leases import Doomed, Leases, Pair
from escrowmq.replication.sharing.pieces import UNNUMBERED
from escrowmq.replication.sharing.ranges import Final, Range
from escrowmq.replication.sharing.receipts import Given, Receipts
from escrowmq.replication.sharing.window import EXPIRIES_MAX, Taken
from escrowmq.replication.state.index import PartitionIndex, Run
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.topics import Partition

# ------------------------------------------------------------------------------------------------------------
# Proof that this replica still leads, before it answers what only a leader may answer (Raft's ReadIndex).
#
# A leader that was deposed without knowing it (its thread stood still, it was cut off) would tell an end of a
# partition from before what its successor has acknowledged. So such a read waits for a *round*: a majority of
# the voters answers, in this leader's term, a message that was sent after the read was asked for
# (``Replicator.leads_since``). Until then no later leader was elected, so everything that was acknowledged
# before the question is in this log; and a leader that is ready has applied it. No clock is trusted, and no
# earlier round. What waits for a round shares it, so a thousand readers cost what one does.
#
# Ongaro, "Consensus: Bridging Theory and Practice", 6.4.

T = TypeVar("T")
#: Reads that wait at one replica; beyond it, the reader is told to come back.
READS_MAX = 10_000


class Lead(Protocol):
    """What a round needs of the Raft node; see ``Replicator``."""

    @property
    def ready(self) -> bool: ...
    def check_lead(self) -> Any: ...
    def leads_since(self, check: Any) -> bool: ...


class Rounds(Generic[T]):
    """What waits for a round, and the round under way."""

    def __init__(self) -> None:
        self._next: list[T] = []
        self._asked: list[T] = []  # wait for the round under way
        self._check: Any = None
        #: Whether anything is here. (Read in every tick, hence no call.)
        self.waits = False
        #: Rounds that were begun.
        self.begun = 0

    def __len__(self) -> int:
        return len(self._next) + len(self._asked)

    def waiting(self) -> list[T]:
        """All that is here, the oldest first."""
        return [*self._asked, *self._next]

    def add(self, item: T) -> None:
        """It takes part in the next round, never in the one under way."""
        self._next.append(item)
        self.waits = True

    def over(self, raft: Lead) -> list[T] | None:
        """What the round under way has confirmed, which leaves; none if there is no round. None: the round
        goes on."""
        if self._check is None:
            return []
        if not raft.leads_since(self._check):
            return None
        self._check, confirmed, self._asked = None, self._asked, []
        self.waits = bool(self._next)
        return confirmed

    def begin(self, raft: Lead) -> bool:
        """Begin the next round, after ``over``, if something waits for one."""
        if not self._next:
            return False
        self._check, self._asked, self._next = raft.check_lead(), self._next, []
        self.begun += 1
        return True

    def drain(self) -> list[T]:
        """Leadership has ended: all that is here leaves, unconfirmed."""
        left = self.waiting()
        self._next, self._asked, self._check, self.waits = [], [], None, False
        return left


class ReadIndex:
    """Reads that wait for their round. In the replica's thread."""

    def __init__(self) -> None:
        self.rounds: Rounds[Callable[[bool], None]] = Rounds()

    @property
    def full(self) -> bool:
        """Whether no more may wait."""
        return len(self.rounds) >= READS_MAX

    def ask(self, done: Callable[[bool], None]) -> None:
        """``done(True)`` from a later ``step``, when the state here has everything that was acknowledged
        before this call; ``done(False)`` if this replica is not the leader any more."""
        self.rounds.add(done)

    def step(self, raft: Lead) -> None:
        """After whatever may have changed something, while the node is ready to lead."""
        while self.rounds.waits:
            confirmed = self.rounds.over(raft)
            if confirmed is None:
                return
            for done in confirmed:
                done(True)
            if not self.rounds.begin(raft):
                return

    def resign(self) -> None:
        """This replica does not lead, or is not ready."""
        for done in self.rounds.drain():
            done(False)


# ------------------------------------------------------------------------------------------------------------
# How far an answer to a share consumer reaches in one partition: whole runs, as far as possible.
#
# Bodies are not decoded, so a member gets the bytes of a run even if only a part of its messages is for it.
# Hence a run is divided among members only if it has more than twice as many messages as were asked for.

#: Runs looked up at a time.
RUNS_MAX = 4_096


class HandedOut(NamedTuple):
    """What was handed out of one partition, and the runs that hold it; see ``AcquiredRow``. ``number`` -1:
    this broker group has no partition of the topic, or there is no such topic."""

    topic: str
    number: int
    code: int
    topic_id: int = 0
    runs: Sequence[Run] = ()
    taken: Sequence[Taken] = ()


class Reach:
    """One answer, in one partition. ``bytes_left`` falls; ``runs`` are those in which something was taken."""

    def __init__(self, index: PartitionIndex, bytes_left: int, *, at_least_one: bool) -> None:
        """``at_least_one``: the first run is taken whatever its size."""
        self.bytes_left = bytes_left
        self._index, self._at_least_one = index, at_least_one
        self._runs: dict[int, Run] = {}

    @property
    def runs(self) -> list[Run]:
        """In order of offsets."""
        return [self._runs[base] for base in sorted(self._runs)]

    def stretch(self, first: int, last: int, wanted: int) -> int:
        """See ``sharing.window.Stretch``."""
        stop, count = first - 1, 0
        for run in self._runs_from(first, wanted):
            if run.base > last or not (run.base in self._runs or self._fits(run)):
                break
            end = min(run.base + run.messages - 1, last)
            if count + end - stop > wanted:
                if count:
                    break
                if end - stop > 2 * wanted:
                    end = stop + wanted
            if run.base not in self._runs:
                self._runs[run.base] = run
                self.bytes_left -= run.size
            count += end - stop
            stop = end
            if count >= wanted:
                break
        return stop

    def _fits(self, run: Run) -> bool:
        return run.size <= self.bytes_left or (self._at_least_one and not self._runs)

    def _runs_from(self, first: int, wanted: int) -> Iterator[Run]:
        return iter(self._index.runs_from(first, min(wanted, RUNS_MAX), max(self.bytes_left, 1)))


log = logging.getLogger(__name__)

#: Calls that wait at one leader.
ASKS_MAX = 10_000
#: Partitions looked at for those that wait, in one step: half a millisecond.
LOOKS_MAX = 1_000
#: Groups with their topics whose turn is kept.
TURNS_MAX = 10_000
#: Messages that one NACK of the leader names.
NACKED_AT_ONCE = 500
#: When a caller asks again that finds too many leases, or calls, at this leader.
FULL_RETRY_S = 1.0
#: The reason of that NACK.
EXPIRED = f"{EXPIRIES_MAX + 1} leases in a row ended without an answer from their consumers"
#: How often it is said that a group lacks its topics.
TOLD_MS = 60_000
#: How often windows of deleted partitions are looked for.
TIDY_MS = 10_000


@dataclass(slots=True)
class AcquireRequest:
    """One call. ``done`` is called once, with ``("ok", [HandedOut, ...])`` or a refusal. Times in ms.

    ``call`` and ``received``: see ``sharing/receipts.py``; ``number``: of the answer, once there is one."""

    group: str
    member: str
    topics: tuple[str, ...]
    wanted: int
    max_bytes: int
    lease_ms: int
    until_ms: int
    done: Callable[[Reply], None]
    call: int = UNNUMBERED
    received: int = UNNUMBERED
    number: int = UNNUMBERED

    @property
    def key(self) -> tuple[str, str]:
        """Whose it is."""
        return self.group, self.member


class LeaseDispatcher:
    """See the module's text. In the replica's thread. ``leases``: of this leadership. ``now_ms`` is always
    ``Replica.monotonic_ms``."""

    def __init__(
        self, state: StateMachine, nack: Callable[[bytes, Partition], None], refusal: Callable[[], Reply]
    ) -> None:
        """``nack(frame, partition)`` takes a request of the leader itself; ``refusal()``: the answer of a
        replica that does not lead."""
        self._state, self._nack, self._refusal = state, nack, refusal
        self._raft: Lead | None = None
        #: Whether a group's deletion is under way: nothing of it is handed out.
        self.is_deleting: Callable[[str], bool] = lambda group: False
        self.leases = Leases()
        self._receipts = Receipts()
        self.lead_rounds: Rounds[AcquireRequest] = Rounds()
        self.parked: deque[AcquireRequest] = deque()  # nothing there for them
        self._stirred = False  # something may be there that was not when they looked
        self._seen_index = self._tidied_ms = 0
        self._turns: dict[tuple[str, tuple[str, ...]], int] = {}  # answers by group and topics
        self._looks = 0
        self._told_ms: dict[str, int] = {}  # group -> when its next warning may come
        #: Whether something was given back or has expired, since somebody last looked and cleared this.
        self.freed = False
        self._answers = 0  # that handed something out
        #: Messages whose leases ended because the answer that brought them was lost: of this process.
        self.unreceived = 0

    def attach(self, raft: Lead) -> None:
        """The node that confirms; once, before anything else."""
        self._raft = raft

    # -------------------------------------------------------------- leadership
    def begin(self) -> None:
        """Leadership begins: whatever is not final is handed out again."""
        self.leases, self._receipts, self._stirred = Leases(), Receipts(), True

    def resign(self) -> None:
        """This replica does not lead, or is not ready: nobody is served, and nothing is leased."""
        if self.leases.windows:
            self.leases, self._receipts = Leases(), Receipts()
        if not self.waiting:
            return
        asks = [*self.lead_rounds.drain(), *self.parked]
        self.parked.clear()
        for ask in asks:
            ask.done(self._refusal())

    @property
    def waiting(self) -> int:
        """How many calls are here."""
        return len(self.lead_rounds) + len(self.parked)

    @property
    def rounds(self) -> int:
        """Rounds that were begun."""
        return self.lead_rounds.begun

    def members(self, group: str) -> list[str]:
        """Who of a group waits here, or holds something."""
        asks = [*self.lead_rounds.waiting(), *self.parked]
        return sorted({ask.member for ask in asks if ask.group == group} | self.leases.members(group))

    # -------------------------------------------------------------- calls
    def acquire(self, ask: AcquireRequest, now_ms: int) -> None:
        """Answers at once, or from a later ``step``."""
        assert self._raft is not None
        if not self._raft.ready:
            ask.done(self._refusal())
        elif self.waiting >= ASKS_MAX or self.leases.full or self._state.shares.full:
            ask.done(("overloaded", FULL_RETRY_S))
        elif self._is_late(ask, now_ms):
            ask.done(("ok", []))
        elif self._has_some(ask, now_ms):
            self.lead_rounds.add(ask)
        elif ask.until_ms <= now_ms:
            ask.done(("ok", []))
        else:
            self.parked.append(ask)

    def _is_late(self, ask: AcquireRequest, now_ms: int) -> bool:
        """Whether it is a copy of an earlier call. If not, what the member has not received is free."""
        for lost in self._receipts.called(ask.key, ask.call, ask.received, now_ms):
            held = self.leases.held(lost.pair)
            self.leases.release(lost.pair, ask.member, lost.ranges)
            self.unreceived += held - self.leases.held(lost.pair)
            self._stirred = self.freed = True
        return self._receipts.is_late(ask.key, ask.call)

    def step(self, now_ms: int) -> None:
        """After whatever may have changed something: answers from peers, entries applied, new calls."""
        if not (self.lead_rounds.waits or self.parked):
            return
        assert self._raft is not None
        applied = self._state.applied_index
        if applied != self._seen_index:
            self._seen_index, self._stirred = applied, True
        while True:
            confirmed = self.lead_rounds.over(self._raft)
            if confirmed is None:
                break
            for ask in confirmed:
                self._serve(ask, now_ms)
            if self._stirred and self.parked:
                self._look(now_ms)
            if not self.lead_rounds.begin(self._raft):
                break
        if any(ask.until_ms <= now_ms for ask in self.parked):
            over = [ask for ask in self.parked if ask.until_ms <= now_ms]
            self.parked = deque(ask for ask in self.parked if ask.until_ms > now_ms)
            for ask in over:
                ask.done(("ok", []))

    def extend(
        self, group: str, member: str, topic: str, number: int, ranges: Sequence[Range], until_ms: int
    ) -> list[Range]:
        """See ``Leases.extend``."""
        pair = self._pair(group, topic, number)
        return list(ranges) if pair is None else self.leases.extend(pair, member, ranges, until_ms)

    def release(
        self,
        group: str,
        member: str,
        topic: str,
        number: int,
        ranges: Sequence[Range],
        call: int = UNNUMBERED,
    ) -> list[Range]:
        """See ``Leases.release``."""
        pair = self._pair(group, topic, number)
        if pair is None:
            return list(ranges)
        self._stirred = self.freed = True
        return self.leases.release(pair, member, ranges, call)

    def on_timer(self, now_ms: int) -> None:
        """A few times a second, as leader: leases whose time is over."""
        expired = self.leases.expired
        for doomed in self.leases.expire(now_ms, self._final_of, self._lacks_topics):
            self._nack_all(doomed)
            if self._lacks_topics(doomed.pair):
                self._tell(doomed, now_ms)
        if self.leases.expired != expired:
            self._stirred = self.freed = True
        self._stirred = self._stirred or self.leases.doubtful  # who may get something changes with time
        if now_ms >= self._tidied_ms + TIDY_MS:
            self._tidied_ms = now_ms
            self._receipts.tidy(now_ms)
            self._told_ms = {group: ms for group, ms in self._told_ms.items() if ms > now_ms}
            for pair in self.leases.pairs():
                if pair[1] not in self._state.topics.slots:
                    self.leases.forget(pair)

    def applied(self, ops: Sequence[Op]) -> None:
        """An entry was applied while this replica leads. If the group is created again, it begins anew."""
        for op in ops:
            if op.type == OpType.DELETE_GROUP:
                for pair in self.leases.pairs():
                    if pair[0] == op.meta.group:
                        self.leases.forget(pair)

    # -------------------------------------------------------------- serving
    def _serve(self, ask: AcquireRequest, now_ms: int) -> None:
        if self._receipts.is_late(ask.key, ask.call):
            ask.done(("ok", []))
            return
        rows = self._hand_out(ask, now_ms)
        self._stirred = True  # there may be more, for somebody else
        if rows or ask.until_ms <= now_ms:
            ask.done(("ok", rows))
        else:
            self.parked.append(ask)

    def _hand_out(self, ask: AcquireRequest, now_ms: int) -> list[HandedOut]:
        rows, left, bytes_left = list[HandedOut](), ask.wanted, ask.max_bytes
        if self.is_deleting(ask.group):
            return rows
        for topic in ask.topics:
            if not self._partitions(topic):
                rows.append(HandedOut(topic, -1, int(ResultCode.UNKNOWN_TOPIC)))
        partitions = self._in_turn(ask, self._next_turn(ask))
        alone = self._alone(ask, partitions, now_ms)
        for partition in partitions:
            if left <= 0 or bytes_left <= 0:
                break
            final = self._state.shares.get(ask.group, partition)
            address = partition.topic, partition.number
            if final is None:
                rows.append(HandedOut(*address, int(ResultCode.UNKNOWN_SHARE), partition.topic_id))
                continue
            pair, end, until_ms = (ask.group, partition.slot), partition.index.end, now_ms + ask.lease_ms
            reach = Reach(partition.index, bytes_left, at_least_one=left == ask.wanted)
            if alone is None:
                if not self.leases.has_some(pair, final, end):
                    continue
                asked = end, ask.member, until_ms, left, reach.stretch
                taken = self.leases.acquire(pair, final, *asked, ask.call)
            elif pair in alone:
                taken = self.leases.acquire_alone(pair, final, ask.member, until_ms, reach.stretch, ask.call)
                left = 0
            else:
                continue
            if taken:
                code = int(ResultCode.OK)
                rows.append(HandedOut(*address, code, partition.topic_id, reach.runs, taken))
                left -= sum(last - first + 1 for first, last, _ in taken)
                bytes_left = reach.bytes_left
                self._gave(ask, pair, taken)
        return rows

    def _gave(self, ask: AcquireRequest, pair: Pair, taken: Sequence[Taken]) -> None:
        if ask.number == UNNUMBERED:
            self._answers += 1
            ask.number = self._answers
        ranges = [(first, last) for first, last, _ in taken]
        self._receipts.gave(ask.key, Given(ask.call, ask.number, pair, ranges))

    def _alone(self, ask: AcquireRequest, partitions: Sequence[Partition], now_ms: int) -> list[Pair] | None:
        """See ``Leases.alone``."""
        if not self.leases.doubtful:
            return None
        finals = [
            ((ask.group, partition.slot), final)
            for partition in partitions
            if (final := self._state.shares.get(ask.group, partition)) is not None
        ]
        return self.leases.alone(ask.member, finals, now_ms)

    def _next_turn(self, ask: AcquireRequest) -> int:
        """Of those that want the same, and of nobody else: two groups that are served by turns would each
        begin with the same half of the partitions for ever."""
        if len(self._turns) >= TURNS_MAX:
            self._turns.clear()
        turn = self._turns.get((ask.group, ask.topics), 0)
        self._turns[ask.group, ask.topics] = turn + 1
        return turn

    def _in_turn(self, ask: AcquireRequest, turn: int) -> list[Partition]:
        """Retries first, then all partitions in turn, so that none waits behind a busy one."""
        found = [p for topic in ask.topics for p in self._partitions(topic)]
        at = turn % len(found) if found else 0
        return self._partitions(retry_topic(ask.group)) + found[at:] + found[:at]

    def _partitions(self, topic: str) -> list[Partition]:
        known = self._state.topics.topics.get(topic)
        return [] if known is None else list(known.partitions.values())

    # -------------------------------------------------------------- waiting
    def _has_some(self, ask: AcquireRequest, now_ms: int) -> int:
        """In how many partitions there is something for it, or something to tell."""
        if self.is_deleting(ask.group):
            return 0  # the entry that deletes it calls up who waits here
        self._looks += 1
        partitions = self._in_turn(ask, self._looks * (LOOKS_MAX // 2))
        unknown = sum(not self._partitions(topic) for topic in ask.topics)
        alone = self._alone(ask, partitions, now_ms)
        return unknown + sum(
            self._is_some(ask.group, partition, alone) for partition in partitions[:LOOKS_MAX]
        )

    def _is_some(self, group: str, partition: Partition, alone: list[Pair] | None) -> bool:
        pair, final = (group, partition.slot), self._state.shares.get(group, partition)
        if final is None:
            return True
        return self.leases.has_some(pair, final, partition.index.end) if alone is None else pair in alone

    def _look(self, now_ms: int) -> None:
        """Call up as many of those that wait longest as there are partitions with something for them."""
        self._stirred = False
        left = LOOKS_MAX
        available: dict[tuple[str, tuple[str, ...], str], int] = {}
        for _ in range(len(self.parked)):
            ask = self.parked.popleft()
            key = ask.group, ask.topics, ask.member if self.leases.doubtful else ""
            if key not in available:
                if left <= 0:
                    self.parked.appendleft(ask)
                    self._stirred = True  # the next step goes on from here
                    return
                available[key] = self._has_some(ask, now_ms)
                left -= sum(len(self._partitions(topic)) for topic in ask.topics) + 2
            if available[key] > 0:
                available[key] -= 1
                self.lead_rounds.add(ask)
            else:
                self.parked.append(ask)

    # -------------------------------------------------------------- leases
    def _pair(self, group: str, topic: str, number: int) -> Pair | None:
        known = self._state.topics.topics.get(topic)
        partition = None if known is None else known.partitions.get(number)
        return None if partition is None else (group, partition.slot)

    def _final_of(self, pair: Pair) -> Final | None:
        partition = self._state.topics.slots.get(pair[1])
        return None if partition is None else self._state.shares.get(pair[0], partition)

    def _lacks_topics(self, pair: Pair) -> bool:
        """Whether this broker group has no topic for copies of what the group could not handle."""
        return not (self._partitions(retry_topic(pair[0])) and self._partitions(dead_topic(pair[0])))

    def _tell(self, doomed: Doomed, now_ms: int) -> None:
        """What keeps messages from coming again, once a minute for each group."""
        (group, slot), ranges, again_ms = doomed
        if now_ms < self._told_ms.get(group, now_ms):
            return
        self._told_ms[group] = now_ms + TOLD_MS
        partition = self._state.topics.slots[slot]
        log.warning(
            "%d messages of %s/%d, whose leases ran out %d times, can neither come again nor become dead "
            "letters: share group %r has lost its topic %s or %s. Start a share consumer of the group, which "
            "creates them, or delete the group ('escrowmq group delete %s'). Next attempt in %g s",
            sum(last - first + 1 for first, last in ranges),
            partition.topic,
            partition.number,
            EXPIRIES_MAX + 1,
            group,
            retry_topic(group),
            dead_topic(group),
            group,
            again_ms / 1000,
        )

    def _nack_all(self, doomed: Doomed) -> None:
        (group, slot), ranges, _ = doomed
        partition = self._state.topics.slots[slot]
        offsets = [offset for first, last in ranges for offset in range(first, last + 1)]
        for at in range(0, len(offsets), NACKED_AT_ONCE):
            some = offsets[at : at + NACKED_AT_ONCE]
            frame = share_ops.nack(
                group,
                partition.topic,
                partition.number,
                some,
                [share_ops.BY_TABLE] * len(some),
                [EXPIRED] * len(some),
                "",
                share_ops.BY_LEASE,
                partition.topic_id,
            )
            self._nack(frame, partition)
