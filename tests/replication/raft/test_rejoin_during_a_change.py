"""A replica that lost its disk rejoins while its group changes members, or while its log is damaged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from escrowmq.replication.format.membership import Members
from escrowmq.replication.log.peer_marks import Incarnation, Incarnations
from escrowmq.replication.raft.members import Circle
from escrowmq.replication.raft.pysync import Core
from escrowmq.replication.raft.rejoin import Rejoin
from escrowmq.replication.raft.types import Log

APPLIED = Members(1, ("0", "1", "2"), (), "", 2)
TAIL = Members(2, ("0", "1"), (), "x", 2)  # appended by 0, not known to be committed


class FollowsZero:
    """The core of a follower of replica 0 in term 5, which has committed up to 90."""

    term, commit_index = 5, 90

    def postpone_election(self) -> None: ...

    def leader_id(self) -> str:
        return "0"


class HoldsAHundred:
    durable_index = last_index = 100

    def __init__(self, damaged: int | None = None) -> None:
        self.damaged = damaged

    def damaged_after(self, index: int) -> int | None:
        return self.damaged if self.damaged is not None and self.damaged > index else None


def learner(possible: list[Members], journal: HoldsAHundred, drop: Callable[[str], None]) -> Rejoin:
    """Replica 1, which has met a new process of 0 and an old one of 2."""
    marks = Incarnations(Incarnation(1, "new1"))
    rejoin = Rejoin(
        True, 7, Circle("1", possible), cast(Core, FollowsZero()), cast(Log, journal),
        lambda peer, message: True, lambda peer: None, self_id="1", marks=marks, drop=drop,
    )  # fmt: skip
    for peer in ("0", "2"):
        marks.admit(peer, Incarnation(0, f"old{peer}"))
        rejoin.connected(peer)
    rejoin.proved(5, 100)
    return rejoin


def answer(term: int, last_index: int, *marks: tuple[str, int, str]) -> dict[str, Any]:
    return {"nonce": 7, "term": term, "last_index": last_index, "marks": list(marks)}


@pytest.mark.parametrize("possible", [[APPLIED], [APPLIED, TAIL]], ids=["settled", "may come back"])
def test_the_answer_of_a_process_whose_place_was_taken_does_not_count(possible: list[Members]) -> None:
    """Even if its replica votes only in a configuration that may come back."""
    dropped = list[str]()
    rejoin = learner(possible, HoldsAHundred(), dropped.append)
    rejoin.answered("0", answer(5, 100, ("2", 1, "new2")))
    rejoin.answered("2", answer(4, 0))
    rejoin.tick(1.0)
    assert dropped == ["2"] and rejoin.active


@pytest.mark.parametrize(("damaged", "waits"), [(None, False), (95, True), (80, False)])
def test_a_damaged_entry_that_may_not_be_committed_is_waited_for(damaged: int | None, waits: bool) -> None:
    """A copy that cannot be read must not be counted on; a committed entry has its majority without it."""
    journal = HoldsAHundred(damaged)
    rejoin = learner([APPLIED], journal, lambda peer: None)
    rejoin.answered("0", answer(5, 100))
    rejoin.answered("2", answer(4, 0))
    rejoin.tick(1.0)
    assert rejoin.active is waits
    journal.damaged = None
    rejoin.tick(2.0)
    assert not rejoin.active
