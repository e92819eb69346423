"""Simulated producers: transactions with local databases, plain sends, and deaths at every point.

A producer dies before or after its local transaction, or right after it sent a decision, and never comes
back. What it left open is then resolved by checks (checkers.py), or taken up by another producer of the app
if the application gave the id. Local transactions are short or long, and some take longer than an owner may
be silent; each is settled in the local database at its own time.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import encode_row
from escrowmq.replication.format.ops import PrepareExtra
from escrowmq.replication.model import NO_ID, ResultCode
from tests.history.events import Sent, body
from tests.sim.clients.decisions import Decision
from tests.sim.clients.desk import Call, Desk
from tests.sim.clients.ledger import ClientTx, Ledger
from tests.sim.environment.world import Violation
from tests.sim.running.coverage import Phase

PARTITIONS = (("t", 0), ("t", 1), ("u", 0))
SIZES = (1, 1, 30, 30, 60, 300, 1_500)  # segments may be 1000 bytes
BIG = 6_000
DEATH = 0.03  # at each point where a producer may die
IMPATIENCE = 0.05
GIVEN = 0.5  # share of transactions whose id the application gives, so another producer can come back with it
SLOW, SLOW_S = 0.15, 4.0  # share of local transactions that the database delays, and the longest delay
#: Share of polls after which the producer is silent, the longest silence, and the time between silences.
#: Together with the time between polls before and after it, a silence stays below ``owner_gone_s``.
SILENT, SILENT_MAX_S, HEARD_S = 0.03, 1.2, 0.5
Row = tuple[int, tuple[str, int], bytes]  # part, tp, row
#: Phases that end with the producer; the others are the broker's and the checks'.
OF_PRODUCERS = tuple(p for p in Phase if p not in (Phase.CHECK_OUT, Phase.CHECK_ANSWERED))
DONE = (ResultCode.OK, ResultCode.DUPLICATE)


class Producer:
    """One process of an app."""

    def __init__(self, name: str, app: str, desk: Desk, ledger: Ledger) -> None:
        self.name, self.app, self.alive = name, app, True
        self.desk, self.ledger = desk, ledger
        self.rng = desk.world.stream(f"producer-{name}")
        self._sequence: dict[tuple[str, int], int] = {}
        self._sending: set[tuple[str, int]] = set()
        self._big = self.rng.random() < 0.1
        self._mine: list[ClientTx] = []
        self._habits = desk.world.stream(f"habits-{name}")
        #: Its running transactions, from before the PREPARE until the decision is answered.
        self.running: set[str] = set()
        self.heard_ms = -1
        self._silent_until = 0.0

    def die(self) -> None:
        """The process is gone, with everything it had in memory."""
        self.alive = False
        self.running.clear()
        for tx in self._mine:
            if tx.producer != self.name:
                continue  # another one has taken it up
            tx.running = tx.awaits_answer = False
            self.ledger.leave(tx, *OF_PRODUCERS)
            if not tx.decided and tx.parts_durable:
                self.ledger.enter(tx, Phase.ORPHANED)

    def left_behind(self) -> list[ClientTx]:
        """Its undecided transactions."""
        return [tx for tx in self._mine if tx.producer == self.name and not tx.decided]

    def polls(self, now: float) -> bool:
        """Whether its polls arrive now. It may be paused or cut off, but never as long as an owner may be
        silent."""
        if self.alive and now >= self._silent_until + HEARD_S and self._habits.random() < SILENT:
            self._silent_until = now + SILENT_MAX_S * max(self._habits.random(), self._habits.random())
        return self.alive and now >= self._silent_until

    def _may_die(self) -> bool:
        if not self.desk.cluster.calm and self.rng.random() < DEATH:
            self.die()
        return not self.alive

    def _value(self, id: str) -> bytes:
        size = BIG if self._big and self.rng.random() < 0.1 else self.rng.choice(SIZES)
        return body(id, size)

    # -------------------------------------------------------------- transactions

    def transact(self, numbers: Sequence[int]) -> list[ClientTx]:
        """Prepare these transactions with one request, or all with two; returns them."""
        rng, topic = self.rng, self.rng.choice(("t", "t", "t", "u"))
        parts = 2 if rng.random() < 0.15 else 1
        batch, rows = [], []
        for number in numbers:
            tx_id, values = f"x{number}", []
            sent: list[Sent] = []
            for part in range(parts):
                for tp in rng.sample(PARTITIONS, rng.choice((1, 1, 2, 3))):
                    for _ in range(rng.choice((1, 1, 1, 2))):
                        id = f"{tx_id}.{len(sent)}"
                        sent.append(Sent(id, *tp))
                        values.append((part, tp, encode_row(None, self._value(id), None, tx_id)))
            tx = ClientTx(self.app, tx_id, sent, parts, self.name)
            if self._habits.random() < GIVEN:
                tx.content = topic, values
            self.ledger.transactions[self.app, tx_id] = tx
            batch.append(tx)
            rows.append(values)
        self._mine += batch
        self.running.update(tx.tx for tx in batch)
        recorder = self.ledger.recorder
        records = [recorder.invoke("prepare", app=self.app, tx=t.tx, messages=t.sent) for t in batch]
        for tx in batch:
            self.ledger.enter(tx, Phase.PREPARING)
        _Preparation(self, batch, topic, rows, records).go_on()
        return batch

    def take_up(self, tx: ClientTx) -> None:
        """The application retries an id that it gave in this process; the previous process has died, or still
        runs the transaction."""
        if not self.alive or tx.decided or tx.content is None:
            return
        if self.desk.cluster.calm:
            return  # the end waits until nothing is open and then reads: nothing new may be opened meanwhile
        tx.producer, tx.awaits_answer = self.name, True
        self._mine.append(tx)
        self.running.add(tx.tx)
        recorder, (topic, values) = self.ledger.recorder, tx.content
        record = recorder.invoke("prepare", app=self.app, tx=tx.tx, messages=tx.sent)
        _Preparation(self, [tx], topic, [values], [record]).go_on()

    def prepared(self, batch: Sequence[ClientTx]) -> None:
        """All are durable on a majority: run their local transactions."""
        for tx in batch:
            tx.prepared = True
            self.ledger.leave(tx, Phase.PREPARED, Phase.PREPARING, Phase.PREPARED_IN_PART, Phase.ORPHANED)
        if batch and not self._may_die():
            self._run_locally(batch)

    def _run_locally(self, batch: Sequence[ClientTx]) -> None:
        rng = self.rng
        duration = rng.choice((0.0, 0.02, 0.1, 0.1)) if rng.random() < 0.8 else 0.4 + 1.5 * rng.random()
        if self._habits.random() < SLOW:
            duration += SLOW_S * self._habits.random()  # a lock wait
        settles_at = duration * rng.random()
        for tx in batch:
            tx.running = True
            if not tx.decided:
                self.ledger.enter(tx, Phase.LOCAL)
            self.desk.later(settles_at, self._settle, tx)
        self.desk.later(duration, self._local_done, batch)

    def _settle(self, tx: ClientTx) -> None:
        if self.alive:
            wanted = "ROLLBACK" if self.rng.random() < 0.25 else "COMMITTED"
            self.ledger.settle_locally(self.app, tx.tx, wanted)

    def _local_done(self, batch: Sequence[ClientTx]) -> None:
        if not self.alive or self._may_die():
            return
        for tx in batch:
            tx.running = False
            self.ledger.leave(tx, Phase.LOCAL)
        for outcome, chosen in self._as_stands(batch):
            once = self.rng.random() < 0.15
            self._decide(chosen, outcome, once)
            if self._may_die():
                return

    def give_up(self, batch: Sequence[ClientTx]) -> None:
        """No answer to the PREPARE in time: the local transaction does not run, and this rolls back,
        unless it was taken up and the previous process has run it."""
        for outcome, chosen in self._as_stands(batch):
            self._decide(chosen, outcome, once=False)

    def _as_stands(self, batch: Sequence[ClientTx]) -> list[tuple[str, list[ClientTx]]]:
        """The transactions by their outcome in the database; those without a row were rolled back."""
        outcomes = {tx: self.ledger.settle_locally(self.app, tx.tx, "ROLLBACK") for tx in batch}
        chosen = [(o, [tx for tx in batch if outcomes[tx] == o]) for o in ("COMMITTED", "ROLLBACK")]
        return [(outcome, of_it) for outcome, of_it in chosen if of_it]

    def _decide(self, batch: Sequence[ClientTx], outcome: str, once: bool) -> None:
        ids = [tx.tx for tx in batch]

        def over() -> None:
            self.running.difference_update(ids)

        Decision(self.desk, self.ledger, batch, outcome, "producer", lambda: self.alive, once=once, then=over)
        if once:
            over()

    # -------------------------------------------------------------- plain messages

    def send(self, number: int) -> None:
        """Send one batch to a partition, with the next sequence number, if none is in flight."""
        tp = self.rng.choice(PARTITIONS)
        if tp in self._sending:
            return
        ids = [f"m{number}.{n}" for n in range(self.rng.choice((1, 1, 3)))]
        recorder = self.ledger.recorder
        op = recorder.invoke("send", producer=self.name, messages=[Sent(id, *tp) for id in ids])
        sequence = self._sequence.get(tp, 0)
        self._sending.add(tp)

        def stored(results: list[Any]) -> None:
            result = results[0]
            if result[0] not in DONE:
                raise Violation(
                    f"batch {sequence} of {self.name} for {tp} was answered {result}", "unexpected-answer"
                )
            self._sending.discard(tp)
            self._sequence[tp] = sequence + 1
            base = result[1][0]
            recorder.ok(op, places=[[*tp, base + n] for n in range(len(ids))])

        rows = [encode_row(None, self._value(id), None, None) for id in ids]
        request = ops.message(*tp, self.name, 0, sequence, rows)
        self.desk.call(request, stored, lambda: self.alive)


class _Preparation:
    """The requests of a PREPARE, in sequence; sometimes the producer gives up waiting."""

    def __init__(
        self,
        producer: Producer,
        batch: Sequence[ClientTx],
        topic: str,
        rows: Sequence[Sequence[Row]],
        records: list[int],
    ) -> None:
        self._producer, self._batch, self._topic, self._rows = producer, batch, topic, rows
        self._records = records
        self._part, self._settled = 0, set[str]()
        self._call: Call | None = None
        self._over = False
        if producer.rng.random() < IMPATIENCE:
            producer.desk.later(0.05 + producer.rng.random(), self._lose_patience)

    def go_on(self) -> None:
        producer = self._producer
        if self._over or not producer.alive:
            return
        if self._part < self._batch[0].parts:
            request = self._request()
            self._call = producer.desk.call(
                request, self._answered, lambda: producer.alive, hears=self._hears
            )
            return
        self._over = True
        for op in self._records:
            producer.ledger.recorder.ok(op)
        producer.running -= self._settled
        producer.prepared([tx for tx in self._batch if tx.tx not in self._settled])

    def _hears(self, time_ms: int) -> None:
        self._producer.heard_ms = max(self._producer.heard_ms, time_ms)

    def _request(self) -> bytes:
        extra = PrepareExtra(
            instance=self._producer.name,
            given=self._batch[0].content is not None,
            heard_ms=self._producer.heard_ms,
        )
        return prepare_request(self._producer.app, self._topic, self._batch, self._rows, self._part, extra)

    def _answered(self, results: list[Any]) -> None:
        code = results[0][0]
        problems = results[0][1] if code == ResultCode.PARTIAL else []
        if any(p[1] == ResultCode.STALE for p in problems):  # retry, with the time heard just now
            self._producer.desk.later(0.01, self.go_on)
            return
        # DUPLICATE: the same bytes arrived before, and it is already decided.
        bad = [p for p in problems if p[1] != ResultCode.DUPLICATE]
        if code not in (ResultCode.OK, ResultCode.PARTIAL) or bad:
            raise Violation(f"a PREPARE was answered {results[0]}", "unexpected-answer")
        recorder = self._producer.ledger.recorder
        for number, _, state in problems:
            tx = self._batch[number]
            self._settled.add(tx.tx)  # its local transaction is not run
            recorder.ok(recorder.invoke("outcome", app=tx.app, tx=tx.tx), outcome=state)
        self._part += 1
        self.go_on()

    def _lose_patience(self) -> None:
        if self._over or not self._producer.alive:
            return
        self._over = True
        if self._call is not None:
            self._call.end()
        for op in self._records:
            self._producer.ledger.recorder.unknown(op, "no answer in time")
        self._producer.give_up(self._batch)


def prepare_request(
    app: str,
    topic: str,
    batch: Sequence[ClientTx],
    rows: Sequence[Sequence[Row]],
    part: int,
    extra: PrepareExtra,
    topic_id: int = NO_ID,
) -> bytes:
    """One part of a PREPARE of these transactions, with its messages. ``topic_id``: that of their topic."""
    columns: dict[tuple[str, int], tuple[list[int], list[int], list[bytes]]] = {}
    digests = []
    for number, values in enumerate(rows):
        digest = 0
        for of_part, tp, row in values:
            if of_part == part:
                txs, sizes, bodies = columns.setdefault(tp, ([], [], []))
                txs.append(number)
                sizes.append(len(row))
                bodies.append(row)
                digest = zlib.crc32(row, digest)
        digests.append(digest)
    request = ops.prepare(app, topic, [t.tx for t in batch], None, 0, part, digests, -1, len(columns), extra)
    return request + b"".join(ops.pre_message(*tp, *columns[tp], topic_id) for tp in columns)
