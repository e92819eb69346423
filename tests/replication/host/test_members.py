"""Members of a running group change, with real threads, sockets and files: replicas join, vote and leave."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from escrowmq.replication.calling.answers import Reply
from escrowmq.replication.errors import Superseded, Unavailable
from escrowmq.replication.host.replica_process import _Opening
from escrowmq.replication.host.replica_setup import PeerList
from escrowmq.replication.log.datadir import LEARNER, MEMBERS, Marks
from escrowmq.replication.log.disk import RealDisk
from escrowmq.replication.raft.members import Act, Step
from escrowmq.replication.raft.replicator import Replicator
from tests.support.asking import Asked
from tests.support.broker_group import BrokerGroup, Member, texts
from tests.support.waiting import wait_until

#: Long enough for anything unhindered on a busy machine; short, since tests also wait for it in vain.
IN_VAIN_S = 1.0


def voters(group: BrokerGroup) -> set[tuple[int, ...]]:
    return {tuple(member.parts.members.members().voters) for member in group.alive.values()}


def bring(group: BrokerGroup, rid: int) -> Member:
    group.seated = tuple(sorted({*range(group.replicas), *group.seated, rid}))
    (member,) = group.start(rid)
    return member


def asking(member: Member) -> Callable[[str, list[int], list[int]], Reply]:
    """Asks for a step as a caller that has just looked at the members."""
    members = member.parts.members
    return lambda change_id, add, remove: members.change(change_id, add, remove, members.members().version)


def assert_peers(member: Member, rids: set[int]) -> None:
    """The members, and no other replicas, are asked for entries and told of incarnations."""
    wait_until(lambda: set(map(int, member.host.setup.peers)) == rids, 5.0, f"the peers {rids}")


def test_a_replica_that_is_lost_is_replaced_by_another_number(group: BrokerGroup) -> None:
    group.leader()
    lost = group.a_follower()
    group.stop(lost)
    newcomer = bring(group, 3)
    done = group.change_members(add=[3], remove=[lost])
    assert set(done.voters) == {0, 1, 2, 3} - {lost}
    assert (done.version, done.highest, done.change_id, done.applied) == (4, 3, "c", True)
    assert not newcomer.parts.running.learner
    wait_until(lambda: voters(group) == {tuple(done.voters)}, what="that all know it")
    group.publish("after")
    assert texts(newcomer, 2) == ["before", "after"]
    assert_peers(newcomer, {0, 1, 2} - {lost})
    group.stop(group.leader().rid)  # and the newcomer counts: two of three are left
    group.publish("later")
    assert texts(newcomer, 3) == ["before", "after", "later"]


def test_one_that_would_wait_for_the_replica_that_it_replaces_never_gets_to_vote(
    group: BrokerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault: a newcomer is taken for a replica that has lost its disk."""
    monkeypatch.setattr(_Opening, "_forgive_newcomer", lambda self, found: None)
    lost = group.a_follower()
    group.stop(lost)
    newcomer = bring(group, 3)
    with pytest.raises(AssertionError, match="WAIT"):
        group.change_members(add=[3], remove=[lost], timeout_s=IN_VAIN_S)
    assert newcomer.parts.running.learner


def test_a_newcomer_that_votes_already_and_has_lost_its_disk_does_not_begin_as_if_nothing_were(
    group: BrokerGroup,
) -> None:
    """The supervisor says nothing, and the log that it copies calls it a voter."""
    setup = bring(group, 3).host.setup
    group.change_members(add=[3])
    group.stop(3)
    shutil.rmtree(setup.data_dir)
    group.alive[3] = member = Member(replace(setup))
    member.open()
    wait_until(lambda: isinstance(group.ended.get(3), Superseded), what="the refusal")
    assert member.parts.running.learner and Marks(RealDisk(setup.data_dir)).read(LEARNER)


