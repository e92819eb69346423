"""Raft's term and vote, durable before anybody hears of them: forgetting a vote elects two leaders.

One small file with two slots that are overwritten in place, so that a replica on a full disk can
still vote. The same record goes into both slots, one after the other, each with its own sync: a
power cut can tear at most one of them, and if a slot rots later the other still has the record. With
both slots unreadable the vote is lost, and the replica must not start.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from google_crc32c import value

from escrowmq.replication.errors import CorruptLog, UnknownVersion
from escrowmq.replication.log.disk import Disk

NAME: Final = "vote"
MAGIC: Final = b"EMQV"
VERSION: Final = 1
#: Slots are a page apart, so that no sector and no page holds both.
SLOT_POSITIONS: Final = (0, 4096)
FILE_SIZE: Final = 8192
#: magic, version, length of the vote, 2 reserved, sequence number, term, vote (UTF-8), CRC32C.
SLOT: Final = struct.Struct("<4sBB2xQQ100sI")
VOTE_BYTES_MAX: Final = 100


class Record(NamedTuple):
    sequence: int
    term: int
    voted_for: str | None


class VoteFile:
    """Term and vote of one replica. Creates the file unless ``must_exist`` (a log without it: refuse)."""

    def __init__(self, disk: Disk, *, must_exist: bool = False) -> None:
        if not disk.exists(NAME):
            if must_exist:
                raise CorruptLog(
                    "the vote file is missing beside a log: this replica may have voted. Wipe its data "
                    "directory and repair it from a peer"
                )
            empty = bytearray(FILE_SIZE)
            for position in SLOT_POSITIONS:
                record = encode(Record(1, 0, None))
                empty[position : position + len(record)] = record
            disk.write_atomic(NAME, (bytes(empty),))
        self._file = disk.open(NAME)
        try:
            self._record = self._newest()
            # It may have reached one slot only, or only the page cache, when the process ended.
            self._store(self._record)
        except BaseException:
            self._file.close()
            raise

    def _newest(self) -> Record:
        slots = [decode(self._file.read(position, SLOT.size)) for position in SLOT_POSITIONS]
        known = [record for record in slots if record is not None]
        if self._file.size() != FILE_SIZE or not known:
            raise CorruptLog(
                "the vote file is damaged in both slots; wipe this replica and repair it from a peer"
            )
        return max(known, key=lambda record: record.sequence)

    @property
    def term(self) -> int:
        return self._record.term

    @property
    def voted_for(self) -> str | None:
        return self._record.voted_for

    def set(self, term: int, voted_for: str | None) -> None:
        """Durable at return. The term never decreases; a vote is given once per term."""
        assert term >= self.term, f"term falls from {self.term} to {term}"
        if (term, voted_for) == (self._record.term, self._record.voted_for):
            return
        assert term > self.term or self.voted_for is None, f"second vote in term {term}"
        record = Record(self._record.sequence + 1, term, voted_for)
        self._store(record)
        self._record = record

    def _store(self, record: Record) -> None:
        data = encode(record)
        for position in SLOT_POSITIONS:
            self._file.write_at(position, data)
            self._file.sync()

    def close(self) -> None:
        self._file.close()


def encode(record: Record) -> bytes:
    """A slot's bytes."""
    vote = (record.voted_for or "").encode()
    if len(vote) > VOTE_BYTES_MAX:
        raise ValueError(f"replica id {record.voted_for!r} is longer than {VOTE_BYTES_MAX} bytes")
    fields = (MAGIC, VERSION, len(vote), record.sequence, record.term, vote)
    return SLOT.pack(*fields, value(SLOT.pack(*fields, 0)[:-4]))


def decode(data: bytes) -> Record | None:
    """What a slot holds; None: it is damaged. Raises UnknownVersion."""
    if len(data) < SLOT.size:
        return None
    magic, version, length, sequence, term, vote, crc = SLOT.unpack(data)
    if magic != MAGIC or value(data[:-4]) != crc:
        return None
    if version != VERSION:
        raise UnknownVersion(
            f"the vote file has version {version}; this software reads {VERSION}: upgrade it"
        )
    try:
        return Record(sequence, term, vote[:length].decode() or None)
    except UnicodeDecodeError:
        return None
