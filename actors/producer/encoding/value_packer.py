"""Compresses values for one producer or one writing task, as soon as its cluster can have such rows.

It asks the leader of group 0 for its format level: that group reaches a level last, so every other
group has it then, too, and no replica anywhere can start with older software again. Below that level values
are sent as they are, and nothing fails. A level never falls, so nobody asks again once it is reached.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from escrowmq.actors.client.client_loop import ClientLoop
from escrowmq.actors.client.values import Serialize
from escrowmq.actors.producer.config import Compression, ProducerConfig
from escrowmq.actors.producer.encoding.blocks import PrepareBlock
from escrowmq.actors.producer.encoding.encoder import Encoder
from escrowmq.replication.calling.answers import LevelReport
from escrowmq.replication.errors import EscrowMQError
from escrowmq.replication.format.packing import LEVEL_OF_PACKED, codec_of, pack_row
from escrowmq.replication.model import Message

#: How long the first message waits for the answer. Without one, its value is not compressed.
FIRST_WAIT_S = 2.0
#: When to ask again, while values are waiting to be compressed. During an upgrade a question every few
#: seconds does not matter, and neither do some seconds without compression after it.
ASK_AGAIN_S = 5.0

log = logging.getLogger(__name__)


class ValuePacker:
    """Thread-safe. Raises NotSupported without pyarrow."""

    def __init__(self, how: Compression, router: ClientLoop, clock: Callable[[], float]) -> None:
        codec_of(how.method, how.level)  # now, and not when something is sent
        self._method, self._level, self._least = how.method, how.level, how.least
        self._router, self._clock = router, clock
        self._lock = threading.Lock()
        self._first: Future[None] | None = None
        self._ask_again_at = 0.0
        self._told = False
        #: Whether the cluster has the level.
        self.ready = False
        #: Values that were compressed, and the bytes that this has taken off their rows.
        self.values = self.bytes_saved = 0

    def pack(self, row: bytes) -> bytes:
        """The encoded row with its value compressed, if that may be and makes it smaller."""
        if not self.ready:
            self._ask_if_due()
            return row
        made = pack_row(row, self._method, self._level, self._least)
        if made is not row:
            with self._lock:
                self.values += 1
                self.bytes_saved += len(row) - len(made)
        return made

    def pack_column(self, rows: Any) -> Any:
        """The same for a column of rows: Arrow's ``binary``."""
        if not self.ready:
            self._ask_if_due()
            return rows
        from escrowmq.actors.producer.encoding.table_rows import packed_column

        return packed_column(rows, self.pack, self._least)

    def pack_block(self, block: PrepareBlock) -> None:
        """The same for all rows of a block. Its digests stay: they are those of the rows as they were, so
        that a repeated transaction is the same one, however its values are compressed by then."""
        if block.single is not None:
            topic, partition, row = block.single
            made = self.pack(row)
            block.single = (topic, partition, made)
            block.size += len(made) - len(row)
            return
        columns = [(sizes, rows) for _, sizes, rows in block.columns.values()]
        columns += [(later[1], later[2]) for later in block.later.values()]
        for sizes, rows in columns:
            for place, row in enumerate(rows):
                made = self.pack(row)
                if made is not row:
                    rows[place], sizes[place] = made, len(made)
                    block.size += len(made) - len(row)

    # ------------------------------------------------------------ the level

    def wait_for_answer(self) -> None:
        """Asks for the level if nobody has, and waits until that question has ended: otherwise the values of
        a short-lived producer would never be compressed."""
        self.asked().result(FIRST_WAIT_S + 10.0)  # it has its own deadline; this guards against bugs

    def asked(self) -> Future[None]:
        """Is done, without an error, when the first question for the level has ended."""
        with self._lock:
            if self._first is not None:
                return self._first
            first = self._first = Future()
            self._ask_again_at = self._clock() + ASK_AGAIN_S
        self._ask(first)
        return first

    def _ask_if_due(self) -> None:
        with self._lock:
            now = self._clock()
            if now < self._ask_again_at:
                return
            self._ask_again_at = now + ASK_AGAIN_S
        self._ask(Future())

    def _ask(self, told: Future[None]) -> None:
        try:
            answer = self._router.leader_call(0, "levels", timeout_s=FIRST_WAIT_S)
        except EscrowMQError:  # closed
            told.set_result(None)
            return
        answer.add_done_callback(lambda done: self._answered(done, told))

    def _answered(self, answer: Future[Any], told: Future[None]) -> None:
        report = None if answer.cancelled() or answer.exception() is not None else answer.result()
        level = report.applied if isinstance(report, LevelReport) else 0
        self.ready = self.ready or level >= LEVEL_OF_PACKED
        if level and not self.ready and not self._told:
            self._told = True
            log.warning(
                "values are sent uncompressed: the cluster is at format level %d, and compressed ones need "
                "%d; upgrade every replica",
                level,
                LEVEL_OF_PACKED,
            )
        elif self.ready and self._told:
            self._told = False
            log.info("values are compressed from now on: the cluster is at format level %d", level)
        if told.set_running_or_notify_cancel():
            told.set_result(None)


class ValueEncoder(Encoder):
    """As ``Encoder``, for producers that serialize or compress values; all others have none of this on their
    way. ``serialize`` and ``packer``: what is done to values; None: nothing.

    Limits and digests are those of the rows before they are compressed.
    """

    def __init__(
        self,
        config: ProducerConfig,
        partitions: Callable[[str], int],
        group_of: Callable[[str, int], int],
        serialize: Serialize | None,
        packer: ValuePacker | None,
    ) -> None:
        super().__init__(config, partitions, group_of)
        self.serialize = serialize
        if packer is not None:
            self.pack = packer.pack
            self.pack_column = packer.pack_column
            self._pack_block = packer.pack_block
            self.partitions = _after_first_answer(packer, partitions)

    def plain(self, message: Message) -> tuple[int | None, bytes]:
        """See ``Encoder.plain``."""
        if self.serialize is not None and isinstance(message, Message):
            message = replace(message, value=self.serialize(message.value))
        partition, row = super().plain(message)
        return partition, row if self.pack is None else self.pack(row)

    def _value_of(self, message: Message) -> Any:
        return message.value if self.serialize is None else self.serialize(message.value)

    def pack_block(self, block: PrepareBlock) -> None:
        """See ``Encoder.pack_block``."""
        if self.pack is not None:
            self._pack_block(block)


def _after_first_answer(packer: ValuePacker, partitions: Callable[[str], int]) -> Callable[[str], int]:
    asked = False

    def after(topic: str) -> int:
        nonlocal asked
        if not asked:
            packer.wait_for_answer()
            asked = True
        return partitions(topic)

    return after
