"""Reading a fixed range of one partition in large blobs, for jobs: Spark splits, exports, repairs.

No group, no thread, no state to keep: a loop over fetch calls to any replica, with a few of them under way
while the caller processes what came (see ``ReadAhead``). Returns exactly ``[start, end)``: runs that reach
beyond the range are cut at message boundaries without decoding them. Every failure is a typed error; missing
data is never skipped silently.
"""

from __future__ import annotations

import queue
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from escrowmq.actors.client.closing import Closing
from escrowmq.actors.client.replica_calls import SUPERVISOR_RID, ReplicaCalls
from escrowmq.actors.client.router import over_ray
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.actors.consumer.fetcher import LAG_PATIENCE_S, SILENCE_S_MAX, ReplicaChoice
from escrowmq.actors.consumer.records import FetchedRun, check_dense, trim_runs
from escrowmq.replication.calling.answers import MembersReport
from escrowmq.replication.calling.patience import Backoff
from escrowmq.replication.errors import (
    Closed,
    ConfigError,
    CorruptLog,
    EscrowMQError,
    OffsetOutOfRange,
    TopicRecreated,
    Unavailable,
    UnknownTopic,
)
from escrowmq.replication.model import NO_ID, ResultCode

# ------------------------------------------------------------------------------------------------------------
# Which fetches of a range are under way, and which come next. Decides only: no call, no clock, no thread.
#
# Where the answer to a fetch ends depends on the sizes of messages, so without help the next fetch could be
# sent only once the previous answer has come. A broker can tell from its index where the next answers will
# end (``fetch_ends``), and then several fetches are under way at once. That information is only a hint:
# replicas may have cut their runs in different places, and retention may remove data meanwhile. If an answer
# is shorter than expected, its rest is requested again; if it is longer, it is cut; without the hint, one
# fetch at a time is under way.

#: (the broker's answer for the partition, None, replica), or (None, error or None for silence, replica).
FetchAnswer = tuple[Any, BaseException | None, int]


@dataclass(slots=True)
class Piece:
    """A fetch under way for ``[offset, until)``; ``rid``: the replica asked last, in turn ``turn``."""

    offset: int
    until: int
    #: Token -> replica, for every replica asked: a silent one may still be the first to answer.
    tokens: dict[int, int] = field(default_factory=dict)
    rid: int = 0
    turn: int = 0
    ask_again_at: float = 0.0
    #: Answers that came before this piece was the first.
    answers: deque[FetchAnswer] = field(default_factory=deque)


#: ``ask(offset, until)`` sends a fetch.
AskPiece = Callable[[int, int], Piece]


class ReadAhead:
    """The pieces of one range, in order. All but the last end where a fetch was predicted to end.

    The function that sends fetches is passed in each time: if it were stored here, reader and pieces would
    keep each other in memory, and with them the answers that were never read.
    """

    def __init__(self, end: int, in_flight: int) -> None:
        self._end, self._in_flight = end, in_flight
        self._pieces: deque[Piece] = deque()
        self._ends: deque[int] = deque()

    def begin(self, start: int, ask: AskPiece) -> None:
        self._pieces.append(ask(start, self._end))

    def clear(self) -> None:
        """Forgets everything; answers that come later are dropped."""
        self._pieces.clear()
        self._ends.clear()

    @property
    def first(self) -> Piece | None:
        """The piece to be read now."""
        return self._pieces[0] if self._pieces else None

    def received(self, reached: int, ask: AskPiece) -> None:
        """The answer to the first piece reaches up to ``reached``."""
        piece = self._pieces.popleft()
        if reached < piece.until:
            self._pieces.appendleft(ask(reached, piece.until))

    def ends_wanted(self) -> int | None:
        """From which offset on to ask where fetches end, before the known ends are used up; None: not now."""
        if not self._pieces or self._in_flight == 1 or len(self._ends) >= self._in_flight:
            return None
        known = self._ends[-1] if self._ends else self._pieces[-1].offset
        return known if known < self._end else None

    def learn(self, ends: Sequence[int]) -> None:
        """Takes the ends of the fetches from an earlier ``ends_wanted`` on."""
        for end in ends:
            if not self._ends or end > self._ends[-1]:
                self._ends.append(end)

    def extend(self, ask: AskPiece) -> None:
        """Requests what comes next, as far as its start is known."""
        while self._pieces and len(self._pieces) < self._in_flight:
            last = self._pieces[-1]
            while self._ends and self._ends[0] <= last.offset:
                self._ends.popleft()
            if not self._ends or self._ends[0] >= self._end:
                return
            last.until = self._ends.popleft()
            self._pieces.append(ask(last.until, self._end))

    def take(self, token: int, answer: Any, error: BaseException | None) -> None:
        """Keeps an answer for the piece that asked; a late answer to an earlier request is dropped."""
        for piece in self._pieces:
            if token in piece.tokens:
                rid = piece.tokens.pop(token)
                piece.answers.append((None if error is not None else answer[0], error, rid))
                return


