"""Those on both sides of an outbox: services that put messages into it, and a person who decides.

``Rows`` is what the application knows, for the comparison at the end. The person looks into the log before
deciding about a row that a shard held back: one that is there is dropped, one that is not is sent again.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Sequence
from functools import partial

from escrowmq import EscrowMQError, Message
from escrowmq.actors.outbox.shipping import BrokerShipping, claim_name
from escrowmq.feedback.database.outbox import OUTBOX_TABLE, Outbox
from escrowmq.feedback.database.outbox_admin import OutboxEntry
from tests.history.outbox import Row
from tests.relays.cluster import VALUE_BYTES, RelayBroker
from tests.relays.database import LateRows, SteppedDatabase
from tests.relays.relay import APP
from tests.relays.turns import Turns

STABLE, CHANGING, NOWHERE = "t", "u", "nowhere"
KEYS = (b"a", b"b", b"c", None)
LARGE, TOO_LARGE, TOO_LARGE_IN_ALL = 1_500, 3_000, 6_000  # bytes; see ``relay.SIZES``
DELAY_S = 1.0
#: In worlds that have them, the share of sends that are one message equal to others of its kind.
TWINS, TWIN = 0.7, "twin"
#: So many ticks long they are of one kind: of one that is lost, a repetition of another can take the place.
TWIN_TICKS = 16


class Rows:
    """Every row that a service has ever inserted, by its value, or by a name where others have the same value
    or nobody can read it any more. ``topic``: of each; ``restored``: whether the database was, so that it has
    rows that were sent."""

    def __init__(self) -> None:
        self.known: dict[str, Row] = {}
        self.topic: dict[str, str] = {}
        self.delayed: set[str] = set()
        self.restored = False
        self._named: dict[tuple[str, int], str] = {}  # group and id -> name
        self._tick = 0

    def tick(self) -> int:
        self._tick += 1
        return self._tick

    def of(self, entries: Sequence[OutboxEntry]) -> list[Row]:
        return [self.known[self.name_of(entry)] for entry in entries]

    def give_name(self, group: str, id: int, name: str) -> None:
        self._named[group, id] = name

    def name_of(self, entry: OutboxEntry) -> str:
        given = self._named.get((entry.group, entry.id))
        if given is None:
            assert entry.message is not None, entry
            given = bytes(entry.message.value)[:VALUE_BYTES].decode().rstrip()
        return given


class Service:
    """Puts messages into the outbox: transactions that are committed, rolled back, or committed late."""

    def __init__(
        self, rows: Rows, outbox: Outbox, database: SteppedDatabase, late: LateRows, rng: random.Random
    ) -> None:
        self._rows, self._outbox, self._database, self._late, self._rng = rows, outbox, database, late, rng

    def send_twin(self) -> None:
        """One message, equal to others."""
        began = self._rows.tick()
        content = f"{TWIN}s{began // TWIN_TICKS}"
        try:
            with self._database.connection() as db:
                self._outbox.send(db, Message(STABLE, content.encode().ljust(VALUE_BYTES), KEYS[0]))
                last = f"SELECT lower(hex(tx_group)), id FROM {OUTBOX_TABLE} ORDER BY id DESC LIMIT 1"
                ((group, id),) = db.execute(last)
                db.commit()
        except sqlite3.Error:
            return
        name = f"{TWIN}{began}"
        self._rows.give_name(group, id, name)
        self._rows.known[name] = Row(name, None, began, self._rows.tick(), content=content)
        self._rows.topic[name] = STABLE

    def spoil(self, rng: random.Random) -> bool:
        """A row that waits, or is being sent, has a content that nobody can read."""
        found = [entry for entry in self._outbox.rows(limit=1000) if entry.message is not None]
        found = [entry for entry in found if not self._rows.known[self._rows.name_of(entry)].content]
        if not found:
            return False
        entry = rng.choice(found)
        name, content = self._rows.name_of(entry), rng.choice((b"", rng.randbytes(20), b"\x96\xa1t\xc0"))
        try:
            with self._database.connection() as db:
                db.execute(f"UPDATE {OUTBOX_TABLE} SET content = ? WHERE id = ?", (content, entry.id))
                db.commit()
        except sqlite3.Error:
            return False
        self._rows.give_name(entry.group, entry.id, name)
        for row in self._rows.of([one for one in self._outbox.rows(limit=1000) if one.group == entry.group]):
            row.unordered = True
        self._rows.known[name].may_miss = True
        return True

    def send(self, changing: bool) -> None:
        """One transaction, as the seed says."""
        fate = self._rng.random()
        began = self._rows.tick()
        made = [self._message(began, i, changing) for i in range(self._rng.randrange(1, 5))]
        values, messages = [value for value, _ in made], [message for _, message in made]
        try:
            if fate < 0.2:
                self._late.begin(values, messages)
                return
            with self._database.connection() as db:
                self._outbox.send(db, *messages)
                if fate < 0.3:
                    return
                db.commit()
        except sqlite3.Error:  # somebody holds the lock
            return
        done = self._rows.tick()
        for i, value in enumerate(values):  # in order among themselves, too
            row = self._rows.known[value]
            row.began += i * 0.01
            row.committed = done if i == len(values) - 1 else row.began + 0.005

    def commit_late(self) -> None:
        """One of the transactions that have their ids."""
        if not self._late.open:
            return
        try:
            self._late.commit(self._rng.randrange(len(self._late.open)), self._committed)
        except sqlite3.Error:
            return

    def _committed(self, values: Sequence[str]) -> None:
        done = self._rows.tick()
        for value in values:
            self._rows.known[value].committed = done

    def _message(self, began: int, i: int, changing: bool) -> tuple[str, Message]:
        rng, value = self._rng, f"m{began}.{i}"
        luck = rng.random()
        topic = NOWHERE if luck < 0.02 else CHANGING if luck < 0.4 and changing else STABLE
        key = rng.choice(KEYS)
        partition = 0 if key is None and rng.random() < 0.3 else None
        size = rng.random()
        bytes_ = TOO_LARGE if size < 0.015 else LARGE if size < 0.15 else VALUE_BYTES
        delay_s = DELAY_S if rng.random() < 0.03 else None
        order = None if delay_s else (topic, key, partition) if key or partition == 0 else None
        self._rows.known[value] = Row(value, order, began)
        self._rows.topic[value] = topic
        if delay_s:
            self._rows.delayed.add(value)
        return value, Message(topic, value.encode().ljust(bytes_), key, None, partition, delay_s=delay_s)


class Person:
    """Looks at an outbox now and then, in a process of its own. ``hold``: how a stopped shard is released."""

    def __init__(
        self,
        rows: Rows,
        outbox: Outbox,
        broker: RelayBroker,
        turns: Turns,
        rng: random.Random,
        *,
        hold: bool,
        count: Callable[[str], None],
    ) -> None:
        self._rows, self._outbox, self._broker, self._turns, self._rng = rows, outbox, broker, turns, rng
        self._hold, self._count = hold, count

    def work(self) -> None:
        while True:
            self._turns.pause(self._rng.randrange(5, 60))
            self.look(tidy=False)

    def look(self, *, tidy: bool) -> None:
        """``tidy``: leave nothing undecided, and touch nothing else."""
        try:
            self._release()
            self._dead(tidy=tidy)
            if not tidy and self._rng.random() < 0.3:
                self._meddle()
        except (sqlite3.Error, EscrowMQError):
            return  # busy, gone, no database, no broker: another day

    def _release(self) -> None:
        for shard in self._outbox.status():
            if not shard.stopped:
                continue
            if not self._hold:  # whatever is in the database now may be sent twice
                for row in self._rows.of(self._entries(shard.shard)):
                    row.may_repeat = row.unordered = True
            asked = BrokerShipping(self._broker.cluster, APP)
            try:
                self._outbox.desk.adopt(shard.shard, partial(asked.last_batch, shard.shard), hold=self._hold)
                self._count("released")
            finally:
                asked.close()

    def _dead(self, *, tidy: bool) -> None:
        for entries in self._groups(self._outbox.rows(dead=True, limit=1000)):
            for row in self._rows.of(entries):
                row.unordered = True
            if self._undecided(entries[0].shard):
                continue
            there = {seen.value for seen in self._broker.read()}
            topics = self._broker.topics()
            messages = [entry.message for entry in entries if entry.message is not None]
            sizes = [len(one.value) for one in messages]
            hopeless = max(sizes, default=0) >= TOO_LARGE or sum(sizes) >= TOO_LARGE_IN_ALL
            hopeless = hopeless or len(messages) < len(entries)
            hopeless = hopeless or any(one.topic not in topics for one in messages)
            if any(row.content for row in self._rows.of(entries)):
                for row in self._rows.of(entries):  # nobody can tell whether it is in the log
                    row.may_repeat = self._rows.restored
                self._outbox.retry([entries[0].id])
            elif any(self._rows.name_of(entry) in there for entry in entries):
                self._count("found in the log")
                self._outbox.drop([entries[0].id])
            elif hopeless and (tidy or self._rng.random() < 0.3):
                self._drop(entries)
            elif not hopeless:
                if not tidy and self._rng.random() < 0.15:
                    self._drop(entries)
                else:
                    self._count("retried")
                    self._outbox.retry([entries[0].id])

    def _undecided(self, shard: int) -> bool:
        """Whether something of the shard may become readable by itself."""
        self._broker.step(2 * DELAY_S)
        name = claim_name(APP, shard)
        return any(tx.query_id.startswith(f"{name}.") for tx in self._broker.open_transactions())

    def _meddle(self) -> None:
        """Rows that wait are tried at once, or dropped."""
        waiting = self._groups(self._outbox.rows(dead=False, limit=1000))
        if waiting:
            entries = self._rng.choice(waiting)
            if self._rng.random() < 0.5:
                self._outbox.retry([entries[0].id])
            else:
                self._drop(entries)

    def _drop(self, entries: Sequence[OutboxEntry]) -> None:
        rows = self._rows.of(entries)
        before = [(row.unsure, row.dropped) for row in rows]
        for row in rows:  # until it is known
            row.unsure, row.dropped = True, True
        try:
            self._outbox.drop([entries[0].id])
        except EscrowMQError:  # nothing was done
            for row, (unsure, dropped) in zip(rows, before, strict=True):
                row.unsure, row.dropped = unsure, dropped
            raise
        for row in rows:  # in a restored database it may have been sent long ago
            row.unsure = self._rows.restored
        self._count("dropped")

    def _entries(self, shard: int) -> list[OutboxEntry]:
        return [entry for entry in self._outbox.rows(limit=1000) if entry.shard == shard]

    @staticmethod
    def _groups(entries: Sequence[OutboxEntry]) -> list[list[OutboxEntry]]:
        """Rows of one ``send`` in one shard."""
        found: dict[tuple[int, str], list[OutboxEntry]] = {}
        for entry in entries:
            found.setdefault((entry.shard, entry.group), []).append(entry)
        return list(found.values())
