"""Where one message came from: its row, and the entry of the log that made it readable.

A partition's index knows the place of a message's row and the time at which it became readable, not the entry
that did it: for a transaction that is the COMMIT. The times in the log never fall, so that entry is found by
binary search, and known by what it refers to.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from escrowmq.replication.calling.answers import Reply
from escrowmq.replication.calling.finding_answers import FoundRows, MessageAt, MessageOrigin
from escrowmq.replication.errors import CorruptLog, DamagedEntry, DiskFailed, OffsetGone, Unavailable
from escrowmq.replication.format.codec import ENVELOPE, REGULAR, Op, OpType, decode_command
from escrowmq.replication.format.find_rows import split_rows
from escrowmq.replication.host.find_files import opened
from escrowmq.replication.host.find_search import Sought
from escrowmq.replication.host.finding import Finder
from escrowmq.replication.host.inspection import politely
from escrowmq.replication.host.reads import MENDING_S, Reads
from escrowmq.replication.host.running_replica import RunningReplica
from escrowmq.replication.host.share_tracing import ShareTraces
from escrowmq.replication.model import NO_ID, ResultCode
from escrowmq.replication.state.index import Run
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.topics import Partition

#: Entries with one time that are looked through: a leader writes a few in a millisecond.
ENTRIES_MAX = 10_000
_WITH_ROWS = frozenset((OpType.TX_MESSAGE, OpType.REF_MESSAGE))


class Messages:
    """Questions about single messages of one replica. Thread-safe."""

    def __init__(self, running: RunningReplica, reads: Reads) -> None:
        self._running, self._reads = running, reads
        config, in_threads = running.setup.config, running.threads
        self.finder = Finder(
            running.replica.state,
            reads.fetch,
            lambda: opened(running.find_disk, config.find_cache_bytes),
            share=config.find_cpu_share if in_threads else 1.0,
            name=f"find-{running.rid}",
            scarce=running.scarce,
            clock=running.setup.monotonic,
            own_thread=in_threads,
        )
        self.shares = ShareTraces(running, self.finder)
        if in_threads:
            running.stops.append(self.finder.stop)
            if (running.setup.data_dir / "find").is_dir():
                self.finder.begin()

    def find(
        self,
        place: tuple[str, int, int],
        what: tuple[int, bytes, str],
        start: int,
        until: int,
        limit: int,
        wait_s: float,
    ) -> FoundRows:
        """Messages of a partition ``(topic, number, topic id)`` that have ``(kind, needle, header's name)``;
        from any replica. See ``Finder.find``."""
        self._running.check_open()
        with self._running.leaving():
            return self.finder.find(Sought(*place, *what), start, until, limit, wait_s)

    def message_at(self, topic: str, number: int, topic_id: int, offset: int, origin: bool) -> Reply:
        """``("ok", MessageAt)``: one message, with its ``origin`` if that is wanted; leader only. Raises
        Unavailable while it is damaged here."""

        def read(state: StateMachine) -> MessageAt:
            found = state.topics.find(topic, number)
            if not isinstance(found, Partition):
                return MessageAt(code=int(found))
            if topic_id not in (NO_ID, found.topic_id):
                return MessageAt(code=int(ResultCode.OTHER_TOPIC), end=found.topic_id)
            try:
                return self._message(found, offset, origin)
            except (DamagedEntry, OffsetGone) as error:  # it is being mended, or retention overtook this
                raise Unavailable(str(error), MENDING_S) from error
            except (CorruptLog, DiskFailed) as error:
                raise self._running.leave(error) from error

        return self._running.if_leading(read)

    def _message(self, partition: Partition, offset: int, origin: bool) -> MessageAt:
        journal, index = self._running.journal, partition.index
        with self._running.replica.state.cut:
            end = index.end
        runs = index.runs_from(offset, 1) if index.start <= offset < end else []
        if not runs:
            return MessageAt(code=int(ResultCode.OUT_OF_RANGE), start=index.start, end=end)
        (run,) = runs
        blob = journal.read_range(run.log_index, run.pos, run.size)
        try:
            rows = split_rows(blob, run.messages)
        except CorruptLog:  # its writer's fault: the entry is what was written
            return MessageAt(start=index.start, end=end, time_ms=run.time_ms)
        before = rows[: offset - run.base]
        place = _RowPlace(run, run.pos + sum(map(len, before)))
        found = MessageAt(start=index.start, end=end, time_ms=run.time_ms, row=bytes(rows[len(before)]))
        if not origin:
            return found
        last = self._running.replica.state.applied_index
        return MessageAt(
            start=found.start,
            end=found.end,
            time_ms=found.time_ms,
            row=found.row,
            origin=origin_of(journal, place, journal.first_index, last),
        )

    def group_places(self, topic: str, number: int) -> Reply:
        """``("ok", {group: next offset})``: the consumer groups that this broker group coordinates, as far as
        they have a place in a partition; leader only."""

        def read(state: StateMachine) -> dict[str, int]:
            found: dict[str, int] = {}
            for group, _ in politely((name, None) for name in list(state.group_offsets)):
                place = state.group_offsets.get(group, {}).get(topic, {}).get(number)
                if place is not None:
                    found[group] = place
            return found

        return self._running.if_leading(read)


class _RowPlace(NamedTuple):
    """A message's run, and where in its entry the row begins."""

    run: Run
    pos: int


class LogReader(Protocol):
    """What a search in the log needs from it."""

    def read(self, index: int) -> bytes: ...

    def read_range(self, index: int, pos: int, size: int) -> bytes: ...


def origin_of(log: LogReader, place: _RowPlace, first: int, last: int) -> MessageOrigin | None:
    """The entry among ``[first, last]`` that made a message readable; None: it is not there."""
    run = place.run
    index = first_at(log, run.time_ms, first, last)
    for at in range(index, min(last, index + ENTRIES_MAX) + 1):
        if time_of(log, at) is None:
            continue
        now_ms, ops = decode_command(log.read(at))
        if now_ms > run.time_ms:
            break
        found = _in_entry(ops, place, at)
        if found is not None:
            stored_ms = time_of(log, run.log_index) if first <= run.log_index <= last else None
            copied = run.log_index == at and found.how != "sent"
            return MessageOrigin(
                how=found.how,
                index=at,
                stored_ms=None if copied else stored_ms,
                app=found.app,
                by=found.by,
            )
    return None


def first_at(log: LogReader, time_ms: int, first: int, last: int) -> int:
    """The first entry of ``[first, last]`` whose time is not before ``time_ms``; ``last + 1``: none."""
    low, high = first, last + 1  # what is before low is earlier; high is not, or has no time
    while low < high:
        middle = at = (low + high) // 2
        while at < high and (time := time_of(log, at)) is None:  # the first entry of a term, or of members
            at += 1
        if at < high and time is not None and time < time_ms:
            low = at + 1
        else:
            high = middle
    return low


def time_of(log: LogReader, index: int) -> int | None:
    """The leader's time in an entry; None if it has none."""
    if log.read_range(index, 0, 1)[0] != REGULAR:
        return None
    return int(ENVELOPE.unpack(log.read_range(index, 0, ENVELOPE.size))[4])


class _Found(NamedTuple):
    how: str
    app: str = ""
    by: str = ""


def _in_entry(ops: list[Op], place: _RowPlace, index: int) -> _Found | None:
    """What in an entry made this row readable; None: nothing."""
    referred = False
    for op in ops:
        if op.type == OpType.MESSAGE and _holds(op, place, index):
            return _Found("sent")
        if op.type in _WITH_ROWS:
            referred = referred or _holds(op, place, index) or _refers(op, place)
        elif op.type == OpType.COMMIT and referred:
            return _Found("committed", op.meta[0], op.meta[2])
        elif op.type == OpType.RELEASE and referred:
            return _Found("released")
    return None


def _holds(op: Op, place: _RowPlace, index: int) -> bool:
    """Whether the row lies in the operation's body."""
    return place.run.log_index == index and op.body_pos <= place.pos < op.body_pos + op.body_size


def _refers(op: Op, place: _RowPlace) -> bool:
    """Whether the row is among those that a REF_MESSAGE makes readable."""
    if op.type != OpType.REF_MESSAGE:
        return False
    flat = op.meta[2]
    return any(
        place.run.log_index == log_index and pos <= place.pos < pos + size
        for log_index, pos, size in zip(flat[::4], flat[1::4], flat[2::4], strict=True)
    )
