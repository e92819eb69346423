"""Snapshots of the replicated state, so that recovery reads only the log that follows.

Taken after a segment roll (``Capture``). ``encode`` may run in any thread. It calls ``rest`` after every half
millisecond or so, for its caller to sleep a moment: a thread that never waits gives the interpreter lock up
only every 5 ms, and a commit needs the lock many times in the other threads. Runs of partition indexes go to
separate run files, one per interval, and are not written again; so do messages that wait for their time.

File: magic and version, then chunks of u32 length, u32 CRC32C, msgpack; the last chunk is ``["end", n]``.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from google_crc32c import extend
from google_crc32c import value as crc32c

from escrowmq.replication.errors import CorruptLog, UnknownVersion
from escrowmq.replication.format.codec import pack, unpack
from escrowmq.replication.format.membership import decode_members
from escrowmq.replication.format.settings import DEFAULTS, group_settings_problem
from escrowmq.replication.model import BY_NAME, NO_ID, TopicInfo
from escrowmq.replication.state.claims import Claim, Claimed, TxKey
from escrowmq.replication.state.decided import Decided
from escrowmq.replication.state.group_offsets import ByTopic
from escrowmq.replication.state.group_offsets import Key as AttemptsKey
from escrowmq.replication.state.held_letters import Letters
from escrowmq.replication.state.held_offsets import Held
from escrowmq.replication.state.index import Columns, Table
from escrowmq.replication.state.machine import LEVEL_MAX, StateMachine
from escrowmq.replication.state.open_tx import OpenTx, View
from escrowmq.replication.state.shares import Group, Pair
from escrowmq.replication.state.shares import Key as ShareKey
from escrowmq.replication.state.timers import FrozenCounts
from escrowmq.replication.state.topics import Partition, Topic
from escrowmq.replication.state.transactions import Copy, from_snapshot, to_snapshot
from escrowmq.replication.timers.store import Frozen

_MAGIC = b"EMQS"
_VERSION = struct.Struct("<I")
_HEAD_BYTES = len(_MAGIC) + _VERSION.size
VERSION = 1
#: Fields of an open transaction that are lists in the file.
_LISTS = tuple(map(OpenTx._fields.index, ("digests", "refs", "participants", "timers")))
_FENCE = OpenTx._fields.index("fence")
_CHUNK = struct.Struct("<II")
ITEMS_PER_CHUNK = 2_000
#: A settling has one transaction or many.
SETTLINGS_PER_CHUNK = 200
#: Partitions that are packed between two rests, if a topic has no more: 0.4 ms.
PARTITIONS_PER_REST = 250
#: Numbers of a partition: slot, number, start, end, newest time.
BOUNDS = 5
#: What values of the wrong shape raise when they are inserted into the tables.
_SENSELESS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)


class NewerLevel(UnknownVersion):
    """A sound snapshot whose level or settings this software does not know: it is not damaged."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state after ``index``. ``topics``: each with its number of partitions, whose numbers are
    consecutive in ``bounds``; ``tables``: the runs since the last snapshot, by slot."""

    index: int
    term: int
    meta: dict[str, Any]
    topics: list[tuple[TopicInfo, int]]
    bounds: array[int]
    groups: list[tuple[str, ByTopic]]
    open: list[tuple[str, View]]
    settled: list[tuple[str, int, dict[str, int]]]  # app, generation (0 old, 1 young)
    given: list[tuple[str, int, dict[str, int]]]  # as settled
    decided: list[tuple[str, dict[str, Decided]]]
    producers: list[tuple[int, dict[Any, Any]]]
    tables: dict[int, Columns]
    lives: Copy
    timers: Frozen
    shares: list[tuple[ShareKey, Pair]]
    share_groups: list[tuple[str, Group]]
    attempts: list[tuple[AttemptsKey, tuple[int, int]]]
    claims: list[tuple[str, Claim]]
    claimed: list[tuple[TxKey, Claimed]]
    held: list[tuple[TxKey, list[Held]]]
    unattended: list[TxKey]
    letters: list[tuple[TxKey, Letters]]


def encode(snapshot: Snapshot, rest: Callable[[], None] = lambda: None) -> Iterator[bytes]:
    """The file's parts. ``rest()`` is called in between."""
    yield _MAGIC + _VERSION.pack(VERSION)
    count = 0
    for packed in _chunks(snapshot, rest):
        count += 1
        rest()
        yield _CHUNK.pack(len(packed), crc32c(packed))
        yield packed
    packed = pack(["end", count])
    yield _CHUNK.pack(len(packed), crc32c(packed))
    yield packed


