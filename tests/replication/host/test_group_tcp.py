"""Three replicas over real TCP and real files: they elect, commit, fail over and catch up."""

from __future__ import annotations

from pathlib import Path

from tests.support.raft_group import RaftGroup
from tests.support.waiting import wait_until


def test_three_replicas_commit_and_apply_the_same_entries(tmp_path: Path) -> None:
    with RaftGroup(tmp_path) as group:
        leader = group.leader()
        outcomes = [leader.propose(b"\0command %d" % n) for n in range(200)]
        assert [o.wait() for o in outcomes] == [True] * 200
        expected = [b"\0command %d" % n for n in range(200)]
        for member in group.alive.values():
            wait_until(lambda m=member: m.commands() == expected, what="the same entries everywhere")


def test_a_follower_refuses_a_proposal_as_surely_not_logged(tmp_path: Path) -> None:
    with RaftGroup(tmp_path) as group:
        follower, _ = group.follower()
        assert follower.propose(b"\0no").wait() is False


def test_a_stopped_leader_hands_over_and_nothing_is_lost(tmp_path: Path) -> None:
    with RaftGroup(tmp_path) as group:
        first = group.leader()
        assert first.propose(b"\0before").wait() is True
        group.stop(first.rid)
        second = group.leader(timeout_s=5)
        assert second.propose(b"\0after").wait() is True
        assert second.commands() == [b"\0before", b"\0after"]

        (returned,) = group.start(first.rid)
        wait_until(
            lambda: returned.commands() == [b"\0before", b"\0after"], what="the returned replica's catch-up"
        )
