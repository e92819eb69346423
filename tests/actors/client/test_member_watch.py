"""Clients follow members that come and go: by asking those they know, or the supervisor if all are gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from escrowmq.actors.admin.admin import Admin
from escrowmq.actors.client import router
from escrowmq.actors.client.replica_calls import SUPERVISOR_RID, OnAnswer
from escrowmq.actors.client.router import ASTRAY_S, LOOK_EVERY_S, MemberWatch
from escrowmq.replication.calling.answers import MembersReport
from escrowmq.replication.calling.leader import LeaderFollower, Probing
from escrowmq.replication.calling.patience import Backoff
from escrowmq.replication.errors import EscrowMQError
from tests.support.brokers import Brokers, ClientCalls
from tests.support.waiting import wait_until

PROBING = Probing(every_s=0.1, repeat=Backoff(first_s=2.0, longest_s=8.0))


class Asked:
    """One group's follower under a watch whose questions are recorded in a list."""

    def __init__(self) -> None:
        self.follower, self.searching = LeaderFollower(3, PROBING), False
        self.calls: list[tuple[int, str, tuple[Any, ...], OnAnswer]] = []
        self.watch = MemberWatch([self], self._call, lambda work: work(), 0.0)

    def _call(self, gid: int, rid: int, method: str, args: tuple[Any, ...], done: OnAnswer) -> None:
        self.calls.append((rid, method, args, done))

    def run(self, first: float, last: float) -> list[tuple[int, str, tuple[Any, ...], OnAnswer]]:
        """Pumps ten times a second; returns what was asked meanwhile."""
        self.calls.clear()
        for tenth in range(round(first * 10), round(last * 10)):
            self.watch.pump(tenth / 10)
        return list(self.calls)


def of(version: int, *voters: int) -> MembersReport:
    return MembersReport(version=version, voters=voters)


def test_a_leader_is_asked_now_and_then_and_an_older_list_changes_nothing() -> None:
    asked = Asked()
    asked.follower.heard(1, True, 1, 0.0)
    assert not asked.run(0.0, LOOK_EVERY_S)
    ((rid, method, args, done),) = asked.run(LOOK_EVERY_S, 2 * LOOK_EVERY_S)
    assert (rid, method, args) == (1, "members", ())
    done(of(3, 1, 2, 5), None)
    assert (asked.follower.members, asked.follower.epoch) == ((1, 2, 5), 3)
    ((*_, done),) = asked.run(2 * LOOK_EVERY_S, 3 * LOOK_EVERY_S)
    done(of(2, 0, 1, 2), None)
    assert asked.follower.members == (1, 2, 5)


def test_a_list_that_may_be_cut_off_again_does_not_stand_in_the_way_of_the_true_one() -> None:
    """Two leaders have changed the members after version 4: one was deposed, and its change is in no other
    log. Its report must not be taken for the newest."""
    asked = Asked()
    asked.follower.heard(1, True, 1, 0.0)
    ((*_, done),) = asked.run(LOOK_EVERY_S, 2 * LOOK_EVERY_S)
    done(MembersReport(version=5, voters=(0, 1, 3), applied=False), None)
    ((*_, done),) = asked.run(2 * LOOK_EVERY_S, 3 * LOOK_EVERY_S)
    done(of(5, 0, 1, 4), None)
    assert asked.follower.members == (0, 1, 4)


def test_whoever_searches_in_vain_asks_the_supervisor_and_a_replica_in_turn() -> None:
    asked = Asked()
    asked.searching = True
    calls = asked.run(0.0, 4 * ASTRAY_S)
    assert [(rid == SUPERVISOR_RID, method) for rid, method, *_ in calls] == [
        (True, "members_of"),
        (False, "members"),
        (True, "members_of"),
    ]
    assert calls[0][2] == (0,)
    calls[-1][3](of(9, 7, 8), None)
    assert asked.follower.round(100.0) == [7, 8]


def test_somebody_leads_who_is_not_on_the_list() -> None:
    asked = Asked()
    asked.follower.heard(0, True, 5, 0.0)
    asked.follower.refused(0, 7, 6)
    ((rid, method, args, done),) = asked.run(0.0, 1.5 * ASTRAY_S)
    assert (rid, method, args) == (7, "members", ())
    done(of(3, 1, 2, 7), None)
    assert asked.follower.stranger is None and asked.follower.members == (1, 2, 7)


def test_an_election_is_no_reason_to_ask_nor_is_a_client_that_wants_nothing() -> None:
    asked = Asked()
    asked.searching = True
    assert not asked.run(0.0, 0.9 * ASTRAY_S)
    asked.searching = False
    asked.run(0.9 * ASTRAY_S, 2 * ASTRAY_S)
    assert len(asked.run(2 * ASTRAY_S, 10 * LOOK_EVERY_S)) <= 10


def test_a_late_answer_an_error_and_what_is_no_list_change_nothing() -> None:
    asked = Asked()
    asked.searching = True
    calls = asked.run(0.0, 4 * ASTRAY_S)
    calls[0][3](of(9, 7, 8), None)
    calls[-1][3](None, RuntimeError("no answer"))
    calls[-1][3](None, None)
    assert asked.follower.members == (0, 1, 2)


def test_a_hint_at_one_that_has_come_is_followed_once_it_is_known() -> None:
    follower = LeaderFollower(3, PROBING)
    follower.heard(0, True, 5, 0.0)
    follower.follow(2, [1, 2, 7])
    assert follower.leader == 0, "who leads is left when it says so itself"
    follower.refused(0, 7, 6)
    assert follower.leader == 7 and follower.stranger is None
    follower.failed(7)
    assert follower.round(1.0) == [1, 2, 7]
    follower.follow(3, [7])
    assert not follower.ask(7, 1.5) and follower.round(3.5) == [7]


@pytest.mark.parametrize("follows", [True, False], ids=["follows", "planted: nobody looks"])
def test_a_client_goes_on_when_all_replicas_that_it_knew_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, follows: bool
) -> None:
    monkeypatch.setattr(router, "LOOK_EVERY_S", 0.1 if follows else 1e9)
    brokers = Brokers(tmp_path)
    admin = Admin(brokers.info, timeout_s=10.0 if follows else 1.0, calls=ClientCalls(brokers))
    try:
        (group,) = brokers.groups
        admin.create_topic("t")
        for come, go in ((3, 0), (4, 1), (5, 2)):
            group.seated = (*range(come + 1),)
            group.start(come)
            group.change_members(add=[come], remove=[go], change_id=f"c{come}")
            group.leader()
            if follows:
                assert [topic.name for topic in admin.topics()] == ["t"]
                watched = admin.router.channels[0].follower
                wait_until(lambda f=watched, rid=come: rid in f.members, what="the new list")
            group.stop(go)
        if follows:
            assert [topic.name for topic in admin.topics()] == ["t"]
            wait_until(lambda: admin.router.members(0) == (3, 4, 5), what="the list without those that left")
        else:
            with pytest.raises(EscrowMQError):
                admin.topics()
    finally:
        admin.close()
        brokers.close()