def _chunks(snapshot: Snapshot, rest: Callable[[], None]) -> Iterator[bytes]:
    yield _packed_meta(snapshot, rest)
    yield from map(pack, _chunks_of_tables(snapshot))


def _chunks_of_tables(snapshot: Snapshot) -> Iterator[list[Any]]:
    for app, opened in snapshot.open:
        yield from (["open", app, part] for part in _pieces(opened.items()))
    for app, age, settled in snapshot.settled:
        yield from (["settled", app, age, part] for part in _pieces(settled.items()))
    for app, age, given in snapshot.given:
        yield from (["given", app, age, part] for part in _pieces(given.items()))
    for app, decided in snapshot.decided:
        yield from (["decided", app, part] for part in _pieces(decided.items()))
    for age, producers in snapshot.producers:
        yield from (["producers", age, part] for part in _pieces(producers.items()))
    for which, ring in enumerate(snapshot.lives):
        for at in range(0, len(ring), SETTLINGS_PER_CHUNK):
            yield ["lives", which, list(map(to_snapshot, ring[at : at + SETTLINGS_PER_CHUNK]))]
    yield from _chunks_of_groups(snapshot)


def _chunks_of_groups(snapshot: Snapshot) -> Iterator[list[Any]]:
    for part in _pieces(snapshot.share_groups):
        yield ["share groups", [[name, group.number, group.settings.values()] for name, group in part]]
    rows, size = list[list[Any]](), 0
    for (group, slot), pair in snapshot.shares:
        rows.append([group, slot, *pair.saved()])
        size += 1 + pair.ranges
        if size >= ITEMS_PER_CHUNK:
            yield ["shares", rows]
            rows, size = [], 0
    if rows:
        yield ["shares", rows]
    for noted in _pieces(snapshot.attempts):
        yield ["attempts", [[*key, *value] for key, value in noted]]
    for claims in _pieces(snapshot.claims):
        yield ["claims", [[name, *claim] for name, claim in claims]]
    for claimed in _pieces(snapshot.claimed):
        yield ["claimed", [[*key, *value] for key, value in claimed]]
    for held in _pieces(snapshot.held):
        yield ["held", [[*key, offsets] for key, offsets in held]]
    for unattended in _pieces((key, None) for key in snapshot.unattended):
        yield ["unattended", [key for key, _ in unattended]]
    for letters in _pieces(snapshot.letters):
        yield ["letters", [[*key, *held] for key, held in letters]]


def _packed_meta(snapshot: Snapshot, rest: Callable[[], None]) -> bytes:
    """The bytes of ``pack(["meta", index, term, meta])``, piece by piece, with topics, their first groups and
    ids, and consumer groups filled in."""
    parts = [b"\x94", pack("meta"), pack(snapshot.index), pack(snapshot.term), _map_head(len(snapshot.meta))]
    for name, value in snapshot.meta.items():
        parts.append(pack(name))
        if name == "topics":
            parts += (_array_head(len(snapshot.topics)), *_resting(_packed_topics(snapshot), rest))
        elif name == "group_offsets":
            count = sum(len(by) for _, by in snapshot.groups)
            parts += (_array_head(count), *_resting(_packed_groups(snapshot), rest))
        elif name == "timers":
            released, counts = value
            parts += (b"\x92", pack(released), *_packed_counts(counts, rest))
        elif name == "first_groups":
            first_groups = {info.name: info.first_group for info, _ in snapshot.topics}
            parts.append(pack({topic: first for topic, first in first_groups.items() if first != BY_NAME}))
        elif name == "topic_ids":
            ids = {info.name: info.topic_id for info, _ in snapshot.topics}
            parts.append(pack({topic: topic_id for topic, topic_id in ids.items() if topic_id != NO_ID}))
        else:
            parts.append(pack(value))
    return b"".join(parts)


