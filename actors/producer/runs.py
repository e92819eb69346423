"""Encoded messages of one call for many, by partition: what ``send_many`` and ``send_table`` hand over.

A call is handed over in pieces, so that a table larger than the producer's buffer never has to fit into it.
Each piece has at most one run for each partition; if no message has a key, runs of about a request.
"""

from __future__ import annotations

from collections.abc import Sequence

from escrowmq.actors.producer.config import ProducerConfig

#: Bytes of rows in one piece. Large enough that work per piece does not count, small enough that many callers
#: share a buffer.
PIECE_BYTES = 512 << 10


class Run:
    """Messages of one partition in order; ``partition`` None: that in which keyless messages gather.

    ``rows`` are encoded messages or, if there are ``sizes``, one body of so many concatenated ones.
    ``numbers``: which messages of the call they are. ``times``: when each can be read, as requests carry it;
    None: at once.
    """

    __slots__ = ("numbers", "partition", "rows", "size", "sizes", "times")

    def __init__(
        self,
        partition: int | None,
        rows: list[bytes],
        numbers: Sequence[int],
        size: int,
        sizes: list[int] | None = None,
    ) -> None:
        self.partition, self.rows, self.numbers, self.size, self.sizes = partition, rows, numbers, size, sizes
        self.times: list[int] | None = None


#: Runs that are handed over together.
Piece = list[Run]


def piece_bytes(config: ProducerConfig) -> int:
    """How many bytes of rows a piece has at most, unless it is a single row."""
    return min(PIECE_BYTES, max(config.buffer_bytes // 4, 1))
