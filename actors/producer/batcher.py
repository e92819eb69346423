"""What waits for one broker group, and when it becomes a request.

Plain messages wait only while something is under way: until their linger ends, a batch is full, or the
answer comes. So a lone message leaves at once, and many share requests. Transactions wait until as many are
queued as were answered together last time, until their short linger ends, or until a request is full: so a
lone transaction never waits, and a thousand concurrent ones share a few calls (group commit on the client's
side).
One request carries decisions, prepares and plain messages together. Only ``pump`` decides whether to send
now; the channel says how much room there is. Pure: ``now`` is passed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

from escrowmq.actors.client.channel import GroupChannel, Request
from escrowmq.actors.client.failures import Failure, FailureKind
from escrowmq.actors.client.topic_placement import TopicPlacement
from escrowmq.actors.producer.config import Counted, ProducerConfig
from escrowmq.actors.producer.encoding.block_answers import (
    finish_decided,
    finish_prepared,
    not_open,
    problems_of,
    retry_apart,
)
from escrowmq.actors.producer.encoding.blocks import (
    IDS_PER_OPERATION,
    Block,
    DecisionBlock,
    DoneBlock,
    InquireBlock,
    PrepareBlock,
    encode_decision,
    encode_done,
    encode_prepare,
)
from escrowmq.actors.producer.plain.partition_stream import Batch, PartitionStream
from escrowmq.replication.format import ops
from escrowmq.replication.model import ResultCode

# ------------------------------------------------------------------------------------------------------------
# One call to a broker group as the producer builds it: the frames of its operations, and who gets their
# results.

#: Called with one operation's result, or how the request ended, and whether an earlier sending of it may have
#: been carried out.
Handler = Callable[["Sequence[Any] | Failure", bool], None]


class BuiltRequest:
    """The frames of one call, and the handler of each operation's result."""

    __slots__ = ("blocks", "deadline", "frames", "handlers", "sendings", "size")

    def __init__(self) -> None:
        self.blocks = 0  # blocks of transactions
        self.sendings = 1  # how often it was sent; known with its outcome
        self.frames: list[bytes] = []
        self.handlers: list[Handler] = []
        self.deadline = float("inf")
        self.size = 0

    def add(self, frame: bytes, handler: Handler, deadline: float) -> None:
        """Adds one operation."""
        self.frames.append(frame)
        self.handlers.append(handler)
        self.size += len(frame)
        self.deadline = min(self.deadline, deadline)


# ------------------------------------------------------------------------------------------------------------
# The streams of one producer in one broker group, of the partitions that it has used last.
#
# A stream weighs a few kilobytes, and a service may send to short-lived topics for years. So streams that are
# idle, and were used longest ago, are dropped. One that begins again must be another one for the broker,
# which may still remember the first: under the same epoch, its first batch would get the answer to an earlier
# batch, and be lost. So all streams that begin after a drop have a higher epoch than any stream that was
# dropped: one number takes the place of all of them. Late copies of what a dropped stream has sent are
# refused as always.

#: Streams of a broker group that a producer keeps, beside those that are not idle.
STREAMS_MAX: Final = 20_000
#: Topic, partition, ``later``.
Key = tuple[str, int, bool]


