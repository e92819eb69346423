"""Where a consumer is in each of its partitions, and what it has fetched ahead.

The heart of the consumer, without threads, clock or network: the fetch thread asks it what to fetch and tells
it what came; ``poll`` takes records out. Each partition has a position (the next offset to hand out) and a
fetch offset (the next to request); what lies between waits in chunks. Everything that moves a partition
(assign, seek, pause) raises its epoch, so that the answer to an earlier request is recognised and dropped.

Invariant: records leave in order of offsets, without gaps, each exactly once, starting at the position.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from escrowmq.actors.client.consumer_groups import TopicPartition
from escrowmq.actors.consumer.records import Chunk, FetchedRun
from escrowmq.replication.calling.patience import Backoff
from escrowmq.replication.errors import CorruptLog, DamagedValue, EscrowMQError
from escrowmq.replication.model import NO_ID

#: An idle partition is requested from the next replica after this long, so that a replica that lags or is cut
#: off cannot hide new messages for longer.
ROTATE_IDLE_S = 0.5
#: A broker with too many parked polls answers empty at once; ask it again after these pauses.
AGAIN = Backoff(first_s=0.01, longest_s=0.2)

#: Behind all offsets.
EVERYTHING = 1 << 63

NO_IDS: Mapping[str, int] = MappingProxyType({})

_epochs = itertools.count(1)


class Failed(NamedTuple):
    """How often the message at an offset has failed, in a group that reads in order. ``since``: its first
    failure, by the consumer's clock; None: another consumer has seen that one."""

    offset: int = -1
    times: int = 0
    since: float | None = None

    def at(self, offset: int) -> int:
        """How often the message at this offset has failed."""
        return self.times if offset == self.offset else 0


NEVER_FAILED = Failed()


@dataclass(slots=True, eq=False)
class PartitionState:
    """One assigned partition. ``position`` None: not known yet (a committed offset or a reset is needed)."""

    topic: str
    partition: int
    gid: int
    #: Selects the replica, counting up; starts at the partition number, so that partitions spread.
    turn: int
    #: The id of the topic that is read; ``NO_ID``: any topic of that name. A replica that lags may still have
    #: an earlier topic, whose messages stand at the same offsets.
    topic_id: int = NO_ID
    #: Whether reading goes on in a later topic of the name; a member of a group is told by its coordinator.
    by_name: bool = False
    epoch: int = field(default_factory=lambda: next(_epochs))
    position: int | None = None
    fetch_offset: int = 0
    chunks: deque[Chunk] = field(default_factory=deque)
    buffered: int = 0
    paused: bool = False
    #: In a group that reads in order: until when nothing is handed out, since a message has failed (0: it is
    #: handed out), and the position before reading went back to that message.
    resume_at: float = 0.0
    returned: int = 0
    failed: Failed = NEVER_FAILED
    #: The lowest offset that was nacked since a transaction took this work (None: none).
    nacked_at: int | None = None
    #: What lies before ``done`` and was returned is not to be done again: a committed transaction has it, or
    #: it was returned before this consumer took the partition over, or went back to the group's offset. What
    #: lies before ``held`` is in an open transaction (0: there is none).
    done: int = EVERYTHING
    held: int = 0
    #: Where reading began, if the group had no offset yet.
    began: int = 0
    #: Why a handler could not work when it was called last, though nothing is wrong with the message; see
    #: ``run``. "": it could.
    put_off: str = ""
    #: What to look up while the position is unknown: "committed", "earliest", "latest", or "check": whether
    #: ``suspect`` (an offset that one replica does not have) is really out of range.
    goal: str = "committed"
    suspect: int = 0
    #: What the group has committed, as far as this consumer knows.
    committed: int | None = None
    #: The group's committed offset when its work here began, for a transaction that moves it (-1: it had
    #: none; None: not known); see group_work.py.
    group_offset: int | None = None
    in_flight: int | None = None
    not_before: float = 0.0
    #: Number of useless answers in a row, or of empty ones that came without waiting.
    vain: int = 0
    rotate_at: float = 0.0
    #: Since when no replica has given a useful answer; None: the last answer was useful.
    troubled_since: float | None = None
    #: Of the last answer to a fetch; -1: there was none yet.
    log_start: int = -1
    log_end: int = 0
    error: EscrowMQError | None = None

    @property
    def tp(self) -> TopicPartition:
        return self.topic, self.partition

    @property
    def caught_up(self) -> bool:
        """Whether a fetch waits for news, as far as is known."""
        return self.log_start >= 0 and self.fetch_offset >= self.log_end

    def fetchable(self, now: float) -> bool:
        return (
            self.position is not None
            and not self.paused
            and not self.resume_at
            and self.in_flight is None
            and self.error is None
            and self.not_before <= now
        )

    @property
    def taken(self) -> int:
        """What lies before cannot be nacked."""
        return max(self.done, self.held)

    def look_up(self, goal: str, suspect: int = 0) -> None:
        """Makes the position unknown until ``resolve``."""
        self.restart(None)
        self.goal, self.suspect, self.resume_at = goal, suspect, 0.0

    def moved_to(self, offset: int) -> None:
        """The group's offset is there now. A message that lies before it was done: if the application goes
        back to it, it begins at its first attempt."""
        self.committed = self.group_offset = offset
        if offset > self.failed.offset:
            self.failed = NEVER_FAILED

    def has_work_before(self, offset: int) -> bool:
        """Whether the group's offset does not say yet that what lies before was done."""
        return self.group_offset is None or offset > (
            self.began if self.group_offset < 0 else self.group_offset
        )

    @property
    def has_work(self) -> bool:
        """Whether something was returned that the group's offset does not say was done."""
        return (
            self.position is not None
            and self.group_offset is not None
            and self.has_work_before(self.position)
        )

    def back_off(self, now: float) -> None:
        """Delays the next fetch, each time for longer."""
        self.not_before = now + AGAIN.pause_s(self.vain)
        self.vain += 1

    def restart(self, position: int | None) -> None:
        """Forgets what was fetched and answers under way; continues at ``position``."""
        self.epoch = next(_epochs)
        self.chunks.clear()
        if position is not None:
            self.done = min(self.done, position)  # from there on everything is returned again
        self.position, self.fetch_offset = position, position or 0
        self.buffered, self.not_before, self.vain = 0, 0.0, 0
        self.in_flight, self.error, self.troubled_since = None, None, None


