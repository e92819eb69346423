"""Transactions on their way to one broker group, as columns: blocks to prepare, blocks to decide.

A block holds one transaction or a thousand; whatever waits at the same time is merged into one operation,
since a call costs a hundred times what a transaction costs. block_answers.py takes the answers apart again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any

import google_crc32c

from escrowmq.actors.client.failures import Failure
from escrowmq.actors.producer.encoding.delayed_messages import (
    NONE_LATER,
    Later,
    LaterColumns,
    add_later,
    digest_with,
    encode_later,
    merge_later,
    select_later,
)
from escrowmq.replication.format import ops
from escrowmq.replication.format.ops import UNNUMBERED, PrepareExtra

#: Position of a transaction in its block -> (code, info), for refused transactions.
Problems = dict[int, tuple[int, Any]]
Outcome = Problems | Failure
#: A transaction's message: topic, partition, row.
Encoded = tuple[str, int, bytes]
#: Messages of one partition: the position of each one's transaction in the block, its size in bytes, its row;
#: from a table, one row for all of them together (see ``single_rows``).
Column = tuple[list[int], list[int], list[bytes]]

#: Of a transaction without a number: number and digest.
NO_NUMBER: tuple[int, bytes] = (UNNUMBERED, b"")

#: Operations with more ids than this are split (brokers accept 20,000; a request has room for far fewer).
IDS_PER_OPERATION = 5_000
_extend: Callable[[int, bytes], int] = google_crc32c.extend


class PrepareBlock:
    """Transactions with the same home topic, home group, time-out and part, all in one broker group.

    ``done`` is called once, in the router's thread. ``alone``: must not be merged with others (again).
    ``given``: the ids are the application's, and may be used again at any time.
    A transaction of one message is kept as ``single``: that saves ten objects, which the garbage collector
    would otherwise visit again and again while thousands of them are under way.
    """

    __slots__ = (
        "_columns", "alone", "deadline", "digests", "done", "given", "heard_ms", "home_group", "home_index",
        "home_topic", "later", "newest_at", "numbered", "offsets", "on_timeout", "opened_at", "part",
        "participants", "parts", "perhaps_open", "query_ids", "single", "size", "stale_ms", "timeout_ms",
        "tx_ids",
    )  # fmt: skip

    def __init__(
        self,
        home_topic: str,
        home_group: int,
        timeout_ms: int,
        part: int,
        tx_ids: Sequence[str],
        query_ids: Sequence[str],
        digests: Sequence[int],
        content: dict[tuple[str, int], Column] | Encoded,
        size: int,
        given: bool = False,
        later: LaterColumns = NONE_LATER,
    ) -> None:
        self.home_topic, self.home_group = home_topic, home_group
        self.timeout_ms, self.part = timeout_ms, part
        self.tx_ids, self.query_ids, self.digests = tx_ids, query_ids, digests
        self.single: Encoded | None = None
        self._columns: dict[tuple[str, int], Column] | None = None
        if type(content) is tuple:
            self.single = content
        else:
            self._columns = content  # type: ignore[assignment]
        #: The delayed ones of its messages; the others are in ``columns``.
        self.later = later
        self.size = size
        self.given = given
        self.alone = False
        self.deadline = 0.0
        self.done: Callable[[Outcome], None] = _ignore
        #: An attempt got no answer, and may have opened it, although a later one was refused.
        self.perhaps_open = False
        #: The group's time when it was refused as stale, after which it is sent again.
        self.stale_ms = -1
        #: See ``PrepareExtra``. At home: the groups of the branches. In a branch: where home opened each
        #: transaction.
        self.participants: tuple[int, ...] = ()
        self.parts = 0
        self.home_index: Sequence[int] = ()
        #: From home's answer, if there are branches or the ids are the application's: where it opened each
        #: transaction, -1 if it is not open.
        self.opened_at: Sequence[int] = ()
        #: From home's answer: each transaction's newest PREPARE, which is this one.
        self.newest_at: Sequence[int] = ()
        #: Number and digest, under the producer's claim. With a number it is one transaction, at home.
        self.numbered = NO_NUMBER
        #: PRE_OFFSETS: committed offsets of a consumer group that this one transaction moves.
        self.offsets: tuple[bytes, ...] = ()
        self.on_timeout = ""
        #: Sent instead of the time last heard from the group; -1: send that time.
        self.heard_ms = -1

    @property
    def columns(self) -> dict[tuple[str, int], Column]:
        """The messages by partition, without the delayed ones."""
        if self._columns is not None:
            return self._columns
        assert self.single is not None
        topic, partition, row = self.single
        return {(topic, partition): ([0], [len(row)], [row])}

    @property
    def is_further(self) -> bool:
        """Whether something else of these transactions is prepared already."""
        return self.part > 0 or self.home_group >= 0

    def key(self) -> tuple[Any, ...]:
        """Blocks with the same key may share an operation."""
        tracked = bool(self.home_index)
        return (
            self.home_topic, self.home_group, self.timeout_ms, self.part, self.given, self.participants,
            self.parts, tracked, self.heard_ms, self.numbered, self.on_timeout,
            self.offsets and self.tx_ids[0],
        )  # fmt: skip

    def repeated(self) -> set[int]:
        """Positions of the transactions that were open before this PREPARE, after home's answer to it. For an
        id that the producer made it is only known that an earlier copy of this PREPARE had arrived."""
        if self.opened_at == self.newest_at:
            return set()
        pairs = zip(self.opened_at, self.newest_at, strict=True)
        return {i for i, (opened, newest) in enumerate(pairs) if -1 < opened != newest}

    def take_opened(self, piece: PrepareBlock, chosen: Sequence[int]) -> None:
        """Takes over home's answer to a piece of this block: the transactions at the positions ``chosen``."""
        if piece.opened_at:
            opened_at = list(self.opened_at) or [-1] * len(self.tx_ids)
            newest_at = list(self.newest_at) or [-1] * len(self.tx_ids)
            for n, i in enumerate(chosen):
                opened_at[i], newest_at[i] = piece.opened_at[n], piece.newest_at[n]
            self.opened_at, self.newest_at = opened_at, newest_at

    def touching(self, topic: str) -> set[int]:
        """Positions of the transactions that send to ``topic``."""
        hit = {tx for (name, _), column in self.columns.items() if name == topic for tx in column[0]}
        return hit.union(*(later[0] for (name, _), later in self.later.items() if name == topic))

    def select(self, chosen: Sequence[int]) -> PrepareBlock:
        """A block of some of these transactions, in the order given; its ``done`` is not set."""
        renumbered = {old: new for new, old in enumerate(chosen)}
        columns: dict[tuple[str, int], Column] = {}
        size = 0
        for name, column in self.columns.items():
            txs, sizes, _ = column
            kept = [i for i, tx in enumerate(txs) if tx in renumbered]
            if kept:
                rows = single_rows(*column[1:])
                kept_sizes = [sizes[i] for i in kept]
                columns[name] = ([renumbered[txs[i]] for i in kept], kept_sizes, [rows[i] for i in kept])
                size += sum(kept_sizes)
        later, later_size = select_later(self.later, renumbered)
        block = PrepareBlock(
            self.home_topic,
            self.home_group,
            self.timeout_ms,
            self.part,
            [self.tx_ids[i] for i in chosen],
            [self.query_ids[i] for i in chosen],
            [self.digests[i] for i in chosen],
            columns,
            size + later_size,
            self.given,
            later,
        )
        block.deadline, block.heard_ms = self.deadline, self.heard_ms
        block.perhaps_open, block.numbered = self.perhaps_open, self.numbered
        block.stale_ms = self.stale_ms
        block.participants, block.parts = self.participants, self.parts
        block.offsets, block.on_timeout = self.offsets, self.on_timeout
        if self.home_index:
            block.home_index = [self.home_index[i] for i in chosen]
        return block


