"""Dead letters that open transactions redrive into other topics: held until the transaction is settled.

A transaction with the copies of dead letters is decided in the broker group where these lie. Its PREPARE is
refused unless all of them are open, and nobody else holds one; so its COMMIT is the only thing that makes
them final, and makes the copies readable with it. Deterministic, as everything in the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from escrowmq.replication.format.codec import Op
from escrowmq.replication.format.internal_topics import dead_topic
from escrowmq.replication.format.operation import OpType
from escrowmq.replication.format.share_ops import DROPPED, REDRIVEN, PreLetters
from escrowmq.replication.model import ResultCode
from escrowmq.replication.state.held_offsets import TxKey
from escrowmq.replication.state.shares import Key, Shares
from escrowmq.replication.state.topics import Partition, TopicTable, is_another

#: Remembers who has done something: who, the group, to what, and what it was.
Audit = Callable[[str, str, str, str], None]


class Letters(NamedTuple):
    """What a transaction holds: see ``share_ops.pre_letters``. ``ranges``: first, last, first, last, ..."""

    group: str
    partition: int
    ranges: tuple[int, ...]
    topic_id: int
    to: str
    by: str

    @property
    def many(self) -> int:
        """How many letters."""
        return sum(self.ranges[1::2]) - sum(self.ranges[::2]) + len(self.ranges) // 2


class HeldLetters:
    """``by_tx``: what each open transaction holds. Changed in the applying thread, and read in it."""

    def __init__(self, topics: TopicTable, shares: Shares, audit: Audit) -> None:
        self._topics, self._shares, self._audit = topics, shares, audit
        self.by_tx: dict[TxKey, Letters] = {}
        self._holders: dict[Key, set[TxKey]] = {}  # derived

    def refusal(self, attached: Sequence[Op]) -> list[Any] | None:
        """Why a PREPARE with these operations behind it opens nothing, or None."""
        wanted = letters_of(attached)
        if wanted is None:
            return None
        topic = dead_topic(wanted.group)
        partition = self._topics.find(topic, wanted.partition)
        if not isinstance(partition, Partition):
            return [int(ResultCode.UNKNOWN_TOPIC), [topic]]
        where: list[Any] = [wanted.group, topic, wanted.partition]
        if is_another(partition.topic_id, wanted.topic_id):
            return [int(ResultCode.OFFSETS_MOVED), [wanted.group, topic, -1, -1]]
        if wanted.ranges[-1] >= partition.index.end:
            return [int(ResultCode.OUT_OF_RANGE), [partition.index.start, partition.index.end]]
        if (key := self.holder(wanted.group, partition, wanted.ranges)) is not None:
            return [int(ResultCode.OFFSETS_PENDING), [*where, *key]]
        pair = self._shares.get(wanted.group, partition)
        assert pair is not None, "with its internal topics every group begins by itself"
        for first, last in _pairs(wanted.ranges):
            begin, end = pair.open_from(first)
            if begin != first or (end is not None and end < last):
                final = first if begin != first or end is None else end + 1
                return [int(ResultCode.OFFSETS_MOVED), [*where, final]]
        return None

    def holder(self, group: str, partition: Partition, ranges: Sequence[int]) -> TxKey | None:
        """A transaction that holds one of these, or None."""
        for key in self._holders.get((group, partition.slot), ()):
            if overlap(self.by_tx[key].ranges, ranges):
                return key
        return None

    def opened(self, app: str, tx_id: str, attached: Sequence[Op]) -> None:
        """The transaction is open from now on."""
        if (letters := letters_of(attached)) is not None:
            self.hold((app, tx_id), letters)

    def hold(self, key: TxKey, letters: Letters) -> None:
        """Also for a snapshot's. Raises ValueError if another one holds one of them, or there is no such
        topic."""
        partition = self._partition(letters)
        if partition is None or self.holder(letters.group, partition, letters.ranges) is not None:
            raise ValueError(f"{key} holds dead letters that are not there, or that another holds: {letters}")
        self.by_tx[key] = letters
        self._holders.setdefault((letters.group, partition.slot), set()).add(key)

    def settled(self, app: str, tx_ids: Iterable[str], *, committed: bool) -> None:
        """These are no longer open: what they hold is final, or free again."""
        for tx_id in tx_ids:
            letters = self.by_tx.get((app, tx_id))
            if letters is None:
                continue
            partition = self._partition(letters)
            self._let_go((app, tx_id), partition)
            if committed and partition is not None:
                self._shares.add(letters.group, partition, letters.ranges)
                what = _told(partition, letters.ranges, letters.to, tx_id)
                self._audit(letters.by, letters.group, what, REDRIVEN)

    def drop_slots(self, slots: Iterable[int]) -> None:
        """Their topic is about to be deleted: a later one of its name has other dead letters."""
        dead = set(slots)
        for holder in [holder for holder in self._holders if holder[1] in dead]:
            for key in self._holders.pop(holder):
                del self.by_tx[key]

    def _partition(self, letters: Letters) -> Partition | None:
        found = self._topics.find(dead_topic(letters.group), letters.partition)
        same = isinstance(found, Partition) and not is_another(found.topic_id, letters.topic_id)
        return found if same and isinstance(found, Partition) else None

    def _let_go(self, key: TxKey, partition: Partition | None) -> None:
        letters = self.by_tx.pop(key)
        if partition is not None:
            holders = self._holders[letters.group, partition.slot]
            holders.remove(key)
            if not holders:
                del self._holders[letters.group, partition.slot]


def letters_of(attached: Sequence[Op]) -> Letters | None:
    """The PRE_LETTERS behind a PREPARE: the last of its operations."""
    if not attached or attached[-1].type != OpType.PRE_LETTERS:  # nearly always
        return None
    meta: PreLetters = attached[-1].meta
    return Letters(meta.group, meta.partition, tuple(meta.ranges), meta.topic_id, meta.to, meta.by)


def _told(partition: Partition, ranges: Sequence[int], to: str, tx_id: str) -> str:
    """For the audit trail: which letters, all of them and no others, into which topic, by which transaction.
    Nobody else remembers that of a single letter."""
    spans = ",".join(f"{first}-{last}" for first, last in _pairs(ranges))
    return f"{partition.topic}/{partition.number}@{spans} -> {to} ({tx_id})"


class Settlement(NamedTuple):
    """What an operator has done with a letter. ``outcome``: DROPPED; REDRIVEN (into the topic ``to``, by this
    transaction; both "": not known); "": one of these."""

    outcome: str
    to: str = ""
    tx_id: str = ""


def settlement_of(
    trail: Iterable[tuple[int, str, str, str, str]],
    group: str,
    partition: Partition,
    offset: int,
    died_ms: int,
) -> Settlement:
    """Of a final dead letter, by what is left of the audit trail."""
    begin, outcomes = f"{partition.topic}/{partition.number}@", set[str]()
    for at_ms, _, of, what, outcome in trail:
        if of != group or outcome not in (DROPPED, REDRIVEN) or not what.startswith(begin):
            continue
        if at_ms < died_ms:  # of an earlier group of the name
            continue
        spans, _, rest = what.removeprefix(begin).partition(" -> ")
        if any(first <= offset <= last for first, last in map(_span, spans.split(","))):
            if rest:
                to, _, tx_id = rest.partition(" (")
                return Settlement(REDRIVEN, to, tx_id.removesuffix(")"))
            outcomes.add(outcome)  # these name only the first and the last letter
    return Settlement(outcomes.pop() if len(outcomes) == 1 else "")


def _span(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    return int(first), int(last)


def overlap(some: Sequence[int], others: Sequence[int]) -> bool:
    """Whether two lists of ranges first, last, first, last, ... in ascending order have an offset in
    common."""
    at = other = 0
    while at < len(some) and other < len(others):
        if some[at + 1] < others[other]:
            at += 2
        elif others[other + 1] < some[at]:
            other += 2
        else:
            return True
    return False


def _pairs(flat: Sequence[int]) -> Iterable[tuple[int, int]]:
    it = iter(flat)
    return zip(it, it, strict=True)
