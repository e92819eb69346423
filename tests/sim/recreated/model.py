"""What each life of a topic must contain, from one group's log alone: a deletion ends a life, a creation
starts the next one, and nothing passes from one life to another.

Messages that were prepared in an earlier life are stored nowhere when they are committed. Retention cuts only
messages that are older than this life's limit. A consumer group's offset is one that a member had in this
life and since the group's last deletion. A request that names the topic's id and arrives in another life has
no effect.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from escrowmq.replication.format.codec import Op
from escrowmq.replication.format.operation import OpType
from escrowmq.replication.format.settings import UNSTATED
from escrowmq.replication.model import NO_ID, TopicInfo, first_group, group_of
from tests.sim.environment.world import Violation

#: The topic, and the app whose transactions use no other topic.
TOPIC, APP = "d", "recreated"
#: The consumer group that is deleted meanwhile.
GROUP = "recreated"
#: A consumer group whose offsets are not compared with ``stood``: see ``tests/sim/streams``.
STREAMED = "streamed"
#: The life of the topic, and how often the consumer group had been deleted.
Era = tuple[int, int]


@dataclass(slots=True)
class Life:
    """One life, from a creation to the next deletion, in one group, with that group's partitions."""

    number: int
    id: int
    retention_ms: int
    held: dict[int, list[tuple[str, int]]]  # partition -> (id, time in ms) by offset
    starts: dict[int, int]
    offsets: dict[str, dict[int, int]] = field(default_factory=dict)  # group -> partition -> next offset


@dataclass(slots=True)
class _Prepared:
    life: Life
    ended: bool = False