#: Bytes of one fetch. A call costs two to three milliseconds of processor time in total, whatever its size,
#: and one more per megabyte; the broker has memory ready for answers up to this size (``AnswerBuffers``).
FETCH_BYTES = 8 << 20
#: Fetches under way while the caller processes what came. One is enough while the caller is the slower side;
#: more of them hide the latency of answers, and of a broker that is busy otherwise.
IN_FLIGHT = 3
#: How long the broker may wait for messages that its replica does not have yet.
FETCH_WAIT_S = 0.25
#: For how many coming fetches to ask the broker at once where they end: it walks its index past all messages.
ENDS_PER_CALL = 16
#: After this long without an answer to that, ask again: the replica may have died.
ENDS_PATIENCE_S = 1.0
#: Silence beyond that wait after which another replica is asked; doubles while none answers.
SILENCE = Backoff(first_s=0.25, longest_s=SILENCE_S_MAX)
#: Pause between two requests for data that no replica seems to have. After a refusal (overloaded, starting,
#: dead) the pause grows, is at least what the broker asks for, and is random, so that tasks do not all come
#: back at once.
RETRY = Backoff(first_s=0.05, longest_s=2.0, jitter=0.5)


class Stretch(NamedTuple):
    """Adjacent runs ``(base offset, messages, time in ms, bytes)``, at least one, and their rows.

    ``rows`` is for ``codec.decode_rows``, all at once or run by run. It is a view of shared memory, which is
    freed when no view of it is left: copy what you want to keep.
    """

    runs: list[FetchedRun]
    rows: memoryview


class RowBlock(NamedTuple):
    """``messages`` messages from ``base_offset`` on, all with one timestamp; ``rows`` as in ``Stretch``."""

    base_offset: int
    messages: int
    ts_ms: int
    rows: memoryview


class _KnownMembers:
    """Replicas that may be asked, according to the newest report of members. Separate from the reader, so
    that ReplicaChoice, which refers to it, does not keep the reader and what it has read alive."""

    __slots__ = ("asked", "epoch", "ids")

    def __init__(self, replicas: int) -> None:
        self.ids, self.epoch, self.asked = tuple(range(replicas)), 0, 0

    def told(self, answer: Any, error: BaseException | None) -> None:
        if error is not None or not isinstance(answer, MembersReport) or not answer.applied:
            return  # an unapplied change may be cut off, and another change may then get its version
        if answer.version > self.epoch:
            self.ids, self.epoch = answer.all, answer.version


