"""Planted faults that only a scenario tells (tests/scenarios): random schedules hardly ever show them."""

from __future__ import annotations

import pytest

from escrowmq.replication.raft.membership_changes import MembershipChanges
from escrowmq.replication.raft.pysync import Core
from escrowmq.replication.raft.rejoin import Rejoin


def counts_on_who_is_silent(patch: pytest.MonkeyPatch) -> None:
    """A voter counts for a removal by what it stored before it fell silent."""
    patch.setattr(Core, "answers", lambda self, peer: True)


def changes_before_its_own_term(patch: pytest.MonkeyPatch) -> None:
    """A leader changes members before an entry of its own term is applied: the defect of the first rules in
    the Raft thesis, as its author found it in 2015."""
    patch.setattr(MembershipChanges, "own_term_applied", lambda self: True)


def ignores_later_terms(patch: pytest.MonkeyPatch) -> None:
    """A replica that lost its disk counts again although another one is in a later term than its leader."""
    complete = Rejoin._complete

    def answers_of_one_term(self: Rejoin) -> bool:
        target = self._target
        if target is None or not self._target_is_current():
            return False
        for peer, answer in self._answers.items():
            self._answers[peer] = answer._replace(term=min(answer.term, target[1]))
        return complete(self)

    patch.setattr(Rejoin, "_complete", answers_of_one_term)
