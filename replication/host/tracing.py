"""Where one message came from: its row, and the entry of the log that made it readable.

A partition's index knows where a message's row lies and the time at which it became readable, not the entry
that did it: for a transaction that is the COMMIT. The times in the log never fall, so that entry is found by
binary search, and known by what it refers to.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from escrowmq.replication.calling.answers import Reply
from escrowmq.replication.calling.finding_answers import FoundRows, MessageAt, MessageOrigin, ShareProgress
from escrowmq.replication.errors import CorruptLog, DamagedEntry, DiskFailed, OffsetGone, Unavailable
from escrowmq.replication.format import forwarded
from escrowmq.replication.format.codec import ENVELOPE, REGULAR, Op, decode_command, decode_rows
from escrowmq.replication.format.find_rows import is_sought, split_rows
from escrowmq.replication.format.find_table import ORIGIN
from escrowmq.replication.format.internal_topics import (
    DEAD,
    RETRY,
    dead_topic,
    is_internal,
    owner_of,
    retry_topic,
)
from escrowmq.replication.format.operation import OpType
from escrowmq.replication.format.share_ops import DROPPED, REDRIVEN
from escrowmq.replication.host.finding import ROWS_MAX, Finder, Sought, opened
from escrowmq.replication.host.inspection import politely
from escrowmq.replication.host.reads import MENDING_S, Reads
from escrowmq.replication.host.running_replica import RunningReplica
from escrowmq.replication.model import NO_ID, ResultCode
from escrowmq.replication.state.held_letters import Settlement, settlement_of
from escrowmq.replication.state.index import Run
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.topics import Partition
from escrowmq.replication.timers.record import RECORD, TIME_MAX, deliver_ms_of

# ------------------------------------------------------------------ what share groups did
# What became of a message in share groups, and in groups that retry.
#
# That a message is final says only that its group is done with the original: when it failed, a copy went to
# the group's retry topic, perhaps by a timer, or to its dead letters. The copies name the original in a
# header, by which they are found, in the partitions of these topics that this broker group has. What
# operators have done with a dead letter is in the audit trail. Who has a message now is in no log, but in
# the memory of the leader that hands it out, which is the one that is asked.


#: How long one question may look for copies, and through how many waiting messages.
SEARCH_S, TIMERS_MAX, READ_AT_ONCE = 2.0, 200_000, 4_096
#: Groups of one answer.
GROUPS_MAX = 1_000
_SETTLED = {DROPPED: "dropped", REDRIVEN: "redriven"}


class _Copy(NamedTuple):
    """A copy of the message: ``offset`` -1: it waits for ``time_ms``."""

    offset: int
    time_ms: int
    history: forwarded.History
    reason: str


class _Copies(NamedTuple):
    retries: list[_Copy]
    dead: list[_Copy]
    complete: bool


class ShareTraces:
    """Questions about one replica. Thread-safe."""

    def __init__(self, running: RunningReplica, finder: Finder) -> None:
        self._running, self._finder = running, finder
        self._state = running.replica.state

    def progress(self, topic: str, number: int, offset: int, streams: Iterable[str] = ()) -> Reply:
        """``("ok", [ShareProgress, ...])``, at most ``GROUPS_MAX``: the share groups that have begun with the
        partition, and those of ``streams`` that have a copy; leader only.

        A group that reads by offsets has handled its retries up to its committed offsets, which its
        coordinator knows: ``streams`` may be a map from the group to these, by partition. Without an offset,
        no retry is taken for handled."""
        committed: Mapping[str, Mapping[int, int]] = streams if isinstance(streams, Mapping) else {}
        final: dict[str, bool] = {}

        def begun() -> Partition | None:
            found = self._state.topics.find(topic, number)
            if not isinstance(found, Partition):
                return None
            for (group, slot), pair in self._state.shares.pairs.items():
                if slot == found.slot:
                    final[group] = pair.has(offset)
            if topic.startswith((RETRY, DEAD)):  # with these a group begins by itself
                pair_of_owner = self._state.shares.get(owner_of(topic), found)
                final[owner_of(topic)] = pair_of_owner is not None and pair_of_owner.has(offset)
            return found

        status = self._running.led(begun)
        if status[0] != "ok":
            return status
        partition: Partition | None = status[1]
        if partition is None:
            return "ok", []
        retrying = {
            group for group in streams if self._own(retry_topic(group)) or self._own(dead_topic(group))
        }
        groups = [*sorted(final), *sorted(retrying - final.keys())][:GROUPS_MAX]
        with self._running.leaving():
            needle, deadline = self._origin(partition, offset), time.monotonic() + SEARCH_S
            sought = [group for group in groups if final.get(group, True)]
            copies = {group: self._copies(group, needle, deadline) for group in sought}

        def judge() -> list[ShareProgress]:
            told: list[ShareProgress] = []
            for group in groups:
                if group not in copies:
                    pair = self._state.shares.get(group, partition)
                    if pair is not None and pair.has(offset):  # since the copies were looked for
                        told.append(ShareProgress(group, "finished"))
                        continue
                    leased = self._leased(group, partition, offset)
                    told.append(leased or ShareProgress(group, "waiting"))
                    continue
                found = copies[group]
                judged = self._judged(group, found, committed.get(group, {}))
                if group in final or ((found.retries or found.dead) and judged.state != "finished"):
                    told.append(judged)
            return told

        return self._running.led(judge)

    def _origin(self, partition: Partition, offset: int) -> bytes:
        """The header of all copies of this message; of a copy, that of its original."""
        runs = partition.index.runs_from(offset, 1)
        time_ms = runs[0].time_ms if runs else 0
        if runs and is_internal(partition.topic):
            answer = self._reads_row(runs[0].log_index, runs[0].pos, runs[0].size, runs[0].messages)
            if offset - runs[0].base < len(answer):
                past = forwarded.history(answer[offset - runs[0].base])
                if past.origin is not None:
                    return forwarded.origin_text(past.origin).encode()
        origin = forwarded.Origin(partition.topic, partition.number, offset, time_ms)
        return forwarded.origin_text(origin).encode()

    def _reads_row(self, index: int, pos: int, size: int, count: int) -> list[dict[str, bytes] | None]:
        try:
            rows = decode_rows(self._running.journal.read_range(index, pos, size), count)
        except (CorruptLog, OffsetGone):
            return []
        return [row[2] for row in rows]

    # -------------------------------------------------------------- copies

    def _copies(self, group: str, needle: bytes, deadline: float) -> _Copies:
        dead, all_dead = self._readable(dead_topic(group), needle, deadline)
        retries, all_retries = self._readable(retry_topic(group), needle, deadline)
        waiting, all_waiting = self._on_timers(retry_topic(group), needle, deadline)
        return _Copies([*retries, *waiting], dead, all_dead and all_retries and all_waiting)

    def _readable(self, topic: str, needle: bytes, deadline: float) -> tuple[list[_Copy], bool]:
        """The copies that can be read, and whether these are all."""
        partition = self._own(topic)
        if partition is None:
            return [], True
        at, end = partition.index.start, partition.index.end
        sought = Sought(topic, partition.number, partition.topic_id, ORIGIN, needle)
        found: list[_Copy] = []
        while at < end:
            left_s = deadline - time.monotonic()
            answer = self._finder.find(sought, at, end, ROWS_MAX, max(left_s, 0.0))
            if answer.code != ResultCode.OK or (answer.reached <= at and left_s <= 0):
                return found, answer.code != ResultCode.OK  # deleted meanwhile: there is nothing
            rows = zip(answer.offsets, answer.times_ms, answer.rows, strict=True)
            found += [_copy(offset, time_ms, row) for offset, time_ms, row in rows]
            at = max(at, answer.reached)
        return found, True

    def _on_timers(self, topic: str, needle: bytes, deadline: float) -> tuple[list[_Copy], bool]:
        """The copies that wait for their time, and whether these are all."""
        partition, timers = self._own(topic), self._state.timers
        if partition is None:
            return [], True
        reached, read, found = timers.released, 0, list[_Copy]()
        while read < TIMERS_MAX and time.monotonic() < deadline:
            records, reached = timers.store.listed(reached, TIME_MAX, READ_AT_ONCE)
            if not records:
                return found, True
            read += len(records)
            for record in records:
                _, slot, _, _, index, pos, size = RECORD.unpack(record)
                if slot == partition.slot:
                    try:
                        row = self._running.journal.read_range(index, pos, size)
                    except (CorruptLog, OffsetGone):  # released meanwhile; damage is found by who reads it
                        continue
                    if is_sought(row, ORIGIN, needle):
                        found.append(_copy(-1, deliver_ms_of(record), row))
            time.sleep(0)  # lets the replica's own thread run
        return found, False

    def _own(self, topic: str) -> Partition | None:
        """This broker group's partition of an internal topic."""
        known = self._state.topics.topics.get(topic)
        return None if known is None else next(iter(known.partitions.values()), None)

    # -------------------------------------------------------------- judging

    def _judged(self, group: str, copies: _Copies, committed: Mapping[int, int]) -> ShareProgress:
        """What the copies say of a message that its group has finished with. ``committed``: next offsets in
        the partitions of its retry topic. In the replica's thread."""
        own = self._own(retry_topic(group))
        passed = -1 if own is None else committed.get(own.number, 0)
        for copy in reversed(copies.retries):
            if copy.offset < 0 or not (
                copy.offset < passed or self._is_final(group, retry_topic(group), copy.offset)
            ):
                attempt = copy.history.attempt
                leased = None if own is None else self._leased(group, own, copy.offset, attempt, copy.reason)
                return leased or ShareProgress(group, "retrying", attempt, copy.time_ms, copy.reason)
        for copy in reversed(copies.dead):
            if not self._is_final(group, dead_topic(group), copy.offset):
                return ShareProgress(group, "dead", copy.history.attempt, None, copy.reason)
        if not copies.complete:
            return ShareProgress(group, "finished")
        # In one millisecond, a copy that never failed comes from the dead letter, and one that did does not.
        last = copies.retries[-1] if copies.retries else None
        after = (last.time_ms, last.history.first_failed_ms < 0) if last is not None else (-1, False)
        if copies.dead and (copies.dead[-1].time_ms, False) >= after:
            return self._settled(group, copies.dead[-1])
        return ShareProgress(group, "done", None if last is None else last.history.attempt)

    def _settled(self, group: str, letter: _Copy) -> ShareProgress:
        """What became of a dead letter that is final, and did not come back to its group."""
        own, how = self._own(dead_topic(group)), Settlement("")
        if own is not None:
            trail = self._state.transactions.audit
            how = settlement_of(trail, group, own, letter.offset, letter.time_ms)
        state = _SETTLED.get(how.outcome, "settled")
        about = letter.history.attempt, None, letter.reason
        return ShareProgress(group, state, *about, to=how.to, tx_id=how.tx_id)

    def _leased(
        self, group: str, partition: Partition, offset: int, attempt: int | None = None, reason: str = ""
    ) -> ShareProgress | None:
        """What is told of a message that a consumer has; None: none has it. In the replica's thread."""
        replica = self._running.replica
        lease = replica.lease_dispatcher.leases.lease_of((group, partition.slot), offset)
        if lease is None:
            return None
        until_ms = self._running.now_ms() + lease.until_ms - replica.monotonic_ms()
        return ShareProgress(group, "leased", attempt, until_ms, reason, lease.member)

    def _is_final(self, group: str, topic: str, offset: int) -> bool:
        partition = self._own(topic)
        if partition is None:
            return True
        pair = self._state.shares.get(group, partition)
        return pair is not None and pair.has(offset)


