"""Messages that wait for their time, as replicated state: up to which key they are released, how many wait.

The records themselves are in the timer store, which only a leader reads. Replicated are the cursor, which is
the key of the last released one, and the number of those that wait, by partition and by block of log indexes:
so retention knows the oldest entry that holds one of them without a look into the store.

Nothing gets in behind the cursor: a message whose time is past when it becomes effective waits for the
time of its entry, and at least for the millisecond after the last release.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from escrowmq.replication.format.timer_ops import owner_of
from escrowmq.replication.state.dedup import TwoGenerations
from escrowmq.replication.state.open_tx import Run
from escrowmq.replication.timers.record import (
    KEY,
    KEY_BYTES,
    RECORD,
    deliver_ms_of,
    tombstone,
)
from escrowmq.replication.timers.store import TimerStore

#: Log indexes of one block.
BLOCK_ENTRIES = 4_096
#: Rows of one PRE_SCHEDULED: slot, position of its body, and the columns of ``timer_ops.pre_scheduled``.
TimedRows = tuple[int, int, Sequence[int], Sequence[int], Sequence[int], Sequence[int]]
#: Cancelled keys that are remembered, at least: 20 s of a leader's full speed.
CANCELLED_KEPT = 100_000
#: Slot, block, timers and bytes, and so on.
FlatCounts = Sequence[int]

_key, _record = KEY.pack, RECORD.pack
_fields = RECORD.iter_unpack


def records_of(timers: Sequence[int], owner: int, now_ms: int) -> Iterator[bytes]:
    """The records of what a transaction has scheduled, once it is committed at ``now_ms``."""
    it = iter(timers)
    for slot, log_index, pos, size, time_ms, ordinal in zip(it, it, it, it, it, it, strict=True):
        yield _record(due_ms(time_ms, now_ms), slot, owner, ordinal, log_index, pos, size)


def due_ms(time_ms: int, now_ms: int) -> int:
    """When a message that becomes effective at ``now_ms`` is due; negative times are delays."""
    return max(time_ms if time_ms >= 0 else now_ms - time_ms, now_ms)


class FrozenCounts(NamedTuple):
    """The counts at one moment. ``blocks``: timers and their bytes, by block and slot."""

    blocks: dict[int, dict[int, tuple[int, int]]]
    total: int

    def parts(self) -> Iterator[list[int]]:
        """Slot, block, timers, bytes, and so on: block by block."""
        for block, slots in sorted(self.blocks.items()):
            yield [n for slot, counts in sorted(slots.items()) for n in (slot, block, *counts)]


class TimerCounts:
    """How many timers wait, and their bytes, by block of log indexes and slot."""

    __slots__ = ("_blocks", "_bytes", "_frozen", "block_entries", "total")

    def __init__(self) -> None:
        self.total = 0
        self.block_entries = BLOCK_ENTRIES  # part of the format; simulated logs are shorter than a block
        self._blocks: dict[int, dict[int, tuple[int, int]]] = {}
        self._bytes: dict[int, int] = {}  # by block
        self._frozen: set[int] = set()  # blocks that a snapshot may read: copied before they change

    def add(self, slot: int, block: int, timers: int, size: int) -> None:
        """So many more wait; fewer if they are negative."""
        slots = self._changing(block)
        known, known_size = slots.get(slot, (0, 0))
        self.total += timers
        if known + timers:
            slots[slot] = known + timers, known_size + size
            self._bytes[block] = self._bytes.get(block, 0) + size
            return
        slots.pop(slot, None)
        if slots:
            self._bytes[block] -= known_size
        else:
            self._forget(block)

    def forget(self, slots: Iterable[int]) -> None:
        """The partitions of these slots are deleted."""
        gone = set(slots)
        for block in [block for block, by_slot in self._blocks.items() if not gone.isdisjoint(by_slot)]:
            by_slot = self._changing(block)
            for slot in by_slot.keys() & gone:
                timers, size = by_slot.pop(slot)
                self.total -= timers
                self._bytes[block] -= size
            if not by_slot:
                self._forget(block)

    def _changing(self, block: int) -> dict[int, tuple[int, int]]:
        """What waits in a block, by slot, to be changed."""
        slots = self._blocks.setdefault(block, {})
        if block in self._frozen:
            self._frozen.discard(block)
            slots = self._blocks[block] = slots.copy()
        return slots

    def _forget(self, block: int) -> None:
        """Nothing waits there any more."""
        del self._blocks[block]
        self._bytes.pop(block, None)
        self._frozen.discard(block)

    def freeze(self) -> FrozenCounts:
        """All of it as it is now, to be read by any thread. Costs what there are of blocks, however many
        partitions they have."""
        self._frozen = set(self._blocks)
        return FrozenCounts(self._blocks.copy(), self.total)

    @property
    def total_bytes(self) -> int:
        """Of all that wait."""
        return sum(list(self._bytes.values()))  # a copy in one step: another thread may ask

    def has(self, slot: int, block: int) -> bool:
        """Whether any waits there."""
        return slot in self._blocks.get(block, {})

    def oldest_index(self) -> int | None:
        """No timer is in an entry with a lower index; None: none waits."""
        oldest = min(list(self._blocks), default=None)  # a copy in one step: another thread may ask
        return None if oldest is None else max(oldest * self.block_entries, 1)

    def sizes(self) -> list[tuple[int, int]]:
        """First index of each block in which any wait, and their bytes; oldest first."""
        return [(block * self.block_entries, size) for block, size in sorted(self._bytes.items())]

    def of(self, records: Iterable[bytes]) -> list[int]:
        """How many these are: slot, block, timers, bytes, and so on."""
        counts: dict[tuple[int, int], list[int]] = {}
        for _, slot, _, _, index, _, size in map(RECORD.unpack, records):
            known = counts.setdefault((slot, index // self.block_entries), [0, 0])
            known[0] += 1
            known[1] += size
        return list(chain.from_iterable((*where, *known) for where, known in counts.items()))

    def flat(self) -> list[int]:
        """All of it: slot, block, timers, bytes, and so on."""
        return [n for part in FrozenCounts(self._blocks, self.total).parts() for n in part]


class Timers:
    """See the module's docstring. Changed only by applying entries."""

    def __init__(self) -> None:
        self.store = TimerStore()
        self.counts = TimerCounts()
        #: Whether any transaction has ever scheduled something here; not part of the state.
        self.in_transactions = False
        #: Records of TIMERs whose COMMIT follows.
        self.pending: list[bytes] = []
        #: Keys that were cancelled, so that a request that is repeated when their time is past gets the same
        #: answer. Part of the state.
        self.cancelled: TwoGenerations[bytes, bool] = TwoGenerations(CANCELLED_KEPT)

    def of_transactions(self, log_index: int, rows: Iterable[TimedRows], count: int) -> list[tuple[int, ...]]:
        """``OpenTx.timers`` of each of ``count`` transactions of one PREPARE."""
        self.in_transactions = True
        found: list[tuple[int, ...]] = [()] * count
        for slot, pos, txs, sizes, times, ordinals in rows:
            for tx, size, time_ms, ordinal in zip(txs, sizes, times, ordinals, strict=True):
                found[tx] = (*found[tx], slot, log_index, pos, size, time_ms, ordinal)
                pos += size
        return found

    @property
    def released(self) -> bytes:
        """The key of the last released timer."""
        return self.store.cursor

    def earliest_ms(self, now_ms: int) -> int:
        """Before this time nothing can be due that becomes effective in an entry of that time."""
        return max(deliver_ms_of(self.released) + 1, now_ms)

    def keep(self, records: Sequence[bytes], counts: FlatCounts, now_ms: int) -> None:
        """These wait from now on. None may be due before ``earliest_ms``."""
        self._add(counts, 1)
        self.store.add(b"".join(records), now_ms)
        if self.cancelled:
            for record in records:  # an application has used a transaction's id again
                self.cancelled.old.pop(record[:KEY_BYTES], None)
                self.cancelled.young.pop(record[:KEY_BYTES], None)

    def forget_cancelled(self, app: str, runs: Iterable[Run]) -> None:
        """These are committed. If an id was used again for a time that has passed, its messages are readable
        at once, under another key than the one that was cancelled: so that one says nothing any more."""
        if not self.cancelled:
            return
        for run in runs:
            for tx_id, record in zip(run.tx_ids, run.records, strict=False):  # none in a block is delayed
                it = iter(record.timers)
                for slot, _, _, _, time_ms, ordinal in zip(it, it, it, it, it, it, strict=True):
                    if time_ms >= 0:
                        key = _key(time_ms, slot, owner_of(app, tx_id), ordinal)
                        self.cancelled.old.pop(key, None)
                        self.cancelled.young.pop(key, None)

    def decided(self, slots: Mapping[int, object], now_ms: int, *, committed: bool) -> None:
        """The COMMIT behind the pending TIMERs is applied."""
        pending, self.pending = self.pending, []
        if not committed:
            return
        earliest, kept = self.earliest_ms(now_ms), list[bytes]()
        for time_ms, slot, owner, ordinal, index, pos, size in _fields(b"".join(pending)):
            if slot in slots:  # else the topic was deleted meanwhile
                kept.append(_record(max(time_ms, earliest), slot, owner, ordinal, index, pos, size))
        if kept:
            self.keep(kept, self.counts.of(kept), now_ms)

    def release(self, key: bytes, counts: FlatCounts) -> None:
        """Everything up to this key is released."""
        self._add(counts, -1)
        self.store.release(key)

    def cancel(
        self,
        now_ms: int,
        keys: bytes,
        copies: Sequence[int],
        counts: FlatCounts,
        newest: Sequence[int],
    ) -> None:
        """A CANCELLED. ``copies``: how often each key is stored; ``newest``: the highest index of these. What
        is prepared under the same key, and committed later, lies above it and perhaps below the CANCELLED: it
        must live."""
        self._add(counts, -1)
        each = [keys[at : at + KEY.size] for at in range(0, len(keys), KEY.size)]
        tombstones = [tombstone(key, last + 1, n) for key, last, n in zip(each, newest, copies, strict=True)]
        self.store.add(b"".join(tombstones), now_ms)
        for key in each:
            self.cancelled.set(key, True)

    def move(self, counts: FlatCounts, index: int) -> None:
        """So many that were elsewhere are stored anew in entry ``index``."""
        it, block = iter(counts), index // self.counts.block_entries
        for slot, old, timers, size in zip(it, it, it, it, strict=True):
            self.counts.add(slot, old, -timers, -size)
            self.counts.add(slot, block, timers, size)

    def _add(self, counts: FlatCounts, sign: int) -> None:
        it = iter(counts)
        for slot, block, timers, size in zip(it, it, it, it, strict=True):
            if sign > 0 or self.counts.has(slot, block):  # else the topic was deleted meanwhile
                self.counts.add(slot, block, sign * timers, sign * size)

    def restore(self, released: bytes, counts: FlatCounts) -> None:
        """From a snapshot."""
        self.store.cursor = released
        self._add(counts, 1)

    def restore_cancelled(self, *generations: bytes) -> None:
        """From a snapshot: the keys of the old generation, and of the young one."""
        tables = self.cancelled.old, self.cancelled.young
        for table, keys in zip(tables, generations, strict=True):
            table.update((keys[at : at + KEY_BYTES], True) for at in range(0, len(keys), KEY_BYTES))
