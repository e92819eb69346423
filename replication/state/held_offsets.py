"""Committed offsets of consumer groups that open transactions will move: held until the transaction is
settled.

A PREPARE is refused unless every offset is where its work began, and nobody else holds it. So a commit is
never refused because of an offset, and of two members that have read the same messages only one prepares. A
held offset is moved by nothing but the transaction that holds it. Deterministic, as everything in the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from escrowmq.replication.format.codec import Op
from escrowmq.replication.format.operation import OpType
from escrowmq.replication.format.ops import NONE_YET, PreOffsets
from escrowmq.replication.format.settings import SHARE
from escrowmq.replication.model import ResultCode
from escrowmq.replication.state.group_offsets import GroupOffsets
from escrowmq.replication.state.shares import Shares
from escrowmq.replication.state.topics import TopicTable, is_another

#: App and transaction.
TxKey: TypeAlias = tuple[str, str]
#: Group, topic, and flat: partition, where the work began, where it ends, and so on.
Held: TypeAlias = tuple[str, str, tuple[int, ...]]


class HeldOffsets:
    """``by_tx``: what each open transaction holds. ``holders``: group -> topic -> partition -> transaction;
    derived. Changed in the applying thread only; any thread may look up groups in ``holders``."""

    def __init__(
        self,
        topics: TopicTable,
        offsets: GroupOffsets,
        shares: Shares,
        passed: Callable[[str, str, Sequence[int]], None],
    ) -> None:
        """``passed`` hears of each group, topic and flat offsets that a transaction has moved."""
        self._passed = passed
        self._topics, self._offsets, self._shares = topics, offsets, shares
        self.by_tx: dict[TxKey, list[Held]] = {}
        self.holders: dict[str, dict[str, dict[int, TxKey]]] = {}

    def refusal(self, attached: Sequence[Op]) -> list[object] | None:
        """Why a PREPARE with these operations behind it opens nothing, or None."""
        for moves in moving(attached):
            if (problem := self._refusal(moves)) is not None:
                return problem
        return None

    def _refusal(self, moves: PreOffsets) -> list[object] | None:
        group, topic = moves.group, moves.topic
        known = self._topics.topics.get(topic)
        if known is None:
            return [int(ResultCode.UNKNOWN_TOPIC), [topic]]
        if is_another(known.info.topic_id, moves.topic_id):
            return [int(ResultCode.OFFSETS_MOVED), [group, topic, -1, NONE_YET]]
        if self._shares.groups and self._shares.settings(group).kind == SHARE:
            return [int(ResultCode.GROUP_KIND), [group, SHARE]]
        committed = self._offsets.get(group, {}).get(topic, {})
        for partition, begin, _ in triples(moves.moves):
            if partition >= known.info.partitions:
                return [int(ResultCode.BAD_PARTITION), [topic, partition]]
            # First: what the holder commits may be where this work began.
            if self.holder(group, topic, partition) is not None:
                return [int(ResultCode.OFFSETS_PENDING), [group, topic, partition]]
            if (now_at := committed.get(partition, NONE_YET)) != begin:
                return [int(ResultCode.OFFSETS_MOVED), [group, topic, partition, now_at]]
        return None

    def holder(self, group: str, topic: str, partition: int) -> TxKey | None:
        """The transaction that holds the committed offset, or None."""
        return self.holders.get(group, {}).get(topic, {}).get(partition)

    def pending(self, group: str, topic: str, partitions: Iterable[int]) -> list[object] | None:
        """The result of a plain commit that would move a held offset, or None."""
        held = self.holders.get(group, {}).get(topic, {})
        for partition in partitions:
            if partition in held:
                return [int(ResultCode.OFFSETS_PENDING), [group, topic, partition]]
        return None

    def opened(self, app: str, tx_id: str, attached: Sequence[Op]) -> None:
        """The transaction is open from now on."""
        if parts := moving(attached):
            self.hold((app, tx_id), [(part.group, part.topic, tuple(part.moves)) for part in parts])

    def hold(self, key: TxKey, held: list[Held]) -> None:
        """Also for a snapshot's. Raises ValueError if another one holds an offset."""
        self.by_tx[key] = held
        for group, topic, flat in held:
            by_partition = self.holders.setdefault(group, {}).setdefault(topic, {})
            for partition, _, _ in triples(flat):
                if by_partition.setdefault(partition, key) != key:
                    raise ValueError(f"{key} holds {topic}/{partition} of {group!r}, as another does")

    def settled(self, app: str, tx_ids: Iterable[str], *, committed: bool) -> bool:
        """These are no longer open: their offsets move, or stay. Returns whether any moved."""
        moves = False
        for tx_id in tx_ids:
            for group, topic, flat in self.by_tx.pop((app, tx_id), ()):
                self._let_go(group, topic, flat)
                if committed:
                    moved = [n for partition, _, end in triples(flat) for n in (partition, end)]
                    self._offsets.commit(group, topic, moved)
                    self._passed(group, topic, moved)
                    moves = True
        return moves

    def drop_topic(self, topic: str) -> None:
        """It is deleted: a later topic of that name must not get offsets in this one."""
        for key in [key for key, held in self.by_tx.items() if any(topic == name for _, name, _ in held)]:
            held = self.by_tx[key]
            for group, name, flat in held:
                if name == topic:
                    self._let_go(group, name, flat)
            left = [one for one in held if one[1] != topic]
            if left:
                self.by_tx[key] = left
            else:
                del self.by_tx[key]

    def _let_go(self, group: str, topic: str, flat: Sequence[int]) -> None:
        by_topic = self.holders[group]
        by_partition = by_topic[topic]
        for partition, _, _ in triples(flat):
            del by_partition[partition]
        if not by_partition:
            del by_topic[topic]
        if not by_topic:
            del self.holders[group]


def moving(attached: Sequence[Op]) -> Sequence[PreOffsets]:
    """The PRE_OFFSETS behind a PREPARE: the last ones of its operations."""
    if not attached or attached[-1].type != OpType.PRE_OFFSETS:  # nearly always
        return ()
    return [op.meta for op in attached if op.type == OpType.PRE_OFFSETS]


def triples(flat: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Partition, where the work began, where it ends."""
    it = iter(flat)
    return zip(it, it, it, strict=True)
