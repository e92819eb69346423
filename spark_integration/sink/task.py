"""The work of a sink task: collects its rows in chunks and prepares each chunk when it is full.

A chunk is a transaction of a few MiB in one broker group. It is durable on a majority but not readable until
the driver commits the epoch. Only a few are in flight at a time, so memory is bounded however large the task
is. Each attempt gets a new random name, so that the chunks of a repeated task, a speculative twin or a
restarted query never collide with earlier ones.
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from escrowmq.actors.producer.config import Compression
from escrowmq.actors.producer.encoding.encoder import crc32c
from escrowmq.actors.producer.encoding.table_rows import (
    NIL,
    Integers,
    as_binary,
    bodies,
    checksums,
    joined,
    row_parts,
    slices,
)
from escrowmq.actors.producer.encoding.value_packer import ValuePacker
from escrowmq.actors.producer.transactions.results import prepare_problem
from escrowmq.replication.errors import (
    EscrowMQError,
    InvalidMessage,
    MessageTooLarge,
    TransactionSettled,
    UnknownTopic,
)
from escrowmq.replication.format import ops
from escrowmq.replication.format.ops import PrepareExtra
from escrowmq.replication.limits import NUMBER_MAX
from escrowmq.replication.model import NO_ID, TransactionState
from escrowmq.spark_integration.sink.intents import Attempt, chunk_id
from escrowmq.spark_integration.sink.link import CALL_S, NotOpened, SinkLink, roll_back_chunks

# ------------------------------------------------------------------------------------------------------------
# Encodes Arrow batches as rows of the log: one batch of Spark becomes encoded messages by partition.
#
# Rows are joined from columns as those of ``send_table`` are (``encoding.table_rows``). Here all messages
# have the chunk's id, and each may have headers, a topic and a partition from columns.


class RowTooLarge(MessageTooLarge):
    """A row's message is larger than the sink's limit."""

    def __str__(self) -> str:
        return (
            f"a row makes a message of {self.size_bytes} bytes, but the limit is {self.limit_bytes}; store "
            "large values elsewhere and write a reference, or raise option 'maxMessageBytes' (in Ray Data: "
            "message_bytes_max), up to 4194304"
        )


@dataclass(slots=True)
class Rows:
    """Encoded messages of one partition, in order. ``body``: all concatenated; ``sizes``: in bytes."""

    topic: str
    partition: int
    sizes: list[int]
    body: bytes


@dataclass(slots=True)
class RowEncoder:
    """Encodes the batches of one task.

    ``topic`` None: a column has it. ``partitions``: topic -> number of partitions; raises UnknownTopic.
    ``spread``: any number, different for each task, so that tasks start with different partitions.
    ``pack``: compresses the values of a column of encoded rows; limits are those of the rows before.
    """

    tx_id: str
    topic: str | None
    partitions: Callable[[str], int]
    message_bytes_max: int
    slice_bytes: int
    spread: int = 0
    pack: Callable[[pa.Array], pa.Array] | None = None
    _counts: dict[str, int] = field(default_factory=dict)

    def encode(self, batch: pa.RecordBatch) -> Iterator[list[Rows]]:
        """Encode the batch in pieces of about ``slice_bytes``, in order; each has at least one message.

        Raises InvalidMessage, MessageTooLarge, UnknownTopic.
        """
        columns = {name: batch.column(i) for i, name in enumerate(batch.schema.names)}
        value = columns["value"]
        if value.null_count:
            raise InvalidMessage(
                "column 'value' contains null, but a message's value must be bytes; leave out such rows, or "
                "write coalesce(value, X'') for an empty value"
            )
        key = as_binary(columns["key"]) if "key" in columns else pa.nulls(len(batch), pa.binary())
        parts = row_parts(
            value,
            key,
            _headers(columns["headers"]) if "headers" in columns else pa.scalar(NIL, pa.binary()),
            pa.scalar(msgspec.msgpack.encode(self.tx_id), pa.binary()),
        )
        topics = self._topics(columns, len(batch))
        for some in slices(self._sizes(parts, len(batch)), self.slice_bytes):
            rows = joined([part[some] if isinstance(part, pa.Array) else part for part in parts])
            if self.pack is not None:
                rows = self.pack(rows)
            partitions = self._partitions_of(columns, key[some], topics[some], some)
            self.spread += 1
            names = self._names
            yield [
                Rows(names[code >> 32], code & 0xFFFFFFFF, sizes, body)
                for code, _, sizes, body in bodies(rows, (topics[some] << 32) + partitions)
            ]

    @property
    def _names(self) -> list[str]:
        return list(self._counts)

    def _sizes(self, parts: list[pa.Array | pa.Scalar], count: int) -> Integers:
        sizes = np.zeros(count, np.int64)
        for part in parts:
            if isinstance(part, pa.Array):
                sizes += pc.binary_length(part).to_numpy(zero_copy_only=False)
            else:
                sizes += len(part.as_py())
        if count and sizes.max() > self.message_bytes_max:
            raise RowTooLarge(int(sizes.max()), self.message_bytes_max)
        return sizes

    def _topics(self, columns: dict[str, pa.Array], count: int) -> Integers:
        """The topic of each message, as an index into the topics of this task."""
        if self.topic is not None:
            return np.full(count, self._topic_number(self.topic), np.int64)
        column = columns["topic"]
        if column.null_count:
            raise InvalidMessage(
                "column 'topic' contains null; give every row a topic, or set option 'topic'"
            )
        coded = column.cast(pa.string()).dictionary_encode()
        numbers = np.array([self._topic_number(name) for name in coded.dictionary.to_pylist()], np.int64)
        return numbers[coded.indices.to_numpy()] if count else np.zeros(0, np.int64)

    def _topic_number(self, topic: str) -> int:
        if topic not in self._counts:
            self._counts[topic] = self.partitions(topic)
        return self._names.index(topic)

    def _partitions_of(
        self, columns: dict[str, pa.Array], keys: pa.Array, topics: Integers, some: slice
    ) -> Integers:
        """Partitions of ``some`` messages, with these keys and topics.

        A message's partition is the given one, else the one that producers choose for its key, else the same
        one for all other messages of this piece.
        """
        counts = np.array(list(self._counts.values()), np.int64)[topics]
        partitions = self.spread % counts
        keyed = keys.is_valid().to_numpy(zero_copy_only=False)
        if keyed.any():
            partitions[keyed] = checksums(keys.drop_null()) % counts[keyed]
        if "partition" in columns:
            given = columns["partition"][some]
            said = given.is_valid().to_numpy(zero_copy_only=False)
            numbers = pc.fill_null(given, 0).to_numpy().astype(np.int64)
            wrong = said & ((numbers < 0) | (numbers >= counts))
            if wrong.any():
                at = int(np.argmax(wrong))
                raise UnknownTopic(self._names[topics[at]], int(numbers[at]), int(counts[at]))
            partitions = np.where(said, numbers, partitions)
        return partitions


def _headers(column: pa.Array) -> pa.Array:
    """``array<struct<key, value>>`` as msgpack maps; nil for null and for an empty array.

    This makes Python objects for each message, which is acceptable because headers are rare and short.
    """
    encode = msgspec.msgpack.encode
    encoded = []
    for pairs in column.to_pylist():
        if not pairs:
            encoded.append(NIL)
            continue
        headers = {}
        for pair in pairs:
            name, value = (None, None) if pair is None else (pair["key"], pair["value"])
            if name is None or value is None or name in headers:
                what = "the same name twice" if name in headers else "null"
                raise InvalidMessage(
                    f"column 'headers' contains {what} in {pairs!r:.100}; the headers of a message need "
                    "different names, and bytes as values"
                )
            headers[name] = value
        encoded.append(encode(headers))
    return pa.array(encoded, pa.binary())


log = logging.getLogger(__name__)

#: Bytes of rows in one chunk. Two writers reached 72 to 93 MB/s with chunks of 1 MiB, and 75 to 119 MB/s with
#: 4 MiB, which took brokers a third less time. The driver's single COMMIT also has fewer ids to name.
CHUNK_BYTES = 4 << 20
#: Bytes of rows that are encoded at a time.
SLICE_BYTES = 1 << 20
#: Sent in place of the latest time that a producer has heard of, by which brokers refuse late requests. That
#: is not needed here: a chunk's name is never reused, and a late copy of a chunk is rolled back because its
#: home group does not expect it.
NEVER_LATE = NUMBER_MAX
#: Chunks of one task in flight: enough that the log never waits for a task, and within 16 MiB of memory.
IN_FLIGHT = 3


def attempt_name(task: int, attempt: int) -> str:
    """A globally unique name for a task attempt; the numbers in it help people."""
    return f"{task}.{attempt}.{secrets.token_hex(6)}"


def attempt_number(name: str) -> int:
    """The number of attempts of the same task that were started before this one."""
    return int(name.split(".")[1])


@dataclass(slots=True)
class _PendingRows:
    """Rows of one group that have not filled a chunk yet."""

    size: int = 0
    columns: dict[tuple[str, int], tuple[list[int], list[bytes]]] = field(default_factory=dict)

    def add(self, rows: Rows) -> None:
        sizes, bodies = self.columns.setdefault((rows.topic, rows.partition), ([], []))
        sizes += rows.sizes
        bodies.append(rows.body)
        self.size += len(rows.body)

    def request(
        self,
        app: str,
        tx_id: str,
        epoch_id: str,
        timeout_ms: int,
        home_group: int,
        home_index: int | None = None,
        id_of: Callable[[str], int] = lambda topic: NO_ID,
    ) -> bytes:
        """PREPARE of this chunk as one transaction. ``home_index``: of a branch; None: this group decides.
        ``id_of(topic)``: the topic's id; another topic of that name gets nothing."""
        columns = {which: (sizes, b"".join(bodies)) for which, (sizes, bodies) in self.columns.items()}
        digest = 0
        for _, body in columns.values():
            digest = crc32c(digest.to_bytes(4, "big") + crc32c(body).to_bytes(4, "big"))
        home_topic = next(iter(columns))[0]
        extra = PrepareExtra(home_index=[] if home_index is None else [home_index], heard_ms=NEVER_LATE)
        frames = [
            ops.prepare(
                app,
                home_topic,
                [tx_id],
                [epoch_id],
                timeout_ms,
                0,
                [digest],
                home_group,
                len(columns),
                extra,
            ),
            *(
                ops.pre_message(topic, partition, [0] * len(sizes), sizes, [body], id_of(topic))
                for (topic, partition), (sizes, body) in columns.items()
            ),
        ]
        return b"".join(frames)


