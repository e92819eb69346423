"""Planted faults in feedback: silence that becomes a decision, and answers that have the wrong effect."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from escrowmq.feedback.asking import checks
from escrowmq.feedback.asking.checks import CheckTable
from escrowmq.feedback.asking.live_producers import CheckKey, Owners
from escrowmq.feedback.policy import Trouble, Verdict, judge
from escrowmq.replication.calling.answers import LockedRow
from escrowmq.replication.format import ops
from escrowmq.replication.model import TransactionState
from escrowmq.replication.state.due_queue import DueQueue
from tests.controls.planting import plant
from tests.controls.scenes import UNFENCED, world
from tests.sim.clients import broker_workload, checkers, producers

INVENTED = (
    *("invented-decision", "unstable-outcome", "G1a", "lost-write", "both-decided", "precommitted-read"),
    "unresolved",
)


@plant("feedback-decides-by-itself", *INVENTED, start=13)
def feedback_decides_by_itself(patch: pytest.MonkeyPatch) -> None:
    """A check without an answer, or with the answer UNKNOWN, is a rollback instead of being counted."""
    patch.setattr(ops, "checked", lambda app, tx_ids, reason="": ops.rollback(app, tx_ids, by="feedback"))


@plant("feedback-commits-by-itself", *INVENTED, start=30)
def feedback_commits_by_itself(patch: pytest.MonkeyPatch) -> None:
    """A check without an answer, or with the answer UNKNOWN, is a commit instead of being counted."""
    patch.setattr(ops, "checked", lambda app, tx_ids, reason="": ops.commit(app, tx_ids, by="feedback"))


@plant("unknown-is-rollback", *INVENTED, start=3)
def unknown_is_rollback(patch: pytest.MonkeyPatch) -> None:
    """A producer's UNKNOWN counts as ROLLBACK, even for a transaction that still runs."""

    def strict(state: TransactionState, trouble: Trouble, *, others: bool) -> Verdict:
        verdict = judge(state, trouble, others=others)
        return Verdict.ROLLBACK if verdict in (Verdict.COUNT, Verdict.PUT_OFF) else verdict

    patch.setattr(checks, "judge", strict)


@plant("answers-turned-round", *INVENTED, start=7)
def answers_turned_round(patch: pytest.MonkeyPatch) -> None:
    """The answer COMMITTED is carried out as a rollback, and ROLLBACK as a commit."""
    turned = {Verdict.COMMIT: Verdict.ROLLBACK, Verdict.ROLLBACK: Verdict.COMMIT}

    def wrong(*args: Any, **named: Any) -> Verdict:
        verdict = judge(*args, **named)
        return turned.get(verdict, verdict)

    patch.setattr(checks, "judge", wrong)


@plant("owner-not-asked", *INVENTED, groups=2, start=5, chaos_s=10.0, conditions=world(UNFENCED), long=True)
def owner_not_asked(patch: pytest.MonkeyPatch) -> None:
    """A check may go to any producer of the app at once, although the transaction's owner is alive."""
    patch.setattr(checks.Check, "owner", property(lambda self: ""))


@plant("checks-never-due", "unresolved", "never-checked", start=3, long=True)
def checks_never_due(patch: pytest.MonkeyPatch) -> None:
    """No check comes due, so no one is asked about a transaction whose producer died."""
    patch.setattr(DueQueue, "advance", lambda self, now_ms, budget=0: False)


@plant("owner-not-asked-first", *INVENTED)
def owner_not_asked_first(patch: pytest.MonkeyPatch) -> None:
    """A check goes to any producer of the app, even while its owner runs the local transaction."""
    locked = CheckTable.locked

    def nobodys(self: CheckTable, gid: int, rows: Iterable[LockedRow], now: float) -> None:
        locked(self, gid, [row._replace(instance="") for row in rows], now)

    patch.setattr(CheckTable, "locked", nobodys)


@plant("owner-gone-too-early", *INVENTED, start=24)
def owner_gone_too_early(patch: pytest.MonkeyPatch) -> None:
    """An owner that has no poll waiting is treated as gone."""
    patch.setattr(Owners, "gone_in_s", lambda self, instance, now: 0.0)


@plant("running-is-not-asked", *INVENTED)
def running_is_not_asked(patch: pytest.MonkeyPatch) -> None:
    """An owner's answer that the local transaction still runs is treated as "does not know"."""

    answer = CheckTable.answer

    def deaf(
        self: CheckTable, instance: str, key: CheckKey, state: TransactionState, trouble: Trouble, *rest: Any
    ) -> Any:
        return answer(
            self, instance, key, state, Trouble.BUSY if trouble is Trouble.RUNNING else trouble, *rest
        )

    patch.setattr(CheckTable, "answer", deaf)


def taken_up_while_asked(patch: pytest.MonkeyPatch) -> None:
    """Producers die often, another producer takes up their ids while someone else is asked about them, and
    queriers and databases are slow."""
    patch.setattr(producers, "DEATH", 0.1)
    patch.setattr(producers, "GIVEN", 1.0)
    patch.setattr(producers, "SLOW", 0.8)
    patch.setattr(broker_workload, "TAKEN_UP", 1.0)
    patch.setattr(broker_workload, "TAKEN_UP_S", 4.0)
    patch.setattr(checkers, "DELAYS_S", (0.5, 1.0, 1.1))


@plant(
    "rollback-under-any-prepare",
    *INVENTED,
    start=35,
    chaos_s=12.0,
    conditions=taken_up_while_asked,
    long=True,
)
def rollback_under_any_prepare(patch: pytest.MonkeyPatch) -> None:
    """A check's ROLLBACK names no PREPARE, and rolls back a transaction that another producer has taken up
    since."""
    rollback = ops.rollback
    patch.setattr(ops, "rollback", lambda app, tx_ids, by=ops.BY_PRODUCER, **_: rollback(app, tx_ids, by))