class Model:
    """The model of one group. Feed it every entry once, in order."""

    def __init__(self, gid: int, groups: int) -> None:
        self.gid, self._groups = gid, groups
        self.life: Life | None = None
        #: Transaction, or id of a plain batch -> (partition, id of a message) as its client sends them.
        self.sent: dict[str, list[tuple[int, str]]] = {}
        #: (group, partition, offset) -> the eras in which members that committed it had found their offsets.
        self.stood: dict[tuple[str, int, int], set[Era]] = {}
        self._prepared: dict[str, _Prepared] = {}
        self._lives: list[tuple[int, Life | None]] = [(0, None)]  # each with its first entry
        self._deletions: list[int] = []  # entries that deleted the consumer group
        self._count = self._last_id = 0
        self._others: dict[str, int] = {}  # other topics, with their ids
        self._now_ms = 0

    def at(self, index: int) -> Life | None:
        """The life after entry ``index``."""
        return self._lives[bisect_right(self._lives, index, key=lambda change: change[0]) - 1][1]

    def lives(self) -> Iterator[Life]:
        """All lives up to now, the newest first."""
        return (life for _, life in reversed(self._lives) if life is not None)

    def era(self, life: Life, index: int) -> Era:
        """The era of an offset that is found in that life, after entry ``index``."""
        return life.number, bisect_right(self._deletions, index)

    # -------------------------------------------------------------- the log
    def heard(self, index: int, now_ms: int, ops: Sequence[Op]) -> None:
        """An entry is applied for the first time."""
        self._now_ms = max(self._now_ms, now_ms)
        for i, op in enumerate(ops):
            if op.type == OpType.PREPARE and op.meta.app == APP:
                self._prepare(op, ops[i + 1 : i + 1 + op.meta.attached])
            elif op.type in (OpType.COMMIT, OpType.ROLLBACK) and op.meta.app == APP:
                for tx_id in op.meta.tx_ids:
                    self._end(tx_id, op.type == OpType.COMMIT)
            elif op.type == OpType.CREATE_TOPIC and op.meta.name == TOPIC:
                self._create(index, op)
            elif op.type == OpType.DELETE_TOPIC and op.meta.name == TOPIC and self._is_meant(op):
                self._lives.append((index, None))
                self.life = None
            elif op.type in (OpType.CREATE_TOPIC, OpType.DELETE_TOPIC) and op.meta.name != TOPIC:
                self._another(op)
            elif op.type == OpType.GROUP_OFFSETS and op.meta.topic == TOPIC and self.life is not None:
                self._commit(index, op)
            elif op.type == OpType.DELETE_GROUP:
                if op.meta.group == GROUP:  # share groups are deleted as well
                    self._deletions.append(index)
                if self.life is not None:
                    self.life.offsets.pop(op.meta.group, None)
            elif self.life is None or op.type not in (OpType.MESSAGE, OpType.TRIM):
                continue
            elif op.meta.topic == TOPIC:
                (self._message if op.type == OpType.MESSAGE else self._trim)(op)

    def _is_meant(self, op: Op) -> bool:
        if self.life is None or op.meta.topic_id == NO_ID:
            return True
        return self.life.id == op.meta.topic_id if self.gid == 0 else self.life.id <= op.meta.topic_id

    def _another(self, op: Op) -> None:
        """Another topic is created, in group 0 with the next id, or deleted."""
        name, id = op.meta.name, op.meta.topic_id
        if op.type == OpType.DELETE_TOPIC:
            if id in (NO_ID, self._others.get(name)):
                self._others.pop(name, None)
        elif name not in self._others:
            self._others[name] = self._next_id() if self.gid == 0 else id

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _create(self, index: int, op: Op) -> None:
        id = op.meta.topic_id
        if self.life is not None and not (self.gid > 0 and id > self.life.id):
            return  # it exists. (With a newer id, its deletion has never come to this group.)
        if self.gid == 0:
            id = self._next_id()
        info = TopicInfo(TOPIC, **{**UNSTATED, **op.meta.settings}, first_group=op.meta.first_group)
        begin = first_group(info)
        here = [n for n in range(info.partitions) if group_of(begin, n, self._groups) == self.gid]
        self._count += 1
        self.life = Life(self._count, id, info.retention_ms, {n: [] for n in here}, dict.fromkeys(here, 0))
        self._lives.append((index, self.life))

    def _prepare(self, op: Op, attached: Sequence[Op]) -> None:
        """Record a PREPARE. (If it is refused as stale, it is never committed.)"""
        (tx_id,) = op.meta.tx_ids
        fits = self.life is not None and all(
            pre.meta.partition in self.life.held and pre.meta.topic_id in (NO_ID, self.life.id)
            for pre in attached
        )
        if fits and tx_id not in self._prepared:
            self._prepared[tx_id] = _Prepared(self.life)  # type: ignore[arg-type]

    def _end(self, tx_id: str, commit: bool) -> None:
        prepared = self._prepared.get(tx_id)
        if prepared is None or prepared.ended:
            return
        prepared.ended = True
        if commit and prepared.life is self.life:
            self._append(tx_id)

    def _message(self, op: Op) -> None:
        """Record a plain message, which is stored as often as it arrives."""
        assert self.life is not None
        if op.meta.partition in self.life.held and op.meta.topic_id in (NO_ID, self.life.id):
            self._append(op.meta.producer)

    def _append(self, name: str) -> None:
        assert self.life is not None
        for partition, id in self.sent[name]:
            self.life.held[partition].append((id, self._now_ms))

    def _trim(self, op: Op) -> None:
        assert self.life is not None
        topic, flat = op.meta.topic, op.meta.starts
        for partition, start in zip(flat[::2], flat[1::2], strict=True):
            held = self.life.held.get(partition)
            if held is None:
                continue
            start = min(start, len(held))
            oldest_kept = self._now_ms - self.life.retention_ms if self.life.retention_ms >= 0 else -1
            for offset in range(self.life.starts[partition], start):
                id, time_ms = held[offset]
                if time_ms > oldest_kept:
                    text = f"{topic}[{partition}] loses {id} at {offset}, which is of {time_ms}"
                    raise Violation(f"{text}: younger than {self.life.retention_ms} ms", "cut-early")
            self.life.starts[partition] = max(start, self.life.starts[partition])

    def _commit(self, index: int, op: Op) -> None:
        assert self.life is not None
        group, flat = op.meta.group, op.meta.offsets
        for partition, offset in zip(flat[::2], flat[1::2], strict=True):
            self.check_offset(self.life, index, group, partition, offset)
            self.life.offsets.setdefault(group, {})[partition] = offset

    # -------------------------------------------------------------- what replicas serve
    def check_read(self, life: Life, partition: int, records: Sequence[tuple[int, str]], who: str) -> None:
        """Check what a replica serves in that life."""
        held = life.held.get(partition, [])
        for offset, id in records:
            wanted = held[offset][0] if offset < len(held) else None
            if wanted != id:
                text = f"{who} has {id} at {offset} of {TOPIC}[{partition}] in life {life.number}"
                raise Violation(f"{text}, where {wanted} belongs", "namesake")

    def check_offset(self, life: Life, index: int, group: str, partition: int, offset: int) -> None:
        """Check a group's committed offset in that life, after entry ``index``."""
        eras, era = self.stood.get((group, partition, offset), set()), self.era(life, index)
        if group != STREAMED and era not in eras:
            text = f"{group} is at {offset} of {TOPIC}[{partition}] in life and deletion {era}"
            raise Violation(f"{text}; its members stood there in {sorted(eras)}", "old-place")

    def check_whole(self, partition: int, start: int, end: int, ids: Sequence[str], who: str) -> None:
        """Check everything that a replica has at the end."""
        life = self.life
        assert life is not None
        self.check_read(life, partition, list(enumerate(ids, start)), who)
        wanted = life.starts[partition], len(life.held[partition])
        if (start, end) != wanted:
            text = f"{who} has {start}..{end} of {TOPIC}[{partition}] in life {life.number}"
            raise Violation(f"{text}, and the log says {wanted[0]}..{wanted[1]}", "namesake")