@pytest.mark.parametrize("asks", [True, False], ids=["asks", "planted: it trusts the log that it has copied"])
def test_a_newcomer_does_not_trust_the_log_of_a_leader_who_may_be_none(
    group: BrokerGroup, monkeypatch: pytest.MonkeyPatch, asks: bool
) -> None:
    """The leader's log says that it never voted. A majority must have answered the leader before that
    counts."""
    if not asks:
        monkeypatch.setattr(_Opening, "_ask_who_leads", lambda self: True)
    monkeypatch.setattr(Replicator, "leads_since", lambda self, check: False)  # it was deposed
    group.seated = (0, 1, 2, 3)
    member = group.create(3)
    if not asks:
        member.host.open(IN_VAIN_S)
        assert Marks(RealDisk(group.path / "r3")).read(LEARNER) is None
        return
    with pytest.raises(Unavailable, match="no leader that a majority has answered"):
        member.host.open(IN_VAIN_S)
    assert Marks(RealDisk(group.path / "r3")).read(LEARNER)
    monkeypatch.undo()  # now there is a leader again: it may be asked once more
    member.host.open(10.0)
    assert Marks(RealDisk(group.path / "r3")).read(LEARNER) is None


def test_a_newcomer_with_an_empty_disk_counts_again_as_a_further_incarnation(group: BrokerGroup) -> None:
    setup = bring(group, 3).host.setup
    group.change_members(add=[3])
    group.stop(3)
    shutil.rmtree(setup.data_dir)
    (member,) = group.start(3)
    wait_until(lambda: not member.parts.running.learner, what="a full member")
    assert texts(member, 1) == ["before"]


def test_without_a_leader_an_empty_newcomer_does_not_begin(group: BrokerGroup) -> None:
    group.seated = (0, 1, 2, 3)
    for rid in range(3):
        group.stop(rid)
    with pytest.raises(Unavailable, match="no leader"):
        group.create(3).host.open(0.3)


def test_a_replica_that_was_away_while_all_others_were_replaced_is_told_of_them(group: BrokerGroup) -> None:
    """None of the members it knows is left, and those that could send it the log are strangers to it."""
    away = group.a_follower()
    group.stop(away)
    first, second = sorted({0, 1, 2} - {away})
    for number, (come, go) in enumerate(((3, first), (4, second))):
        bring(group, come)
        done = group.change_members(add=[come], remove=[go], change_id=f"c{number}")
        group.stop(go)
    group.publish("after")
    group.seated = ()  # Ray has restarted it with the arguments of its creation
    (returned,) = group.start(away)
    time.sleep(IN_VAIN_S)
    assert returned.parts.members.members().version == 1, "it has not heard of anything"
    returned.parts.members.told(done.version, done.all)
    assert texts(returned, 2) == ["before", "after"]
    assert voters(group) == {tuple(sorted({away, 3, 4}))}
    assert_peers(returned, {3, 4})


def test_from_one_to_three_and_back(tmp_path: Path) -> None:
    with BrokerGroup(tmp_path, replicas=1) as group:
        group.topic()
        group.publish("x0")
        for rid in (1, 2):
            bring(group, rid)
            group.change_members(add=[rid], change_id=f"more-{rid}")
            group.publish(f"x{rid}")
        group.change_members(remove=[0, 1], change_id="less")  # a leader among them hands over first
        assert voters(group) >= {(2,)}
        for rid in (0, 1):
            group.stop(rid)
        group.publish("x3")
        assert texts(group.alive[2], 4) == ["x0", "x1", "x2", "x3"]


@pytest.mark.parametrize("known", [True, False], ids=["known", "planted: nobody knows"])
def test_the_only_founder_does_not_found_its_group_anew_once_it_has_others(
    tmp_path: Path, known: bool
) -> None:
    with BrokerGroup(tmp_path, replicas=1) as group:
        group.topic()
        group.publish("before")
        bring(group, 1)
        group.change_members(add=[1])
        running = group.leader().parts.running
        running.driver.submit(running.node.transfer_leadership)
        wait_until(lambda: group.alive[1].whoami()[0], 10.0, "the other one's leadership")
        group.stop(0)
        shutil.rmtree(tmp_path / "r0")
        group.had_a_leader, group.seated = known, (0, 1) if known else ()
        group.alive[0] = member = Member(replace(group.setup(0), told=()))  # as Ray restarts it
        member.open()
        if known:
            wait_until(lambda: not member.parts.running.learner, 10.0, "a full member")
            assert texts(member, 1) == ["before"]
        else:  # this is what the supervisor's knowledge is for
            wait_until(lambda: member.whoami()[0], 10.0, "a second group of the same name")
            assert not member.parts.reads.topics()[1]


