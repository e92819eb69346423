"""A relay, step by step: it takes a shard, and sends one batch after another as numbered transactions.

The database says what is in batch n, and does not change it; the broker says whether n is in. So whatever is
interrupted is done again: a batch that is in the database is sent, and one that the broker has is removed.
Nothing is decided by time, except who may ask for a shard.

It must never remove rows unless the broker has answered for exactly these, and never send a batch that is not
marked in the database.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Protocol

from escrowmq.feedback.database.errors import DatabaseMisused
from escrowmq.feedback.database.outbox_shards import Lease, OutboxShards, ShardLost
from escrowmq.feedback.database.outbox_statements import (
    CONTENT_BYTES_MAX,
    OutboxRow,
    UnreadableContent,
    digest_of_rows,
    message_of,
)
from escrowmq.replication.errors import EscrowMQError, ProducerFenced
from escrowmq.replication.model import Message


class BatchRefused(Exception):
    """The broker refuses these messages for good, and has stored none of them. ``hopeless``: whatever becomes
    of the broker, they are not fit to be sent."""

    def __init__(self, why: str, *, hopeless: bool = False) -> None:
        super().__init__(why)
        self.hopeless = hopeless


class BatchOutOfSequence(Exception):
    """The broker has a later number, or other messages under this one."""


class Shipping(Protocol):
    """The broker's side of a relay: a named producer for each shard."""

    def claim(self, shard: int) -> int:
        """Become the only producer of this name; the claim's epoch."""

    def partition_of(self, shard: int, message: Message, turn: int) -> int | str:
        """The message's partition, the one that it names if it does, or why it cannot be sent. ``turn``: any
        number, for messages without a key. Asked after ``claim``."""

    def ship(self, shard: int, epoch: int, number: int, messages: Sequence[Message], digest: bytes) -> None:
        """Commit these messages as transaction ``number`` of the claim, unless they are committed under it
        already.

        Raises BatchRefused, BatchOutOfSequence, ProducerFenced (the claim is another's now); any other
        EscrowMQError means that the answer is not known, or that the broker is away: the same batch is sent
        again."""

    def settle(self, shard: int, epoch: int, number: int, digest: bytes, why: str) -> None:
        """The same for a batch whose messages nobody can read: it ends if they are committed. If not, they
        never will be, and BatchRefused says ``why``."""


class Step(enum.Enum):
    """What a step has done."""

    NOT_MINE = "another relay has the shard, or it is stopped"
    IDLE = "there is nothing to send now"
    SENT = "a batch is sent, and its rows are removed"
    REFUSED = "a batch, or some rows, were refused"
    AWAY = "the broker does not answer; the batch waits"
    STOPPED = "the broker and the database disagree: a person has to decide"


class Relay:
    """Sends one shard of an outbox. Not thread-safe."""

    def __init__(self, shards: OutboxShards, shipping: Shipping, shard: int) -> None:
        self._shards, self._shipping, self._shard = shards, shipping, shard
        self._lease: Lease | None = None
        self._epoch = 0
        self._batch: list[OutboxRow] = []  # marked in the database, and not known to be sent
        self.rows_sent = 0
        #: What the broker or the database said last, if a step did not end well.
        self.problem = ""

    def step(self) -> Step:
        """One batch, at most. Raises what the database raises; the next step begins where this one ended."""
        try:
            lease = self._lease or self._taken()
            if lease is None:
                return Step.NOT_MINE
            if not self._batch and (found := self._marked(lease)) is not Step.SENT:
                return found
            return self._send(lease)
        except (ShardLost, ProducerFenced) as error:
            self._forget()
            self.problem = str(error)
            return Step.NOT_MINE
        except DatabaseMisused:  # no answer of the broker's
            self._forget()
            raise
        except EscrowMQError as error:
            self.problem = str(error)
            return Step.AWAY
        except Exception:
            self._forget()  # whether the last statement was carried out is not known: ask the database
            raise

    @property
    def lease(self) -> Lease | None:
        """The shard's, if this relay has it. May be asked in other threads."""
        return self._lease

    def close(self) -> None:
        """Let another relay have the shard at once. Raises what the database raises."""
        lease, self._lease = self._lease, None
        if lease is not None:
            self._shards.give_up(lease)

    def _forget(self) -> None:
        self._lease, self._batch = None, []

    def _taken(self) -> Lease | None:
        lease = self._shards.take(self._shard)
        if lease is not None:
            self._epoch = self._shipping.claim(self._shard)
            # After the claim: whoever had the shard before can send nothing now, so this is all there is.
            self._batch = self._shards.in_batch(lease)
            self._lease = lease
        return lease

    def _marked(self, lease: Lease) -> Step:
        """Put the next rows into a batch; SENT if there is one to send."""
        rows = self._shards.pick(lease.shard)
        if not rows:
            self._shards.renew(lease)
            return Step.IDLE
        placed: dict[int, int] = {}
        broken: dict[bytes, str] = {}
        for row in rows:
            partition = self._partition_of(row)
            if isinstance(partition, int):
                placed[row.id] = partition
            else:
                broken[row.group] = partition
        if broken:  # the whole groups: their messages belong together
            self.problem = next(iter(broken.values()))
            for group, error in broken.items():
                self._shards.bury(lease, [row for row in rows if row.group == group], error)
            return Step.REFUSED
        self._batch = self._shards.mark(lease, rows, placed)
        return Step.SENT

    def _partition_of(self, row: OutboxRow) -> int | str:
        """The row's partition, or why it can never be sent."""
        if row.size > CONTENT_BYTES_MAX:
            return f"the row's content has {row.size:,} bytes, more than any message may have: drop it"
        try:
            message = message_of(row.content)
        except UnreadableContent as error:
            return str(error)
        return self._shipping.partition_of(self._shard, message, row.id)

    def _send(self, lease: Lease) -> Step:
        rows, number = self._batch, lease.last + 1
        if any(row.batch != number for row in rows):
            return self._stopped(lease, f"rows of batch {rows[0].batch}, and the next one is {number}")
        try:
            self._ship(number, rows)
        except BatchRefused as error:
            self.problem = str(error)
            self._lease = self._shards.dissolve(lease, number, rows, str(error), hopeless=error.hopeless)
            self._batch = []
            return Step.REFUSED
        except BatchOutOfSequence as error:
            return self._stopped(lease, str(error))
        self._lease = self._shards.finish(lease, number, rows)
        self._batch = []
        self.rows_sent += len(rows)
        self.problem = ""
        return Step.SENT

    def _ship(self, number: int, rows: Sequence[OutboxRow]) -> None:
        try:
            messages = [message_of(row.content, row.placed) for row in rows]
        except UnreadableContent as error:  # marked by a later version, or damaged since
            self._shipping.settle(self._shard, self._epoch, number, digest_of_rows(rows), str(error))
        else:
            self._shipping.ship(self._shard, self._epoch, number, messages, digest_of_rows(rows))

    def _stopped(self, lease: Lease, why: str) -> Step:
        self._shards.stop(lease, why)
        self._forget()
        self.problem = why
        return Step.STOPPED