class Content:
    """The messages of some transactions in one broker group, as columns, and each transaction's digest."""

    __slots__ = ("columns", "digests", "later", "size")

    def __init__(self) -> None:
        self.columns: dict[tuple[str, int], Column] = {}
        self.later = NONE_LATER
        self.digests: list[int] = []
        self.size = 0

    def add(self, encoded: Iterable[Encoded], later: Sequence[Later] = ()) -> None:
        """Adds the messages of the next transaction."""
        i, digest, size = len(self.digests), 0, 0
        for topic, partition, row in encoded:
            column = self.columns.get((topic, partition))
            if column is None:
                column = self.columns[topic, partition] = ([], [], [])
            column[0].append(i)
            column[1].append(len(row))
            column[2].append(row)
            digest = _extend(digest, row)
            size += len(row)
        if later:
            self.later = self.later or {}
            size += add_later(self.later, i, later)
            digest = digest_with(digest, later)
        self.digests.append(digest)
        self.size += size

    def block(
        self,
        home_topic: str,
        home_group: int,
        timeout_ms: int,
        part: int,
        tx_ids: Sequence[str],
        query_ids: Sequence[str],
        given: bool,
    ) -> PrepareBlock:
        """All of it as a block."""
        ids = tx_ids, query_ids, self.digests
        return PrepareBlock(
            home_topic, home_group, timeout_ms, part, *ids, self.columns, self.size, given, self.later
        )


