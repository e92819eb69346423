"""Defects G, J and M: what becomes of a proposal."""

from __future__ import annotations

from typing import Any

import pytest
from pysyncobj import FAIL_REASON

from escrowmq.replication.errors import ApplyFailed, DiskFull, MessageTooLarge, Overloaded
from escrowmq.replication.raft.node import COMMAND_BYTES_MAX, RaftConfig
from tests.support.stage import Mail, Stage, our_group, stock_group


class Outcomes(list[tuple[Any, Any]]):
    """Records the arguments that ``done`` was called with."""

    def done(self, result: Any, outcome: Any) -> None:
        self.append((result, outcome))


# ------------------------------------------------------------------ G: apply raises
def test_g_stock_repeats_a_command_that_raised_for_ever_and_never_reaches_the_next() -> None:
    stage = stock_group()
    leader, outcomes = stage.elect("r0"), Outcomes()
    leader.propose(b"poison", outcomes.done)
    leader.propose(b"next", outcomes.done)
    raised = 0
    for _ in range(50):
        try:
            stage.run(0.02)
        except ValueError:
            raised += 1
    assert raised > 10
    assert leader.applied == []
    assert outcomes == [], "and nobody is told"


def test_g_ours_ends_at_the_first_failure() -> None:
    stage = our_group()
    leader, outcomes = stage.elect("r0"), Outcomes()
    leader.propose(b"poison", outcomes.done)
    leader.propose(b"next", outcomes.done)
    with pytest.raises(ApplyFailed):
        stage.run(0.5)
    leader.raft.close()  # what the driver's ``fatal`` leads to
    assert outcomes == [(None, None), (None, None)], "both unknown: the entries are in the log"
    leader.tick()
    assert leader.applied == []


# ------------------------------------------------------------------ J: too many at once
def test_j_stock_overflows_its_notification_pipe() -> None:
    stage = stock_group(1, appendEntriesUseBatch=False)
    with pytest.raises(BlockingIOError):
        for _ in range(70_000):
            stage.members["r0"].propose(b"x")


def test_j_ours_refuses_beyond_its_bound_and_takes_more_afterwards() -> None:
    stage = our_group(config=RaftConfig(outstanding_entries_max=100))
    leader, outcomes = stage.elect("r0"), Outcomes()
    for _ in range(103):
        leader.propose(b"x", outcomes.done)
    assert [(type(reason), outcome) for reason, outcome in outcomes] == [(Overloaded, False)] * 3
    stage.run(0.3)
    assert outcomes[3:] == [(b"x", True)] * 100
    assert leader.raft.outstanding_bytes == 0
    leader.propose(b"y", outcomes.done)
    stage.run(0.3)
    assert outcomes[-1] == (b"y", True)


def test_j_the_bound_counts_bytes_too() -> None:
    stage = our_group(config=RaftConfig(outstanding_bytes_max=1000))
    leader, outcomes = stage.elect("r0"), Outcomes()
    leader.propose(b"x" * 900, outcomes.done)
    leader.propose(b"x" * 900, outcomes.done)
    assert type(outcomes[0][0]) is Overloaded
    stage.run(0.3)
    assert outcomes[1][1] is True


def test_j_one_entry_is_taken_however_large_it_is() -> None:
    """Found by the simulator (seed 3): an entry above the bound was refused every time."""
    stage = our_group(config=RaftConfig(outstanding_bytes_max=1000))
    leader, outcomes = stage.elect("r0"), Outcomes()
    leader.propose(b"x" * 5000, outcomes.done)
    leader.propose(b"y", outcomes.done)
    assert type(outcomes[0][0]) is Overloaded
    stage.run(0.3)
    assert outcomes[1] == (b"x" * 5000, True)


def test_refusals_say_why() -> None:
    stage = our_group()
    leader, outcomes = stage.elect("r0"), Outcomes()
    leader.propose(bytes(COMMAND_BYTES_MAX), outcomes.done)
    leader.raft.readiness.disk_full = True
    leader.propose(b"x", outcomes.done)
    stage.members["r1"].propose(b"x", outcomes.done)
    assert [(type(reason), outcome) for reason, outcome in outcomes] == [
        (MessageTooLarge, False), (DiskFull, False), (type(None), False)
    ]  # fmt: skip


# ------------------------------------------------------------------ M: answers that never come, or mislead
def propose_on_an_isolated_leader(stage: Stage) -> tuple[Stage, Outcomes]:
    leader, outcomes = stage.elect("r0"), Outcomes()
    stage.isolate("r0")
    leader.propose(b"lonely", outcomes.done)
    stage.run(20)
    return stage, outcomes


def test_m_stock_never_answers_what_was_proposed_before_leadership_was_lost() -> None:
    _, outcomes = propose_on_an_isolated_leader(stock_group(leaderFallbackTimeout=1.0))
    assert outcomes == []


def test_m_ours_ends_it_as_unknown_when_leadership_is_lost() -> None:
    stage, outcomes = propose_on_an_isolated_leader(our_group())
    assert outcomes == [(None, None)]
    stage.heal()
    stage.run(2)
    assert outcomes == [(None, None)], "and exactly once"


def test_m_an_answer_comes_within_the_timeout_even_if_leadership_lasts() -> None:
    """r1 answers heartbeats, so the leader stays; its disk never syncs, so nothing commits."""
    stage = our_group(config=RaftConfig(proposal_timeout_s=3.0))
    leader, outcomes = stage.elect("r0"), Outcomes()
    stage.isolate("r2")
    stage.members["r1"].disk_stalls = True
    leader.propose(b"slow", outcomes.done)
    stage.run(2.5)
    assert (leader.is_leader(), outcomes) == (True, [])
    stage.run(1)
    assert (leader.is_leader(), outcomes) == (True, [(None, None)])
    stage.members["r1"].disk_stalls = False
    stage.run(0.5)
    assert leader.applied == [b"slow"]
    assert len(outcomes) == 1


def forward_and_lose_the_leader(stage: Stage) -> tuple[Stage, Outcomes]:
    """A follower is asked to accept a command; the leader that got it dies right after committing it."""
    stage.elect("r0")
    follower, outcomes = stage.members["r1"], Outcomes()
    answers: list[Mail] = []
    stage.keep = lambda mail: mail.message["type"] == "apply_command_response" and not answers.append(mail)  # type: ignore[func-returns-value]
    follower.propose(b"forwarded", outcomes.done)
    stage.run(1)
    stage.isolate("r0")
    stage.awake = {"r1", "r2"}
    stage.elect("r1")
    return stage, outcomes


def test_m_stock_reports_a_forwarded_command_as_failed_although_it_was_applied() -> None:
    stage, outcomes = forward_and_lose_the_leader(stock_group())
    assert outcomes == [(None, FAIL_REASON.LEADER_CHANGED)]
    assert stage.members["r1"].applied == [b"forwarded"]


def test_m_ours_never_forwards_so_a_refusal_means_that_nothing_was_logged() -> None:
    stage, outcomes = forward_and_lose_the_leader(our_group())
    assert outcomes == [(None, False)]
    assert stage.members["r1"].applied == []


def test_shutting_down_settles_everything() -> None:
    stage = our_group()
    leader, outcomes = stage.elect("r0"), Outcomes()
    leader.propose(b"x", outcomes.done)
    leader.raft.close()
    leader.propose(b"y", outcomes.done)
    assert outcomes == [(None, None), (None, False)]
