"""Encoding for producers that serialize or compress values; all others have none of this on their way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from escrowmq.actors.client.values import Serialize
from escrowmq.actors.producer.blocks import PrepareBlock
from escrowmq.actors.producer.config import ProducerConfig
from escrowmq.actors.producer.encoder import Encoder
from escrowmq.actors.producer.value_packer import ValuePacker
from escrowmq.replication.model import Message


class ValueEncoder(Encoder):
    """As ``Encoder``. ``serialize`` and ``packer``: what is done to values; None: nothing.

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
