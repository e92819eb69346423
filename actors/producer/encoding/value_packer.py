"""Serializes and compresses values, for producers that do so, and for one writing task of Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from escrowmq.actors.client.values import Serialize
from escrowmq.actors.producer.config import Compression, ProducerConfig
from escrowmq.actors.producer.encoding.blocks import PrepareBlock
from escrowmq.actors.producer.encoding.encoder import Encoder
from escrowmq.replication.format.packing import codec_of, pack_row
from escrowmq.replication.model import Message


class ValuePacker:
    """Thread-safe. Raises NotSupported without pyarrow."""

    def __init__(self, how: Compression) -> None:
        codec_of(how.method, how.level)  # now, and not when something is sent
        self._method, self._level, self._least = how.method, how.level, how.least
        self._lock = threading.Lock()
        #: Values that were compressed, and the bytes that this has taken off their rows.
        self.values = self.bytes_saved = 0

    def pack(self, row: bytes) -> bytes:
        """The encoded row with its value compressed, if that may be and makes it smaller."""
        made = pack_row(row, self._method, self._level, self._least)
        if made is not row:
            with self._lock:
                self.values += 1
                self.bytes_saved += len(row) - len(made)
        return made

    def pack_column(self, rows: Any) -> Any:
        """The same for a column of rows: Arrow's ``binary``."""
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
            for i, row in enumerate(rows):
                made = self.pack(row)
                if made is not row:
                    rows[i], sizes[i] = made, len(made)
                    block.size += len(made) - len(row)


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
