"""What a leader decides about acknowledgements, and about messages that a consumer group could not handle.

An acknowledgement goes into the log as it came. A NACK is decided as a COMMIT is: of messages that are not
final in the applied state, and of which no other acknowledgement or NACK is under way. For these the leader
writes copies (FORWARD) and a SHARE_ACK into one entry, so the copy exists and the original is final, or
neither. Whatever is final already is left out, so both may be repeated.

Whether a message comes back is decided here, by the settings in force: they apply to the next failure of what
waits already. Rows are read and decoded only here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

from escrowmq.replication.errors import OffsetGone
from escrowmq.replication.format import share_ops as build
from escrowmq.replication.format.codec import Op
from escrowmq.replication.format.forwarded import DONE, Origin, decode_row, history, with_headers
from escrowmq.replication.format.internal_topics import dead_topic, is_internal, owner_of, replies_topic
from escrowmq.replication.format.settings import SHARE
from escrowmq.replication.model import ResultCode
from escrowmq.replication.replica.copies import Copy, Failures, Rows
from escrowmq.replication.replica.entry_writing import EntryWriter, Finishing, Submission, TopicsUnderWay
from escrowmq.replication.replica.releases import Releases
from escrowmq.replication.state.held_letters import letters_of, overlap
from escrowmq.replication.state.machine import Result, StateMachine, out_of_range
from escrowmq.replication.state.shares import (
    GROUPS_MAX,
    PAIRS_MAX,
    RANGES_LAST,
    RANGES_OF_PAIR_LAST,
    Key,
    Pair,
)
from escrowmq.replication.state.topics import Partition, is_another

# ------------------------------------------------------------------ origins of dead letters
# Which messages are among a group's dead letters: a message dies once, however many copies of it fail.
#
# A consumer that dies between its nack and its commit leaves a message and its copy, and both may fail for
# good. An operator would redrive both. The copies of a message never leave its broker group, so one leader
# sees all of them, and leaves out a dead letter that is there already. A letter that was redriven or
# dropped does not count: the message may die again.
#
# Derived from the topic of dead letters, from its end back over as many as are remembered, when a message
# dies first in a leadership. Used in the leader's thread.


#: Letters of one group that are looked at: their rows are read in the leader's thread, once in a leadership.
#: Copies of a message fail within its attempts, so not many others die in between.
LETTERS_MAX = 1_000
#: Groups whose letters are remembered.
LETTER_GROUPS_MAX = 64


class _Letters:
    """Of one group. ``upto``: the first offset that was not looked at."""

    __slots__ = ("offsets", "upto")

    def __init__(self, begin: int) -> None:
        self.upto = begin
        self.offsets: OrderedDict[Origin, int] = OrderedDict()


class DeadOrigins:
    """See the module's text."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._known: OrderedDict[int, _Letters] = OrderedDict()  # by slot
        #: Of entries that may be in the log and are not applied yet.
        self._under_way: Counter[tuple[int, Origin]] = Counter()

    def forget(self) -> None:
        """Leadership is lost."""
        self._known.clear()
        self._under_way.clear()

    def has(self, target: Partition, origin: Origin, is_settled: Callable[[int], bool]) -> bool:
        """Whether it is there, or about to be. ``is_settled``: whether a letter was redriven or dropped."""
        if self._under_way[target.slot, origin]:
            return True
        at = self._caught_up(target).offsets.get(origin)
        return at is not None and at >= target.index.start and not is_settled(at)

    def coming(self, target: Partition, origin: Origin) -> None:
        """An entry brings it."""
        self._under_way[target.slot, origin] += 1

    def ended(self, slot: int, origin: Origin) -> None:
        """That entry is applied, or certainly in no log."""
        self._under_way[slot, origin] -= 1
        if self._under_way[slot, origin] <= 0:
            del self._under_way[slot, origin]

    def _caught_up(self, target: Partition) -> _Letters:
        index = target.index
        oldest = max(index.start, index.end - LETTERS_MAX)
        known = self._known.get(target.slot)
        if known is None:
            known = self._known[target.slot] = _Letters(oldest)
            while len(self._known) > LETTER_GROUPS_MAX:
                self._known.popitem(last=False)
        self._known.move_to_end(target.slot)
        for offset in range(max(known.upto, oldest), index.end):
            try:
                found = decode_row(self._rows.read(target, offset)[0])
            except OffsetGone:
                continue
            origin = None if found is None else history(found.headers).origin
            if origin is not None:
                known.offsets[origin] = offset
                known.offsets.move_to_end(origin)
        known.upto = index.end
        while len(known.offsets) > LETTERS_MAX:
            known.offsets.popitem(last=False)
        return known


