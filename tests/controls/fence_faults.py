"""Planted faults in the fence: each must be reported as a difference between database and log."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from escrowmq.actors.producer.transactions.local_transaction import Guards
from escrowmq.feedback.database import fence as fences
from escrowmq.feedback.database import statements
from escrowmq.feedback.database.errors import FenceLost
from escrowmq.feedback.database.fence import Checking, Fence
from escrowmq.feedback.database.links import Link
from escrowmq.feedback.database.producing import Ask, ProducedTransaction, note_known
from escrowmq.feedback.database.statements import ROLLED_BACK, Dialect, Statements
from escrowmq.replication.model import TransactionState
from tests.controls.planting import plant
from tests.sim.clients import broker_workload, fenced, producers, purging
from tests.sim.clients.broker_workload import BrokerWorkload
from tests.sim.clients.fenced import FencedProducer
from tests.sim.clients.ledger import ClientTx
from tests.sim.clients.producers import Producer

SPLIT = ("fence-split",)


@plant("fence-row-outside", *SPLIT, workload="fenced", start=3, chaos_s=4.0)
def fence_row_outside(patch: pytest.MonkeyPatch) -> None:
    """The fence's row is committed in a separate transaction, whatever happens to the local one."""
    enter = Fence._enter

    def outside(self: Fence, link: Link, *transactions: ProducedTransaction) -> int:
        with self._database.opening() as (_, own):
            entered_ms = enter(self, own, *transactions)
            own.commit()
        return entered_ms

    patch.setattr(Fence, "_enter", outside)


@plant("check-without-its-insert", *SPLIT, workload="fenced", start=5, chaos_s=4.0)
def check_without_its_insert(patch: pytest.MonkeyPatch) -> None:
    """A check answers ROLLBACK where it finds no row, and inserts no row that says so."""

    def only_read(
        self: Checking,
        link: Link,
        keys: Sequence[bytes],
        by_key: dict[bytes, str],
        limit_s: float,
        own: bytes | None,
    ) -> dict[bytes, int]:
        self._begin(link, limit_s, own)
        read = self._read(link, keys)
        link.commit()
        return dict.fromkeys(keys, ROLLED_BACK) | read

    patch.setattr(Checking, "_block", only_read)


@plant("check-answers-before-its-commit", *SPLIT, workload="fenced", start=8, chaos_s=4.0)
def check_answers_before_its_commit(patch: pytest.MonkeyPatch) -> None:
    """A check rolls back what it has written, and answers as if it had committed it."""
    block = Checking._block

    def undone(self: Checking, link: Link, *rest: object) -> dict[bytes, int]:
        patch_commit, link.commit = link.commit, link.rollback  # type: ignore[method-assign]
        try:
            return block(self, link, *rest)  # type: ignore[arg-type]
        finally:
            link.commit = patch_commit  # type: ignore[method-assign]

    patch.setattr(Checking, "_block", undone)


@plant("locked-is-rolled-back", *SPLIT, workload="fenced", start=3, chaos_s=4.0)
def locked_is_rolled_back(patch: pytest.MonkeyPatch) -> None:
    """A check that has waited long enough for a local transaction answers that it is rolled back."""
    states = Checking.states

    def impatient(
        self: Checking, link: Link, tx_ids: Sequence[str], own: bytes | None = None
    ) -> list[TransactionState]:
        unknown, rolled_back = TransactionState.UNKNOWN, TransactionState.ROLLBACK
        return [rolled_back if state is unknown else state for state in states(self, link, tx_ids, own)]

    patch.setattr(Checking, "states", impatient)


@plant("local-ignores-the-check", *SPLIT, workload="fenced", start=9, chaos_s=4.0)
def local_ignores_the_check(patch: pytest.MonkeyPatch) -> None:
    """The local transaction inserts its row, and goes on if there is one already. Nor does it look at its end
    whose row that is, as it does in SQLite and MariaDB."""
    made = Statements.__init__

    def lenient(self: Statements, dialect: Dialect, table: str) -> None:
        made(self, dialect, table)
        self.enter = self.enter.replace("INSERT INTO", dialect.insert) + dialect.ignoring

    patch.setattr(Statements, "__init__", lenient)
    patch.setattr(fences, "refuse_another_transaction", lambda *_: None)