def _copy(offset: int, time_ms: int, row: bytes) -> _Copy:
    try:
        ((_, _, headers, _),) = decode_rows(row, 1)
    except CorruptLog:
        headers = None
    reason = (headers or {}).get(forwarded.REASON, b"").decode(errors="replace")
    return _Copy(offset, time_ms, forwarded.history(headers), reason)


# ------------------------------------------------------------------ tracing


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
        partition: tuple[str, int, int],
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
            return self.finder.find(Sought(*partition, *what), start, until, limit, wait_s)

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
        row_at = _RowAt(run, run.pos + sum(map(len, before)))
        found = MessageAt(start=index.start, end=end, time_ms=run.time_ms, row=bytes(rows[len(before)]))
        if not origin:
            return found
        last = self._running.replica.state.applied_index
        return MessageAt(
            start=found.start,
            end=found.end,
            time_ms=found.time_ms,
            row=found.row,
            origin=origin_of(journal, row_at, journal.first_index, last),
        )

    def group_places(self, topic: str, number: int) -> Reply:
        """``("ok", {group: next offset})``: the consumer groups that this broker group coordinates, as far as
        they have committed an offset of a partition; leader only."""

        def read(state: StateMachine) -> dict[str, int]:
            found: dict[str, int] = {}
            for group, _ in politely((name, None) for name in list(state.group_offsets)):
                offset = state.group_offsets.get(group, {}).get(topic, {}).get(number)
                if offset is not None:
                    found[group] = offset
            return found

        return self._running.if_leading(read)


