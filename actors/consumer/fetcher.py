"""Fetching ahead: keeps a few calls under way per broker, and gives up on a silent one within half a second.

``Fetches`` decides, without thread, clock or Ray: which partitions to request from which replica, when a call
has been silent too long, what an answer means. ``FetchThread`` runs it. A call that was given up is not
forgotten: its answer may still be the first to come. A second answer to the same request is recognised by
partition, epoch and offset, and dropped.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from escrowmq.actors.client.background import Background
from escrowmq.actors.client.consumer_groups import TopicPartition
from escrowmq.actors.client.replica_calls import ReplicaCalls
from escrowmq.actors.consumer.config import ConsumerConfig
from escrowmq.actors.consumer.positions import PartitionState, Positions
from escrowmq.actors.consumer.statistics import Counted
from escrowmq.replication.calling.patience import Backoff
from escrowmq.replication.errors import CorruptLog, EscrowMQError, UnknownTopic
from escrowmq.replication.model import NO_ID, ResultCode

# ------------------------------------------------------------------------------------------------------------
# Which replica to read from.
#
# Any replica serves reads. A consumer spreads its partitions over the replicas of a group (and consumers
# differ by a salt), stops using a replica as soon as it fails or stays silent, and returns to it after a
# penalty that doubles. Bulk readers start with the followers, since the leader handles the writes. Pure:
# takes ``now``.

#: First and longest time for which a failed replica is avoided. The first covers an actor's restart; the
#: longest limits how long a cluster that has recovered is still avoided.
PENALTY = Backoff(first_s=1.0, longest_s=10.0)
#: Longest silence to wait for, after doubling: a machine that swaps is slow, not dead.
SILENCE_S_MAX = 4.0
#: If all replicas say for longer than this that an offset which ought to exist does not, or that a topic does
#: not exist, they are believed, and the application gets an error. Replicas may lag for as long as a
#: fail-over (1 to 2 s) or the creation of a topic takes, and longer on a busy machine.
LAG_PATIENCE_S = 5.0


@dataclass(slots=True)
class _Health:
    failures: int = 0
    avoid_until: float = 0.0


class ReplicaChoice:
    """The penalties of every replica of every group, and the choice among the replicas."""

    def __init__(
        self,
        replicas: int,
        salt: int = 0,
        last: int | None = None,
        members: Callable[[int], tuple[int, ...]] | None = None,
    ) -> None:
        """Turns go round, starting at replica ``salt``; ``last`` comes after all others. ``members``: returns
        the present replicas of a group; None: always ``replicas`` of them."""
        self._founders, self._salt, self._last = tuple(range(replicas)), salt, last
        self._members = members or (lambda gid: self._founders)
        self._rings: dict[int, tuple[tuple[int, ...], list[int]]] = {}  # by group: members, their ring
        self._health: dict[tuple[int, int], _Health] = {}

    def _ring(self, gid: int) -> list[int]:
        members = self._members(gid)
        known = self._rings.get(gid)
        if known is not None and known[0] is members:
            return known[1]
        others = [rid for rid in members if rid != self._last]
        first = self._salt % len(others) if others else 0
        ring = [*others[first:], *others[:first], *(rid for rid in members if rid == self._last)]
        self._rings[gid] = members, ring
        return ring

    def pick(self, gid: int, turn: int, now: float) -> int:
        """The replica for this turn: the first not avoided, otherwise the one whose penalty ends first."""
        ring = self._ring(gid)
        first = turn % len(ring)
        order = [*ring[first:], *ring[:first]]
        for rid in order:
            if not self.avoids(gid, rid, now):
                return rid
        return min(order, key=lambda rid: self._health[gid, rid].avoid_until)

    def avoids(self, gid: int, rid: int, now: float) -> bool:
        """Whether this replica is avoided now."""
        health = self._health.get((gid, rid))
        return health is not None and health.avoid_until > now

    def failed(self, gid: int, rid: int, now: float) -> None:
        """The replica was silent for too long, or its actor is gone."""
        health = self._health.setdefault((gid, rid), _Health())
        if health.avoid_until > now:
            return  # several calls to it were under way: they count as one failure
        health.avoid_until = now + PENALTY.pause_s(health.failures)
        health.failures += 1

    def answered(self, gid: int, rid: int) -> None:
        """The replica answered: its penalty is lifted."""
        self._health.pop((gid, rid), None)


log = logging.getLogger(__name__)

#: Partitions requested in one call: bounds its size and the broker's work for it.
PARTITIONS_PER_CALL_MAX = 256
#: Calls that were given up but whose answers may still be used.
GIVEN_UP_MAX = 64
#: Calls at a replica that are not counted though they are under way: they keep slots for parked calls busy.
ABANDONED_MAX = 16
#: From half as many on, calls park for this long at most: slots change faster than calls end.
BRIEF_WAIT_S = 0.1
#: What the first calls ask for. With several consumers or a slow way, 4 MiB could take as long as a silence.
FIRST_BYTES = 1 << 20
#: A full answer within this time doubles what the next calls ask for, up to ``fetch_bytes``.
SWIFT_S = 0.25
#: For requests without an end: above every offset.
NO_END = 1 << 62
SLEEP_S_MAX = 0.5
#: Shortest pause between two steps while no answer comes.
PAUSE_S = 0.001

AskedPartition = tuple[TopicPartition, int, int]  # partition, epoch, offset


@dataclass(slots=True)
class _FetchCall:
    gid: int
    rid: int
    asked: list[AskedPartition]
    sent: float
    wait_s: float
    give_up_at: float
    #: What it asks for, and what its answer may take of the memory.
    size: int
    #: Its partitions are asked for by a later call.
    replaced: bool = False


class Fetches:
    """The fetch calls of one consumer. Every method runs under the consumer's lock."""

    def __init__(
        self,
        positions: Positions,
        choice: ReplicaChoice,
        config: ConsumerConfig,
        start: Callable[[int, int, tuple[Any, ...], int], None],
        counted: Counted | None = None,
        first_bytes: int = FIRST_BYTES,
    ) -> None:
        """``start(gid, rid, fetch arguments, token)`` begins a call and returns at once."""
        self._positions, self._choice, self._config, self._start = positions, choice, config, start
        self._calls: dict[int, _FetchCall] = {}
        self._given_up: dict[int, _FetchCall] = {}
        self._token = 0
        self._silence = Backoff(config.channel.probe_after_s, SILENCE_S_MAX)
        self._silences = 0  # calls in a row that were given up
        self._least = min(first_bytes, config.fetch_bytes)
        # Two at least find room, so that one is read while the other is on its way.
        self._most = max(self._least, min(config.fetch_bytes, config.buffer_bytes // 2))
        self._size = self._least  # of the next call for partitions of which there is more
        self._counted = counted or Counted()
        #: The last error, for the explanation why nothing comes.
        self.last_error: BaseException | None = None

    def advance(self, now: float) -> float:
        """Gives up silent calls and sends what is due; returns the latest time for the next call."""
        for token, call in list(self._calls.items()):
            if now >= call.give_up_at:
                self._give_up(token, call, now)
        under_way_bytes = sum(call.size for call in self._calls.values())
        abandoned_sizes = [call.size for call in self._calls.values() if self._is_abandoned(call)]
        under_way_bytes -= sum(abandoned_sizes[:ABANDONED_MAX])
        ready, room = self._positions.wanted(now, under_way_bytes, self._least)
        by_replica: dict[tuple[int, int], list[PartitionState]] = {}
        for state in ready:
            rid = self._choice.pick(state.gid, state.turn, now)
            by_replica.setdefault((state.gid, rid), []).append(state)
        for (gid, rid), states in by_replica.items():
            under_way, abandoned = self._under_way(gid, rid)
            fits = room >= self._least
            if fits and under_way >= self._config.fetch_calls_in_flight and abandoned < ABANDONED_MAX:
                freed = self._make_way(gid, rid, states)
                states = states + freed
                under_way -= bool(freed)
            if fits and under_way < self._config.fetch_calls_in_flight:
                wait_s = self._config.fetch_wait_s
                if abandoned >= ABANDONED_MAX // 2:
                    wait_s = min(wait_s, BRIEF_WAIT_S)
                asked = states[:PARTITIONS_PER_CALL_MAX]
                # A call that parks, since there is nothing yet, must not keep memory from the others.
                parks = all(state.caught_up for state in asked)
                size = self._least if parks else min(self._size, room)
                room -= size
                self._send(gid, rid, asked, size, wait_s, now)
        times = [call.give_up_at for call in self._calls.values()]
        return min([*times, self._positions.next_wakeup(now) or now + SLEEP_S_MAX, now + SLEEP_S_MAX])

    def _is_abandoned(self, call: _FetchCall) -> bool:
        return call.replaced or not self._positions.awaits(call.asked)

    def _under_way(self, gid: int, rid: int) -> tuple[int, int]:
        """Calls at a replica, and how many others nobody awaits, since reading went on elsewhere: while they
        park there, others must not wait for them."""
        calls = [call for call in self._calls.values() if (call.gid, call.rid) == (gid, rid)]
        abandoned = min(sum(map(self._is_abandoned, calls)), ABANDONED_MAX)
        return len(calls) - abandoned, abandoned

    def _make_way(self, gid: int, rid: int, states: list[PartitionState]) -> list[PartitionState]:
        """If something is there for one of these partitions: replaces the call that has parked longest, and
        returns the partitions that it awaits. Idle partitions wait for the end of a call: otherwise each
        message that trickles in would leave a parked call behind."""
        if all(state.caught_up for state in states):
            return []
        for call in self._calls.values():
            if (call.gid, call.rid) != (gid, rid) or self._is_abandoned(call):
                continue
            found = [(self._positions.get(tp), epoch) for tp, epoch, _ in call.asked]
            awaited = [state for state, epoch in found if state is not None and state.epoch == epoch]
            if all(state.caught_up for state in awaited):
                call.replaced = True
                for state in awaited:
                    state.in_flight = None
                return awaited
        return []

    def _send(
        self, gid: int, rid: int, states: list[PartitionState], size: int, wait_s: float, now: float
    ) -> None:
        self._token += 1
        asked = [(state.tp, state.epoch, state.fetch_offset) for state in states]
        for state in states:
            state.in_flight = self._token
        give_up_at = now + wait_s + self._silence.pause_s(self._silences)
        self._calls[self._token] = _FetchCall(gid, rid, asked, now, wait_s, give_up_at, size)
        requests = [
            (state.topic, state.partition, state.fetch_offset, *self._named(state)) for state in states
        ]
        self._start(gid, rid, (requests, size, wait_s), self._token)

    @staticmethod
    def _named(state: PartitionState) -> tuple[int, ...]:
        """What a request ends with so that no other topic of the name answers it."""
        return () if state.topic_id == NO_ID else (NO_END, state.topic_id)

    def _give_up(self, token: int, call: _FetchCall, now: float) -> None:
        del self._calls[token]
        self._given_up[token] = call
        if len(self._given_up) > GIVEN_UP_MAX:
            del self._given_up[next(iter(self._given_up))]
        self._silences += 1
        self._size = self._least
        self._counted.fetches_failed += 1
        self._choice.failed(call.gid, call.rid, now)
        for tp, epoch, _ in [] if call.replaced else call.asked:
            self._positions.troubled(tp, epoch, now)

    def answered(self, token: int, answer: Any, error: BaseException | None, now: float) -> bool:
        """Takes an answer or an error. True if a waiting ``poll`` should look again."""
        call = self._calls.pop(token, None)
        late = call is None
        if call is None:
            call = self._given_up.pop(token, None)
        if call is None:
            return False
        if error is not None:
            self.last_error = error
            self._counted.fetches_failed += not late
            self._choice.failed(call.gid, call.rid, now)
            for tp, epoch, _ in [] if late or call.replaced else call.asked:
                self._positions.troubled(tp, epoch, now)
            return not late
        size = sum(len(part[6]) for part in answer)
        if not late:
            self._silences = 0
            if size * 4 >= call.size * 3 and now - call.sent <= SWIFT_S:
                self._size = min(max(self._size, call.size * 2), self._most)
        self._choice.answered(call.gid, call.rid)
        self._counted.fetched(size, now - call.sent, now)
        # Empty, and without waiting: this replica has no slot for another call that waits. With news in it,
        # the answer came when it should, and partitions without any need no pause.
        waited = now - call.sent >= call.wait_s / 2
        early = not waited and not any(runs for _, _, _, _, _, runs, _ in answer)
        news = False
        for (tp, epoch, offset), part in zip(call.asked, answer, strict=True):
            news |= self._take_part(call, tp, epoch, offset, part, early, now)
        return news

    def _take_part(
        self,
        call: _FetchCall,
        tp: TopicPartition,
        epoch: int,
        offset: int,
        part: Any,
        early: bool,
        now: float,
    ) -> bool:
        _, _, code, start, end, runs, blob = part
        if code == ResultCode.OK:
            try:
                taken = self._positions.fetched(tp, epoch, offset, runs, blob, (start, end), now, early=early)
            except CorruptLog as error:
                self.last_error = error
                self._choice.failed(call.gid, call.rid, now)
                self._positions.troubled(tp, epoch, now)
                return True
            return taken and bool(runs)
        state = self._positions.get(tp)
        if state is None or state.epoch != epoch or state.fetch_offset != offset:
            return False
        for_s = self._positions.troubled(tp, epoch, now)
        if code == ResultCode.OTHER_TOPIC:
            # A lower id: this replica lags. A higher one: the topic was created again, and a member's
            # coordinator will say so; other readers follow the name.
            if state.by_name and start > state.topic_id:
                state.topic_id = start
        elif code == ResultCode.OUT_OF_RANGE:
            state.log_start, state.log_end = start, end
            # Before the start: deleted for good. Beyond the end: perhaps this replica lags.
            if (offset < start or for_s >= LAG_PATIENCE_S) and not state.chunks:
                state.look_up("check", offset)
                return True
        elif for_s >= LAG_PATIENCE_S and code == ResultCode.BAD_PARTITION and not state.chunks:
            state.look_up("check", offset)  # perhaps the topic was created again, in other broker groups
            return True
        elif for_s >= LAG_PATIENCE_S:
            state.error = UnknownTopic(tp[0], gone=True)
            return True
        return False

    @property
    def in_flight(self) -> int:
        """Calls under way."""
        return len(self._calls)

    def trouble(self, now: float, for_s: float) -> EscrowMQError | str | None:
        """Why some partition has brought nothing for ``for_s``: a typed error if a replica gave one."""
        for state in self._positions.states():
            if state.troubled_since is not None and now - state.troubled_since >= for_s:
                cause = getattr(self.last_error, "cause", None)  # Ray wraps what an actor raised
                for error in (self.last_error, cause):
                    if isinstance(error, EscrowMQError):
                        return error
                return f"no replica of group {state.gid} serves {state.topic}/{state.partition}"
        return None


class FetchThread:
    """Runs ``Fetches`` in a background thread, under the consumer's condition."""

    def __init__(
        self,
        positions: Positions,
        choice: ReplicaChoice,
        config: ConsumerConfig,
        calls: ReplicaCalls,
        condition: threading.Condition,
        background: Background,
        counted: Counted | None = None,
    ) -> None:
        self._calls, self._condition, self._clock = calls, condition, background.clock
        self.fetches = Fetches(positions, choice, config, self._start, counted)
        self._answers: deque[tuple[int, Any, BaseException | None]] = deque()  # token, answer, error
        self._closing = False
        #: The bug that ended this thread. Kept to be raised: otherwise the topic would just look empty.
        self.failure: Exception | None = None
        self._worker = background.worker(self._step, "escrowmq-fetch")
        self._worker.start()

    def wake(self) -> None:
        """Wakes the thread: there may be more to fetch."""
        self._worker.wakeup.set()

    def close(self) -> None:
        """Stops the thread; answers under way are dropped."""
        self._closing = True
        self.wake()
        self._worker.join()

    def _start(self, gid: int, rid: int, args: tuple[Any, ...], token: int) -> None:
        def done(answer: Any, error: BaseException | None) -> None:
            self._answers.append((token, answer, error))
            self._worker.wakeup.set()

        self._calls.call(gid, rid, "fetch", args, done)

    def _step(self) -> float | None:
        if self._closing:
            return None
        answers, clock, wake_at = self._answers, self._clock, 0.0
        with self._condition:
            try:
                news = False
                while answers:
                    news |= self.fetches.answered(*answers.popleft(), clock())
                wake_at = self.fetches.advance(clock())
            except Exception as error:
                log.exception("the fetch thread of a consumer failed")
                self.failure, news = error, True
            if news:
                self._condition.notify_all()
        return None if self.failure is not None else max(wake_at, clock() + PAUSE_S)
