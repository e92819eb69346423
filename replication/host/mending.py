"""Damaged entries of a log are fetched from any other replica, and written where they were.

A replica that knows its log's end has forgotten nothing: it still votes, acknowledges and keeps its role,
while the few entries that it cannot read are fetched from a replica that holds them. So two replicas that are
damaged at different entries mend each other, with or without a leader, and neither has to leave the group.
replication/log/holes.py says what proves that another log's entry is ours.

``mend_before_start`` works on the files of a log that is not open, for what must be known before a replica
can take part. ``Mender`` works beside a running replica, outside the thread that sends heartbeats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

from escrowmq.replication.errors import CorruptLog, ReadFailed, UnknownVersion
from escrowmq.replication.format.segment_format import encode_file_header
from escrowmq.replication.log.disk import Disk
from escrowmq.replication.log.holes import (
    Hole,
    KnownHoles,
    StoredEntry,
    as_stored,
    fitting,
    read_stored,
    write_hole,
)
from escrowmq.replication.log.survey import Survey, survey_log
from escrowmq.replication.log.vote import VoteFile

#: Maximum size of a peer's answer, except that it brings at least one entry.
RANGE_BYTES_MAX: Final = 16 << 20
#: Holes that one round of the mender handles.
ROUND_MAX: Final = 64
#: Pauses after a round that mended something, and the first and the longest one after a round that did not.
BUSY_S, RETRY_S, RETRY_MAX_S = 0.02, 0.2, 30.0
#: An entry is considered lost after this many rounds in which every peer answered and none had it; or
#: after this many in which only the leader is known to have answered (about a minute): a silent peer may be
#: silent for ever.
HOPELESS_ROUNDS: Final = 5
HOPELESS_ROUNDS_OF_LEADER: Final = 8
#: In place of a peer: all of them.
ALL: Final = ""

#: Why a log cannot be mended in place.
BEYOND_MENDING = (CorruptLog, ReadFailed, UnknownVersion)

T = TypeVar("T")


class EntrySource(Protocol):
    """The other replicas, however they are reached."""

    def entries(self, peer: str, first: int, last: int) -> bytes | None:
        """Entries ``first`` to ``last`` as the peer's log holds them (``SegmentJournal.stored``), whether it
        runs or is being opened; b"": it has none of them; None: no answer just now."""


# ------------------------------------------------------------------ a log that is not open
def end_is_known(disk: Disk) -> bool:
    """Whether this replica knows all that it acknowledged, and its vote; otherwise it must learn
    (rejoin.py)."""
    try:
        VoteFile(disk, must_exist=True).close()
        return survey_log(disk).end is not None
    except BEYOND_MENDING:
        return False


def mend_before_start(
    disk: Disk, peers: Sequence[str], source: EntrySource, report: Callable[[str], None]
) -> bool:
    """Check the whole log, and fill its holes from peers; True if none is left.

    A hole that is filled stays filled, whatever happens then. Raises CorruptLog, UnknownVersion or ReadFailed
    for a log that cannot be mended in place.
    """
    found = survey_log(disk)
    for hole in found.holes:
        data = encode_file_header(hole.segment) if hole.is_header else _from_peers(hole, found, peers, source)
        if data is None or not write_hole(disk, hole, data):
            return False
        report(f"mended {'the file header' if hole.is_header else f'entries {hole.first} to {hole.last}'}")
    return not found.holes or not survey_log(disk).holes


def _from_peers(hole: Hole, found: Survey, peers: Sequence[str], source: EntrySource) -> bytes | None:
    for peer in peers:
        # One entry more: the term of the next one may be what proves it.
        blob = source.entries(peer, hole.first, min(hole.last + 1, found.last))
        if blob and (entries := fitting(hole, read_stored(blob, hole.first), found.term_of)) is not None:
            return as_stored(entries)
    return None


# ------------------------------------------------------------------ a running replica
class MendedLog(Protocol):
    """What the mender needs from the journal."""

    holes: KnownHoles

    @property
    def first_index(self) -> int: ...
    @property
    def last_index(self) -> int: ...
    def term_at(self, index: int) -> int | None: ...
    def cached(self, index: int) -> bytes | None: ...
    def is_sound(self, hole: Hole) -> bool: ...
    def mend(self, hole: Hole, entry: StoredEntry) -> bool: ...


class Mender:
    """Gets the damage in one replica's log repaired. One thread calls ``round``; it blocks on peers."""

    def __init__(
        self,
        log: MendedLog,
        peers: Sequence[str],
        source: EntrySource,
        in_loop: Callable[[Callable[[], bool]], bool],
        report: Callable[[str], None],
        pace: Callable[[int], None] = lambda size: None,
    ) -> None:
        """``peers`` may change meanwhile. ``in_loop(fn)`` runs ``fn`` in the loop thread, which syncs
        afterwards, and returns its result; ``pace(size)`` waits so that transfers of this size are no
        burden."""
        self._log, self._peers, self._source = log, peers, source
        self._last_giver = ""  # most likely has the next entry too
        self._in_loop, self._report, self._pace = in_loop, report, pace
        self._retry_s = RETRY_S
        #: Entry -> peer ("": all of them in one round) -> rounds in which it answered that it lacks it.
        self._denied: dict[int, Counter[str]] = {}

    def lacks(self, index: int, leader: str | None = None) -> bool:
        """Whether no peer has this damaged entry any more: all of them have said so repeatedly, or
        ``leader`` has for long, while others are silent."""
        denied = self._denied.get(index, Counter())
        if denied[ALL] >= HOPELESS_ROUNDS:
            return True
        return leader is not None and denied[leader] >= HOPELESS_ROUNDS_OF_LEADER

    def round(self) -> float | None:
        """Mend what can be mended now; returns the seconds until the next attempt, None: nothing is
        damaged."""
        log, mended = self._log, False
        self._in_loop(self._forget_gone)
        holes = log.holes.all()
        for hole in holes[:ROUND_MAX]:
            mended |= self._mend(hole)
        self._denied = {
            index: said for index, said in self._denied.items() if log.holes.after(index - 1) is not None
        }
        if not log.holes:
            self._retry_s = RETRY_S
            return None
        if mended:
            self._retry_s = RETRY_S
            return BUSY_S
        pause, self._retry_s = self._retry_s, min(2 * self._retry_s, RETRY_MAX_S)
        return pause

    def _forget_gone(self) -> bool:
        self._log.holes.keep_within(self._log.first_index, self._log.last_index)
        return True

    def _mend(self, hole: Hole) -> bool:
        log, index = self._log, hole.first
        if log.is_sound(hole):  # a transient read error, or mended already
            return self._in_loop(lambda: self._forget(hole))
        if self._in_loop(lambda: self._from_memory(hole)):
            return True
        denied, peers = list[str](), sorted(self._peers, key=lambda peer: peer != self._last_giver)
        for peer in peers:
            blob = self._source.entries(peer, index, index)
            denied += [peer] if blob is not None else []
            entries = read_stored(blob or b"", index)
            if entries and self._in_loop(lambda entry=entries[0]: log.mend(hole, entry)):  # type: ignore[misc]
                self._report(f"entry {index} of the log was damaged; mended from replica {peer}")
                self._last_giver = peer
                self._pace(len(entries[0].command))
                return True
        self._denied.setdefault(index, Counter()).update([*denied, *([ALL] if denied == peers else [])])
        return False

    def _forget(self, hole: Hole) -> bool:
        self._log.holes.forget(hole)
        return True

    def _from_memory(self, hole: Hole) -> bool:
        index = hole.first
        term, command = self._log.term_at(index), self._log.cached(index)
        if term is None or command is None:
            return False
        return self._log.mend(hole, StoredEntry(index, term, command))
