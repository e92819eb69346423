"""What a broker keeps of answers that its clients have not read, of one client and of all.

A client that reads has nothing here: its answers go straight into the socket. Only connections whose answers
the kernel no longer takes are counted, so a broker whose clients all read does nothing for this. Beyond the
bound of one client its connection is closed; beyond the bound of all, those with most, until a quarter of the
room is free: the next answer would otherwise look at all of them again.

A client whose connection was closed repeats its requests through Ray, as after any lost connection, so
nothing is lost. Everything runs in the loop's thread.
"""

from __future__ import annotations

import logging
from typing import Protocol

log = logging.getLogger(__name__)

#: Of one client. Answers are a few bytes per operation, and a producer has at most 8 requests of 96 KiB under
#: way, so one that reads late has some hundred KiB.
PILE_BYTES_MAX = 8 << 20
#: Of all clients: a fifth of what a broker takes under overload (306 MB), and enough for 4,096 clients that
#: all stop reading for a moment, with 16 KiB each. Without it they could take 32 GiB.
UNREAD_BYTES_MAX = 64 << 20
#: What a connection may keep before it is counted: 16 MiB for 4,096 clients. uvloop gathers the answers of
#: one turn of the loop before it writes them, so every answer would be counted otherwise.
UNCOUNTED_BYTES = 4 << 10


class Reader(Protocol):
    """A client's connection."""

    def unread(self) -> int:
        """Bytes of answers that wait for the client, at present."""

    def abort(self) -> None:
        """Close it; it calls ``gone``."""


class UnreadAnswers:
    """The connections whose clients are behind."""

    def __init__(self) -> None:
        #: Connections that were closed because of what was unread.
        self.cut = 0
        #: Bytes of all, perhaps with some that have been read meanwhile.
        self.bytes = 0
        self._behind: dict[Reader, int] = {}

    def grown(self, reader: Reader) -> None:
        """A client is behind and got another answer."""
        size = reader.unread()
        self._note(reader, size)
        if size > PILE_BYTES_MAX:
            log.warning(
                "a client has not read %.1f MiB of answers; its connection is closed",
                PILE_BYTES_MAX / (1 << 20),
            )
            self._cut(reader)
        elif self.bytes > UNREAD_BYTES_MAX:
            self._make_room()

    def gone(self, reader: Reader) -> None:
        """It has read everything, or is closed."""
        self.bytes -= self._behind.pop(reader, 0)

    def _note(self, reader: Reader, size: int) -> None:
        self.bytes += size - self._behind.get(reader, 0)
        self._behind[reader] = size

    def _make_room(self) -> None:
        for reader in list(self._behind):
            self._note(reader, reader.unread())
        before, cut = self.bytes, 0
        for reader in sorted(self._behind, key=self._behind.__getitem__, reverse=True):
            if self.bytes <= UNREAD_BYTES_MAX * 3 // 4:
                break
            self._cut(reader)
            cut += 1
        if cut:
            log.warning(
                "%.1f MiB of answers that clients have not read, of at most %.1f; the connections of the %d "
                "with most are closed",
                before / (1 << 20),
                UNREAD_BYTES_MAX / (1 << 20),
                cut,
            )

    def _cut(self, reader: Reader) -> None:
        self.cut += 1
        reader.abort()
        self.gone(reader)
