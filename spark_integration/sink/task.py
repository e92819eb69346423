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
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from escrowmq.actors.producer.compression import Compression
from escrowmq.actors.producer.encoder import crc32c
from escrowmq.actors.producer.results import prepare_problem
from escrowmq.actors.producer.value_packer import ValuePacker
from escrowmq.replication.errors import EscrowMQError, TransactionSettled
from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import PrepareExtra
from escrowmq.replication.model import NO_ID, TransactionState
from escrowmq.replication.replica.validation import NUMBER_MAX
from escrowmq.spark_integration.sink.intents import Attempt, chunk_id
from escrowmq.spark_integration.sink.link import CALL_S, NotOpened, SinkLink, roll_back_chunks
from escrowmq.spark_integration.sink.rows import RowEncoder, Rows

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
        """PREPARE of this chunk as one transaction. ``home_index``: for a branch that its home group tracks.
        ``id_of(topic)``: the topic's id; another topic of that name gets nothing."""
        columns = {place: (sizes, b"".join(bodies)) for place, (sizes, bodies) in self.columns.items()}
        digest = 0
        for _, body in columns.values():
            digest = crc32c(digest.to_bytes(4, "big") + crc32c(body).to_bytes(4, "big"))
        home_topic = next(iter(columns))[0]
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
                None if home_index is None else PrepareExtra(home_index=[home_index], heard_ms=NEVER_LATE),
            ),
            *(
                ops.pre_message(topic, partition, [0] * len(sizes), sizes, [body], id_of(topic))
                for (topic, partition), (sizes, body) in columns.items()
            ),
        ]
        return b"".join(frames)


def marker(
    app: str, topic: str, tx_id: str, epoch_id: str, timeout_ms: int, participant: int | None = None
) -> bytes:
    """The PREPARE, in the group that decides, for a chunk in another group. It has no messages.

    ``participant``: the group of the chunk; None: a PREPARE in the first version's format, which cannot name
    it.
    """
    extra = None if participant is None else PrepareExtra(participants=[participant], heard_ms=NEVER_LATE)
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
        self._home_index: dict[str, int] = {}  # for chunks that their home group tracks
        #: By group: an upper bound of the log positions that the COMMIT will have to name.
        self.references: dict[int, int] = {}

    def add(self, rows: Iterable[Rows]) -> None:
        """Add encoded rows, and prepare chunks that are full. Raises if a chunk cannot be prepared."""
        group_of = self._link.router.places.group_of
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
                places = {tx_id: self._home_index.get(tx_id, -1) for tx_id in ids}
                roll_back_chunks(self._link, gid, places, gid if self._home is None else self._home)
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
            self._link.router.places.id_of,
        )
        self._start(gid, tx_id, request)

    def _open_at_home(self, home: int, gid: int, tx_id: str, topic: str) -> int | None:
        """Open the chunk's marker in the home group; returns its log index there, None before format level 2.

        This comes first and is waited for, because the chunk names that index, and a chunk that its home
        group does not know is rolled back.
        """
        named = self._link.app, topic, tx_id, self._epoch_id, self._timeout_ms
        try:
            index = self._link.open_at_home(home, marker(*named, gid))
        except NotOpened as refused:
            raise _problem(tx_id, refused.code, refused.info) from None
        if index is None:
            self._start(home, tx_id, marker(*named))
        else:
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
) -> tuple[Attempt, dict[int, int]]:
    """Run a whole task; returns what it prepared, and its references by group.

    On an error its chunks are rolled back. ``connect`` returns the link and ``partitions(topic)``; it is not
    called for a task without rows. ``home_of(groups)``: for writes without an intent, the group that decides.
    """
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
                    link, epoch_id, attempt, timeout_ms=timeout_ms, home=home, chunk_bytes=CHUNK_BYTES
                )
                encoder = RowEncoder(
                    epoch_id,
                    topic,
                    partitions,
                    message_bytes_max,
                    min(SLICE_BYTES, CHUNK_BYTES),
                    spread=crc32c(attempt.encode()),
                    pack=None if compression is None else _packing(link, compression),
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


def _packing(link: SinkLink, compression: Compression) -> Callable[[pa.Array], pa.Array]:
    packer = ValuePacker(compression, link.router, link.router.clock)
    packer.wait_for_answer()
    return packer.pack_column
