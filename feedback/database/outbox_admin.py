"""What a person does with an outbox: look at rows and shards, retry or drop rows, release a stopped shard.

Rows are retried and dropped in whole groups, because the messages of one ``send`` belong together. Rows that
have a batch number are left alone: the broker may have them. Each call is one database transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from escrowmq.feedback.database.errors import OutboxBehind, OutboxRowBusy, UnknownOutboxRow
from escrowmq.feedback.database.links import Database, Link
from escrowmq.feedback.database.outbox_statements import (
    DEAD,
    PENDING,
    OutboxStatements,
    UnreadableContent,
    message_of,
)
from escrowmq.replication.model import Message

#: Ids in one statement.
_IDS_MAX = 500


@dataclass(frozen=True, slots=True)
class OutboxEntry:
    """A row of an outbox. ``group``: hexadecimal, the same for the messages of one ``send``; ``attempts``:
    how often the broker has refused it; ``next_ms``: when it is tried again, 0: as soon as its turn comes;
    ``batch``: the number under which it is being sent now; ``error``: why it was refused last; ``message``:
    None if this version cannot read it, and then ``content`` is what the row has. Times are in ms since the
    epoch."""

    id: int
    shard: int
    group: str
    dead: bool
    attempts: int
    next_ms: int
    created_ms: int
    batch: int | None
    error: str
    message: Message | None
    content: bytes = b""


@dataclass(frozen=True, slots=True)
class OutboxShard:
    """A shard of an outbox. ``waiting``: rows that are not sent yet, and ``oldest_ms`` when the oldest of
    them was inserted (None: there is none); ``sending``: those of them that are in a batch. ``last_batch``:
    the number of the last one that was sent; ``owner``: the relay that has the shard, until ``until_ms``.
    ``stopped``: why it has stopped, or empty. Times are in ms since the epoch."""

    shard: int
    waiting: int
    sending: int
    dead: int
    oldest_ms: int | None
    last_batch: int
    owner: str
    until_ms: int
    stopped: str


class OutboxAdmin:
    """Looks at an outbox and changes it, for people."""

    def __init__(self, database: Database, statements: OutboxStatements) -> None:
        self._database, self._statements = database, statements

    def entries(self, *, dead: bool | None, limit: int, after: int) -> list[OutboxEntry]:
        """Up to ``limit`` rows with higher ids than ``after``. ``dead``: only dead ones, or only others."""
        states = {None: (PENDING, DEAD), True: (DEAD,), False: (PENDING,)}[dead]
        values = {"after": after, "most": limit}
        with self._database.checking() as link:
            return [_entry(row) for row in link.rows(self._statements.listed(states), values)]

    def chosen(self, ids: Collection[int]) -> list[OutboxEntry]:
        """The rows with these ids. Raises UnknownOutboxRow."""
        with self._database.checking() as link:
            found = [row for some in _slices(ids) for row in link.rows(self._statements.chosen(some))]
        missing = set(ids) - {int(row[0]) for row in found}
        if missing:
            raise UnknownOutboxRow(sorted(missing))
        return [_entry(row) for row in found]

    def shards(self) -> list[OutboxShard]:
        """Every shard that has rows or had a relay."""
        with self._database.checking() as link:
            counted = {int(row[0]): row[1:] for row in link.rows(self._statements.counted)}
            leases = {int(row[0]): row[1:] for row in link.rows(self._statements.leases)}
        found = []
        for shard in sorted({*counted, *leases}):
            waiting, sending, dead, oldest = counted.get(shard, (0, 0, 0, None))
            last, owner, until, stopped = leases.get(shard, (0, b"", 0, None))
            found.append(
                OutboxShard(
                    shard, int(waiting or 0), int(sending or 0), int(dead or 0),
                    None if oldest is None else int(oldest), int(last),
                    bytes(owner).decode(errors="replace"),
                    int(until), bytes(stopped or b"").decode(errors="replace"),
                )
            )  # fmt: skip
        return found

    def retry(self, ids: Collection[int]) -> int:
        """Try these rows and the rest of their groups again at once; how many rows that are."""
        return self._change(ids, self._statements.retry)

    def drop(self, ids: Collection[int]) -> int:
        """Remove these rows and the rest of their groups for good; how many rows that are."""
        return self._change(ids, self._statements.drop)

    def adopt(self, shard: int, last_batch: Callable[[], int], *, hold: bool) -> int:
        """Release a stopped shard: continue after the broker's number, and undo the batch that was being
        sent. ``last_batch``: asks the broker. ``hold``: all rows of the shard become dead, so that a person
        decides on each; otherwise they are sent, which may be for the second time. Returns how many rows
        were held, or were in the batch.

        Raises OutboxRowBusy for a shard that has not stopped."""
        found = {one.shard: one for one in self.shards()}.get(shard)
        if found is None or not found.stopped:
            raise OutboxRowBusy([], f"shard {shard} has not stopped, so there is nothing to decide")
        last = last_batch()
        statements = self._statements
        with self._changing() as link:
            if link.changed(statements.release, {"shard": shard, "last": last}) != 1:
                raise OutboxRowBusy([], f"shard {shard} was released meanwhile")
            statement = statements.hold_back if hold else statements.undo_batch
            return link.changed(statement, {"shard": shard, "error": found.stopped.encode()})

    def refuse_stopped(self) -> None:
        """Raises OutboxBehind if a shard has stopped."""
        for one in self.shards():
            if one.stopped:
                raise OutboxBehind(one.shard, one.stopped)

    def _change(self, ids: Collection[int], statement: Callable[[Sequence[int]], str]) -> int:
        asked: dict[tuple[int, str], list[int]] = {}
        for one in self.chosen(ids):
            asked.setdefault((one.shard, one.group), []).append(one.id)
        changed = 0
        with self._changing() as link:
            for (shard, group), chosen in sorted(asked.items()):
                values = {"shard": shard, "group": bytes.fromhex(group)}
                rows = link.rows(self._statements.of_group, values)
                if not rows:  # a relay has sent them since they were read
                    raise UnknownOutboxRow(chosen)
                busy = [int(id) for id, batch in rows if batch is not None]
                own = [int(id) for id, _ in rows]
                if busy:
                    raise OutboxRowBusy(
                        busy, "they are being sent now, and the broker may have them; try again in a moment"
                    )
                for some in _slices(own):
                    changed += len(some)
                    if link.changed(statement(some), {}) != len(some):
                        raise OutboxRowBusy(some, "a relay has just taken them; try again in a moment")
        return changed

    @contextmanager
    def _changing(self) -> Iterator[Link]:
        with self._database.opening() as (_, link):
            link.refuse_autocommit("a part of the change")
            try:
                yield link
            except BaseException:
                link.rollback()
                raise
            link.commit()


def _slices(ids: Collection[int]) -> Iterator[Sequence[int]]:
    listed = sorted(set(ids))
    for at in range(0, len(listed), _IDS_MAX):
        yield listed[at : at + _IDS_MAX]


def _entry(row: Sequence[Any]) -> OutboxEntry:
    id, shard, group, state, attempts, next_ms, created_ms, batch, error, content, placed = row
    why, message = bytes(error or b"").decode(errors="replace"), None
    try:
        message = message_of(bytes(content), None if placed is None else int(placed))
    except UnreadableContent as unreadable:
        why = why or str(unreadable)
    return OutboxEntry(
        int(id),
        int(shard),
        bytes(group).hex(),
        int(state) == DEAD,
        int(attempts),
        int(next_ms),
        int(created_ms),
        None if batch is None else int(batch),
        why,
        message,
        b"" if message is not None else bytes(content),
    )