def _packed_counts(counts: FrozenCounts, rest: Callable[[], None]) -> Iterator[bytes]:
    """The bytes of ``pack`` of the flat counts of waiting messages."""
    yield _array_head(4 * sum(map(len, counts.blocks.values())))
    pieces = ((len(part) // 4, pack(part)[len(_array_head(len(part))) :]) for part in counts.parts())
    yield from _resting(pieces, rest)


def _packed_topics(snapshot: Snapshot) -> Iterator[tuple[int, bytes]]:
    bounds, at = snapshot.bounds, 0
    for info, count in snapshot.topics:
        end = at + count * BOUNDS
        rows = [bounds[n : n + BOUNDS].tolist() for n in range(at, end, BOUNDS)]
        yield count, pack([info.settings(), rows])
        at = end


def _packed_groups(snapshot: Snapshot) -> Iterator[tuple[int, bytes]]:
    for group, by_topic in snapshot.groups:
        for topic, offsets in by_topic.items():
            yield len(offsets), pack([group, topic, [n for pair in offsets.items() for n in pair]])


def _resting(parts: Iterable[tuple[int, bytes]], rest: Callable[[], None]) -> Iterator[bytes]:
    """The parts, each given with its number of partitions."""
    since = 0
    for partitions, part in parts:
        since += partitions + 1
        if since >= PARTITIONS_PER_REST:
            since = 0
            rest()
        yield part


def _map_head(size: int) -> bytes:
    return bytes((0x80 | size,)) if size < 16 else b"\xde" + size.to_bytes(2, "big")


def _array_head(size: int) -> bytes:
    if size < 16:
        return bytes((0x90 | size,))
    return b"\xdc" + size.to_bytes(2, "big") if size < 1 << 16 else b"\xdd" + size.to_bytes(4, "big")


def _pieces(table: Iterable[tuple[Any, Any]]) -> Iterator[list[Any]]:
    items = iter(table)
    while piece := list(islice(items, ITEMS_PER_CHUNK)):
        yield piece


def decode(name: str, data: bytes | memoryview) -> Iterator[list[Any]]:
    """The chunks of a file, checked; raises CorruptLog unless it is whole, UnknownVersion if newer."""
    view = memoryview(data)
    if len(view) < _HEAD_BYTES or bytes(view[: len(_MAGIC)]) != _MAGIC:
        raise CorruptLog(f"{name}: not a snapshot")
    (version,) = _VERSION.unpack_from(view, len(_MAGIC))
    if version != VERSION:
        raise UnknownVersion(f"{name}: snapshot version {version}; this software reads {VERSION}")
    at, count = _HEAD_BYTES, 0
    while True:
        if at + _CHUNK.size > len(view):
            raise CorruptLog(f"{name}: cut off at byte {at}")
        size, crc = _CHUNK.unpack_from(view, at)
        body = bytes(view[at + _CHUNK.size : at + _CHUNK.size + size])
        if len(body) != size or crc32c(body) != crc:
            raise CorruptLog(f"{name}: bad chunk at byte {at}")
        chunk = unpack(body)
        if chunk[0] == "end":
            if chunk[1] != count:
                raise CorruptLog(f"{name}: {count} chunks instead of {chunk[1]}")
            return
        yield chunk
        at, count = at + _CHUNK.size + size, count + 1


def verify(name: str, read: Callable[[int, int], bytes], size: int, piece_bytes: int) -> Iterator[int]:
    """Check a file chunk by chunk, without interpreting the content; yields the bytes of each piece of about
    ``piece_bytes``. ``read(pos, size)``. Raises as ``decode``."""
    head = read(0, _HEAD_BYTES)
    if len(head) < _HEAD_BYTES or head[: len(_MAGIC)] != _MAGIC:
        raise CorruptLog(f"{name}: not a snapshot")
    (version,) = _VERSION.unpack_from(head, len(_MAGIC))
    if version != VERSION:
        raise UnknownVersion(f"{name}: snapshot version {version}; this software reads {VERSION}")
    at, told, count, last = _HEAD_BYTES, 0, 0, b""
    while at < size:
        fields = read(at, _CHUNK.size)
        length, crc = _CHUNK.unpack(fields) if len(fields) == _CHUNK.size else (size, 0)
        begin = at + _CHUNK.size
        if begin + length > size:  # a flipped bit; nothing is read that is not there
            raise CorruptLog(f"{name}: bad chunk at byte {at}")
        found, last = 0, b""
        for pos in range(begin, begin + length, piece_bytes):  # one chunk has all topics
            last = read(pos, min(piece_bytes, begin + length - pos))
            found = extend(found, last)
        if found != crc:
            raise CorruptLog(f"{name}: bad chunk at byte {at}")
        at, count = begin + length, count + 1
        if at - told >= piece_bytes:
            yield at - told
            told = at
    if last != pack(["end", count - 1]):  # it is in one piece
        raise CorruptLog(f"{name}: cut off at byte {at}")
    yield at - told


def named_files(meta: Mapping[str, Any]) -> list[str]:
    """The files that a snapshot needs, from its first chunk."""
    return [name + "" for name in (*meta["run_files"], *meta["timer_files"])]


def timers_alive(meta: Mapping[str, Any]) -> int:
    """How many messages wait for their time, by a snapshot's first chunk, or by what will become it."""
    _, counts = meta["timers"]
    return counts.total if isinstance(counts, FrozenCounts) else sum(counts[2::4])


def restore(state: StateMachine, name: str, data: bytes | memoryview) -> tuple[int, list[str]]:
    """Fill an empty state from a snapshot; returns (term of the last entry in it, names of the run files and
    files of timers).

    Raises CorruptLog, UnknownVersion or NewerLevel; the state is then unusable.
    """
    try:
        return _restore(state, name, data)
    except _SENSELESS as error:
        raise CorruptLog(f"{name}: its content is invalid: {error!r}") from error


def _restore(state: StateMachine, name: str, data: bytes | memoryview) -> tuple[int, list[str]]:
    term, files = 0, list[str]()
    fences: dict[bytes, bytes] = {}  # a few, each of which a million transactions may have
    for chunk in decode(name, data):
        kind = chunk[0]
        if kind == "meta":
            _, state.applied_index, term, meta = chunk
            state.stable.restored(state.applied_index)
            _restore_meta(state, name, meta)
            files = named_files(meta)
        elif kind == "open":
            table = state.transactions.app(chunk[1])
            for tx_id, fields in chunk[2]:
                table.insert(tx_id, record := _open_record(fields, fences))
                state.timers.in_transactions |= bool(record.timers)
        elif kind in ("settled", "given"):
            table = state.transactions.app(chunk[1])
            remembered = table.settled if kind == "settled" else table.given
            (remembered.young if chunk[2] else remembered.old).update(chunk[3])
        elif kind == "decided":
            waiting = state.transactions.app(chunk[1]).decided
            for tx_id, (outcome, digest, home_index, groups, *rest) in chunk[2]:
                waiting[tx_id] = Decided(outcome, digest, home_index, tuple(groups), *rest)
        elif kind == "producers":
            generation = state.producers.young if chunk[1] else state.producers.old
            for (producer, slot), (epoch, seq, recent) in chunk[2]:
                generation[producer, slot] = (epoch, seq, tuple(tuple(r) for r in recent))
        elif kind == "lives":
            state.transactions.lives.restore(chunk[1], map(from_snapshot, chunk[2]))
        else:
            _restore_groups(state, name, kind, chunk[1])
    state.transactions.count()
    state.due.rebuild()
    return term, files


def _restore_groups(state: StateMachine, name: str, kind: str, rows: list[list[Any]]) -> None:
    if kind == "share groups":
        for group, number, values in rows:
            try:
                settings = DEFAULTS.changed(values)
            except UnknownVersion as error:
                raise NewerLevel(f"{name}: {error}") from error
            stated = {key: value for key, value in values.items() if value != ""}
            if (problem := group_settings_problem(stated)) is not None or type(number) is not int:
                raise ValueError(problem or "a change has a number")
            state.shares.groups[group] = Group(settings, number)
    elif kind == "shares":
        for group, slot, start, expired, flat in rows:
            state.shares.restore(group, state.topics.slots[slot], start, expired, flat)
    elif kind == "attempts":
        for group, topic, partition, offset, attempts in rows:
            state.attempts[group, topic, partition] = offset, attempts
    elif kind == "claims":
        state.claims.restore([(name, Claim(*claim)) for name, *claim in rows], ())
    elif kind == "claimed":
        state.claims.restore((), [((app, tx_id), tuple(claimed)) for app, tx_id, *claimed in rows])
    elif kind == "held":
        for app, tx_id, offsets in rows:
            state.held.hold((app, tx_id), [(group, topic, tuple(flat)) for group, topic, flat in offsets])
    elif kind == "unattended":
        state.transactions.unattended.update(((app, tx_id), None) for app, tx_id in rows)
    elif kind == "letters":
        for app, tx_id, group, partition, ranges, topic_id, to, by in rows:
            state.letters.hold((app, tx_id), Letters(group, partition, tuple(ranges), topic_id, to, by))


def _open_record(fields: list[Any], fences: dict[bytes, bytes]) -> OpenTx:
    for at in _LISTS:
        fields[at] = tuple(fields[at])
    fields[_FENCE] = fences.setdefault(fence := fields[_FENCE], fence)
    return OpenTx(*fields)


def _restore_meta(state: StateMachine, name: str, meta: dict[str, Any]) -> None:
    # Before anything else, which a later level may have in another shape: that must not pass for damage.
    if meta["level"] > LEVEL_MAX:
        text = f"{name}: format level {meta['level']}; this software knows up to {LEVEL_MAX}: upgrade it"
        raise NewerLevel(text)
    if (meta["gid"], meta["groups"]) != (state.gid, state.groups):
        raise CorruptLog(f"{name}: snapshot of group {meta['gid']} of {meta['groups']}, not of this one")
    state.now_ms, state.first_index = meta["now_ms"], meta["first_index"]
    state.topics.next_slot = meta["next_slot"]
    first_groups, ids = meta["first_groups"], meta["topic_ids"]
    state.topics.last_id = meta["last_topic_id"]
    for info, partitions in meta["topics"]:
        name_, topic_id = info["name"], ids.get(info["name"], NO_ID)
        known = TopicInfo(**info, first_group=first_groups.get(name_, BY_NAME), topic_id=topic_id)
        topic = Topic(known, {})
        for slot, number, start, end, last in partitions:
            partition = state.topics.partition(slot, name_, number, start, end, last, topic_id=topic_id)
            topic.partitions[number] = partition
        state.topics.topics[topic.info.name] = topic
    state.topics.altered, numbers = meta["altered"]
    for topic_name, number in numbers.items():
        state.topics.topics[topic_name].altered = number
    for group, topic_name, flat in meta["group_offsets"]:
        it = iter(flat)
        state.group_offsets.setdefault(group, {})[topic_name] = dict(zip(it, it, strict=True))
    state.transactions.audit = [tuple(item) for item in meta["audit"]]
    state.deleted_groups.floor, generations = meta["deleted_groups"]
    state.deleted_groups.generations.update(generations)
    if "members" in meta:
        index, command = meta["members"]
        decode_members(command)  # refuse it here, not after the replica has started
        state.members = int(index), command
    if meta["level"] < 1 or not all(type(value) is int and value >= 0 for value in meta["settings"].values()):
        raise ValueError(f"level {meta['level']}, settings {meta['settings']}")
    state.level = meta["level"]
    state.forgotten_ms, state.turned_ms = meta["forgotten_ms"], meta["turned_ms"]
    given = state.transactions.given
    given.turned_ms, given.forgotten_ms, given.age_ms = meta["given"]
    state.timers.restore(*meta["timers"])
    state.timers.restore_cancelled(*meta["cancelled"])
    state.producers.turned_ms, state.producers.forgotten_ms = meta["producers"]
    try:
        state.set_settings(state.settings.changed(meta["settings"]))
    except UnknownVersion as error:
        raise NewerLevel(f"{name}: {error}") from error


def adopt_runs(state: StateMachine, tables: Iterable[tuple[int, Table]]) -> None:
    """Put tables of runs (by slot) into their partitions; those of dead slots and trimmed offsets are
    skipped."""
    for slot, table in tables:
        adopt(state, slot, table)


def adopt(state: StateMachine, slot: int, table: Table) -> None:
    """``adopt_runs`` for one partition."""
    partition = state.topics.slots.get(slot)
    if partition is not None and table.end > partition.index.start:
        partition.index.adopt(table)


# ------------------------------------------------------------------------------------------------------------
# Taking a snapshot of the state while entries continue to be applied.
#
# A ``Capture`` is the whole state after one index, although it is assembled in many steps: the thread that
# applies entries also sends heartbeats, and visiting 200,000 partitions takes longer than an election
# time-out. Small or immutable parts are taken at the start. Partitions are cut (index.py) and consumer
# groups held (group_offsets.py) at that moment: one that changes before the capture has visited it keeps
# its old value for the capture.


class Capture:
    """The state after its last applied entry, which has ``term``. In the applying thread; one at a time, and
    each must be completed."""

    def __init__(self, state: StateMachine, term: int, run_files: Iterable[str]) -> None:
        """``run_files``: the files that hold the runs before ``tables``."""
        topics = list(state.topics.topics.values())
        apps = state.transactions.apps.items()
        self._tables: dict[int, Columns] = {}
        self._bounds = array("q")
        self._visits = self._visit([topic.partitions for topic in topics])
        self._done = False
        self.snapshot = Snapshot(
            state.applied_index,
            term,
            _meta(state, run_files),
            [(topic.info, len(topic.partitions)) for topic in topics],
            self._bounds,
            state.group_offsets.hold(),
            [(app, table.open.hold()) for app, table in apps if table.open],
            [
                (app, age, copy)
                for app, table in apps
                for age, copy in enumerate(table.settled.copy())
                if copy
            ],
            [
                (app, age, copy)
                for app, table in apps
                if table.given
                for age, copy in enumerate(table.given.copy())
            ],
            [(app, table.decided.copy()) for app, table in apps if table.decided],
            list(enumerate(state.producers.copy())),
            self._tables,
            state.transactions.lives.copy(),
            state.timers.store.freeze(),
            state.shares.hold(),
            list(state.shares.groups.items()),
            list(state.attempts.items()),
            list(state.claims.by_name.items()),
            state.claims.rows(),
            list(state.held.by_tx.items()),
            list(state.transactions.unattended),
            list(state.letters.by_tx.items()),
        )
        state.topics.cuts.cut()

    @property
    def run_files(self) -> list[str]:
        """Run files that the snapshot names; the writer of the snapshot adds that of ``tables``."""
        files: list[str] = self.snapshot.meta["run_files"]
        return files

    def step(self, partitions: int) -> bool:
        """Visit up to ``partitions`` more; returns whether all are visited and the snapshot is complete."""
        for _ in islice(self._visits, partitions):
            pass
        return self._done

    def _visit(self, topics: list[dict[int, Partition]]) -> Iterator[None]:
        for partitions in topics:
            for partition in partitions.values():
                start, end, last_time_ms, runs = partition.index.at_cut()
                self._bounds.extend((partition.slot, partition.number, start, end, last_time_ms))
                if runs is not None:
                    self._tables[partition.slot] = runs
                yield
        assert len(self._bounds) == BOUNDS * sum(len(partitions) for partitions in topics)
        self._done = True


def capture(state: StateMachine, term: int, run_files: Iterable[str]) -> Snapshot:
    """A snapshot in one step, for callers that hold up no other work."""
    taken = Capture(state, term, run_files)
    while not taken.step(1 << 20):
        pass
    return taken.snapshot


def release(state: StateMachine, snapshot: Snapshot) -> None:
    """The snapshot is no longer read. In the applying thread."""
    for _ in release_steps(state, snapshot):
        pass


def release_steps(state: StateMachine, snapshot: Snapshot) -> Iterator[None]:
    """As ``release``, app by app; the same state must not be held again before this has ended."""
    state.group_offsets.release()
    state.shares.release()
    for app, _ in snapshot.open:
        state.transactions.release(app)
        yield


def _meta(state: StateMachine, run_files: Iterable[str]) -> dict[str, Any]:
    """The file's first chunk. Topics, their first groups and ids, and group offsets are large, so they are
    added when it is written."""
    numbers = {name: topic.altered for name, topic in state.topics.topics.items() if topic.altered}
    given, deleted = state.transactions.given, state.deleted_groups
    meta = {
        "gid": state.gid,
        "groups": state.groups,
        "now_ms": state.now_ms,
        "first_index": state.first_index,
        "next_slot": state.topics.next_slot,
        "topics": [],
        "group_offsets": [],
        "audit": list(state.transactions.audit),
        "run_files": list(run_files),
        "level": state.level,
        "settings": state.settings.values(),
        "forgotten_ms": state.forgotten_ms,
        "turned_ms": state.turned_ms,
        "given": [given.turned_ms, given.forgotten_ms, given.age_ms],
        "producers": [state.producers.turned_ms, state.producers.forgotten_ms],
        "altered": [state.topics.altered, numbers],
        "first_groups": {},
        "topic_ids": {},
        "last_topic_id": state.topics.last_id,
        "deleted_groups": [deleted.floor, dict(deleted.generations)],
        "timers": [state.timers.released, state.timers.counts.freeze()],
        "timer_files": [],
        "cancelled": list(map(b"".join, state.timers.cancelled.copy())),
    }
    if state.members is not None:
        meta["members"] = list(state.members)
    return meta