# ------------------------------------------------------------------ share admission


_OK: Result = [int(ResultCode.OK)]
#: Of dead letters: somebody has redriven it, or dropped it.
_FINAL: Result = [int(ResultCode.DUPLICATE), None]
_RETRY = [int(ResultCode.RETRY), None]
#: What becomes of messages, as counters: see ``escrowmq_forwarded_total``.
COUNTED = ("retried", "dead", "dropped", "redriven", "redirected", "replied", "unheard")


class Holding(Protocol):
    """What admission needs of the leases of this leader. Ranges are first and last offset."""

    def others(self, pair: Key, member: str, first: int, last: int) -> Sequence[object]:
        """What somebody other than ``member`` holds of them."""

    def settling(self, pair: Key, final: Pair, first: int, last: int) -> None:
        """An acknowledgement or a NACK of these goes into the log."""

    def settled(self, pair: Key, first: int, last: int) -> None:
        """They are final."""

    def unsettled(self, pair: Key, first: int, last: int) -> None:
        """Nothing came of it."""


class ShareAdmission:
    """The share groups of one leader. Used in its thread."""

    def __init__(self, state: StateMachine, rows: Rows, topics: TopicsUnderWay, releases: Releases) -> None:
        self._state, self._rows, self._topics, self._releases = state, rows, topics, releases
        self._failures, self._dead = Failures(state, rows), DeadOrigins(rows)
        #: Ranges in entries that may be in the log and are not applied yet, by their identity.
        self.under_way: dict[Key, dict[int, Sequence[int]]] = {}
        #: Dead letters that transactions will hold, in such entries.
        self._holding: dict[Key, dict[int, Sequence[int]]] = {}
        #: Groups whose deletion may be in the log and is not applied yet.
        self._deleting: Counter[str] = Counter()
        #: The leases of this leadership; None: there are none.
        self.leases: Holding | None = None
        #: The members of a group that hold messages of this leader, or wait for some.
        self.members: Callable[[str], list[str]] = lambda group: []
        #: Of this process, as leader: copies written, by where they went.
        self.counts = dict.fromkeys(COUNTED, 0)

    def forget(self) -> None:
        """Leadership is lost: the next leader applies everything in its log before it composes an entry."""
        self.under_way.clear()
        self._holding.clear()
        self._deleting.clear()
        self._rows.forget()
        self._dead.forget()
        self.leases = None

    # -------------------------------------------------------------- acknowledgements

    def ack(self, writer: EntryWriter, submission: Submission, number: int) -> None:
        """SHARE_ACK."""
        unit = submission.units[number]
        op = unit.ops[0]
        partition = self._partition(op)
        if not isinstance(partition, Partition):
            submission.results[number] = partition
            return
        group, ranges = op.meta.group, op.meta.ranges
        if (refusal := self._refusal_of_more(group, partition, begins=not ranges)) is not None:
            submission.results[number] = refusal
            return
        if (held := self._held(group, partition, ranges)) is not None:
            submission.results[number] = held
            return
        if ranges:
            self._note(writer, group, partition, ranges)
        writer.verbatim(submission, number, unit)

    def _refusal_of_more(self, group: str, partition: Partition, *, begins: bool) -> Result | None:
        """What clients that only acknowledge what they were given do not meet."""
        shares = self._state.shares
        pair = shares.pairs.get((group, partition.slot))
        if begins:
            if pair is None and len(shares.pairs) >= PAIRS_MAX:
                return [int(ResultCode.TOO_MANY_SHARES), PAIRS_MAX]
        elif pair is not None and pair.ranges >= RANGES_OF_PAIR_LAST:
            return [int(ResultCode.TOO_MANY_SHARES), RANGES_OF_PAIR_LAST]
        elif shares.ranges >= RANGES_LAST:
            return [int(ResultCode.TOO_MANY_SHARES), RANGES_LAST]
        return None

    def reply(self, writer: EntryWriter, submission: Submission, number: int) -> None:
        """SHARE_REPLY."""
        op = submission.units[number].ops[0]
        partition = self._partition(op)
        if not isinstance(partition, Partition):
            submission.results[number] = partition
            return
        meta: build.ShareReply = op.meta
        group, app, offsets = meta.group, meta.app, meta.offsets
        pair, target = self._state.shares.get(group, partition), self._here(replies_topic(app))
        problem: Result | None
        if pair is None:
            problem = [int(ResultCode.UNKNOWN_SHARE)]
        elif offsets[-1] >= partition.index.end:
            problem = out_of_range(partition)
        elif target is None:
            problem = [int(ResultCode.UNKNOWN_TOPIC), [replies_topic(app)]]
        else:
            problem = self._refusal_of_more(group, partition, begins=False)
        if problem is not None or pair is None or target is None:
            submission.results[number] = problem
            return
        rows, newly, pos = list[bytes](), list[int](), op.body_pos
        for offset, size in zip(offsets, meta.sizes, strict=True):
            if not self._is_settled((group, partition.slot), pair, offset):
                row = bytes(submission.view[pos : pos + size])
                headers = self._failures.headers_of_reply(group, partition, offset, DONE)
                newly.append(offset)
                rows.append(with_headers(row, decode_row(row), headers, of_leader=False))
            pos += size
        self._forward(writer, {target: [(0, row) for row in rows]})
        self._finish(writer, submission, number, partition, newly, _OK)
        if newly:
            self._finishing(writer).copies.append(("replied", len(newly)))

    # -------------------------------------------------------------- failures

    def nack(self, writer: EntryWriter, submission: Submission, number: int) -> None:
        """NACK."""
        op = submission.units[number].ops[0]
        meta: build.Nack = op.meta
        group, by, attempt = meta.group, meta.by, meta.attempt
        partition = self._partition(op)
        pair = self._state.shares.get(group, partition) if isinstance(partition, Partition) else None
        if not isinstance(partition, Partition):
            submission.results[number] = partition
            return
        if pair is None and not attempt:
            submission.results[number] = [int(ResultCode.UNKNOWN_SHARE)]
            return
        redrives = meta.topic == dead_topic(group)
        final = _FINAL if redrives else _OK
        problems, newly = list[list[Any]](), list[int]()
        each = zip(meta.offsets, meta.delays_ms, meta.reasons, strict=True)
        targets: dict[Partition, list[tuple[int, bytes]]] = {}
        for i, (offset, delay_ms, reason) in enumerate(each):
            found = self._refusal_of_nack(group, partition, None if attempt else pair, meta.member, offset)
            found = final if found is _OK else found
            if found is None:
                try:
                    about = group, partition, offset, delay_ms, reason, by, writer.now_ms
                    copies = self._failures.copies(*about, attempt=attempt, redrives=redrives)
                    # Of a repeated death nothing is written or counted, and no second "failed" is told: what
                    # the first one wrote is in this log before whatever this request gets as its answer.
                    if not self._is_dead(group, copies):
                        found = self._admit(writer, copies, targets)
                except OffsetGone:  # retention has overtaken it
                    found = final if not attempt else out_of_range(partition)
                else:
                    newly += [offset] if found is None else []
            if found is not None and found[0] != ResultCode.OK:
                problems.append([i, *found])
        self._forward(writer, targets)
        answer = [int(ResultCode.PARTIAL), problems] if problems else _OK
        audited = f"{build.REDRIVEN} {by}" if redrives else ""
        self._finish(writer, submission, number, partition, [] if attempt else newly, answer, audited)

    def _refusal_of_nack(
        self, group: str, partition: Partition, pair: Pair | None, member: str, offset: int
    ) -> Result | None:
        """Why this message is not copied, or None. OK: nothing is to be done. ``pair`` None: of a stream."""
        index = partition.index
        if offset >= index.end:
            return out_of_range(partition)
        if pair is None:
            return out_of_range(partition) if offset < index.start else None
        key = group, partition.slot
        if self._is_settled(key, pair, offset):
            return _OK
        if (held := self._held(group, partition, (offset, offset))) is not None:
            return held
        if self.leases is not None and self.leases.others(key, member, offset, offset):
            return [int(ResultCode.LEASE_LOST), None]
        return None

    def _is_dead(self, group: str, copies: Sequence[Copy]) -> bool:
        """Whether these bring a dead letter that is there already."""
        for copy in copies:
            target = self._here(copy.topic)
            if copy.origin is not None and target is not None:
                return self._dead.has(target, copy.origin, partial(self._is_redriven, group, target))
        return False

    def _is_redriven(self, group: str, target: Partition, offset: int) -> bool:
        """Whether a dead letter was redriven or dropped, or is about to be."""
        pair = self._state.shares.get(group, target)
        return pair is not None and self._is_settled((group, target.slot), pair, offset)

    def _admit(
        self, writer: EntryWriter, copies: Sequence[Copy], targets: dict[Partition, list[tuple[int, bytes]]]
    ) -> Result | None:
        """Put the copies of one message to those that the entry gets, or say why it cannot be done now."""
        found: list[tuple[Partition, Copy]] = []
        unheard = 0
        for copy in copies:
            target = self._here(copy.topic)
            if target is not None:
                found.append((target, copy))
            elif copy.may_lack:
                unheard += 1
            else:
                return [int(ResultCode.UNKNOWN_TOPIC), [copy.topic]]
        if any(copy.time_ms for copy in copies) and self._releases.is_full():
            return [int(ResultCode.TOO_MANY_SCHEDULED), self._releases.timers_max]
        size = sum(len(copy.row) for _, copy in found)
        if size > writer.copy_budget and writer.forwarded:
            return _RETRY
        writer.copy_budget, writer.forwarded = writer.copy_budget - size, True
        counted = self._finishing(writer).copies
        for target, copy in found:
            targets.setdefault(target, []).append((copy.time_ms, copy.row))
            counted.append((copy.counted, 1))
            if copy.origin is not None:
                self._dead.coming(target, copy.origin)
                self._finishing(writer).dead.append((target.slot, copy.origin))
        if unheard:
            counted.append(("unheard", unheard))
        if all(copy.counted == "replied" for copy in copies):
            counted.append(("dropped", 1))
        return None

    # -------------------------------------------------------------- dead letters in transactions

    def preparing(self, writer: EntryWriter, ops: Sequence[Op]) -> Result | None:
        """A PREPARE, which may be about dead letters: why it cannot be written, or None. What follows it in
        the log must find them held, also before it is applied."""
        letters = letters_of(ops)
        if letters is None:
            return None
        partition = self._here(dead_topic(letters.group))
        if partition is None or partition.number != letters.partition:
            return [int(ResultCode.UNKNOWN_TOPIC), [dead_topic(letters.group)]]
        key = letters.group, partition.slot
        if any(overlap(flat, letters.ranges) for flat in self.under_way.get(key, _NOTHING).values()):
            return _RETRY
        if (refusal := self._refusal_of_more(letters.group, partition, begins=False)) is not None:
            return refusal
        self._finishing(writer).held.append((key, letters.ranges))
        self._holding.setdefault(key, {})[id(letters.ranges)] = letters.ranges
        return None

    def _held(self, group: str, partition: Partition, ranges: Sequence[int]) -> Result | None:
        """Why an open transaction, or one that is about to be, does not leave these to anybody else."""
        if (key := self._state.letters.holder(group, partition, ranges)) is not None:
            where = group, partition.topic, partition.number
            return [int(ResultCode.OFFSETS_PENDING), [*where, *key]]
        holding = self._holding.get((group, partition.slot), _NOTHING)
        return _RETRY if any(overlap(flat, ranges) for flat in holding.values()) else None

    def committing(self, writer: EntryWriter, app: str, tx_ids: Sequence[str]) -> None:
        """A COMMIT of these is written."""
        by_tx = self._state.letters.by_tx
        if by_tx and (count := sum(by_tx[app, t].many for t in tx_ids if (app, t) in by_tx)):
            self._finishing(writer).copies.append(("redirected", count))

    # -------------------------------------------------------------- what both need

    def settings(self, writer: EntryWriter, submission: Submission, number: int) -> None:
        """GROUP_SETTINGS."""
        unit, groups = submission.units[number], self._state.shares.groups
        meta: build.GroupSettingsOp = unit.ops[0].meta
        if meta.settings and len(groups) >= GROUPS_MAX and meta.group not in groups:
            submission.results[number] = [int(ResultCode.TOO_MANY_SHARES), GROUPS_MAX]
        else:
            writer.verbatim(submission, number, unit)

    def deletion(self, writer: EntryWriter, submission: Submission, number: int) -> None:
        """DELETE_GROUP."""
        unit = submission.units[number]
        group: str = unit.ops[0].meta.group
        if members := self.members(group):
            submission.results[number] = [int(ResultCode.LEASE_LOST), members]
        else:
            writer.verbatim(submission, number, unit)
            self._deleting[group] += 1
            self._finishing(writer).deleted.append(group)

    def is_deleting(self, group: str) -> bool:
        """Whether the group's deletion is under way. Nobody had its messages then, and nobody must get any
        before it is done: the leases would be forgotten while they run."""
        return group in self._deleting

    def needs(self, topic: str) -> bool:
        """Whether a share group exists that needs this internal topic, so it may not be deleted alone."""
        if not is_internal(topic) or topic == replies_topic(owner := owner_of(topic)):
            return False
        return self._state.shares.settings(owner).kind == SHARE

    def _partition(self, op: Op) -> Partition | Result:
        """The partition that an operation names, or why there is none."""
        partition = self._state.topics.find(op.meta.topic, op.meta.partition)
        if not isinstance(partition, Partition):
            return [int(partition)]
        if partition.slot in self._topics.deleting:
            return [int(ResultCode.UNKNOWN_TOPIC)]
        if is_another(partition.topic_id, op.meta.topic_id):
            return [int(ResultCode.OTHER_TOPIC), partition.topic_id]
        return partition

    def _here(self, topic: str) -> Partition | None:
        """This broker group's partition of an internal topic."""
        partition = self._state.topics.find(topic, self._state.gid)
        if isinstance(partition, Partition) and partition.slot not in self._topics.deleting:
            return partition
        return None

    def _is_settled(self, key: Key, pair: Pair, offset: int) -> bool:
        """Whether it is final, or about to be."""
        return pair.has(offset) or any(
            _within(flat, offset) for flat in self.under_way.get(key, _NOTHING).values()
        )

    def _forward(self, writer: EntryWriter, targets: dict[Partition, list[tuple[int, bytes]]]) -> None:
        for target, copies in targets.items():
            times, rows = [time_ms for time_ms, _ in copies], [row for _, row in copies]
            if not rows:
                continue
            if later := [time_ms for time_ms in times if time_ms]:
                writer.schedule(self._releases, later)
            writer.leaders(build.forward(target.topic, target.number, times, rows))

    def _finish(
        self,
        writer: EntryWriter,
        submission: Submission,
        number: int,
        partition: Partition,
        offsets: Sequence[int],
        answer: Result,
        audited: str = "",
    ) -> None:
        """These become final, and then the answer is given."""
        submission.results[number] = answer
        if offsets:
            group, ranges = submission.units[number].ops[0].meta.group, ranges_of(offsets)
            self._note(writer, group, partition, ranges)
            self._finishing(writer).answers.append((submission, number, answer))
            frame = build.share_ack(
                group, partition.topic, partition.number, ranges, partition.topic_id, audited
            )
            writer.own(submission, number, frame)

    def _finishing(self, writer: EntryWriter) -> Finishing:
        if writer.finishing is None:
            writer.finishing = Finishing()
        return writer.finishing

    def _note(self, writer: EntryWriter, group: str, partition: Partition, ranges: Sequence[int]) -> None:
        key = group, partition.slot
        self._finishing(writer).ranges.append((key, ranges))
        self.under_way.setdefault(key, {})[id(ranges)] = ranges
        if self.leases is not None and (pair := self._state.shares.get(group, partition)) is not None:
            it = iter(ranges)
            for first, last in zip(it, it, strict=True):
                self.leases.settling(key, pair, first, last)

    # -------------------------------------------------------------- what became of it

    def ended(self, finishing: Finishing) -> None:
        """An entry is applied, or certainly in no log."""
        for letter in finishing.dead:
            self._dead.ended(*letter)
        for group in finishing.deleted:
            self._deleting[group] -= 1
            if self._deleting[group] <= 0:
                del self._deleting[group]
        for key, ranges in finishing.held:
            holding = self._holding.get(key, {})
            holding.pop(id(ranges), None)
            if not holding:
                self._holding.pop(key, None)
        for key, ranges in finishing.ranges:
            under_way = self.under_way.get(key)
            if under_way is not None:
                under_way.pop(id(ranges), None)
                if not under_way:
                    del self.under_way[key]
            leases, pair = self.leases, self._state.shares.pairs.get(key)
            if leases is None:
                continue
            it = iter(ranges)
            for first, last in zip(it, it, strict=True):
                if pair is not None and pair.open_from(first)[0] > last:  # all of it
                    leases.settled(key, first, last)
                else:
                    leases.unsettled(key, first, last)

    def count(self, finishing: Finishing) -> None:
        """The entry is applied, at this leader."""
        for name, by in finishing.copies:
            self.counts[name] += by
        for submission, number, answer in finishing.answers:
            result = submission.results[number]
            if result is not None and result[0] == ResultCode.OK:
                submission.results[number] = answer


_NOTHING: dict[int, Sequence[int]] = {}


def _within(flat: Sequence[int], offset: int) -> bool:
    """Whether it is in one of the ranges first, last, first, last, ..."""
    at = bisect_left(flat, offset)
    return at < len(flat) and (at % 2 == 1 or flat[at] == offset)


def ranges_of(offsets: Iterable[int]) -> list[int]:
    """First, last, first, last, ... of offsets in ascending order."""
    found: list[int] = []
    for offset in offsets:
        if found and found[-1] == offset - 1:
            found[-1] = offset
        else:
            found += (offset, offset)
    return found
