"""The newest incarnation that this replica has seen of each peer, durable before that peer's link is up.

A replica that was replaced may still be alive: its machine was suspended, or the supervisor could not see it.
Two processes then have one replica's id, and if one peer counts the acknowledgements of the old one while
another counts those of the new one, two majorities exist at once. So every process has an *incarnation*: a
number that grows with every replacement, and the random id of the disk it was given. Each peer remembers the
highest number that it has met, and refuses a lower one for ever. Numbers can repeat if the supervisor's own
records were lost; then only the first disk id that was seen with the number is accepted.

One small file with two slots that are overwritten in place, like the vote's (vote.py): a replica on a full
disk can still record a peer's successor. With both slots unreadable the marks are lost, and with them the
promise to refuse: such a replica begins as a learner, which collects the marks of all others
(raft/rejoin.py).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec
from google_crc32c import value

from escrowmq.replication.errors import CorruptLog, UnknownVersion
from escrowmq.replication.format.wire import Index, Name
from escrowmq.replication.log.disk import Disk

NAME: Final = "peers"
MAGIC: Final = b"EMQP"
VERSION: Final = 1
#: Slots are a page apart, so that no sector and no page holds both.
SLOT_POSITIONS: Final = (0, 4096)
SLOT_BYTES: Final = 4096
FILE_SIZE: Final = 8192
#: magic, version, 3 reserved, sequence number, bytes of the content; then the content, then the CRC32C of
#: everything before it.
_HEAD: Final = struct.Struct("<4sB3xQI")
_CRC: Final = struct.Struct("<I")
#: Longest disk id that is accepted from a peer; ours have 32 characters.
DISK_ID_MAX: Final = 64


class Incarnation(NamedTuple):
    """Which of the processes that ever had a replica's id: how often it was replaced before, and on which
    disk."""

    number: int
    disk_id: str

    def supersedes(self, other: Incarnation) -> bool:
        """Whether a peer that has met this one must refuse ``other``: an earlier one, or one on another
        disk."""
        return other.number < self.number or (other.number == self.number and other.disk_id != self.disk_id)


class Incarnations:
    """What a replica knows of itself and its peers, in memory only; ``PeerMarks`` keeps it on disk."""

    def __init__(self, own: Incarnation = Incarnation(0, "")) -> None:  # noqa: B008  (immutable)
        self.own = own
        self._known: dict[str, Incarnation] = {}

    def of(self, peer: str) -> Incarnation | None:
        """The newest one seen; None: it has shown none yet."""
        return self._known.get(peer)

    def all(self) -> list[tuple[str, int, str]]:
        """(peer, number, disk id) of every peer that has shown its incarnation."""
        return [(peer, *known) for peer, known in sorted(self._known.items())]

    def refuses(self, peer: str, shown: Incarnation) -> Incarnation | None:
        """The mark because of which ``peer``, as the incarnation ``shown``, is refused; None: it may
        connect."""
        known = self._known.get(peer)
        return known if known is not None and known.supersedes(shown) else None

    def admit(self, peer: str, shown: Incarnation) -> Incarnation | None:
        """As ``refuses``; if the peer may connect, the incarnation that it has shown is durable on return."""
        refused = self.refuses(peer, shown)
        if refused is None:
            self.learn([(peer, *shown)])
        return refused

    def learn(self, marks: Iterable[tuple[str, int, str]]) -> list[str]:
        """Adopt these marks where they are higher, durably; returns the peers whose mark changed."""
        raised = {
            peer: Incarnation(number, disk_id)
            for peer, number, disk_id in marks
            if (known := self._known.get(peer)) is None or number > known.number
        }
        if raised:
            changed = {**self._known, **raised}
            self._keep(changed)
            self._known = changed
        return list(raised)

    def forget(self, peers: Sequence[str]) -> None:
        """These peers have left the group for good, and are refused by their ids: so the file stays bounded.
        Durable on return."""
        if any(peer in self._known for peer in peers):
            left = {peer: mark for peer, mark in self._known.items() if peer not in peers}
            self._keep(left)
            self._known = left

    def _keep(self, known: dict[str, Incarnation]) -> None:
        """Make it durable. Raises the disk's errors."""


class PeerMarks(Incarnations):
    """The file of a replica. Creates it unless ``must_exist``; raises CorruptLog, UnknownVersion,
    DiskFull."""

    def __init__(self, disk: Disk, own: Incarnation, *, must_exist: bool = False) -> None:
        super().__init__(own)
        if not disk.exists(NAME):
            if must_exist:
                raise CorruptLog("the file of the peers' incarnations is missing")
            empty = bytearray(FILE_SIZE)
            for position in SLOT_POSITIONS:
                slot = _encode(1, {})
                empty[position : position + len(slot)] = slot
            disk.write_atomic(NAME, (bytes(empty),))
        self._file = disk.open(NAME)
        try:
            self._recover()
        except BaseException:
            self._file.close()
            raise

    def _recover(self) -> None:
        slots = [_decode(self._file.read(position, SLOT_BYTES)) for position in SLOT_POSITIONS]
        found = [slot for slot in slots if slot is not None]
        if self._file.size() != FILE_SIZE or not found:
            raise CorruptLog("the file of the peers' incarnations is damaged in both slots")
        self._sequence, self._known = max(found, key=lambda slot: slot[0])
        # A record may have reached one slot only, or only the page cache, when the process ended.
        self._store(_encode(self._sequence, self._known))

    def _keep(self, known: dict[str, Incarnation]) -> None:
        self._store(_encode(self._sequence + 1, known))
        self._sequence += 1

    def _store(self, slot: bytes) -> None:
        for position in SLOT_POSITIONS:
            self._file.write_at(position, slot)
            self._file.sync()

    def close(self) -> None:
        self._file.close()


def _encode(sequence: int, known: dict[str, Incarnation]) -> bytes:
    content = msgspec.msgpack.encode([(peer, *mark) for peer, mark in sorted(known.items())])
    data = _HEAD.pack(MAGIC, VERSION, sequence, len(content)) + content
    assert len(data) + _CRC.size <= SLOT_BYTES, f"the marks of {len(known)} peers do not fit a slot"
    return data + _CRC.pack(value(data))


_decode_marks = msgspec.msgpack.Decoder(list[tuple[str, Index, Name]]).decode


def _decode(data: bytes) -> tuple[int, dict[str, Incarnation]] | None:
    if len(data) < _HEAD.size:
        return None
    magic, version, sequence, size = _HEAD.unpack_from(data)
    end = _HEAD.size + size
    if magic != MAGIC or end + _CRC.size > len(data) or value(data[:end]) != _CRC.unpack_from(data, end)[0]:
        return None
    if version != VERSION:
        raise UnknownVersion(
            f"the file of the peers' incarnations has version {version}; this software reads "
            f"{VERSION}: upgrade it"
        )
    try:
        return sequence, {
            peer: Incarnation(n, disk_id) for peer, n, disk_id in _decode_marks(data[_HEAD.size : end])
        }
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
