"""Applies operations on consumer groups: places, what share groups have finished, settings, deletion; and the
messages that a leader forwards for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from escrowmq.replication.format.codec import Op
from escrowmq.replication.format.share_ops import ALTERED, ANY_NUMBER, DELETED, EARLIEST, LATEST
from escrowmq.replication.format.share_settings import SHARE, STREAM
from escrowmq.replication.model import ResultCode
from escrowmq.replication.state.attempts import Attempts
from escrowmq.replication.state.group_offsets import DeletedGroups, GroupOffsets
from escrowmq.replication.state.held_offsets import HeldOffsets
from escrowmq.replication.state.settings import Settings
from escrowmq.replication.state.shares import Group, Shares
from escrowmq.replication.state.timers import Timers
from escrowmq.replication.state.topics import Partition, TopicTable
from escrowmq.replication.timers.record import RECORD

# ------------------------------------------------------------------ group operations


Result = list[Any]
#: Remembers who has done something: who, the app or group, to what, and what it was.
Audit = Callable[[str, str, str, str], None]
_record = RECORD.pack


def out_of_range(partition: Partition) -> Result:
    """The result for an offset that is not in the partition: which range there is, the end excluded."""
    return [int(ResultCode.OUT_OF_RANGE), [partition.index.start, partition.index.end]]


class GroupOperations:
    """Changes the tables of one group's state."""

    def __init__(
        self,
        topics: TopicTable,
        deleted: DeletedGroups,
        group_offsets: GroupOffsets,
        held: HeldOffsets,
        attempts: Attempts,
        shares: Shares,
        timers: Timers,
        settings: Callable[[], Settings],
        audit: Audit,
        passed: Callable[[str, str, Sequence[int]], None],
    ) -> None:
        """``passed``: see ``HeldOffsets``."""
        self._passed = passed
        self._topics, self._group_offsets, self._deleted = topics, group_offsets, deleted
        self._attempts, self._shares, self._timers, self._settings = attempts, shares, timers, settings
        self._held, self._audit = held, audit

    def offsets(self, index: int, op: Op) -> Result:
        """GROUP_OFFSETS."""
        group, topic, flat = op.meta
        if topic not in self._topics.topics:
            return [int(ResultCode.UNKNOWN_TOPIC), [topic]]
        if self._shares.groups and self._shares.settings(group).kind == SHARE:
            return [int(ResultCode.GROUP_KIND), SHARE]
        if (pending := self._held.pending(group, topic, flat[::2])) is not None:
            return pending
        self._group_offsets.commit(group, topic, flat)
        self._passed(group, topic, flat)
        self._group_offsets.keep(self._settings().groups_kept, self._held.holders)
        return [0]

    def places(self, index: int, op: Op) -> Result:
        """PLACES."""
        group, topic, flat = op.meta
        offsets = [n for at, n in enumerate(flat) if at % 3 < 2]
        result = self.offsets(index, op._replace(meta=(group, topic, offsets)))
        if result == [0]:
            self._attempts.note(group, topic, flat)
        return result

    def delete(self, index: int, op: Op) -> Result:
        """DELETE_GROUP. Topics of the group are deleted like others."""
        group, generation, *who = op.meta
        for topic, held in self._held.holders.get(group, {}).items():
            return [int(ResultCode.OFFSETS_PENDING), [group, topic, min(held)]]
        self._deleted.add(group, generation)
        self._attempts.drop_group(group)
        known = self._shares.drop_group(group)
        if not (self._group_offsets.drop_group(group) or known):
            return [int(ResultCode.DUPLICATE)]
        for by in who:
            self._audit(by, group, "", DELETED)
        return [0]

    def settings(self, index: int, op: Op) -> Result:
        """GROUP_SETTINGS. Raises UnknownVersion for a setting that this software does not know."""
        group, values, number, *who = op.meta
        known = self._shares.groups.get(group, Group())
        settings = known.settings.changed(values)
        code = ResultCode.OK
        if values:
            code = self._refusal(known, number)
            streams = group in self._group_offsets or group in self._held.holders
            kind = known.settings.kind or (STREAM if streams else "")
            if kind and settings.kind not in ("", kind):
                return [int(ResultCode.GROUP_KIND), kind]
        if values and code == ResultCode.OK:
            if self._topics.gid == 0:
                number = index
            known = self._shares.groups[group] = Group(settings, max(number, known.number))
            for by in who:
                changed = ", ".join(f"{name}={value}" for name, value in sorted(values.items()))
                self._audit(by, group, changed, ALTERED)
        return [int(code), [known.settings.values(), known.number]]

    def _refusal(self, known: Group, number: int) -> ResultCode:
        if number == ANY_NUMBER:
            return ResultCode.OK
        if self._topics.gid == 0:
            return ResultCode.OK if number == known.number else ResultCode.RETRY
        return ResultCode.OK if number > known.number else ResultCode.DUPLICATE

    def refused(self, index: int, op: Op) -> Result:
        """NACK, and SHARE_ACK version 2: a leader that follows its rules rewrites them."""
        return [int(ResultCode.MALFORMED), "only clients send it"]

    def ack(self, index: int, op: Op) -> Result:
        """SHARE_ACK version 1."""
        if type(op.meta[3]) is str:
            return self.refused(index, op)
        group, topic, number, ranges, create, topic_id = op.meta
        partition = self._topics.find(topic, number)
        if not isinstance(partition, Partition):
            return [int(partition)]
        if partition.topic_id != topic_id:
            return [int(ResultCode.OTHER_TOPIC), partition.topic_id]
        if create in (EARLIEST, LATEST):
            return self._begin(group, partition, create)
        if ranges[-1] >= partition.index.end:
            return out_of_range(partition)
        if not self._shares.add(group, partition, ranges):
            return [int(ResultCode.UNKNOWN_SHARE)]
        if create:
            outcome, _, by = create.partition(" ")
            self._audit(by, group, f"{topic}/{number}@{ranges[0]}-{ranges[-1]}", outcome)
        return [0]

    def _begin(self, group: str, partition: Partition, create: str) -> Result:
        kind = self._shares.settings(group).kind
        if kind == STREAM:
            return [int(ResultCode.GROUP_KIND), kind]
        known = self._shares.get(group, partition)
        if known is not None:
            return [int(ResultCode.DUPLICATE), known.start]
        index = partition.index
        return [
            0,
            self._shares.begin(group, partition, index.start if create == EARLIEST else index.end).start,
        ]

    def forward(self, index: int, now_ms: int, op: Op) -> None:
        """FORWARD: readable at once, or a timer."""
        topic, number, times, sizes = op.meta
        partition = self._topics.find(topic, number)
        if not isinstance(partition, Partition):
            return  # a leader that follows its rules never writes it
        slot, pos, earliest = partition.slot, op.body_pos, self._timers.earliest_ms(now_ms)
        records: list[bytes] = []
        later = 0
        for time_ms, size in zip(times, sizes, strict=True):
            if time_ms:
                records.append(_record(max(time_ms, earliest), slot, index, pos, index, pos, size))
                later += size
            else:
                partition.index.append(index, pos, size, 1, now_ms)
            pos += size
        if records:
            counts = slot, index // self._timers.counts.block_entries, len(records), later
            self._timers.keep(records, counts, now_ms)