class _RowAt(NamedTuple):
    """A message's run, and where in its entry the row begins."""

    run: Run
    pos: int


class LogReader(Protocol):
    """What a search in the log needs from it."""

    def read(self, index: int) -> bytes: ...

    def read_range(self, index: int, pos: int, size: int) -> bytes: ...


def origin_of(log: LogReader, row_at: _RowAt, first: int, last: int) -> MessageOrigin | None:
    """The entry among ``[first, last]`` that made a message readable; None: it is not there."""
    run = row_at.run
    index = first_at(log, run.time_ms, first, last)
    for at in range(index, min(last, index + ENTRIES_MAX) + 1):
        if time_of(log, at) is None:
            continue
        now_ms, ops = decode_command(log.read(at))
        if now_ms > run.time_ms:
            break
        found = _in_entry(ops, row_at, at)
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


def _in_entry(ops: list[Op], row_at: _RowAt, index: int) -> _Found | None:
    """What in an entry made this row readable; None: nothing."""
    referred = False
    for op in ops:
        if op.type == OpType.MESSAGE and _holds(op, row_at, index):
            return _Found("sent")
        if op.type in _WITH_ROWS:
            referred = referred or _holds(op, row_at, index) or _refers(op, row_at)
        elif op.type == OpType.COMMIT and referred:
            return _Found("committed", op.meta.app, op.meta.by)
        elif op.type == OpType.RELEASE and referred:
            return _Found("released")
    return None


def _holds(op: Op, row_at: _RowAt, index: int) -> bool:
    """Whether the row lies in the operation's body."""
    return row_at.run.log_index == index and op.body_pos <= row_at.pos < op.body_pos + op.body_size


def _refers(op: Op, row_at: _RowAt) -> bool:
    """Whether the row is among those that a REF_MESSAGE makes readable."""
    if op.type != OpType.REF_MESSAGE:
        return False
    flat = op.meta.references
    return any(
        row_at.run.log_index == log_index and pos <= row_at.pos < pos + size
        for log_index, pos, size in zip(flat[::4], flat[1::4], flat[2::4], strict=True)
    )