def test_what_makes_no_sense_is_refused_before_it_is_in_the_log(group: BrokerGroup) -> None:
    ask = asking(group.leader())
    for change_id, add, remove in (
        ("", [3], []),
        ("c" * 201, [3], []),
        ("a\nb", [3], []),
        ("c", [-1], []),
        ("c", [3, 3], []),
        ("c", list(range(3, 40)), []),
    ):
        assert ask(change_id, add, remove)[0] == "malformed"
    status, why = ask("c", [900], [])
    assert status == "refused" and "the next replica has number 3" in why
    status, why = ask("c", [], [0, 1, 2])
    assert status == "refused" and "no voter would be left" in why
    assert ask("c", [], [])[1].act == "DONE"
    follower, _ = group.follower()
    assert asking(follower)("c", [3], [])[0] == "not_leader"


def test_what_has_to_wait_is_told_apart_from_what_is_in_vain(group: BrokerGroup) -> None:
    bring(group, 3)
    leader = group.leader()
    ask = asking(leader)
    assert ask("c", [3], [])[1].act == "ADD"
    running = leader.parts.running
    step, asked = Step(Act.PROMOTE, "3"), Asked()
    running.driver.call(lambda: running.node._changes.forget("3"))  # its rounds start again
    running.driver.call(lambda: running.node.change_members(step, "c", asked))
    assert "has not caught up yet; it has to run and to copy the log" in asked.why
    group.change_members(add=[3])
    group.change_members(remove=[3], change_id="d")
    status, why = asking(group.leader())("e", [3], [])
    assert status == "refused" and "no number is reused; the next replica has number 4" in why


def test_a_question_that_comes_late_removes_nobody_beside_who_went_instead(
    group: BrokerGroup,
) -> None:
    """Three replicas are to become two. The request to remove one was not answered, so another was removed.
    Then the first request is carried out after all, or arrives once more."""
    leader = group.leader()
    ask, seen = leader.parts.members.change, leader.parts.members.members().version
    late, instead = sorted({0, 1, 2} - {leader.rid})
    wait_until(lambda: ask("b", [], [instead], seen)[0] == "ok", 10.0, "the removal")
    status, why = ask("a", [], [late], seen)
    assert status == "not_yet" and f"not {seen}: look again" in why
    assert leader.parts.members.members().voters == sorted({leader.rid, late})
    assert ask("a", [], [late], seen + 1)[1].act == "REMOVE", "a caller that has seen the members may proceed"


def test_a_leader_hands_over_to_whom_it_is_told(group: BrokerGroup) -> None:
    leader, to = group.leader(), group.a_follower()
    refused = "replica 9 is not a voter, so it cannot lead; the voters are 0, 1, 2"
    assert leader.parts.members.hand_over(9) == ("refused", refused)
    assert group.alive[to].parts.members.hand_over(leader.rid)[0] == "not_leader"
    assert leader.parts.members.hand_over(to) == ("ok", None)
    wait_until(lambda: group.alive[to].whoami().ready, 10.0, "the other one's leadership")


def test_each_replica_notes_the_members_once_they_have_changed(group: BrokerGroup) -> None:
    """For tools that look for all directories of a group; nothing is noted while the founders are the
    members."""

    def noted() -> list[str | None]:
        return [Marks(RealDisk(m.host.setup.data_dir)).read(MEMBERS) for m in group.alive.values()]

    assert set(noted()) == {None}
    bring(group, 3)
    group.change_members(add=[3])
    wait_until(lambda: all(text and json.loads(text)["voters"] == [0, 1, 2, 3] for text in noted()))


# ------------------------------------------------------------------ the list of peers
def test_an_older_list_changes_nothing_and_nobody_is_taken_off_by_hearsay() -> None:
    peers = PeerList("0", ["0", "1", "10", "9"])
    assert list(peers) == ["1", "9", "10"], "by their numbers, without the replica itself"
    peers.tell(5, ["0", "1", "11"])
    peers.tell(4, ["12"])
    assert list(peers) == ["1", "9", "10", "11"]
    peers.follow(6, ["11", "12"])
    assert (list(peers), peers.epoch, len(peers), peers[0]) == (["11", "12"], 6, 2, "11")
    peers.tell(5, ["1"])
    assert list(peers) == ["11", "12"]


def test_whoever_goes_through_the_list_is_not_disturbed_by_a_change() -> None:
    peers = PeerList("0", ["1", "2"])
    seen = []
    for peer in peers:
        peers.follow(1, ["7"])
        seen.append(peer)
    assert seen == ["1", "2"]