def unguarded(patch: pytest.MonkeyPatch) -> None:
    """Producers ask nobody before they decide, and hear what the fence has raised: asking would make up for
    what the fence says wrongly."""
    patch.setattr(Guards, "add", lambda self, tx_id, guard: True)
    for name in ("HIDES", "FAILS_LATE", "GIVES_UP"):
        patch.setattr(fenced, name, 0.0)
    patch.setattr(fenced, "LEAVES_GIVEN", False)


@plant("lost-commit-is-rolled-back", *SPLIT, workload="fenced", start=6, chaos_s=4.0, conditions=unguarded)
def lost_commit_is_rolled_back(patch: pytest.MonkeyPatch) -> None:
    """A database commit without an answer is treated as refused, and the messages are rolled back."""
    patch.setattr(fences, "certainly_rolled_back", lambda error: True)


def run_twice(patch: pytest.MonkeyPatch) -> None:
    """Wherever they can, two live processes run one id at the same time, and the business code often
    refuses."""
    patch.setattr(broker_workload, "TWICE", 1.0)
    patch.setattr(producers, "GIVEN", 1.0)
    patch.setattr(fenced, "FAILS", 0.5)


def run_twice_unguarded(patch: pytest.MonkeyPatch) -> None:
    """Both."""
    run_twice(patch)
    unguarded(patch)


@plant("done-is-lost", *SPLIT, workload="fenced", start=3, chaos_s=4.0, conditions=run_twice_unguarded)
def done_is_lost(patch: pytest.MonkeyPatch) -> None:
    """Every row that exists is treated as a check's, even where a local transaction of the id has
    committed."""
    lost_to = Fence._lost_to

    def blamed(self: Fence, key: bytes, tx_id: str, error: Exception) -> Exception:
        lost_to(self, key, tx_id, error)
        return FenceLost(tx_id)

    patch.setattr(Fence, "_lost_to", blamed)


@plant("failed-try-rolls-back", *SPLIT, workload="fenced", start=16, chaos_s=4.0, conditions=run_twice)
def failed_try_rolls_back(patch: pytest.MonkeyPatch) -> None:
    """An attempt that fails rolls the messages back, even where an earlier one with the same id has
    committed."""
    patch.setattr(Fence, "raise_unless_rolled_back", lambda self, tx_id, error, named: None)


def purged_often(patch: pytest.MonkeyPatch) -> None:
    """Every schedule removes old rows, and checks come late, so that many transactions stay open for longer
    than a row has to be kept."""
    patch.setattr(purging, "SHARE", 1.0)
    patch.setattr(purging, "CHECK_AFTER_MS", (12_000,))


@plant(
    "purged-while-open", *SPLIT, workload="fenced", chaos_s=10.0, conditions=purged_often, start=3, long=True
)
def purged_while_open(patch: pytest.MonkeyPatch) -> None:
    """A purge removes old rows without looking at which transactions are still open: a check then finds
    none."""
    disposable = statements.disposable
    patch.setattr(
        statements, "disposable", lambda found, app, before, needed: disposable(found, app, before, ())
    )
    patch.setattr(statements, "before_ms", lambda now_ms, keep_s, oldest: now_ms - int(keep_s * 1000))


#: Another process takes up a transaction so long after the first one has died, and begins its local one
#: so much later: together that is longer than rows are kept. Checks come only when it has taken it up.
TAKEN_UP_AFTER_S, BEGINS_AFTER_S, CHECKED_AFTER_MS = 4.5, 5.5, 5_500
BEGUN_EVERY_S = 0.1  # time between transactions, at least
DIES = 0.6  # share of committed local transactions after which their process dies