class PartitionReader(Closing):
    """Yields the ``RowBlock``s of ``[start, end)``, or its ``stretches``. One pass, one thread; ``close`` it.

    Raises UnknownTopic; TopicRecreated if the topic is not that with ``topic_id`` any more; OffsetOutOfRange
    for data that retention has removed, or that no replica has after ``lag_patience_s``; Unavailable if no
    replica answers for ``timeout_s``; CorruptLog if all copies are damaged.
    """

    def __init__(
        self,
        info: ClusterInfo,
        topic: str,
        partition: int,
        start: int,
        end: int,
        *,
        group: int | None = None,
        topic_id: int = NO_ID,
        fetch_bytes: int = FETCH_BYTES,
        in_flight: int = IN_FLIGHT,
        leader: int | None = None,
        timeout_s: float = 60.0,
        lag_patience_s: float = LAG_PATIENCE_S,
        calls: ReplicaCalls | None = None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """``group``: the broker group that hosts the partition (``TopicPlacement``), if there are several.
        ``topic_id``: the topic to read; ``NO_ID``: any of that name."""
        if group is None and info.groups > 1:
            raise ConfigError(f"which of the {info.groups} broker groups hosts {topic}/{partition}?")
        if not 0 <= start <= end:
            raise ConfigError(f"need 0 <= start <= end, not start={start}, end={end}")
        if in_flight < 1:
            raise ConfigError(f"in_flight is {in_flight}: nothing can be read without a fetch under way")
        self.topic, self.partition, self.start, self.end = topic, partition, start, end
        self._gid, self._topic_id = group or 0, topic_id
        self._fetch_bytes, self._timeout_s, self._clock = fetch_bytes, timeout_s, clock
        self._lag_patience_s, self._pause = lag_patience_s, pause
        self._own_calls = over_ray(info) if calls is None else None
        self._calls: ReplicaCalls = calls if self._own_calls is None else self._own_calls  # type: ignore[assignment]
        # Starts at a random replica, to spread the load; the leader comes last, since it handles the writes.
        self._rng = random.Random()
        first = self._rng.randrange(max(1, info.replicas - (leader is not None)))
        self._members = members = _KnownMembers(info.replicas)
        self._choice = ReplicaChoice(info.replicas, first, leader, members=lambda gid: members.ids)
        self._turn = self._token = self._silences = 0
        self._inbox: queue.SimpleQueue[tuple[int, Any, BaseException | None]] = queue.SimpleQueue()
        self._ahead = ReadAhead(end, in_flight)
        self._ends_asked, self._ends_asked_at = 0, float("-inf")  # the token; 0: no call is under way
        self._serves = 0  # the replica that answered last
        self._closed = False

    def close(self) -> None:
        """Drops what is under way and what came but was not read. Safe to call twice."""
        self._closed = True
        self._ahead.clear()
        while not self._inbox.empty():
            self._inbox.get()
        if self._own_calls is not None:
            self._own_calls.close()

    def __iter__(self) -> Iterator[RowBlock]:
        for runs, rows in self.stretches():
            at = 0
            for base, count, ts_ms, size in runs:
                yield RowBlock(base, count, ts_ms, rows[at : at + size])
                at += size

    def stretches(self) -> Iterator[Stretch]:
        """The same data, one answer at a time, which saves work per run."""
        if self.start < self.end:
            self._check_open()
            self._ahead.begin(self.start, self._ask)
        while (asked := self._ahead.first) is not None:
            runs, blob = self._receive(asked)
            self._ahead.received(runs[-1][0] + runs[-1][1], self._ask)
            self._look_ahead()
            # Cut at the piece's offset, not at a run's start: other replicas may have cut runs differently.
            last = self._ahead.first is None
            yield Stretch(*trim_runs(runs, blob, asked.offset, asked.until))
            if not last:
                self._check_open()  # otherwise the remaining part would be missing silently

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"the reader of {self.topic}/{self.partition} was closed before it reached its end")

    def _ask(self, offset: int, until: int, before: Piece | None = None) -> Piece:
        now = self._clock()
        rid = self._choice.pick(self._gid, self._turn, now)
        asked = before or Piece(offset, until)
        asked.ask_again_at = now + FETCH_WAIT_S + SILENCE.pause_s(self._silences)
        asked.rid, asked.turn = rid, self._turn
        asked.tokens[self._token + 1] = rid
        named = () if self._topic_id == NO_ID else (self._topic_id,)
        request = [(self.topic, self.partition, offset, until, *named)]
        self._call(rid, "fetch", request, self._fetch_bytes, FETCH_WAIT_S)
        return asked

    def _look_ahead(self) -> None:
        """Sends more fetches, and asks early enough where later ones will end."""
        self._ahead.extend(self._ask)
        at, now = self._ahead.ends_wanted(), self._clock()
        if at is not None and (not self._ends_asked or now - self._ends_asked_at > ENDS_PATIENCE_S):
            which = self.topic, self.partition, at, self.end, self._fetch_bytes, ENDS_PER_CALL
            self._ends_asked, self._ends_asked_at = self._call(self._serves, "fetch_ends", *which), now

    def _call(self, rid: int, method: str, *args: Any) -> int:
        """Sends a request; its answer comes to the inbox with the token that this returns."""
        self._token += 1
        token = self._token

        def done(answer: Any, error: BaseException | None) -> None:
            if not self._closed:
                self._inbox.put((token, answer, error))

        self._calls.call(self._gid, rid, method, args, done)
        return token

    def _receive(self, asked: Piece) -> tuple[list[FetchedRun], memoryview]:
        """The answer to ``asked`` with at least one run; asks other replicas as needed."""
        since = self._clock()
        if not self._choice.avoids(self._gid, asked.rid, since):
            # Earlier pieces may have kept the broker busy until now; a replica that fell silent gets no time.
            asked.ask_again_at = max(asked.ask_again_at, since + SILENCE.pause_s(self._silences))
        answered = False
        refusal: EscrowMQError | None = None
        refusals = 0
        while True:
            part, error, rid = self._next_answer(asked)
            now = self._clock()
            if part is not None:
                self._choice.answered(self._gid, rid)
                self._serves = rid
                self._silences, answered = 0, True
                code, log_start, log_end, runs, blob = part[2:]
                if code == ResultCode.OK and runs:
                    try:
                        check_dense(runs, asked.offset, len(blob))
                        return runs, memoryview(blob)
                    except CorruptLog as damage:
                        refusal = damage
                else:
                    refusal = self._refusal(code, asked.offset, log_start, log_end, refusal)
            else:
                self._choice.failed(self._gid, rid, now)
                cause = getattr(error, "cause", error)  # Ray wraps what an actor raised
                if isinstance(cause, EscrowMQError):
                    refusal = cause
                else:
                    self._ask_for_members(now)
            if now - since >= (self._lag_patience_s if answered and refusal is not None else self._timeout_s):
                raise refusal or Unavailable(
                    f"no replica of group {self._gid} serves {self.topic}/{self.partition}", 1.0
                )
            if asked.answers:  # from another replica, meanwhile
                continue
            # Pieces sent to a replica that had already failed do not each cost another turn and pause.
            if asked.turn == self._turn:
                self._turn += 1
                refusals = refusals + 1 if part is None else 0
                asked_s: float = getattr(refusal, "retry_after_s", 0.0)
                self._pause(RETRY.pause_s(refusals, self._rng, asked_s=asked_s))
            self._ask(asked.offset, asked.until, asked)

    def _ask_for_members(self, now: float) -> None:
        """Called when a replica is gone or silent: the group may have other members by now. The supervisor
        knows them; every second time a remaining replica is asked instead, in case the supervisor is absent.
        The answer counts from the next turn on."""
        members = self._members
        members.asked += 1
        if members.asked % 2:
            self._calls.call(self._gid, SUPERVISOR_RID, "members_of", (self._gid,), members.told)
        else:
            rid = self._choice.pick(self._gid, self._turn + 1, now)
            self._calls.call(self._gid, rid, "members", (), members.told)

    def _next_answer(self, asked: Piece) -> FetchAnswer:
        """The next answer to ``asked``, once everything that has come is sorted to its piece."""
        while True:
            left_s = 0.0 if asked.answers else max(asked.ask_again_at - self._clock(), 0.001)
            try:
                token, answer, error = self._inbox.get(timeout=left_s)
            except queue.Empty:
                if asked.answers:
                    return asked.answers.popleft()
                self._silences += 1
                return None, None, asked.rid
            if token != self._ends_asked:
                self._ahead.take(token, answer, error)
                continue
            self._ends_asked = 0
            if error is None:
                self._ahead.learn(answer.ends)
                self._ahead.extend(self._ask)

    def _refusal(
        self, code: int, offset: int, log_start: int, log_end: int, before: EscrowMQError | None
    ) -> EscrowMQError:
        """The error for a replica without data here; raised at once if it cannot get better."""
        if code == ResultCode.OTHER_TOPIC:
            if log_start > self._topic_id:  # its id: later topics have higher ones
                raise TopicRecreated(self.topic)
            return UnknownTopic(self.topic)  # it lags: it has an earlier topic
        if code == ResultCode.OUT_OF_RANGE or code == ResultCode.OK:
            error = OffsetOutOfRange(self.topic, self.partition, offset, log_start, log_end)
            if offset < log_start:
                raise error
            # Beyond the end, this replica may lag. Report the furthest end that any of them has.
            if isinstance(before, OffsetOutOfRange) and before.end > log_end:
                return before
            return error
        if code == ResultCode.BAD_PARTITION:
            return UnknownTopic(self.topic, self.partition)
        return UnknownTopic(self.topic)
