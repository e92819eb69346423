"""One open transaction, and many that one PREPARE has opened, as columns.

A thousand transactions that are prepared together have most fields in common, and are mostly settled
together. So they are one ``Block``: no object for each of them. A record (``OpenTx``) is made when somebody
asks for one, and kept once it differs from the others of its block. Which form a transaction has is not part
of the state: replicas may differ in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, repeat, takewhile
from typing import Any, ClassVar, NamedTuple, overload

from escrowmq.replication.format.ops import PrepareExtra

#: Numbers of each message in ``OpenTx.timers``.
TIMER_FIELDS = 6


class OpenTx(NamedTuple):
    """One open transaction. ``refs`` is flat: slot, log index, position, bytes, messages, and so on.

    ``log_index``: that of its PREPARE; ``due_ms``: time of the next check, -1 when parked;
    ``digests``: one CRC32C per part. ``newest_index``: that of its newest PREPARE, including repeated
    ones (and ``TWINS`` if that entry held two), and ``instance``: the sender of that one ("": not told).
    ``home_index`` -1: not a branch. ``parked_for``: why a check parked it; "": none did, or it used up its
    checks. ``checked_ms``: when a check was last answered without a decision (0: never). ``timers``: the
    messages that it has scheduled, flat: slot, log index, position, bytes, time, ordinal, and so on.
    ``fence``: see ``PrepareExtra``. So is the rest.
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
    timers: tuple[int, ...] = ()
    fence: bytes = b""

    @property
    def messages(self) -> int:
        """How many it holds."""
        return sum(self.refs[4::5]) + len(self.timers) // TIMER_FIELDS

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


#: Rows of one PRE_MESSAGE: slot of its partition, position of its body, the index of each row's transaction
#: in the PREPARE, and the rows' sizes.
Rows = tuple[int, int, Sequence[int], Sequence[int]]
#: ``OpenTx.refs`` of each transaction of a PREPARE.
Refs = list[tuple[int, ...]]


def refs_of(log_index: int, rows: Iterable[Rows], count: int) -> Refs:
    """The addresses of the messages of ``count`` transactions; adjacent rows of one become one reference."""
    refs: list[tuple[int, ...]] = [()] * count
    for slot, body_pos, txs, sizes in rows:
        pos, last, size, messages = body_pos, txs[0] if txs else -1, 0, 0
        # A row of the same transaction as the one before is only counted; the end acts as another one.
        for tx, more in zip(chain(txs, (-1,)), chain(sizes, (0,)), strict=True):
            if tx == last:
                size += more
                messages += 1
                continue
            known = refs[last]
            if not known:
                refs[last] = (slot, log_index, pos, size, messages)
            elif known[-5] == slot and known[-3] + known[-2] == pos:
                refs[last] = (*known[:-2], known[-2] + size, known[-1] + messages)
            else:
                refs[last] = (*known, slot, log_index, pos, size, messages)
            pos += size
            last, size, messages = tx, more, 1
    return refs


class Block:
    """Transactions that one PREPARE has opened, and that nothing has happened to since: no branches, no
    further part, no check, no decision on some of them. Its columns never change, so a view may read them in
    any thread.
    """

    __slots__ = (
        "_index_of", "_refs", "digests", "due_ms", "fence", "given", "instance", "log_index", "parts",
        "prepared_ms", "query_ids", "rows", "timeout_ms", "topic", "tx_ids",
    )  # fmt: skip
    #: As in a record: none has branches, or is one.
    home_group: ClassVar[int] = -1
    participants: ClassVar[tuple[int, ...]] = ()

    def __init__(
        self,
        log_index: int,
        topic: str,
        tx_ids: Sequence[str],
        query_ids: Sequence[str] | None,
        digests: Sequence[int],
        rows: Sequence[Rows],
        prepared_ms: int,
        timeout_ms: int,
        extra: PrepareExtra,
    ) -> None:
        """``query_ids`` None: each equals its id."""
        self.log_index, self.topic = log_index, topic
        self.tx_ids, self.query_ids, self.digests, self.rows = tx_ids, query_ids, digests, rows
        self.prepared_ms, self.timeout_ms, self.due_ms = prepared_ms, timeout_ms, prepared_ms + timeout_ms
        self.instance, self.parts, self.given, self.fence = (
            extra.instance, extra.parts, extra.given, extra.fence
        )  # fmt: skip
        self._index_of: dict[str, int] | None = None
        self._refs: Refs | None = None

    def refs(self) -> Refs:
        """``OpenTx.refs`` of each."""
        return refs_of(self.log_index, self.rows, len(self.tx_ids))

    def records(self) -> list[OpenTx]:
        """Each by itself, in their order."""
        return list(map(self._record, self.query_ids or self.tx_ids, self.digests, self.refs()))

    def record_of(self, tx_id: str) -> OpenTx:
        """The transaction with this id, which must be one of the block's. The first call takes as long as
        ``records``."""
        if self._index_of is None or self._refs is None:
            self._refs = self.refs()
            self._index_of = {tx_id: i for i, tx_id in enumerate(self.tx_ids)}
        i = self._index_of[tx_id]
        return self._record((self.query_ids or self.tx_ids)[i], self.digests[i], self._refs[i])

    def _record(self, query_id: str, digest: int, refs: tuple[int, ...]) -> OpenTx:
        # The constructor of a named tuple costs another call: 0.3 us for each.
        return tuple.__new__(OpenTx, (
            self.log_index, self.topic, query_id, self.prepared_ms, self.timeout_ms, -1, 0, self.due_ms,
            (digest,), refs, self.log_index, self.instance, -1, (), self.parts, self.given, "", 0, (),
            self.fence,
        ))  # fmt: skip

    def spans(self) -> list[tuple[int, int, int, int]] | None:
        """Slot, position, bytes, messages: where all messages are, in the order of the transactions, and the
        slots in the order in which the transactions refer to them. None: some are in another order."""
        slots = {slot for slot, *_ in self.rows}
        if len(slots) < len(self.rows) or any(txs != sorted(txs) for _, _, txs, _ in self.rows):
            return None
        in_order = sorted(self.rows, key=lambda rows: rows[2][0])
        return [(slot, pos, sum(sizes), len(sizes)) for slot, pos, _, sizes in in_order]

    @property
    def smallest(self) -> int:
        """Bytes of the smallest row."""
        return min([min(sizes) for *_, sizes in self.rows], default=0)