def taken_up_late(patch: pytest.MonkeyPatch) -> None:
    """Every schedule removes old rows all the time. Transactions are few. Producers often die right after the
    local transaction, and others take up what they left open when its row is old, and most of what was open
    then is settled."""
    for name, value in (("SHARE", 1.0), ("SLICES", (1000,)), ("EVERY_S", 0.05)):
        patch.setattr(purging, name, value)
    patch.setattr(purging, "CHECK_AFTER_MS", (CHECKED_AFTER_MS,))
    patch.setattr(producers, "GIVEN", 1.0)
    for name, share in (("FAILS", 0.5), ("SLOW", 0.0), ("LATE", 0.0)):
        patch.setattr(fenced, name, share)
    transact = BrokerWorkload._transact
    decide, local = FencedProducer._decide, FencedProducer._local
    next_at, again = [0.0], set[str]()

    def seldom(self: BrokerWorkload) -> None:
        now = self.desk.world.now
        if now >= next_at[0]:
            next_at[0] = now + BEGUN_EVERY_S
            transact(self)

    def dies(self: FencedProducer, batch: Sequence[ClientTx], outcome: str, once: bool) -> None:
        if outcome == "COMMITTED" and not self.desk.cluster.calm and self._luck.random() < DIES:
            self.die()
        else:
            decide(self, batch, outcome, once)

    def late(self: BrokerWorkload, dead: Producer, successor: Producer) -> None:
        for tx in dead.left_behind():
            self.desk.later(TAKEN_UP_AFTER_S, take_up, self, tx)

    def take_up(self: BrokerWorkload, tx: ClientTx) -> None:
        alive = [producer for producer in self._working if producer.alive and producer.app == tx.app]
        if alive:
            again.add(tx.tx)
            alive[0].take_up(tx)

    def begins_late(self: FencedProducer, tx: ClientTx) -> None:
        if tx.tx in again:
            self._fibres.wait(BEGINS_AFTER_S * (0.5 + 0.5 * self._luck.random()))
        local(self, tx)

    patch.setattr(BrokerWorkload, "_transact", seldom)
    patch.setattr(BrokerWorkload, "_take_up", late)
    patch.setattr(FencedProducer, "_decide", dies)
    patch.setattr(FencedProducer, "_local", begins_late)


@plant(
    *("purged-when-prepared-again", *SPLIT),
    workload="fenced",
    within=40,
    start=10,
    chaos_s=14.0,
    conditions=taken_up_late,
    long=True,
)
def purged_when_prepared_again(patch: pytest.MonkeyPatch) -> None:
    """A purge looks at the time of the oldest PREPARE, and removes the row of an open transaction that was
    prepared again since."""
    disposable = statements.disposable
    patch.setattr(
        statements, "disposable", lambda found, app, before, needed: disposable(found, app, before, ())
    )


def shaped(patch: pytest.MonkeyPatch) -> None:
    """Blocks often see other exceptions than the fence's, fail after the local transaction, or give up while
    a thread goes on."""
    for name, share in (("HIDES", 0.5), ("FAILS_LATE", 0.2), ("GIVES_UP", 0.5), ("FAILS", 0.1)):
        patch.setattr(fenced, name, share)


@plant("exception-decides", *SPLIT, workload="fenced", start=3, chaos_s=4.0, conditions=shaped)
def exception_decides(patch: pytest.MonkeyPatch) -> None:
    """What reaches the producer's block decides: the database is not asked."""
    patch.setattr(Guards, "differing", lambda self, tx_ids, wanted: {})


@plant("fence-enters-too-late", *SPLIT, workload="fenced", start=5, chaos_s=4.0, conditions=shaped)
def fence_enters_too_late(patch: pytest.MonkeyPatch) -> None:
    """A thread that its block does not wait for any more enters the fence after the decision was sent."""
    patch.setattr(Guards, "close", lambda self: None)


@plant("entered-counts-as-committed", *SPLIT, workload="fenced", start=3, chaos_s=4.0, conditions=shaped)
def entered_counts_as_committed(patch: pytest.MonkeyPatch) -> None:
    """The fence tells the transaction that the database has committed when it has written its row."""
    guard_all = fences.guard_all

    def early(transactions: Sequence[ProducedTransaction], ask: Ask) -> None:
        guard_all(transactions, ask)
        for tx in transactions:
            note_known(tx, TransactionState.COMMITTED)

    patch.setattr(fences, "guard_all", early)