#: Takes at most so many messages from the front of a chunk of a partition, and says how many it took; 0: it
#: has no room for more. Raises CorruptLog or another error, and has then taken none.
HandOut = Callable[[PartitionState, Chunk, int], int]


class Positions:
    """All assigned partitions of one consumer."""

    def __init__(self, *, fetch_bytes: int, buffer_bytes: int, linger_s: float) -> None:
        self._buffer_bytes, self._linger_s = buffer_bytes, linger_s
        self._few_bytes = fetch_bytes // 64
        self._states: dict[TopicPartition, PartitionState] = {}
        self._order: deque[TopicPartition] = deque()  # the first one's records are handed out next
        #: Fetching stopped because memory is full: a poll that takes records must wake the fetch thread.
        self.starved = False
        #: When ``resume`` has something to do, or earlier; infinity: never.
        self.resume_next = float("inf")

    def states(self) -> list[PartitionState]:
        """Every assigned partition's state."""
        return list(self._states.values())

    def get(self, tp: TopicPartition) -> PartitionState | None:
        """The state of a partition, None if it is not assigned."""
        return self._states.get(tp)

    def assigned(self) -> list[TopicPartition]:
        """Assigned partitions in order."""
        return sorted(self._states)

    def assign(
        self,
        wanted: Mapping[TopicPartition, int],
        kept: Iterable[TopicPartition],
        ids: Mapping[str, int] = NO_IDS,
        *,
        by_name: bool = False,
    ) -> list[TopicPartition]:
        """Replaces the assignment by ``wanted`` (partition -> broker group); returns what was lost.

        Partitions in ``kept`` continue where they are; all others start from the committed offset. ``ids``:
        of the topics, as far as they are known; ``by_name``: see ``PartitionState``.
        """
        kept = set(kept) & set(self._states)
        lost = [tp for tp in self._states if tp not in wanted or tp not in kept]
        for tp in lost:
            del self._states[tp]
        for (topic, partition), gid in sorted(wanted.items()):
            if (topic, partition) not in self._states:
                state = PartitionState(topic, partition, gid, partition, by_name=by_name)
                self._states[topic, partition] = state
        for state in self._states.values():
            state.topic_id = max(state.topic_id, ids.get(state.topic, NO_ID))
        self._order = deque(sorted(self._states))
        return lost

    def suspend(self, state: PartitionState, until: float) -> None:
        """Nothing of the partition is handed out until then."""
        state.resume_at = until
        self.resume_next = min(self.resume_next, until)

    def resume(self, now: float) -> bool:
        """Ends the pauses that are over. Returns whether there were any."""
        if now < self.resume_next:
            return False
        over = [state for state in self._states.values() if 0.0 < state.resume_at <= now]
        for state in over:
            state.resume_at = 0.0
        self.resume_next = min(
            (s.resume_at for s in self._states.values() if s.resume_at), default=float("inf")
        )
        return bool(over)

    def unresolved(self) -> list[PartitionState]:
        """Partitions whose position must be looked up before they can be fetched."""
        return [state for state in self._states.values() if state.position is None and state.error is None]

    def resolve(
        self,
        tp: TopicPartition,
        epoch: int,
        offset: int,
        gid: int | None = None,
        group_offset: int | None = None,
    ) -> None:
        """Sets the looked-up position, unless the application sought elsewhere meanwhile. ``gid``: the broker
        group that was asked, if it may have changed. ``group_offset``: the group's, if looked up."""
        state = self._states.get(tp)
        if state is not None and state.epoch == epoch and state.position is None:
            state.gid = state.gid if gid is None else gid
            state.group_offset = state.group_offset if group_offset is None else group_offset
            state.began = offset
            state.restart(offset)

    def refuse(self, tp: TopicPartition, epoch: int, error: EscrowMQError) -> None:
        """Records that there is no position: ``poll`` raises ``error`` until the application seeks."""
        state = self._states.get(tp)
        if state is not None and state.epoch == epoch:
            state.error = error

    def wanted(self, now: float, under_way_bytes: int, least: int) -> tuple[list[PartitionState], int]:
        """Partitions to fetch now, the emptiest first, and how many bytes the memory has room for beside
        ``under_way_bytes``, what the calls under way may bring. ``least``: what a call asks for at least."""
        states = self._states.values()
        room = self._buffer_bytes - sum(s.buffered for s in states) - under_way_bytes
        # One partition may fill half of the memory, so that the others get their turn.
        share = max(self._buffer_bytes // 2, 1)
        ready = [s for s in states if s.fetchable(now)]
        self.starved = room < least or any(s.buffered >= share for s in ready)
        return sorted((s for s in ready if s.buffered < share), key=lambda s: s.buffered), room

    def awaits(self, asked: Iterable[tuple[TopicPartition, int, int]]) -> bool:
        """Whether an answer to this fetch (partition, epoch, offset) is still of use."""
        states = ((self._states.get(tp), epoch) for tp, epoch, _ in asked)
        return any(state is not None and state.epoch == epoch for state, epoch in states)

    def next_wakeup(self, now: float) -> float | None:
        """The earliest time at which a partition that backs off may be fetched again."""
        times = [s.not_before for s in self._states.values() if s.not_before > now and s.in_flight is None]
        return min(times, default=None)

    def fetched(
        self,
        tp: TopicPartition,
        epoch: int,
        offset: int,
        runs: list[FetchedRun],
        blob: bytes,
        bounds: tuple[int, int],
        now: float,
        *,
        early: bool,
    ) -> bool:
        """Takes a replica's good answer to a fetch at ``offset``; ``early``: it was empty and came without
        waiting.

        False if the answer is outdated. ``bounds``: log start and end as that replica knows them.
        """
        state = self._states.get(tp)
        if state is None or state.epoch != epoch or state.fetch_offset != offset:
            return False
        state.in_flight, state.troubled_since = None, None
        state.log_start, state.log_end = bounds
        if runs:
            chunk = Chunk(runs, blob, offset)
            state.chunks.append(chunk)
            state.buffered += chunk.size
            state.fetch_offset, state.vain, state.rotate_at = chunk.end, 0, 0.0
            if chunk.size < self._few_bytes:
                state.not_before = now + self._linger_s  # near the end: let more messages accumulate
        else:
            if early:
                state.back_off(now)
            else:
                state.not_before, state.vain = now, 0
            if not state.rotate_at:
                state.rotate_at = now + ROTATE_IDLE_S
            elif now >= state.rotate_at:
                state.turn, state.rotate_at = state.turn + 1, now + ROTATE_IDLE_S
        return True

    def troubled(self, tp: TopicPartition, epoch: int, now: float) -> float:
        """No useful answer: tries another replica next, after a short wait. Returns for how long it has been
        so (seconds)."""
        state = self._states.get(tp)
        if state is None or state.epoch != epoch:
            return 0.0
        state.in_flight = None
        state.turn += 1
        state.back_off(now)
        if state.troubled_since is None:
            state.troubled_since = now
        return now - state.troubled_since

    def hand_out(self, limit: int, take: HandOut) -> int:
        """Hands out messages, ordered by offset within each partition, partitions in turn, at most ``limit``;
        returns how many. Raises an error only if there were none: what was handed out is not lost. After any
        other exception (no memory, Ctrl-C) the caller has nothing, and everything is handed out again."""
        before: dict[PartitionState, int | None] = {}
        try:
            return self._hand_out(limit, take, before)
        except EscrowMQError:
            raise
        except BaseException:
            for state, position in before.items():
                state.restart(position)
            raise

    def _hand_out(self, limit: int, take: HandOut, before: dict[PartitionState, int | None]) -> int:
        count = 0
        for _ in range(len(self._order)):
            tp = self._order[0]
            state = self._states[tp]
            while state.chunks and count < limit and not state.paused and not state.resume_at:
                chunk = state.chunks[0]
                assert chunk.next == state.position, (chunk.next, state.position)
                before.setdefault(state, state.position)
                try:
                    taken = take(state, chunk, limit - count)
                except CorruptLog as error:
                    # Another replica may hold it intact; what the application has seen is not affected.
                    state.restart(state.position)
                    state.turn += 1
                    if count:
                        break
                    if isinstance(error, DamagedValue):  # it names the offset
                        raise
                    raise CorruptLog(f"{tp[0]}/{tp[1]} at offset {state.position}: {error}") from error
                except EscrowMQError:
                    if count:
                        break
                    raise
                if not taken:
                    return count
                count += taken
                state.position = chunk.next
                if chunk.next == chunk.end:
                    state.chunks.popleft()
                    state.buffered -= chunk.size
            if count >= limit:
                break
            self._order.rotate(-1)
        return count
