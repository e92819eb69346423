"""Planted faults in the fence: each must be reported as a difference between database and log."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from escrowmq.feedback.database import fence as fences
from escrowmq.feedback.database import rows
from escrowmq.feedback.database.checking import Checking
from escrowmq.feedback.database.errors import FenceLost
from escrowmq.feedback.database.fence import Fence, Transaction
from escrowmq.feedback.database.links import Link
from escrowmq.feedback.database.rows import ROLLED_BACK
from escrowmq.feedback.database.statements import Dialect, Statements
from escrowmq.replication.model import TransactionState
from tests.controls.planting import plant
from tests.sim import broker_workload, fenced, producers, purging

SPLIT = ("fence-split",)


@plant("fence-row-outside", *SPLIT, workload="fenced", start=3, chaos_s=4.0)
def fence_row_outside(patch: pytest.MonkeyPatch) -> None:
    """The fence's row is committed in a separate transaction, whatever happens to the local one."""
    enter = Fence._enter

    def outside(self: Fence, link: Link, *transactions: Transaction) -> None:
        with self._database.opening() as (_, own):
            enter(self, own, *transactions)
            own.commit()

    patch.setattr(Fence, "_enter", outside)


@plant("check-without-its-insert", *SPLIT, workload="fenced", start=3, chaos_s=4.0)
def check_without_its_insert(patch: pytest.MonkeyPatch) -> None:
    """A check answers ROLLBACK where it finds no row, and inserts no row that says so."""

    def only_read(
        self: Checking, link: Link, keys: Sequence[bytes], by_key: dict[bytes, str], limit_s: float
    ) -> dict[bytes, int]:
        self._begin(link, limit_s)
        read = self._read(link, keys)
        link.commit()
        return dict.fromkeys(keys, ROLLED_BACK) | read

    patch.setattr(Checking, "_block", only_read)


@plant("check-answers-before-its-commit", *SPLIT, workload="fenced", start=5, chaos_s=4.0)
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

    def impatient(self: Checking, link: Link, tx_ids: Sequence[str]) -> list[TransactionState]:
        unknown, rolled_back = TransactionState.UNKNOWN, TransactionState.ROLLBACK
        return [rolled_back if state is unknown else state for state in states(self, link, tx_ids)]

    patch.setattr(Checking, "states", impatient)


@plant("local-ignores-the-check", *SPLIT, workload="fenced", start=5, chaos_s=4.0)
def local_ignores_the_check(patch: pytest.MonkeyPatch) -> None:
    """The local transaction inserts its row, and goes on if there is one already."""
    made = Statements.__init__

    def lenient(self: Statements, dialect: Dialect, table: str) -> None:
        made(self, dialect, table)
        self.enter = self.enter.replace("INSERT INTO", dialect.insert) + dialect.ignoring

    patch.setattr(Statements, "__init__", lenient)


@plant("lost-commit-is-rolled-back", *SPLIT, workload="fenced", start=3, chaos_s=4.0)
def lost_commit_is_rolled_back(patch: pytest.MonkeyPatch) -> None:
    """A database commit without an answer is treated as refused, and the messages are rolled back."""
    patch.setattr(fences, "certainly_rolled_back", lambda error: True)


def run_twice(patch: pytest.MonkeyPatch) -> None:
    """Wherever they can, two live processes run one id at the same time, and the business code often
    refuses."""
    patch.setattr(broker_workload, "TWICE", 1.0)
    patch.setattr(producers, "GIVEN", 1.0)
    patch.setattr(fenced, "FAILS", 0.5)


@plant("done-is-lost", *SPLIT, workload="fenced", start=3, chaos_s=4.0, conditions=run_twice)
def done_is_lost(patch: pytest.MonkeyPatch) -> None:
    """Every row that exists is treated as a check's, even where a local transaction of the id has
    committed."""
    lost_to = Fence._lost_to

    def blamed(self: Fence, key: bytes, tx_id: str, error: Exception) -> Exception:
        lost_to(self, key, tx_id, error)
        return FenceLost(tx_id)

    patch.setattr(Fence, "_lost_to", blamed)


@plant("failed-try-rolls-back", *SPLIT, workload="fenced", start=2, chaos_s=4.0, conditions=run_twice)
def failed_try_rolls_back(patch: pytest.MonkeyPatch) -> None:
    """An attempt that fails rolls the messages back, even where an earlier one with the same id has
    committed."""
    patch.setattr(Fence, "raise_unless_rolled_back", lambda self, tx_id, error: None)


def purged_often(patch: pytest.MonkeyPatch) -> None:
    """Every schedule removes old rows, and checks come late, so that many transactions stay open for longer
    than a row has to be kept."""
    patch.setattr(purging, "SHARE", 1.0)
    patch.setattr(purging, "CHECK_AFTER_MS", (12_000,))


@plant("purged-while-open", *SPLIT, workload="fenced", chaos_s=10.0, conditions=purged_often)
def purged_while_open(patch: pytest.MonkeyPatch) -> None:
    """A purge removes old rows without looking at which transactions are still open: a check then finds none.

    A purge must also keep the row of a transaction that was prepared again. Random schedules do not find a
    case where that matters; tests/feedback/database/test_purging.py has one written by hand.
    """
    disposable = rows.disposable
    patch.setattr(rows, "disposable", lambda found, app, before, needed: disposable(found, app, before, ()))
    patch.setattr(rows, "before_ms", lambda now_ms, keep_s, oldest: now_ms - int(keep_s * 1000))