def digest_of(encoded: Iterable[Encoded], later: Iterable[Later]) -> int:
    """A transaction's digest: CRC32C over its rows, and over the times of those that are delayed."""
    digest = 0
    for _, _, row in encoded:
        digest = _extend(digest, row)
    return digest_with(digest, later)


def single_rows(sizes: Sequence[int], rows: list[bytes]) -> list[bytes]:
    """Rows one by one, from these or from one body of all of them."""
    if len(rows) == len(sizes):
        return rows
    (body,) = rows
    return [body[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]


class DecisionBlock:
    """Transactions of one broker group to commit or roll back. ``done`` as in PrepareBlock.

    ``home_index``: where home opened each of them; None: they are in one group. ``home_group``: the home
    group, for branches. ``newest_index``: the newest PREPARE of each; a transaction that has been prepared
    again since then is not rolled back. Empty: no such condition.
    """

    __slots__ = ("again", "commit", "deadline", "done", "home_group", "home_index", "newest_index", "tx_ids")

    def __init__(
        self,
        commit: bool,
        tx_ids: Sequence[str],
        home_index: Sequence[int] | None = None,
        home_group: int = -1,
        newest_index: Sequence[int] = (),
    ) -> None:
        self.commit, self.tx_ids, self.home_index = commit, tx_ids, home_index
        self.home_group, self.newest_index = home_group, newest_index
        self.again = 0  # how often it was sent again, see ``block_answers.finish_decided``
        self.deadline = 0.0
        self.done: Callable[[Outcome], None] = _ignore

    def select(self, chosen: Sequence[int]) -> DecisionBlock:
        """A block of some of these transactions; its ``done`` is not set."""
        home_index = self.home_index
        return DecisionBlock(
            self.commit,
            [self.tx_ids[i] for i in chosen],
            None if home_index is None else [home_index[i] for i in chosen],
            self.home_group,
            [self.newest_index[i] for i in chosen] if self.newest_index else (),
        )

    def key(self) -> tuple[bool, bool, int, bool]:
        """Blocks with the same key may share an operation."""
        return self.commit, self.home_index is None, self.home_group, bool(self.newest_index)


class InquireBlock:
    """A question to home: ``done`` gets the transactions that are not open under their home index."""

    __slots__ = ("deadline", "done", "home_index", "tx_ids")

    def __init__(self, tx_ids: Sequence[str], home_index: Sequence[int]) -> None:
        self.tx_ids, self.home_index = tx_ids, home_index
        self.deadline = 0.0
        self.done: Callable[[Outcome], None] = _ignore


class DoneBlock:
    """Tells home which transactions branch group ``group`` has decided as home did. Its outcome is
    ignored."""

    __slots__ = ("deadline", "done", "group", "home_index", "tx_ids")

    def __init__(self, tx_ids: Sequence[str], home_index: Sequence[int], group: int) -> None:
        self.tx_ids, self.home_index, self.group = tx_ids, home_index, group
        self.deadline = 0.0
        self.done: Callable[[Outcome], None] = _ignore


Block = PrepareBlock | DecisionBlock | InquireBlock | DoneBlock


def _ignore(_: Outcome) -> None:
    """The ``done`` of blocks whose outcome is ignored."""


def encode_prepare(
    app: str,
    blocks: Sequence[PrepareBlock],
    id_of: Callable[[str], int],
    instance: str = "",
    heard_ms: int = -1,
    claim: tuple[str, int] | None = None,
    fence: bytes = b"",
) -> bytes:
    """PREPARE and its PRE_MESSAGEs for all transactions of ``blocks``, which have the same key.

    ``id_of(topic)``: the id that the PREPARE names, so that nothing is prepared in another topic of that
    name. ``instance``: the producer. ``heard_ms``: the newest time that the client has heard from the group.
    It must be from before: after a broker has reported one of its transactions as prepared, a PREPARE is
    never encoded again with a later time. ``claim``: name and epoch of a named producer. ``fence``: see
    ``PrepareExtra``; only home has it, and only for transactions with a local one.
    """
    first = blocks[0]
    fence = fence if first.home_group < 0 and not first.on_timeout else b""
    tx_ids, query_ids, digests = first.tx_ids, first.query_ids, first.digests
    columns, later = (first.columns, first.later) if len(blocks) == 1 else ({}, NONE_LATER)
    if len(blocks) > 1:
        tx_ids, query_ids, digests, columns, later = _merge(blocks)
    frames = [
        ops.prepare(
            app,
            first.home_topic,
            tx_ids,
            None if query_ids == tx_ids else query_ids,
            first.timeout_ms,
            first.part,
            digests,
            first.home_group,
            len(columns) + len(later) + len(first.offsets),
            _extra(blocks, instance, heard_ms, claim, fence),
        )
    ]
    for (topic, partition), (txs, sizes, rows) in columns.items():
        frames.append(ops.pre_message(topic, partition, txs, sizes, rows, id_of(topic)))
    if later:
        frames += encode_later(later, id_of)
    return b"".join((*frames, *first.offsets))


def _extra(
    blocks: Sequence[PrepareBlock],
    instance: str,
    heard_ms: int,
    claim: tuple[str, int] | None,
    fence: bytes,
) -> PrepareExtra:
    first = blocks[0]
    claimed = None if claim is None else (*claim, *first.numbered)
    if not (first.participants or first.home_index or first.parts):  # by far the most frequent case
        return PrepareExtra(
            instance,
            given=first.given,
            heard_ms=heard_ms,
            claim=claimed,
            on_timeout=first.on_timeout,
            fence=fence,
        )
    home_index = [index for block in blocks for index in block.home_index]
    known = instance, list(first.participants), first.parts, home_index, first.given, heard_ms
    return PrepareExtra(*known, claim=claimed, on_timeout=first.on_timeout, fence=fence)


def _merge(
    blocks: Sequence[PrepareBlock],
) -> tuple[list[str], list[str], list[int], dict[tuple[str, int], Column], LaterColumns]:
    tx_ids: list[str] = []
    query_ids: list[str] = []
    digests: list[int] = []
    columns: dict[tuple[str, int], Column] = {}
    delayed: list[tuple[int, LaterColumns]] = []
    for block in blocks:
        start = len(tx_ids)
        tx_ids += block.tx_ids
        query_ids += block.query_ids
        digests += block.digests
        if block.single is not None:
            topic, partition, row = block.single
            column = columns.get((topic, partition))
            if column is None:
                column = columns[topic, partition] = ([], [], [])
            column[0].append(start)
            column[1].append(len(row))
            column[2].append(row)
            continue
        if block.later:
            delayed.append((start, block.later))
        for name, (txs, sizes, rows) in block.columns.items():
            column = columns.get(name)
            if column is None:
                column = columns[name] = ([], [], [])
            column[0].extend([tx + start for tx in txs] if start else txs)
            column[1].extend(sizes)
            column[2].extend(rows)
    return tx_ids, query_ids, digests, columns, merge_later(delayed) if delayed else NONE_LATER


def encode_decision(app: str, blocks: Sequence[DecisionBlock]) -> bytes:
    """COMMIT or ROLLBACK of all transactions of ``blocks``, which have the same key."""
    first = blocks[0]
    tx_ids = first.tx_ids if len(blocks) == 1 else [tx_id for block in blocks for tx_id in block.tx_ids]
    indexes = [index for block in blocks for index in block.home_index or ()]
    home_group = first.home_group if indexes else -1
    if first.commit:
        return ops.commit(app, tx_ids, ops.BY_PRODUCER, indexes, home_group)
    newest = [index for block in blocks for index in block.newest_index]
    return ops.rollback(app, tx_ids, ops.BY_PRODUCER, indexes, home_group, newest_index=newest)


def encode_done(app: str, blocks: Sequence[DoneBlock]) -> bytes:
    """TX_DONE for all transactions of ``blocks``, which belong to one branch group."""
    tx_ids = [tx_id for block in blocks for tx_id in block.tx_ids]
    return ops.done(app, tx_ids, [index for block in blocks for index in block.home_index], blocks[0].group)
