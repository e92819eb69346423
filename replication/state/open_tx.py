"""One open transaction, and many that one PREPARE has opened, as columns.

A thousand transactions that are prepared together have most fields in common, and are mostly settled
together. So they are one ``Block``: no object for each of them. A record (``OpenTx``) is made when somebody
asks for one, and kept once it differs from the others of its block. Which form a transaction has is not part
of the state: replicas may differ in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import ClassVar, NamedTuple, overload

from escrowmq.replication.format.codec import PrepareExtra

#: Numbers of each message in ``OpenTx.timers``.
TIMER_FIELDS = 6


class OpenTx(NamedTuple):
    """One open transaction. ``refs`` is flat: slot, log index, position, bytes, messages, and so on.

    ``log_index``: that of its PREPARE; ``due_ms``: time of the next check, -1 when parked;
    ``digests``: one CRC32C per part. ``newest_index``: that of its newest PREPARE, including repeated
    ones (and ``TWINS`` if that entry held two), and ``instance``: the sender of that one
    (kept from level 2 on; "": not known). ``home_index`` -1:
    not a branch, or not told. ``parked_for``: why a check parked it; "": none did, or it used up
    its checks. ``checked_ms``: when a check was last answered without a decision (kept from level 5 on; 0:
    never). ``timers``: the messages that it has scheduled, flat: slot, log index, position, bytes, time,
    ordinal, and so on (kept from level 8 on). ``fence``: see ``PrepareExtra`` (kept from level 10 on). So is
    the rest.
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


#: Rows of one PRE_MESSAGE: slot of its partition, position of its body, the place of each row's transaction
#: in the PREPARE, and the rows' sizes.
Rows = tuple[int, int, Sequence[int], Sequence[int]]
#: ``OpenTx.refs`` of each transaction of a PREPARE.
Refs = list[tuple[int, ...]]


def refs_of(log_index: int, rows: Iterable[Rows], count: int) -> Refs:
    """The places of the messages of ``count`` transactions; adjacent rows of one become one reference."""
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
        "_place_of", "_refs", "digests", "due_ms", "fence", "given", "instance", "log_index", "parts",
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
        self._place_of: dict[str, int] | None = None
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
        if self._place_of is None or self._refs is None:
            self._refs = self.refs()
            self._place_of = {tx_id: place for place, tx_id in enumerate(self.tx_ids)}
        place = self._place_of[tx_id]
        return self._record((self.query_ids or self.tx_ids)[place], self.digests[place], self._refs[place])

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


class Run(Sequence[OpenTx]):
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

    @overload
    def __getitem__(self, at: int) -> OpenTx: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[OpenTx]: ...

    def __getitem__(self, at: int | slice) -> OpenTx | Sequence[OpenTx]:
        return list(self)[at]


def records_of(entries: Iterable[tuple[str, Entry]]) -> Iterator[tuple[str, OpenTx]]:
    """(tx_id, record) of a table's entries, which are in its order. Leaves nothing behind in the blocks."""
    block, place = None, 0
    records: list[OpenTx] = []
    for tx_id, entry in entries:
        if type(entry) is not Block:
            yield tx_id, entry  # type: ignore[misc]
            continue
        if entry is not block:
            block, place, records = entry, 0, entry.records()
        place = block.tx_ids.index(tx_id, place)  # a block's entries keep their order
        yield tx_id, records[place]
