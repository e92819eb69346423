"""A replica without a usable log takes a copy from the group's leader before it takes part again.

Needed when the directory is empty although the group has a history (a new or wiped disk), when the log is
damaged beyond mending (``Mender``), and when the leader's log no longer reaches back to where ours ends. A
replica that no longer knows its log's end or its vote may have voted for, and acknowledged, things
that it has forgotten. So it stays silent until it holds all that the leader had when asked, and starts in
the leader's term with its vote given to that leader.

A group whose replicas are all new is founded without this: when this replica and the peers that say
that they are new form a majority, nothing can have been acknowledged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeVar

from escrowmq.replication.errors import CorruptLog, ReadFailed, Unavailable, UnknownVersion
from escrowmq.replication.format.entry import HEADER_SIZE
from escrowmq.replication.format.segment_format import (
    FILE_HEADER_SIZE,
    encode_file_header,
    first_of_name,
    log_name,
    walk,
)
from escrowmq.replication.log.disk import Disk, File
from escrowmq.replication.log.holes import (
    Hole,
    KnownHoles,
    StoredEntry,
    as_stored,
    fitting,
    read_stored,
    write_hole,
)
from escrowmq.replication.log.install import (
    MARKER,
    finish_install,
    may_be_installed,
    staged_name,
    switch_files,
)
from escrowmq.replication.log.install import PREFIX as STAGED_PREFIX
from escrowmq.replication.log.recovery import Survey, survey_log
from escrowmq.replication.log.vote import NAME as VOTE_FILE
from escrowmq.replication.log.vote import VoteFile
from escrowmq.replication.replica.checkpoints import STATE_PARTS
from escrowmq.replication.replica.damage import STATE_FILES, damage_in
from escrowmq.replication.replica.run_merging import level_of

# ------------------------------------------------------------------------------------------------------------
# Damaged entries of a log are fetched from any other replica, and written where they were.
#
# A replica that knows its log's end has forgotten nothing: it still votes, acknowledges and keeps its role,
# while the few entries that it cannot read are fetched from a replica that holds them. So two replicas that
# are damaged at different entries mend each other, with or without a leader, and neither has to leave the
# group. replication/log/holes.py says what proves that another log's entry is ours.
#
# ``mend_before_start`` works on the files of a log that is not open, for what must be known before a replica
# can take part. ``Mender`` works beside a running replica, outside the thread that sends heartbeats.

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


READ_BYTES = 4 << 20
ASK_INTERVAL_S = 0.2

#: Looks at a file that was copied: what is wrong with it; None: nothing. It syncs the file first.
Look = Callable[[], str | None]
#: Begins a look and returns what waits for its result: a thread looks while the next file is read.
Begin = Callable[[Look], Look]


def at_once(look: Look) -> Look:
    """Looks before it returns: one file is copied after the other."""
    found = look()
    return lambda: found


@dataclass(frozen=True, slots=True)
class Manifest:
    """A leader's offer: (name, bytes) of its files, and its term and commit index."""

    leader: str
    term: int
    commit_index: int
    files: Sequence[tuple[str, int]]


class PeerSource(EntrySource, Protocol):
    """The other replicas, however they are reached. None: no answer just now."""

    def founded(self, peer: str) -> bool | None: ...
    def manifest(self, peer: str) -> Manifest | None: ...
    def never_voted(self, peer: str, rid: int) -> bool | None:
        """Whether replica ``rid`` is a voter in no configuration of the peer's log; None also if the peer
        does not certainly lead."""

    def read(self, peer: str, name: str, pos: int, size: int) -> bytes: ...
    def suspect(self, peer: str, name: str, size: int) -> None:
        """Tell the peer that the file it offers is damaged; it checks its own."""


class NoPeers:
    """For a group of one, and for tests without peers."""

    def founded(self, peer: str) -> bool | None:
        return None

    def manifest(self, peer: str) -> Manifest | None:
        return None

    def never_voted(self, peer: str, rid: int) -> bool | None:
        return None

    def read(self, peer: str, name: str, pos: int, size: int) -> bytes:
        raise Unavailable("there is no peer to read from", 1.0)

    def suspect(self, peer: str, name: str, size: int) -> None:
        raise Unavailable("there is no peer to tell", 1.0)

    def entries(self, peer: str, first: int, last: int) -> bytes | None:
        return None


def has_history(disk: Disk) -> bool:
    """Whether the log holds more than the no-op that every log begins with: then a leader has written to
    it."""
    if disk.exists(MARKER):
        return True  # a peer's log is about to become ours
    bare = FILE_HEADER_SIZE + HEADER_SIZE + 1
    logs = [(first, name) for name in disk.names() if (first := first_of_name(name)) is not None]
    return len(logs) > 1 or any(first > 1 or disk.open(name).size() > bare for first, name in logs)