def marker(app: str, topic: str, tx_id: str, epoch_id: str, timeout_ms: int, participant: int) -> bytes:
    """The PREPARE, in the group that decides, for a chunk in group ``participant``. It has no messages."""
    extra = PrepareExtra(participants=[participant], heard_ms=NEVER_LATE)
    digest = crc32c(tx_id.encode())
    return ops.prepare(app, topic, [tx_id], [epoch_id], timeout_ms, 0, [digest], -1, 0, extra)


@dataclass(slots=True)
class _Sent:
    gid: int
    tx_id: str
    request: bytes
    future: Future[Any]


class ChunkWriter:
    """Prepares the chunks of one task attempt. For use from one thread."""

    def __init__(
        self,
        link: SinkLink,
        epoch_id: str,
        attempt: str,
        *,
        timeout_ms: int,
        home: int | None = None,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        """``home``: the group that decides the chunks of all groups; None: each group decides its own."""
        self._home = home
        self._link, self._epoch_id, self._attempt, self._timeout_ms = link, epoch_id, attempt, timeout_ms
        self._chunk_bytes = chunk_bytes
        self._waiting: dict[int, _PendingRows] = {}
        self._under_way: deque[_Sent] = deque()
        self._numbers: dict[int, int] = {}
        self._home_index: dict[str, int] = {}  # of chunks in other groups than their home
        #: By group: an upper bound of the log positions that the COMMIT will have to name.
        self.references: dict[int, int] = {}

    def add(self, rows: Iterable[Rows]) -> None:
        """Add encoded rows, and prepare chunks that are full. Raises if a chunk cannot be prepared."""
        group_of = self._link.router.placement.group_of
        for piece in rows:
            gid = group_of(piece.topic, piece.partition)
            chunk = self._waiting.setdefault(gid, _PendingRows())
            if chunk.size and chunk.size + len(piece.body) > self._chunk_bytes:
                self._send(gid)
                chunk = self._waiting.setdefault(gid, _PendingRows())
            chunk.add(piece)

    def finish(self) -> Attempt:
        """Prepare the rest and wait for all chunks; returns what the attempt has prepared."""
        for gid in list(self._waiting):
            self._send(gid)
        while self._under_way:
            self._wait()
        return Attempt(self._attempt, dict(self._numbers))

    def abandon(self) -> None:
        """Roll back everything that was sent. Never raises: the next epoch's commit finds what it misses."""
        # Wait first: a small ROLLBACK can overtake a large PREPARE, which would then open its transaction.
        wait([sent.future for sent in self._under_way], CALL_S)
        self._under_way.clear()
        by_group = Attempt(self._attempt, self._numbers).ids(self._epoch_id)
        if self._home is not None:  # the group that decides comes first
            by_group = {self._home: [tx for ids in by_group.values() for tx in ids], **by_group}
        for gid, ids in by_group.items():
            try:
                opened_at = {tx_id: self._home_index.get(tx_id, -1) for tx_id in ids}
                roll_back_chunks(self._link, gid, opened_at, gid if self._home is None else self._home)
            except EscrowMQError as error:
                log.warning("%s chunks of %s stay open for now: %s", len(ids), self._epoch_id, error)

    def _send(self, gid: int) -> None:
        while len(self._under_way) >= IN_FLIGHT:
            self._wait()
        chunk = self._waiting.pop(gid)
        number = self._numbers.get(gid, 0)
        tx_id = chunk_id(self._epoch_id, self._attempt, gid, number)
        elsewhere = self._home is not None and gid != self._home
        home_group = self._home if elsewhere and self._home is not None else -1
        self._numbers[gid] = number + 1
        self.references[gid] = self.references.get(gid, 0) + len(chunk.columns)
        home_index = None
        if home_group >= 0:  # opens an empty transaction with the same id, whose decision the chunk follows
            home_index = self._open_at_home(home_group, gid, tx_id, next(iter(chunk.columns))[0])
        request = chunk.request(
            *(self._link.app, tx_id, self._epoch_id, self._timeout_ms, home_group, home_index),
            self._link.router.placement.id_of,
        )
        self._start(gid, tx_id, request)

    def _open_at_home(self, home: int, gid: int, tx_id: str, topic: str) -> int:
        """Open the chunk's marker in the home group; returns its log index there.

        This comes first and is waited for, because the chunk names that index, and a chunk that its home
        group does not know is rolled back.
        """
        request = marker(self._link.app, topic, tx_id, self._epoch_id, self._timeout_ms, gid)
        try:
            index = self._link.open_at_home(home, request)
        except NotOpened as refused:
            raise _problem(tx_id, refused.code, refused.info) from None
        self._home_index[tx_id] = index
        return index

    def _start(self, gid: int, tx_id: str, request: bytes) -> None:
        self._under_way.append(_Sent(gid, tx_id, request, self._link.start(gid, request)))

    def _wait(self) -> None:
        sent = self._under_way.popleft()
        problems = self._link.finish(sent.gid, sent.request, sent.future, 1)
        if not problems:
            return
        raise _problem(sent.tx_id, *problems[0])


def _problem(tx_id: str, code: int, info: Any) -> EscrowMQError:
    problem = prepare_problem(tx_id, code, info, opened=True)
    if isinstance(problem, TransactionState):  # rolled back meanwhile, because this task was taken for dead
        return TransactionSettled(tx_id, problem.value)
    return problem


def write_batches(
    batches: Iterable[pa.RecordBatch],
    connect: Callable[[], tuple[SinkLink, Callable[[str], int]]],
    *,
    epoch_id: str,
    attempt: str,
    topic: str | None,
    message_bytes_max: int,
    timeout_ms: int,
    home_of: Callable[[int], int] | None = None,
    compression: Compression | None = None,
    chunk_bytes: int | None = None,
) -> tuple[Attempt, dict[int, int]]:
    """Run a whole task; returns what it prepared, and its references by group.

    On an error its chunks are rolled back. ``connect`` returns the link and ``partitions(topic)``; it is not
    called for a task without rows. ``home_of(groups)``: for writes without an intent, the group that decides.
    ``chunk_bytes`` None: ``CHUNK_BYTES``.
    """
    chunk_bytes = chunk_bytes or CHUNK_BYTES
    writer: ChunkWriter | None = None
    encoder: RowEncoder | None = None
    try:
        for batch in batches:
            if batch.num_rows == 0:
                continue
            if writer is None or encoder is None:
                link, partitions = connect()
                home = None if home_of is None else home_of(link.info.groups)
                writer = ChunkWriter(
                    link, epoch_id, attempt, timeout_ms=timeout_ms, home=home, chunk_bytes=chunk_bytes
                )
                encoder = RowEncoder(
                    epoch_id,
                    topic,
                    partitions,
                    message_bytes_max,
                    min(SLICE_BYTES, chunk_bytes),
                    spread=crc32c(attempt.encode()),
                    pack=None if compression is None else ValuePacker(compression).pack_column,
                )
            for rows in encoder.encode(batch):
                writer.add(rows)
        if writer is None:
            return Attempt(attempt, {}), {}
        return writer.finish(), writer.references
    except BaseException:
        if writer is not None:
            writer.abandon()
        raise
