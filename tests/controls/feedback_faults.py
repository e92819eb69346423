"""Planted faults in feedback: silence that becomes a decision, and answers that reach the wrong end."""

from __future__ import annotations

from typing import Any

import pytest

from escrowmq.feedback.asking import checks
from escrowmq.feedback.policy import Trouble, Verdict, judge
from escrowmq.replication.format import ops
from escrowmq.replication.model import TransactionState
from escrowmq.replication.state.due_queue import DueQueue
from tests.controls.planting import plant

INVENTED = (
    *("invented-decision", "unstable-outcome", "G1a", "lost-write", "both-decided", "precommitted-read"),
    "unresolved",
)


@plant("feedback-decides-by-itself", *INVENTED)
def feedback_decides_by_itself(patch: pytest.MonkeyPatch) -> None:
    """A check that nobody answers, or answers with UNKNOWN, is a rollback instead of being counted."""
    patch.setattr(ops, "checked", lambda app, tx_ids: ops.rollback(app, tx_ids, by="feedback"))


@plant("feedback-commits-by-itself", *INVENTED)
def feedback_commits_by_itself(patch: pytest.MonkeyPatch) -> None:
    """A check that nobody answers, or answers with UNKNOWN, is a commit instead of being counted."""
    patch.setattr(ops, "checked", lambda app, tx_ids: ops.commit(app, tx_ids, by="feedback"))


@plant("unknown-is-rollback", *INVENTED)
def unknown_is_rollback(patch: pytest.MonkeyPatch) -> None:
    """An UNKNOWN of a producer is taken for ROLLBACK, also that of a transaction which still runs."""

    def strict(state: TransactionState, trouble: Trouble, *, others: bool) -> Verdict:
        verdict = judge(state, trouble, others=others)
        return Verdict.ROLLBACK if verdict in (Verdict.COUNT, Verdict.PUT_OFF) else verdict

    patch.setattr(checks, "judge", strict)


@plant("answers-turned-round", *INVENTED)
def answers_turned_round(patch: pytest.MonkeyPatch) -> None:
    """The answer COMMITTED is carried out as a rollback, and ROLLBACK as a commit."""
    turned = {Verdict.COMMIT: Verdict.ROLLBACK, Verdict.ROLLBACK: Verdict.COMMIT}

    def wrong(*args: Any, **named: Any) -> Verdict:
        verdict = judge(*args, **named)
        return turned.get(verdict, verdict)

    patch.setattr(checks, "judge", wrong)


@plant("checks-never-due", "unresolved")
def checks_never_due(patch: pytest.MonkeyPatch) -> None:
    """Nothing comes due, so that a transaction whose producer died is never asked about."""
    patch.setattr(DueQueue, "advance", lambda self, now_ms, budget=0: False)