def must_copy(
    peers: Sequence[str], source: PeerSource, sleep: Callable[[float], None], patience_s: float
) -> bool:
    """For an empty directory: True if the group has a history, False if it is to be founded now.

    Raises Unavailable when too few peers answer to know.
    """
    waited = 0.0
    while True:
        answers = [source.founded(peer) for peer in peers]  # the peers may change meanwhile
        if any(answers):
            return True
        if (1 + answers.count(False)) * 2 > len(answers) + 1:
            return False
        if waited >= patience_s:
            raise Unavailable(
                "this replica's directory is empty and too few peers answer to know whether the group is new",
                patience_s,
            )
        sleep(ASK_INTERVAL_S)
        waited += ASK_INTERVAL_S


def knows_its_end(disk: Disk) -> bool:
    """Whether the end of the log and the vote can be read. Otherwise this replica does not know what it
    acknowledged, and is not a member that is only behind, or damaged in single entries."""
    try:
        finish_install(disk)
    except (CorruptLog, UnknownVersion):
        return False
    return end_is_known(disk)


def copy_from_leader(
    disk: Disk,
    peers: Sequence[str],
    source: PeerSource,
    sleep: Callable[[float], None],
    patience_s: float,
    report: Callable[[str], None],
    begin: Begin = at_once,
) -> None:
    """Replace the log and the files of the state by the leader's, all or nothing. Retries other leaders.

    A leader of an earlier term than ours may be deposed and not know it, so it is the last choice. But it may
    also lead for as long as we are away: our term is later if our last campaign reached nobody. The copy is
    safe either way: it ends no earlier than our own log, so it has what we acknowledged.

    Raises Unavailable if no leader was found in time; then the old files are unchanged. A copy that was
    decided and not finished before the power failed is finished first: its staged files are our log.
    """
    if disk.exists(MARKER):
        try:
            finish_install(disk)
        except (CorruptLog, ReadFailed) as error:  # this copy will replace it
            report(str(error))
    waited, known_term = 0.0, _known_term(disk)

    def is_copied(peer: str, offer: Manifest) -> bool:
        try:
            _copy(disk, peer, offer, source, begin)
        except (Unavailable, FileNotFoundError) as error:  # retention or a crash came first
            report(f"copying from replica {peer} failed: {error}; trying again")
            return False
        report(f"copied {sum(size for _, size in offer.files)} bytes from replica {peer}")
        return True

    while True:
        earlier: list[tuple[str, Manifest]] = []
        for peer in peers:
            offer = source.manifest(peer)
            if offer is not None and offer.term < known_term:
                earlier.append((peer, offer))
            elif offer is not None and is_copied(peer, offer):
                return
        if waited >= patience_s:
            if any(is_copied(*found) for found in sorted(earlier, key=lambda found: -found[1].term)):
                return
            raise Unavailable("no leader to copy the log from", patience_s)
        sleep(ASK_INTERVAL_S)
        waited += ASK_INTERVAL_S


def begins_in_the_middle(files: Sequence[tuple[str, int]]) -> bool:
    """Whether the log of these files begins behind its first entry, and none of them holds the state before
    that: no replica can start with them. So it is when all snapshots proved damaged, until the next one."""
    logs = [first for name, _ in files if (first := first_of_name(name)) is not None]
    states = [name for name, _ in files if not name.endswith((".log", *STATE_PARTS))]
    return min(logs, default=1) > 1 and not states


def _copy(disk: Disk, peer: str, offer: Manifest, source: PeerSource, begin: Begin) -> None:
    if begins_in_the_middle(offer.files):
        raise Unavailable(f"replica {peer} has no snapshot now", ASK_INTERVAL_S)
    # Segments last: they are the largest part, and while they are read the leader supersedes the snapshot
    # that it offered each time it takes one. It keeps segments until retention. The snapshot goes first, then
    # run files that are small and soon merged.
    looks = _Looks(peer, source, begin)
    with closing(looks):
        for name, size in sorted(offer.files, key=lambda offered: _lasts(offered[0])):
            if not _may_be_taken(name):
                raise Unavailable(f"replica {peer} offers a file named {name!r}", ASK_INTERVAL_S)
            file = _stage(disk, peer, name, size, source)
            looks.after(name, size, partial(_look, disk, file, name))
    theirs = _end_of(disk, [name for name, _ in offer.files], STAGED_PREFIX)
    own = _own_end(disk)
    if theirs < own:
        # What we acknowledged may count for a committed entry, and must not be forgotten, even if
        # the leader itself has it only in memory: its disk is slow, or this copy is not needed for that
        # reason.
        raise Unavailable(
            f"replica {peer} has only (term, entry) {theirs} on its disk, and we have {own}", ASK_INTERVAL_S
        )
    _pledge(disk, offer)
    ours = [name for name in disk.names() if not name.startswith(STAGED_PREFIX)]
    old = [name for name in ours if name.endswith((".log", ".pos", *STATE_FILES))]
    switch_files(disk, [name for name, _ in offer.files], remove=old)


def _lasts(name: str) -> tuple[int, int]:
    """A leader removes files of lower values sooner."""
    if name.endswith(".log"):
        return 2, 0
    return int(name.endswith(STATE_PARTS)), level_of(name)


