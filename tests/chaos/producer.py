"""A producer process: ``python -m tests.chaos.producer SETTINGS``.

Several threads send transactions (blocks, callbacks, bulk) and plain messages. Local transactions run in
SQLite, some of them slowly; some fail, some are left to the check, and now and then the whole process ends at
the worst possible moment. Everything is recorded before it is sent.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from escrowmq import EscrowMQError, Message, Producer, Transaction, TransactionState, TxStatusQuerier
from escrowmq.integrations import FenceLost
from tests.chaos.client import FOUND, ClientSettings, Parent, connected, crash, say_ready, say_rested
from tests.chaos.database import Database, Refused
from tests.chaos.messages import compose, sizes
from tests.chaos.recording import Recorded
from tests.history.events import Recorder, Sent

#: The app whose transactions have no querier and no local part: an operator decides them.
ORPHANS = "orphans"
#: The times to the first check that producers request.
TIMEOUTS_S = (None, 0.5, 1.0, 3.0)


class Querier(TxStatusQuerier):
    """Answers from the database; until the round rests sometimes late, with UNKNOWN, or not at all."""

    def __init__(self, database: Database, recorder: Recorder, app: str, parent: Parent, seed: int) -> None:
        self._database, self._recorder, self._app, self._parent = database, recorder, app, parent
        self._rng = random.Random(seed)

    def query_status(self, tx_id: str, query_id: str) -> TransactionState:
        mood = 1.0 if self._parent.resting.is_set() else self._rng.random()
        if mood < 0.05:
            return TransactionState.UNKNOWN
        if mood < 0.08:
            raise RuntimeError("the database does not answer")
        if mood < 0.12:
            time.sleep(0.5)
        state = self._database.outcome(tx_id)
        op = self._recorder.invoke("decide", app=self._app, tx=tx_id, outcome=state.value, by="check")
        self._recorder.unknown(op, "answered to the check")
        return state


@dataclass(frozen=True, slots=True)
class Shop:
    """The objects that the threads of a process share."""

    settings: ClientSettings
    producer: Producer
    orphans: Producer
    database: Database
    recorded: Recorded
    parent: Parent


class Worker:
    """The work of one thread."""

    def __init__(self, shop: Shop, number: int) -> None:
        settings = shop.settings
        self.shop, self.settings, self.recorded = shop, settings, shop.recorded
        self.name = f"{settings.name}/{number}"
        self.rng = random.Random(f"{settings.seed}/{self.name}")
        self._count = 0

    def run(self) -> None:
        """Work until the parent wants rest."""
        works = (
            (self.block, 9),
            (self.callback, 4),
            (self.bulk, 2),
            (self.plain, 3),
            (self.burst, 1),
            (self.orphan, 1),
        )
        cards = [work for work, count in works for _ in range(count)]
        hand: list[Callable[[], None]] = []
        while not self.shop.parent.resting.is_set():
            # Drawn like cards, not like dice: a short run has its share of each kind too.
            hand = hand or self.rng.sample(cards, k=len(cards))
            work = hand.pop()
            # Out of these comes only what was refused before anything was sent, for want of a leader.
            with contextlib.suppress(EscrowMQError):
                work()
            self.shop.parent.resting.wait(self.rng.expovariate(1 / self.settings.pause_s))

    # -------------------------------------------------------------- transactions

    def block(self) -> None:
        """Call prepare, local transaction and decision one by one; sometimes the application gives the id."""
        sent, messages = self._messages()
        own_id = f"{self.name}-{self._count}" if self.rng.random() < 0.4 else None
        one_way = self.rng.random() < 0.05
        tx = self._open(own_id, messages, one_way)
        crash_at = self._crash_point()
        op = self.recorded.prepare(self.settings.app, tx.tx_id, sent)
        generated = None if own_id is not None else (self.settings.app, tx.tx_id)
        with self._maybe_crash_during(crash_at == "prepare"):
            prepared = self.recorded.prepared(op, tx.prepare, generated)
        if prepared == "unknown" and own_id is not None:  # the same id is the same transaction
            tx = self._open(own_id, messages, one_way)
            op = self.recorded.prepare(self.settings.app, own_id, sent)
            prepared = self.recorded.prepared(op, tx.prepare)
        if prepared != "ok":
            return
        if crash_at == "prepared":
            crash()
        outcome = self._local([tx.tx_id], crash_at)
        if outcome is None:
            tx.unknown()
            return
        decide = tx.commit if outcome is TransactionState.COMMITTED else tx.rollback
        answered = not (one_way and outcome is TransactionState.COMMITTED)
        with self._maybe_crash_during(crash_at == "decision"):
            self.recorded.decide(self.settings.app, tx.tx_id, outcome, decide, answered=answered)

    def _open(self, own_id: str | None, messages: list[Message], one_way: bool) -> Transaction:
        tx = self.shop.producer.transaction(
            tx_id=own_id,
            transaction_timeout_s=self.rng.choice(TIMEOUTS_S),
            one_way_commit=one_way,
        )
        tx.send(*messages)
        return tx

    def callback(self) -> None:
        """The same with ``send_message_in_transaction``."""
        sent, messages = self._messages()
        app, tx_id, crash_at = self.settings.app, f"{self.name}-{self._count}", self._crash_point()
        prepare = self.recorded.prepare(app, tx_id, sent)
        ended: list[tuple[int, TransactionState]] = []

        def local() -> TransactionState:
            self.recorded.recorder.ok(prepare)
            outcome = self._local([tx_id], crash_at)
            if outcome is None:
                return TransactionState.UNKNOWN
            ended.append((self.recorded.deciding(app, tx_id, outcome), outcome))
            return outcome

        def call() -> None:
            self.shop.producer.send_message_in_transaction(messages, local, tx_id=tx_id)

        with self._maybe_crash_during(crash_at in ("prepare", "decision")):
            self.recorded.callback(prepare, ended, call)

    def bulk(self) -> None:
        """Send many small transactions with one local transaction for all."""
        app, items, ops = self.settings.app, [], {}
        for _ in range(self.rng.randint(5, 20)):
            sent, messages = self._messages(
                [self.rng.randint(40, 400) for _ in range(self.rng.randint(1, 3))]
            )
            tx_id = f"{self.name}-{self._count}"
            ops[tx_id] = self.recorded.prepare(app, tx_id, sent)
            items.append((messages, tx_id, tx_id))
        crash_at = self._crash_point()
        decided: dict[str, tuple[int, TransactionState]] = {}

        def local(prepared: Any) -> TransactionState:
            ids = [tx.tx_id for tx in prepared]
            for tx_id in ids:
                self.recorded.recorder.ok(ops[tx_id])
            outcome = self._local(ids, crash_at) or TransactionState.UNKNOWN
            if outcome is not TransactionState.UNKNOWN:
                decided.update({tx: (self.recorded.deciding(app, tx, outcome), outcome) for tx in ids})
            return outcome

        with self._maybe_crash_during(crash_at in ("prepare", "decision")):
            results = self.shop.producer.send_transactions(items, local)
        self.recorded.bulk(results, decided)

    def _local(self, ids: list[str], crash_at: str) -> TransactionState | None:
        """Run the local transaction; returns its outcome, or None if this process pretends not to know it."""
        rng = self.rng
        long = rng.random() < self.settings.long_share
        time.sleep(rng.uniform(0.5, 2.5) if long else rng.uniform(0.0, 0.005))
        inside = crash if crash_at == "local" else _nothing
        hold_s = rng.uniform(0.02, self.settings.hold_max_s) if long else 0.0
        try:
            self.shop.database.run(ids, hold_s=hold_s, fails=rng.random() < 0.08, inside=inside)
        except FenceLost:
            return TransactionState.ROLLBACK
        except Refused:
            return None if rng.random() < 0.2 else TransactionState.ROLLBACK
        if crash_at == "done":
            crash()
        return None if rng.random() < 0.04 else TransactionState.COMMITTED

    def orphan(self) -> None:
        """Leave a transaction that no querier answers for; sometimes producer and operator race for it."""
        sent, messages = self._messages([self.rng.randint(40, 400) for _ in range(2)])
        tx = self.shop.orphans.transaction()
        tx.send(*messages)
        op = self.recorded.prepare(ORPHANS, tx.tx_id, sent)
        if self.recorded.prepared(op, tx.prepare, (ORPHANS, tx.tx_id)) != "ok":
            return
        if self.rng.random() < 0.5:
            tx.unknown()
            return
        time.sleep(self.rng.uniform(0.0, 1.0))
        commit = self.rng.random() < 0.5
        outcome = TransactionState.COMMITTED if commit else TransactionState.ROLLBACK
        self.recorded.decide(ORPHANS, tx.tx_id, outcome, tx.commit if commit else tx.rollback)

    # -------------------------------------------------------------- plain messages

    def burst(self) -> None:
        """Send many small plain messages at once."""
        self.plain([self.rng.randint(40, 120) for _ in range(self.rng.randint(10, 40))])

    def plain(self, wanted: list[int] | None = None) -> None:
        """Send plain messages, each its own operation; their order within a thread must be kept."""
        sent, messages = self._messages(wanted)
        waiting: list[tuple[int, Future[Any]]] = []
        for one, message in zip(sent, messages, strict=True):
            op = self.recorded.recorder.invoke("send", producer=self.name, messages=[one])
            try:
                waiting.append((op, self.shop.producer.send(message)))
            except EscrowMQError as error:
                self.recorded.recorder.fail(op, repr(error))
        for op, future in waiting:
            self.recorded.stored(op, future)

    # -------------------------------------------------------------- parts

    def _messages(self, wanted: list[int] | None = None) -> tuple[list[Sent], list[Message]]:
        self._count += 1
        composed = compose(
            self.rng,
            f"{self.name}-{self._count}",
            wanted or sizes(self.rng),
            self.settings.topics,
            key_prefix=f"{self.name}:",
        )
        return [sent for sent, _ in composed], [message for _, message in composed]

    def _crash_point(self) -> str:
        if self.rng.random() >= self.settings.crashes:
            return ""
        return self.rng.choice(["prepare", "prepared", "local", "done", "decision"])

    @contextlib.contextmanager
    def _maybe_crash_during(self, crashes: bool) -> Any:
        """Perhaps end the process a few milliseconds into the call inside the ``with`` block."""
        timer = threading.Timer(self.rng.uniform(0.0, 0.01), crash) if crashes else None
        if timer is not None:
            timer.start()
        yield
        if timer is not None:
            timer.join()


def _nothing() -> None:
    pass


def main() -> int:
    """Run until the parent closes the standard input."""
    settings = ClientSettings(**json.loads(sys.argv[1]))
    parent = Parent()
    recorder = settings.recorder()
    database = Database(Path(settings.directory) / f"{settings.app}.db", fenced=settings.fenced)
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(connected(settings))
        querier = Querier(database, recorder, settings.app, parent, settings.seed)
        producer = cluster.producer(app=settings.app, tx_status_querier=querier, **settings.options)
        stack.enter_context(producer)
        orphans = stack.enter_context(cluster.producer(app=ORPHANS, **settings.options))
        shop = Shop(settings, producer, orphans, database, Recorded(recorder), parent)
        workers = [
            threading.Thread(target=_work, args=(shop, n), daemon=True) for n in range(settings.threads)
        ]
        say_ready()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        say_rested()
        parent.ending.wait()
    return 0


def _work(shop: Shop, number: int) -> None:
    """Run one worker; an error that a client must not get ends the process, with the error in its log."""
    try:
        Worker(shop, number).run()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(FOUND)


if __name__ == "__main__":
    raise SystemExit(main())
