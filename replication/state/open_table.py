"""The open transactions of one app: a table of two ages that can be viewed as it was at one moment.

Most transactions settle within milliseconds, so they are in a small table that stays in the
processor's caches; older ones move to a large table. (Measured with a million open: looking up
every id in one large table cost half of the total.) While a ``View`` is held the
old table is not changed: changes to its entries are recorded beside it and merged later, a
bounded step at a time. So a snapshot of a million entries copies thousands. Iteration is in log order,
whatever the ages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, takewhile
from typing import Any, NamedTuple

#: Entries of the young table: three times what is in flight at 50,000 a second, and half a megabyte.
YOUNG_MAX = 8_192
#: Entries moved at a time: about a millisecond.
STEP = 2_048


class OpenTx(NamedTuple):
    """One open transaction. ``refs`` is flat: slot, log index, position, bytes, messages, and so on.

    ``log_index``: that of its PREPARE; ``due_ms``: time of the next check, -1 when parked;
    ``digests``: one CRC32C per part. ``newest_index``: that of its newest PREPARE, including repeated
    ones, and ``instance``: the sender of that one (kept from level 2 on; "": not known). ``home_index`` -1:
    not a branch, or not told. ``parked_for``: why a check parked it; "": none did, or it used up
    its checks. ``checked_ms``: when a check was last answered without a decision (kept from level 5 on; 0:
    never). The rest is as ``PrepareExtra`` says.
    """

    log_index: int
    topic: str
    query_id: str
    prepared_ms: int
    timeout_ms: int
    home_group: int
    checks: int
    due_ms: int
    digests: tuple[int, ...]
    refs: tuple[int, ...]
    newest_index: int
    instance: str = ""
    home_index: int = -1
    participants: tuple[int, ...] = ()
    parts: int = 0
    given: bool = False
    parked_for: str = ""
    checked_ms: int = 0

    @property
    def missing_parts(self) -> bool:
        """Whether announced parts are still missing."""
        return self.parts > len(self.digests)

    @property
    def home_record(self) -> int:
        """Log index of home's record of it, in home's log; -1: not told."""
        return self.log_index if self.home_group < 0 else self.home_index

    def is_under(self, home_group: int, home_index: int) -> bool:
        """Whether a decision that names this record in the log of home's group (-1: this one) is about this
        transaction. An index alone says nothing: every group numbers its own log."""
        return self.home_group == home_group and self.home_record == home_index


class View:
    """The table as it was when held. Any thread may iterate it, until ``OpenTable.release``."""

    __slots__ = ("_changed", "_gone", "_old", "_young")

    def __init__(
        self,
        old: dict[str, OpenTx],
        young: dict[str, OpenTx],
        gone: set[str],
        changed: dict[str, OpenTx],
    ) -> None:
        self._old, self._young, self._gone, self._changed = old, young, gone, changed

    def items(self) -> Iterator[tuple[str, OpenTx]]:
        """(tx_id, record), oldest first."""
        gone, changed = self._gone, self._changed
        if not gone and not changed:
            yield from self._old.items()
        else:
            for tx_id, record in self._old.items():
                if tx_id not in gone:
                    yield tx_id, changed.get(tx_id, record)
        yield from self._young.items()


class OpenTable(Mapping[str, OpenTx]):
    """tx_id -> record. Changed only by ``AppTransactions`` and the state machine."""

    __slots__ = ("_changed", "_first", "_front", "_holders", "gone", "old", "young")

    def __init__(self) -> None:
        self.young: dict[str, OpenTx] = {}
        self.old: dict[str, OpenTx] = {}
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
        record = self.young.get(tx_id)
        if record is not None:
            return record
        if tx_id in self.gone:
            raise KeyError(tx_id)
        return self._changed.get(tx_id) or self.old[tx_id]

    def get(self, tx_id: str, default: Any = None) -> Any:
        """Without an exception for missing ids."""
        record = self.young.get(tx_id)
        if record is None and self.old and tx_id not in self.gone:
            record = self._changed.get(tx_id) or self.old.get(tx_id)
        return default if record is None else record

    def __len__(self) -> int:
        return len(self.young) + len(self.old) - len(self.gone)

    def __iter__(self) -> Iterator[str]:
        for tx_id in self.old:
            if tx_id not in self.gone:
                yield tx_id
        yield from self.young

    def has_all(self, tx_ids: Iterable[str]) -> bool:
        """Whether all are open; fast for young ones."""
        return all(map(self.young.__contains__, tx_ids)) or all(map(self.__contains__, tx_ids))

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
        rows = list(islice(self.old.items(), most))
        if len(rows) < most:
            rows += list(islice(self.young.items(), most - len(rows)))
        if not self.gone and not self._changed:
            return rows
        now = ((tx_id, self.get(tx_id)) for tx_id, _ in rows)
        return [(tx_id, record) for tx_id, record in now if record is not None]

    def _oldest_beside_a_view(self) -> OpenTx | None:
        if self._front is None:
            self._front = iter(self.old)
            self._first = next(self._front, None)
        while self._first is not None and self._first in self.gone:
            self._first = next(self._front, None)
        if self._first is not None:
            return self._changed.get(self._first) or self.old[self._first]
        return next(iter(self.young.values()), None)

    # -------------------------------------------------------------- changing
    # New ones are put into ``young`` by the state machine, which then calls ``age``.

    def replace(self, tx_id: str, record: OpenTx) -> None:
        """Replace the record of an open transaction."""
        if tx_id in self.young:
            self.young[tx_id] = record
        elif self._holders:
            assert tx_id in self.old and tx_id not in self.gone, tx_id
            self._changed[tx_id] = record
        else:
            self._changed.pop(tx_id, None)
            self.old[tx_id] = record

    def take(self, tx_id: str) -> OpenTx:
        """Remove it from the table; KeyError unless it is open."""
        record = self.young.pop(tx_id, None)
        if record is not None:
            return record
        record = self[tx_id]
        self._changed.pop(tx_id, None)
        if self._holders:
            self.gone.add(tx_id)
        else:
            del self.old[tx_id]
        return record

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