def _stage(disk: Disk, peer: str, name: str, size: int, source: PeerSource) -> File:
    """Write a file of the peer under its staged name. It is not synced yet, and open."""
    disk.remove(staged_name(name))
    file = disk.open(staged_name(name), create=True)
    try:
        at = 0
        while at < size:
            part = source.read(peer, name, at, min(READ_BYTES, size - at))
            if not part:
                raise Unavailable(f"{name} ended at byte {at} of {size}", ASK_INTERVAL_S)
            file.append([part])
            at += len(part)
    except BaseException:
        file.close()
        raise
    return file


def _look(disk: Disk, file: File, name: str) -> str | None:
    try:
        file.sync()
    finally:
        file.close()
    with closing(disk.open(staged_name(name))) as copied:
        return damage_in(name, copied)


class _Looks:
    """The look at the file before the one that is being copied: one at most."""

    def __init__(self, peer: str, source: PeerSource, begin: Begin) -> None:
        self._peer, self._source, self._begin = peer, source, begin
        self._last: tuple[str, int, Look] | None = None

    def after(self, name: str, size: int, look: Look) -> None:
        """Begin to look at this file, once the one before has been found sound."""
        try:
            self.close()
        finally:
            self._last = name, size, self._begin(look)

    def close(self) -> None:
        """Wait for the last look. Raises Unavailable if the file is damaged."""
        last, self._last = self._last, None
        if last is None:
            return
        name, size, found = last
        if (damage := found()) is not None:
            # Not switched in: our own log, if there is one, may be the only sound one. The leader is told,
            # since its cold segments are never read: it leaves for repair itself, and another replica leads.
            self._source.suspect(self._peer, name, size)
            raise Unavailable(f"replica {self._peer} offers a damaged file: {damage}", ASK_INTERVAL_S)


def _may_be_taken(name: str) -> bool:
    """Whether a file of this name can be part of a copied log. Files that a replica writes only for itself
    (half-written ones, positions) cannot."""
    if not may_be_installed(name) or name.endswith((".tmp", ".pos")):
        return False
    return not name.endswith(".log") or first_of_name(name) is not None


def _own_end(disk: Disk) -> tuple[int, int]:
    """As ``_end_of``, for the log that will be replaced. Holes before its end do not matter."""
    try:
        end = survey_log(disk).end
    except (CorruptLog, ReadFailed, UnknownVersion):
        end = None
    return _end_of(disk, disk.names()) if end is None else end


def _end_of(disk: Disk, names: Sequence[str], prefix: str = "") -> tuple[int, int]:
    """Term and index of the last sound entry of a log; (0, 0): none. ``prefix`` is put before the names."""
    for first in sorted((n for name in names if (n := first_of_name(name)) is not None), reverse=True):
        try:
            with closing(disk.open(prefix + log_name(first))) as file:
                found = walk(file.read, file.size(), first)
        except (CorruptLog, ReadFailed, UnknownVersion):
            return 0, 0  # nothing that this replica could vote with: it begins as a learner
        if found.last is not None:
            return found.last
    return 0, 0


def _known_term(disk: Disk) -> int:
    """The term that this replica was in; 0 if it lost that too."""
    try:
        vote = VoteFile(disk, must_exist=True)
    except (CorruptLog, ReadFailed):
        return 0
    term = vote.term
    vote.close()
    return term


def _pledge(disk: Disk, offer: Manifest) -> None:
    """Give the leader our vote in its term: a vote that we may have forgotten cannot count twice."""
    try:
        vote = VoteFile(disk)
    except (CorruptLog, ReadFailed):
        disk.remove(VOTE_FILE)
        vote = VoteFile(disk)
    if vote.term < offer.term:
        vote.set(offer.term, offer.leader)
    vote.close()


def offered_files(
    disk: Disk, segments: Sequence[tuple[str, int]], snapshot: str | None
) -> list[tuple[str, int]]:
    """A leader's offer: whole segments up to their durable sizes, the newest snapshot, all files that
    snapshots name.

    Segments that still wait for the disk do not exist yet: nothing in them is durable.
    """
    files = [(name, size) for name, size in segments if size]
    for name in disk.names():
        if name.endswith(STATE_PARTS) or name == snapshot:
            files.append((name, disk.open(name).size()))
    return files


def may_be_offered(disk: Disk, name: str) -> bool:
    """Whether a peer may read this file: the log, the files of the state, and nothing else."""
    if type(name) is not str or not name.endswith((".log", *STATE_FILES)):
        return False
    return may_be_installed(name) and disk.exists(name)


def damage_offered(disk: Disk, name: str, size: int) -> str | None:
    """What is wrong with the first ``size`` bytes of a file that was offered; None: nothing.

    A size that was never offered is ignored, such as one in the middle of an entry: it would make sound
    entries look cut off.
    """
    if type(size) is not int or not may_be_offered(disk, name):
        return None
    with closing(disk.open(name)) as file:
        if name.endswith(".log") and not 0 < size <= file.size():  # others are written and offered whole
            return None
        return damage_in(name, file, size)
