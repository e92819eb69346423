"""What a share consumer holds: batches of messages under leases, in its buffer or with the application.

A batch is what one answer brought of one partition, under one lease. Its messages are settled one by one;
what is still open keeps its lease. A batch whose lease ended is not handed out any more: other consumers may
have its messages. What the application has of it can still be acked, since an ack needs no lease.

Pure: takes ``now``. Never hands out a message of a lease that ended by this consumer's clock.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Collection, Iterable
from typing import NamedTuple, TypeAlias

from escrowmq.actors.client.values import Deserialize
from escrowmq.actors.share_consumer.acquired import Acquired
from escrowmq.actors.share_consumer.record import ShareRecord
from escrowmq.replication.errors import CorruptLog, DamagedValue, NotDeserializable, RecordNotHeld
from escrowmq.replication.format.packing import UNPACKED_BYTES
from escrowmq.replication.model import ConsumerRecord

#: Batches whose leases ended while the application still had messages of them. Their acks count as long as
#: they are known here; an application that takes messages and never settles them must not fill the memory.
LOST_MAX = 1_000

#: Shortest pause between two attempts to extend a lease.
EXTEND_PAUSE_S = 0.2

#: Topic, partition, and the topic's id.
PlaceOfBatch: TypeAlias = tuple[str, int, int]
#: Numbers of leases: two consumers, also of two processes, never have the same one, so that a record which
#: another consumer polled is recognised.
_numbers = itertools.count(random.getrandbits(40) << 20)


class Batch:
    """Messages of one partition under one lease. ``open``: those that are not settled."""

    __slots__ = (
        "came", "content", "expires", "extend_at", "extending", "gid", "handed", "lease_s", "lost", "number",
        "open", "own", "since",
    )  # fmt: skip

    def __init__(self, gid: int, content: Acquired, now: float, lease_s: float) -> None:
        self.number = next(_numbers)
        self.gid, self.content, self.open = gid, content, content.offsets
        #: Those of ``open`` that the application has.
        self.handed: set[int] = set()
        #: When a message of it was last handed out, or else when it came.
        self.came = self.since = now
        self.expires, self.lease_s = now + lease_s, lease_s
        #: At half of the lease, so that more attempts fit into the rest.
        self.extend_at = now + lease_s / 2
        self.extending = self.lost = False
        #: Messages whose lease is not extended with the batch, and when it ends: the application extends it,
        #: or it is gone.
        self.own: dict[int, float] = {}

    @property
    def place(self) -> PlaceOfBatch:
        return self.content.topic, self.content.partition, self.content.topic_id

    @property
    def waiting(self) -> set[int]:
        """Those that wait in the buffer."""
        return self.open - self.handed

    @property
    def tended(self) -> set[int]:
        """Those whose lease is extended unasked."""
        return self.open - self.own.keys()

    @property
    def over_at(self) -> float:
        """When the last lease of its messages ends."""
        return max(self.own.values(), default=0.0) if self.own.keys() >= self.open else self.expires


class Unreadable(NamedTuple):
    """A message that cannot be handed out, and why."""

    batch: Batch
    offset: int
    reason: str


class HeldBatches:
    """All batches of one consumer. Every method runs under its lock."""

    def __init__(
        self,
        extend_max_s: float,
        deserialize: Deserialize | None = None,
        tags: frozenset[bytes] | None = None,
    ) -> None:
        """``tags``: messages with none of these are not handed out; see ``passed_over``."""
        self._extend_max_s, self._deserialize, self._tags = extend_max_s, deserialize, tags
        self._batches: dict[int, Batch] = {}
        self._ready: deque[Batch] = deque()  # those with messages in the buffer
        self._lost: deque[int] = deque()
        #: What ``take`` has settled because of its tag; the caller acks it, and empties this.
        self.passed_over: list[tuple[Batch, int]] = []
        #: Messages in the buffer, with the application, and those that the application is done with.
        self.buffered = self.handed = self.done = 0
        #: Leases that ended before their messages were settled.
        self.leases_lost = 0
        #: Broker group -> the number of the last call for messages that it has answered.
        self.answered: dict[int, int] = {}

    def __len__(self) -> int:
        """Messages that are held: in the buffer, or with the application."""
        return sum(len(batch.open) for batch in self._batches.values() if not batch.lost)

    def add(self, gid: int, content: Acquired, now: float, lease_s: float) -> None:
        """Takes the messages of a new lease into the buffer."""
        batch = Batch(gid, content, now, lease_s)
        self._batches[batch.number] = batch
        self._ready.append(batch)
        self.buffered += len(batch.open)

    # ------------------------------------------------------------ handing out

    def take(self, limit: int, now: float) -> tuple[list[ShareRecord], list[Unreadable]]:
        """At most ``limit`` messages from the buffer; and messages that cannot be read, which the caller
        settles."""
        records: list[ShareRecord] = []
        unreadable: list[Unreadable] = []
        room = UNPACKED_BYTES
        while self._ready and len(records) < limit and room > 0:
            batch = self._ready[0]
            if batch.lost or batch.expires <= now or batch.content.next is None:
                self._ready.popleft()
                self._drop_buffered(batch)
                continue
            try:
                part = batch.content.take(
                    limit - len(records), room, batch.open, batch.number, self._deserialize, self._tags
                )
            except (NotDeserializable, DamagedValue) as error:
                batch.content.skip()
                unreadable.append(Unreadable(batch, error.offset, f"{type(error).__name__}: {error.reason}"))
                self._hand(batch, [error.offset], now)
                continue
            except CorruptLog as error:  # no row can be told from the next
                self._ready.popleft()
                lost = sorted(batch.waiting)
                unreadable += [Unreadable(batch, offset, str(error)) for offset in lost]
                self._hand(batch, lost, now)
                continue
            finally:
                self._pass_over(batch)
            if part:  # of values that were passed over, nothing is kept
                room -= batch.content.unpacked
            self._hand(batch, [record.offset for record in part], now)
            records += part
        return records, unreadable

    def _pass_over(self, batch: Batch) -> None:
        self.done += len(batch.content.passed)
        for offset in batch.content.passed:
            self.settled(batch, offset)
            self.passed_over.append((batch, offset))
        batch.content.passed = []

    def _hand(self, batch: Batch, offsets: Collection[int], now: float) -> None:
        batch.handed.update(offsets)
        batch.since = now
        self.buffered -= len(offsets)
        self.handed += len(offsets)

    # ------------------------------------------------------------ settling

    def find(self, record: ConsumerRecord) -> Batch:
        """The batch of a record that the application has. Raises RecordNotHeld."""
        batch = self._batches.get(record.lease) if isinstance(record, ShareRecord) else None
        if (
            batch is None
            or record.offset not in batch.handed
            or (record.topic, record.partition) != batch.place[:2]
        ):
            raise RecordNotHeld(record.topic, record.partition, record.offset)
        return batch

    def settled(self, batch: Batch, offset: int) -> None:
        """This one is done with: it is not open any more."""
        if offset in batch.open:
            batch.open.discard(offset)
            if offset in batch.handed:
                batch.handed.discard(offset)
                if not batch.lost:
                    self.handed -= 1
                    self.done += 1
            else:
                self.buffered -= 1
            batch.own.pop(offset, None)
        if not batch.open:
            self._batches.pop(batch.number, None)

    def reopened(self, batch: Batch, offset: int) -> None:
        """Settling it failed: the application has it as before."""
        if not batch.lost:
            self.handed += 1
            self.done -= 1
        batch.open.add(offset)
        batch.handed.add(offset)
        self._batches[batch.number] = batch

    def extended_alone(self, batch: Batch, offset: int, until: float) -> None:
        """The application has extended the lease of this one, and will do so from now on."""
        if offset in batch.open:
            batch.own[offset] = until

    # ------------------------------------------------------------ leases

    def tend(self, now: float) -> list[Batch]:
        """Ends what has expired; returns the batches to extend now. The caller says how that ended."""
        due: list[Batch] = []
        for batch in list(self._batches.values()):
            if batch.lost:
                continue
            if batch.over_at <= now:
                self._lose(batch, now)
            elif not batch.extending and self._may_extend(batch) and batch.extend_at <= now:
                batch.extending = True
                due.append(batch)
        return due

    def next_tend(self) -> float:
        """When ``tend`` is due; infinity if nothing is held."""
        times = [float("inf")]
        for batch in self._batches.values():
            if not batch.lost:
                times.append(batch.over_at)
                if not batch.extending and self._may_extend(batch):
                    times.append(batch.extend_at)
        return min(times)

    def _may_extend(self, batch: Batch) -> bool:
        """Not when the time of all extensions is over: then the lease ends by itself."""
        return batch.extend_at < batch.since + self._extend_max_s and bool(batch.tended)

    def extended(self, batch: Batch, refused: Iterable[int], asked_at: float) -> None:
        """The broker has extended a batch, except for these messages, which are others' now."""
        batch.extending = False
        batch.expires = max(batch.expires, asked_at + batch.lease_s)
        batch.extend_at = asked_at + batch.lease_s / 2
        for offset in refused:
            if offset in batch.handed:
                batch.own[offset] = 0.0
                self.leases_lost += 1
            else:
                self.settled(batch, offset)

    def not_extended(self, batch: Batch, now: float) -> None:
        """The call failed: it is tried again, a few times until the lease ends."""
        batch.extending = False
        batch.extend_at = now + max((batch.expires - now) / 2, EXTEND_PAUSE_S)

    def _lose(self, batch: Batch, now: float) -> None:
        self.handed -= len(batch.handed)
        self.done += len(batch.handed)
        batch.lost = True
        self._drop_buffered(batch)
        if batch.open:
            self.leases_lost += sum(0 < batch.own.get(offset, now) <= now for offset in batch.open)
            self._lost.append(batch.number)
            while len(self._lost) > LOST_MAX:
                self._batches.pop(self._lost.popleft(), None)

    def _drop_buffered(self, batch: Batch) -> None:
        for offset in batch.waiting:
            self.settled(batch, offset)

    def waits_since(self) -> float:
        """When the oldest in the buffer came; infinity if it is empty."""
        while self._ready and self._ready[0].content.next is None:
            self._drop_buffered(self._ready.popleft())
        return self._ready[0].came if self._ready else float("inf")

    def give_back(self) -> list[tuple[Batch, list[int]]]:
        """Takes everything out of the buffer, for other consumers."""
        given = []
        for batch in self._ready:
            offsets = sorted(batch.waiting)
            self._drop_buffered(batch)
            if offsets and not batch.lost:
                given.append((batch, offsets))
        self._ready.clear()
        return given