class StreamTable:
    """Streams by topic, partition and ``later``. Used by one thread (the router's)."""

    def __init__(self, streams_max: int = STREAMS_MAX) -> None:
        self._half = self._turn_at = max(streams_max // 2, 1)
        # What was not used since the last turn is older, and dropped at the next one if it is idle.
        self._young: dict[Key, PartitionStream] = {}
        self._older: dict[Key, PartitionStream] = {}
        self._next_epoch = 0

    def __len__(self) -> int:
        return len(self._young) + len(self._older)

    def get(self, key: Key) -> PartitionStream | None:
        """The stream, which counts as used now; None: there is none, or no longer."""
        stream = self._young.get(key)
        if stream is None and (stream := self._older.pop(key, None)) is not None:
            self._keep(key, stream)
        return stream

    def add(self, key: Key, stream: PartitionStream) -> None:
        """Takes a new stream, which has sent nothing."""
        stream.begin_at(self._next_epoch)
        self._keep(key, stream)

    def _keep(self, key: Key, stream: PartitionStream) -> None:
        if len(self._young) >= self._turn_at:
            self._turn()
        self._young[key] = stream

    def _turn(self) -> None:
        busy: dict[Key, PartitionStream] = {}
        for key, stream in self._older.items():
            if stream.idle:
                self._next_epoch = max(self._next_epoch, stream.epoch + 1)
            else:
                busy[key] = stream
        self._older, self._young = self._young, busy
        # Not at each new stream while thousands are busy: a turn looks at all of them.
        self._turn_at = max(self._half, 2 * len(busy))


#: Called with the batcher, a request that it sent, the outcome, whether an earlier sending of it may have
#: been carried out, and how often it was sent.
OnRequestDone = Callable[["GroupBatcher", "BuiltRequest", Any, bool, int], None]
#: Estimated bytes of a transaction besides its rows, and of an id in a decision; used only to limit requests.
TX_OVERHEAD, ID_OVERHEAD = 64, 8
#: How long reports of finished branches wait for a request that goes out anyway; only after 100 ms does home
#: tell the branches itself.
DONE_LINGER_S = 0.02
#: Pause before a PREPARE that was refused as stale twice in the same millisecond of the group: it would be
#: refused until the group's clock moves on. (In memory that clock stands still until somebody waits for it.)
STALE_PAUSE_S = 0.001


class GroupBatcher:
    """The queues of one group. Used by one thread (the router's)."""

    def __init__(
        self,
        app: str,
        config: ProducerConfig,
        instance: str = "",
        counted: Counted | None = None,
        placement: TopicPlacement | None = None,
    ) -> None:
        """``placement``: the ids of topics, which requests name; None: requests name no ids."""
        self._app, self._config, self._instance = app, config, instance
        self._counted = counted or Counted()
        self._placement = TopicPlacement(1) if placement is None else placement
        #: The newest time of an entry of the group, from its answers; -1: none yet.
        self._heard_ms = -1
        self._claim: tuple[str, int] | None = None
        self._fence = b""
        self._prepares: deque[PrepareBlock] = deque()
        self._decisions: deque[DecisionBlock] = deque()
        self._inquiries: deque[InquireBlock] = deque()
        self._dones: deque[DoneBlock] = deque()
        self._dones_since = float("inf")
        self._stale: list[PrepareBlock] = []
        self._stale_until = float("inf")
        self._streams = StreamTable()
        self._active: dict[tuple[str, int, bool], PartitionStream] = {}  # the streams that are not idle
        self._messages_first = False
        self._tx_bytes = 0
        self._tx_since = float("inf")  # the oldest transaction may have been waiting since then
        # Callers come back with their next step as soon as they are answered, so as many blocks as the last
        # answer was for are expected together; after a lone one, none other is expected.
        self._expected = 1
        self._answered = False  # several blocks, since the last ``pump``
        self._back_by = float("-inf")  # until then they are waited for, if nothing is under way
        self._full_bytes = config.full_bytes
        self._linger_s = config.linger_ms / 1000
        self._tx_linger_s = config.transaction_linger_ms / 1000

    def heard(self, time_ms: int) -> None:
        """Takes the group's time from an answer."""
        if time_ms > self._heard_ms:
            self._heard_ms = time_ms

    def send_under(self, name: str, epoch: int) -> None:
        """From now on, transactions are prepared under this claim, which the group has taken."""
        self._claim = name, epoch

    def send_fenced(self, name: bytes) -> None:
        """From now on, transactions are prepared under the name of this table, whose rows decide."""
        self._fence = name

    # ------------------------------------------------------------ queues

    def prepare(self, block: PrepareBlock, now: float) -> None:
        """Queues transactions to be prepared."""
        self._prepares.append(block)
        self._tx_bytes += block.size + TX_OVERHEAD * len(block.tx_ids)
        self._note_waiting(now)

    def decide(self, block: DecisionBlock, now: float) -> None:
        """Queues transactions to be committed or rolled back."""
        self._decisions.append(block)
        self._tx_bytes += (ID_OVERHEAD + len(block.tx_ids[0])) * len(block.tx_ids)
        self._note_waiting(now)

    def _note_waiting(self, now: float) -> None:
        # Since they were waited for, and not since the first one was seen: nobody told of that one at once.
        waited_for = self._back_by > float("-inf")
        self._tx_since = min(self._tx_since, self._back_by - self._tx_linger_s if waited_for else now)

    def inquire(self, block: InquireBlock, now: float) -> None:
        """Queues a question about transactions."""
        self._inquiries.append(block)
        self._tx_since = min(self._tx_since, now)

    def tell_done(self, block: DoneBlock, now: float) -> None:
        """Queues a report of finished branches. It is sent with the next request, or in a separate one a
        little later."""
        self._dones.append(block)
        self._dones_since = min(self._dones_since, now)

    def stream(self, topic: str, partition: int, later: bool = False) -> PartitionStream | None:
        """The queue of a partition's plain messages, to add something to; None: there is none.
        ``later``: that of the delayed ones."""
        key = (topic, partition, later)
        stream = self._streams.get(key)
        if stream is not None:
            self._active[key] = stream
        return stream

    def add_stream(self, stream: PartitionStream) -> None:
        """Adds the queue of a partition that has none, or none any longer."""
        key = (stream.topic, stream.partition, stream.later)
        self._streams.add(key, stream)
        self._active[key] = stream

    def idle(self) -> bool:
        """Whether nothing waits here and no plain message is under way."""
        self._forget_idle()
        waits = self._prepares or self._decisions or self._inquiries or self._dones
        return not (waits or self._active or self._stale)

    @property
    def waits_for_time(self) -> bool:
        """Whether something is sent only when time has moved on."""
        return bool(self._stale)

    def _forget_idle(self) -> None:
        for key in [key for key, stream in self._active.items() if stream.idle]:
            del self._active[key]

    # ------------------------------------------------------------ time

    def pump(self, channel: GroupChannel, now: float, hurry: bool, done: OnRequestDone) -> float:
        """Ends what has waited for too long, and sends what is due if ``channel`` has room; ``hurry``:
        without linger. Returns the latest time for the next call. ``done`` gets each request and its
        outcome."""
        wake = self._end_pause(now)
        if self._answered:
            self._answered, self._back_by = False, now + self._tx_linger_s
        elif self._back_by <= now:
            self._back_by = float("-inf")
        if self._back_by > now:
            wake = min(wake, self._back_by)
        while channel.room() > 0:
            due = self.due(channel.in_flight == 0)
            if due > now and not (hurry and due < float("inf")):
                return due if due < wake else wake
            built = self.build()
            if built is None:
                break
            frames = b"".join(built.frames)
            built.frames.clear()
            channel.submit(Request("submit", (frames,), built.deadline, partial(done, self, built)), now)
        return wake

    def _end_pause(self, now: float) -> float:
        """Ends what has waited for too long, and the pause after a stale PREPARE; returns the next such
        time."""
        if self._stale:
            if now >= self._stale_until:
                for block in self._stale:
                    self.prepare(block, float("-inf"))
                self._stale, self._stale_until = [], float("inf")
            elif self._stale_until == float("inf"):
                self._stale_until = now + STALE_PAUSE_S
        return min(self.expire(now), self._stale_until)

    def due(self, nothing_under_way: bool) -> float:
        """When the next request should be built, given that the channel has room; infinity: nothing waits."""
        due = self._dones_since + DONE_LINGER_S
        if self._inquiries:
            return float("-inf")
        if self._prepares or self._decisions:
            together = len(self._prepares) + len(self._decisions) >= self._expected
            if (nothing_under_way and together) or self._tx_bytes >= self._full_bytes:
                return float("-inf")
            due = min(due, self._tx_since + self._tx_linger_s)
        for stream in self._active.values():
            if stream.waits:
                if nothing_under_way or stream.queued_bytes >= self._full_bytes:
                    return float("-inf")
                due = min(due, stream.oldest() + self._linger_s)
        return due

    def missing(self, nothing_under_way: bool, now: float) -> float:
        """How many further blocks of transactions make it worth calling ``pump`` before the time that it
        returned: those that are expected together, if they may be sent then, and otherwise the first one.
        Infinity: none, since an answer or the end of the linger comes first."""
        waiting = len(self._prepares) + len(self._decisions)
        if not waiting and not (nothing_under_way and now < self._back_by):
            return 1
        return max(self._expected - waiting, 1) if nothing_under_way else float("inf")

    def expire(self, now: float) -> float:
        """Ends what has passed its deadline without being sent; returns the next such time."""
        late = Failure(FailureKind.UNAVAILABLE, "not sent in time: the broker group does not answer")
        queues: tuple[deque[Any], ...] = (self._prepares, self._decisions, self._inquiries, self._dones)
        soonest = float("inf")
        for queue in queues:
            while queue and now >= queue[0].deadline:  # ordered by deadline, except for a few repetitions
                queue.popleft().done(late)
            if queue:
                soonest = min(soonest, queue[0].deadline)
        for stream in self._active.values():
            if stream.queued_bytes:
                stream.expire(now, late)
                if stream.queued_bytes:
                    soonest = min(soonest, stream.oldest_queued() + self._config.delivery_timeout_s)
        return soonest

    # ------------------------------------------------------------ requests

    def build(self) -> BuiltRequest | None:
        """A request made of what waits, about ``request_bytes`` at most; None when nothing waits."""
        request = BuiltRequest()
        self._messages_first = not self._messages_first  # alternates, so that neither starves the other
        waits = bool(self._prepares or self._decisions)
        streams, bytes_max = bool(self._active), self._config.request_bytes
        if streams and self._messages_first and waits:
            self._take_messages(request, self._full_bytes // 2)
        if self._decisions:
            self._take_decisions(request)
        if self._inquiries or self._dones:
            self._take_inquiries(request)
        if self._prepares:
            self._take_prepares(request)
        if streams:
            self._take_messages(request, bytes_max)
        self._note_empty()
        return request if request.frames else None

    def _note_empty(self) -> None:
        if not (self._prepares or self._decisions):
            self._tx_bytes, self._tx_since = 0, float("inf")

    def _take_decisions(self, request: BuiltRequest) -> None:
        queue = self._decisions
        room = self._full_bytes
        by_key: dict[tuple[bool, bool, int, bool], list[DecisionBlock]] = {}
        count = 0
        while queue and room > 0 and count < IDS_PER_OPERATION:
            block = queue.popleft()
            cost = (ID_OVERHEAD + len(block.tx_ids[0])) * len(block.tx_ids)
            room -= cost
            self._tx_bytes -= cost
            count += len(block.tx_ids)
            by_key.setdefault(block.key(), []).append(block)
        for blocks in by_key.values():
            frame = encode_decision(self._app, blocks)
            deadline = min(block.deadline for block in blocks)
            request.add(frame, partial(self._decided, blocks), deadline)
            request.blocks += len(blocks)

    def _take_inquiries(self, request: BuiltRequest) -> None:
        """Adds one operation per question, and one per branch group for what its branches have finished."""
        while self._inquiries and request.size < self._full_bytes:
            block = self._inquiries.popleft()
            frame = ops.inquire(self._app, block.tx_ids, block.home_index)
            request.add(frame, partial(self._inquired, block), block.deadline)
        by_group: dict[int, list[DoneBlock]] = {}
        count = 0
        while self._dones and count < IDS_PER_OPERATION:
            told = self._dones.popleft()
            by_group.setdefault(told.group, []).append(told)
            count += len(told.tx_ids)
        for blocks in by_group.values():
            deadline = min(block.deadline for block in blocks)
            request.add(encode_done(self._app, blocks), _heard, deadline)
        if not self._dones:
            self._dones_since = float("inf")

    def _take_prepares(self, request: BuiltRequest) -> None:
        queue = self._prepares
        room = self._full_bytes - request.size
        operations: dict[Any, list[PrepareBlock]] = {}
        seen: set[str] = set()
        while queue:
            block = queue[0]
            cost = block.size + TX_OVERHEAD * len(block.tx_ids)
            if (request.frames or operations) and (cost > room or len(seen) > IDS_PER_OPERATION):
                break
            # Brokers refuse a request that names an id twice; the second occurrence goes into the next
            # request.
            if not seen.isdisjoint(block.tx_ids):
                break
            seen.update(block.tx_ids)
            queue.popleft()
            room -= cost
            self._tx_bytes -= cost
            key = block if block.alone else block.key()
            operations.setdefault(key, []).append(block)
        for blocks in operations.values():
            deadline = min(block.deadline for block in blocks)
            first = blocks[0]
            heard_ms = self._heard_ms if first.heard_ms < 0 else first.heard_ms
            frame = encode_prepare(
                self._app, blocks, self._placement.id_of, self._instance, heard_ms, self._claim, self._fence
            )
            request.add(frame, partial(self._prepared, blocks), deadline)
            request.blocks += len(blocks)

    def _take_messages(self, request: BuiltRequest, bytes_max: int) -> None:
        self._forget_idle()
        ready = [stream for stream in self._active.values() if stream.waits]
        ready.sort(key=PartitionStream.oldest)
        for stream in ready:
            room = bytes_max - request.size
            if room <= 0 and request.frames:
                return
            if stream.next_seq == 0:
                # The first batch of an epoch: if the broker has forgotten its producer, it looks like that of
                # a new producer, while later batches would be out of sequence.
                frame, batch = stream.take(room, self._heard_ms, self._placement.id_of(stream.topic))
            else:
                frame, batch = stream.take(room)
            request.add(frame, partial(self._sent, request, stream, batch), batch.deadline)

    # ------------------------------------------------------------ answers

    def answered(self, request: BuiltRequest, outcome: Any, repeated: bool, sendings: int = 1) -> None:
        """Hands the channel's outcome to all handlers: results by operation, or one failure for all.

        ``repeated``: an earlier sending may have been carried out, since it got no answer. ``sendings``: how
        often the request was sent, also counting those that were refused.
        """
        request.sendings = sendings
        if request.blocks:
            self._expected, self._answered = request.blocks, request.blocks > 1
        handlers, request.handlers = request.handlers, []  # so that what they refer to is freed now
        if isinstance(outcome, Failure):
            for handler in handlers:
                handler(outcome, repeated)
            return
        results = outcome[1] if outcome[0] == "ok" and len(outcome) <= 3 else []
        if results and len(outcome) == 3:
            self.heard(outcome[2])
        if len(results) != len(handlers):
            broken = Failure(FailureKind.UNKNOWN, f"answer {outcome[0]!r} with {len(results)} results")
            results = [broken] * len(handlers)
        for handler, result in zip(handlers, results, strict=True):
            handler(result, repeated)

    @staticmethod
    def _sent(
        request: BuiltRequest,
        stream: PartitionStream,
        batch: Batch,
        outcome: Sequence[Any] | Failure,
        repeated: bool,
    ) -> None:
        """The result of a batch. A sending that was refused counts, too: a copy of it may have reached a
        later leader, which stored it, and be forgotten by now."""
        stream.finished(batch, outcome, repeated or request.sendings > 1)

    @staticmethod
    def _inquired(block: InquireBlock, outcome: Sequence[Any] | Failure, repeated: bool) -> None:
        block.done(outcome if isinstance(outcome, Failure) else not_open(outcome, block))

    def _decided(self, blocks: list[DecisionBlock], outcome: Sequence[Any] | Failure, repeated: bool) -> None:
        if isinstance(outcome, Failure):
            _fail(blocks, outcome)
            return
        count = sum(len(block.tx_ids) for block in blocks)
        problems = problems_of(outcome, count)
        if blocks[0].home_group >= 0:  # of branches, whose home is counted
            pass
        elif blocks[0].commit:
            self._counted.committed += count - len(problems)
        else:
            self._counted.rolled_back += count - len(problems)
        for block in finish_decided(blocks, problems):
            self.decide(block, float("-inf"))

    def _prepared(self, blocks: list[PrepareBlock], outcome: Sequence[Any] | Failure, repeated: bool) -> None:
        if isinstance(outcome, Failure):
            _fail(blocks, outcome)
            return
        if repeated:
            for block in blocks:
                block.perhaps_open = True
        if outcome[0] in (ResultCode.OK, ResultCode.DUPLICATE, ResultCode.PARTIAL):
            if not blocks[0].home_index:  # branches are counted at home
                count = sum(len(block.tx_ids) for block in blocks)
                self._counted.prepared += count - len(problems_of(outcome, count))
            heard_ms = self._heard_ms
            for block in finish_prepared(blocks, outcome, heard_ms, repeated):
                if block.stale_ms == heard_ms:
                    self._stale.append(block)
                else:
                    block.stale_ms = heard_ms
                    self.prepare(block, float("-inf"))
        elif (
            outcome[0] == ResultCode.OTHER_TOPIC
            and not (repeated or blocks[0].is_further)
            and outcome[1][2] >= self._placement.id_of(outcome[1][0])
        ):
            # It was sent only once, and refused, so it is open nowhere: send it to the present topic. A lower
            # id is an earlier topic, left over where its deletion and the new creation have not arrived.
            topic, _, topic_id = outcome[1]
            self._placement.hear_id(topic, topic_id)
            for block in blocks:
                self.prepare(block, float("-inf"))
        else:
            for block in retry_apart(blocks, outcome):
                self.prepare(block, float("-inf"))

    def end_all(self, failure: Failure) -> None:
        """The producer ends: nothing that waits here will be sent."""
        waiting: list[Block] = [*self._prepares, *self._stale, *self._decisions, *self._inquiries]
        self._stale = []
        for queue in (self._prepares, self._decisions, self._inquiries, self._dones):
            queue.clear()
        _fail(waiting, failure)
        for stream in self._active.values():
            stream.end_all(failure)


def _heard(outcome: Sequence[Any] | Failure, repeated: bool) -> None:
    """Nothing to do after home was told of finished branches; if that failed, home tells them once more."""


def _fail(blocks: Iterable[Block], failure: Failure) -> None:
    for block in blocks:
        block.done(failure)