#: What the table holds for an id.
Entry = OpenTx | Block


class OpenTxs(Sequence[OpenTx]):
    """Some open transactions, whose records are made when somebody asks for them."""

    __slots__ = ()

    @overload
    def __getitem__(self, at: int) -> OpenTx: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[OpenTx]: ...

    def __getitem__(self, at: int | slice) -> OpenTx | Sequence[OpenTx]:
        return list(self)[at]


class Run(OpenTxs):
    """Some open transactions, in the order in which they were asked for: a whole block, or ``records``.

    ``tx_ids`` are the table's own strings where possible: their hashes are known.
    """

    __slots__ = ("block", "records", "tx_ids")

    def __init__(self, tx_ids: Sequence[str], block: Block | None, records: Sequence[OpenTx] = ()) -> None:
        self.tx_ids, self.block, self.records = tx_ids, block, records

    def refs(self) -> Iterable[tuple[int, ...]]:
        """``OpenTx.refs`` of each."""
        return [record.refs for record in self.records] if self.block is None else self.block.refs()

    def digests(self) -> Sequence[int]:
        """Of the first part of each."""
        if self.block is None:
            return [record.digests[0] for record in self.records]
        return self.block.digests

    def __len__(self) -> int:
        return len(self.tx_ids)

    def __iter__(self) -> Iterator[OpenTx]:
        return iter(self.records if self.block is None else self.block.records())


def records_of(entries: Iterable[tuple[str, Entry]]) -> Iterator[tuple[str, OpenTx]]:
    """(tx_id, record) of a table's entries, which are in its order. Leaves nothing behind in the blocks."""
    block, i = None, 0
    records: list[OpenTx] = []
    for tx_id, entry in entries:
        if type(entry) is not Block:
            yield tx_id, entry  # type: ignore[misc]
            continue
        if entry is not block:
            block, i, records = entry, 0, entry.records()
        i = block.tx_ids.index(tx_id, i)  # a block's entries keep their order
        yield tx_id, records[i]


# ------------------------------------------------------------------------------------------------------------
# The open transactions of one app: a table of two ages that can be viewed as it was at one moment.
#
# Most transactions settle within milliseconds, so they are in a small table that stays in the
# processor's caches; older ones move to a large table. (Measured with a million open: looking up
# every id in one large table cost half of the total.) While a ``View`` is held the
# old table is not changed: changes to its entries are recorded beside it and merged later, a
# bounded step at a time. So a snapshot of a million entries copies thousands. Iteration is in log order,
# whatever the ages.
#
# An entry is a record, or the ``Block`` with which a transaction was opened (open_tx.py); callers see
# records. Whole runs of ids are looked up and taken at once (``runs_of``, ``take_run``).

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

    __slots__ = (
        "_ages_at",
        "_changed",
        "_first",
        "_front",
        "_holders",
        "_step",
        "gone",
        "old",
        "young",
    )

    def __init__(self, young_max: int = YOUNG_MAX, step: int = STEP) -> None:
        """``step``: entries that one call moves or merges, about."""
        self._step, self._ages_at = step, young_max + step
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
        if len(self.young) < self._ages_at or self._holders:
            return
        step = self._step
        for _ in range(2):  # twice as fast as they arrive, to catch up after a view
            self._settle(step)
            if self.gone or self._changed:
                return  # an id may be in ``gone`` and, opened again, also in ``young``
            for tx_id, record in list(islice(self.young.items(), step)):
                self.old[tx_id] = record
                del self.young[tx_id]
            if len(self.young) < self._ages_at:
                return

    # -------------------------------------------------------------- views

    def hold(self) -> View:
        """The table as it is now. Until ``release``, changes to old entries are recorded beside them."""
        if not self._holders:
            self._settle(self._step)  # the rest is copied, at a tenth of the cost of merging it
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
