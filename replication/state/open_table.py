"""The open transactions of one app: a table of two ages that can be viewed as it was at one moment.

Most transactions settle within milliseconds, so they are in a small table that stays in the
processor's caches; older ones move to a large table. (Measured with a million open: looking up
every id in one large table cost half of the total.) While a ``View`` is held the
old table is not changed: changes to its entries are recorded beside it and merged later, a
bounded step at a time. So a snapshot of a million entries copies thousands. Iteration is in log order,
whatever the ages.

An entry is a record, or the ``Block`` with which a transaction was opened (open_tx.py); callers see records.
Whole runs of ids are looked up and taken at once (``runs_of``, ``take_run``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, repeat, takewhile
from typing import Any

from escrowmq.replication.state.open_tx import Block, Entry, OpenTx, Run, records_of

__all__ = ["STEP", "YOUNG_MAX", "OpenTable", "OpenTx", "View"]

#: Entries of the young table: three times what is in flight at 50,000 a second, and half a megabyte.
YOUNG_MAX = 8_192
#: Entries moved at a time: about a millisecond.
STEP = 2_048


class View:
    """The table as it was when held. Any thread may iterate it, until ``OpenTable.release``."""

    __slots__ = ("_changed", "_gone", "_old", "_young")

    def __init__(
        self,
        old: dict[str, Entry],
        young: dict[str, Entry],
        gone: set[str],
        changed: dict[str, OpenTx],
    ) -> None:
        self._old, self._young, self._gone, self._changed = old, young, gone, changed

    def items(self) -> Iterator[tuple[str, OpenTx]]:
        """(tx_id, record), oldest first."""
        return records_of(self._entries())

    def _entries(self) -> Iterator[tuple[str, Entry]]:
        gone, changed = self._gone, self._changed
        if not gone and not changed:
            yield from self._old.items()
        else:
            for tx_id, entry in self._old.items():
                if tx_id not in gone:
                    yield tx_id, changed.get(tx_id, entry)
        yield from self._young.items()


class OpenTable(Mapping[str, OpenTx]):
    """tx_id -> record. Changed only by ``AppTransactions`` and the state machine."""

    __slots__ = ("_changed", "_first", "_front", "_holders", "gone", "old", "young")

    def __init__(self) -> None:
        self.young: dict[str, Entry] = {}
        self.old: dict[str, Entry] = {}
        self.gone: set[str] = set()  # settled, but still in ``old``
        self._changed: dict[str, OpenTx] = {}  # replaced, but still unchanged in ``old``
        self._holders = 0
        # For ``oldest`` while a view is held, when ``old`` does not change: its first id that is not gone,
        # and an iterator over the following ones.
        self._first: str | None = None
        self._front: Iterator[str] | None = None

    # -------------------------------------------------------------- reading

    def __contains__(self, tx_id: object) -> bool:
        return tx_id in self.young or (tx_id in self.old and tx_id not in self.gone)

    def __getitem__(self, tx_id: str) -> OpenTx:
        record = self.get(tx_id)
        if record is None:
            raise KeyError(tx_id)
        found: OpenTx = record
        return found

    def get(self, tx_id: str, default: Any = None) -> Any:
        """Without an exception for missing ids."""
        entry = self._entry(tx_id)
        if type(entry) is Block:
            return entry.record_of(tx_id)
        return default if entry is None else entry

    def _entry(self, tx_id: str) -> Entry | None:
        entry = self.young.get(tx_id)
        if entry is None and self.old and tx_id not in self.gone:
            entry = self._changed.get(tx_id) or self.old.get(tx_id)
        return entry

    def __len__(self) -> int:
        return len(self.young) + len(self.old) - len(self.gone)

    def __iter__(self) -> Iterator[str]:
        for tx_id in self.old:
            if tx_id not in self.gone:
                yield tx_id
        yield from self.young

    def has_none(self, tx_ids: Iterable[str]) -> bool:
        """Whether none is open; False also for some that are gone."""
        return self.young.keys().isdisjoint(tx_ids) and (not self.old or self.old.keys().isdisjoint(tx_ids))

    def runs_of(self, tx_ids: Sequence[str]) -> list[Run] | None:
        """All of these, in their order; None unless all are open and each is named once. A block that they
        name in part is dissolved into records."""
        runs: list[Run] = []
        at, end, young = 0, len(tx_ids), self.young
        records: list[OpenTx] = []
        while at < end:
            tx_id = tx_ids[at]
            entry = young.get(tx_id) or self._entry(tx_id)
            if type(entry) is Block:
                count = len(entry.tx_ids)
                # Compared at most once for each block: it is a run then, or dissolved.
                if (tx_ids if count == end else tx_ids[at : at + count]) == entry.tx_ids:
                    if records:
                        runs.append(Run(tx_ids[at - len(records) : at], None, records))
                        records = []
                    runs.append(Run(entry.tx_ids, entry))
                    at += count
                    continue
                self._dissolve(entry)
                entry = self._entry(tx_id)
            if entry is None:
                return None
            records.append(entry)  # type: ignore[arg-type]
            at += 1
        if records:
            runs.append(Run(tx_ids[at - len(records) : at], None, records))
        once = len(runs) == 1 and runs[0].block is not None  # a block names each id once
        return runs if once or len(set(tx_ids)) == end else None

    def oldest(self) -> OpenTx | None:
        """The first in log order. (A replaced record keeps its place in the log.) Only in the thread that
        changes the table; ids that are gone are skipped once each, however often this is called."""
        if self.gone:
            if self._holders:
                return self._oldest_beside_a_view()
            for tx_id in list(takewhile(self.gone.__contains__, self.old)):
                del self.old[tx_id]
                self.gone.remove(tx_id)
        first = next(iter(self.old), None) or next(iter(self.young), None)
        return None if first is None else self[first]

    def first(self, most: int) -> list[tuple[str, OpenTx]]:
        """Up to ``most``, oldest first. Any thread: each list is made in one step of the interpreter, so one
        that is opened or settled meanwhile may be missing or be there still."""
        ids = list(islice(self.old, most))
        if len(ids) < most:
            ids += list(islice(self.young, most - len(ids)))
        now = ((tx_id, self.get(tx_id)) for tx_id in ids)
        return [(tx_id, record) for tx_id, record in now if record is not None]

    def _oldest_beside_a_view(self) -> OpenTx | None:
        if self._front is None:
            self._front = iter(self.old)
            self._first = next(self._front, None)
        while self._first is not None and self._first in self.gone:
            self._first = next(self._front, None)
        first = next(iter(self.young), None) if self._first is None else self._first
        return None if first is None else self[first]

    # -------------------------------------------------------------- changing
    # New records are put into ``young`` by the state machine, which then calls ``age``.

    def add(self, block: Block) -> bool:
        """Add the transactions of a block, which must all be new; False, and nothing is done, if it names one
        twice."""
        entries = dict.fromkeys(block.tx_ids, block)
        if len(entries) < len(block.tx_ids):
            return False
        self.young.update(entries)
        return True

    def replace(self, tx_id: str, record: OpenTx) -> None:
        """Replace the record of an open transaction."""
        if type(block := self._entry(tx_id)) is Block:
            self._dissolve(block)
        self._put(tx_id, record)

    def _put(self, tx_id: str, record: OpenTx) -> None:
        if tx_id in self.young:
            self.young[tx_id] = record
        elif self._holders:
            assert tx_id in self.old and tx_id not in self.gone, tx_id
            self._changed[tx_id] = record
        else:
            self._changed.pop(tx_id, None)
            self.old[tx_id] = record

    def _dissolve(self, block: Block) -> None:
        """A record for each of its transactions: all are in the table as long as it is."""
        for tx_id, record in zip(block.tx_ids, block.records(), strict=True):
            self._put(tx_id, record)

    def take(self, tx_id: str) -> OpenTx:
        """Remove it from the table; KeyError unless it is open."""
        runs = self.runs_of((tx_id,))
        if runs is None:
            raise KeyError(tx_id)
        self.take_run(runs[0])
        return runs[0][0]

    def take_run(self, run: Run) -> None:
        """Remove these from the table, in which all must be as when ``runs_of`` found them."""
        taken = list(map(self.young.pop, run.tx_ids, repeat(None)))
        if None in taken:
            for tx_id, entry in zip(run.tx_ids, taken, strict=True):
                if entry is None:
                    self._remove_old(tx_id)

    def _remove_old(self, tx_id: str) -> None:
        self._changed.pop(tx_id, None)
        if self._holders:
            self.gone.add(tx_id)
        else:
            del self.old[tx_id]

    def age(self) -> None:
        """Move older entries to the old table, in steps."""
        if len(self.young) < YOUNG_MAX + STEP or self._holders:
            return
        for _ in range(2):  # twice as fast as they arrive, to catch up after a view
            self._settle(STEP)
            if self.gone or self._changed:
                return  # an id may be in ``gone`` and, opened again, also in ``young``
            for tx_id, record in list(islice(self.young.items(), STEP)):
                self.old[tx_id] = record
                del self.young[tx_id]
            if len(self.young) < YOUNG_MAX + STEP:
                return

    # -------------------------------------------------------------- views

    def hold(self) -> View:
        """The table as it is now. Until ``release``, changes to old entries are recorded beside them."""
        if not self._holders:
            self._settle(STEP)  # the rest is copied, at a tenth of the cost of merging it
        self._holders += 1
        return View(self.old, self.young.copy(), self.gone.copy(), self._changed.copy())

    @property
    def in_use(self) -> bool:
        """Whether a view is held."""
        return self._holders > 0

    def release(self) -> None:
        """A view is no longer used."""
        self._holders -= 1
        if not self._holders:
            self._front = None

    @property
    def untidy(self) -> bool:
        """Whether changes recorded during a view are not merged yet."""
        return bool(self.gone or self._changed)

    def tidy(self, budget: int = STEP) -> int:
        """Merge recorded changes, at most ``budget`` entries; returns the budget that is left."""
        return budget if self._holders else self._settle(budget)

    def _settle(self, budget: int) -> int:
        while self.gone and budget > 0:
            del self.old[self.gone.pop()]
            budget -= 1
        while self._changed and budget > 0:
            tx_id, record = self._changed.popitem()
            self.old[tx_id] = record
            budget -= 1
        return budget
