"""The rules of a change of members, on configurations alone: one voter at a time, and no id used twice."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escrowmq.replication.errors import CorruptLog, UnknownVersion
from escrowmq.replication.format.membership import (
    LEARNERS_MAX,
    NOBODY,
    VOTERS_MAX,
    Members,
    decode_members,
    encode_members,
    founding,
    id_number,
)
from escrowmq.replication.raft.members import (
    ROUNDS,
    Act,
    Circle,
    Goal,
    Rounds,
    Step,
    after,
    in_vain,
    next_step,
    not_yet,
    refusal,
)

THREE = founding(["0", "1", "2"])
CHANGES = (Act.ADD, Act.PROMOTE, Act.REMOVE, Act.DROP)


def walk(members: Members, goal: Goal, leader: str = "0") -> tuple[Members, list[str], str]:
    """Every step to the goal, with learners that catch up at once: the result, the steps, and the leader
    then."""
    done: list[str] = []
    for _ in range(50):
        step = next_step(members, goal, leader, lambda replica: True)
        if step.act is Act.DONE:
            return members, done, leader
        done.append(str(step))
        if step.act is Act.HAND_OVER:
            leader = next(voter for voter in members.voters if voter != leader)
            continue
        assert refusal(members, step, leader) is None
        members = after(members, step, goal.id)
    raise AssertionError("the change has no end")


def test_a_replacement_is_learner_then_voter_and_only_then_the_old_one_goes() -> None:
    members, done, _ = walk(THREE, Goal("x", add=("3",), remove=("1",)))
    assert done == ["add as learner 3", "make a voter 3", "remove 1"]
    assert members == Members(4, ("0", "2", "3"), (), "x", 3)


def test_a_leader_hands_over_before_it_is_removed() -> None:
    members, done, leader = walk(THREE, Goal("x", remove=("0",)))
    assert done == ["hand over", "remove 0"] and leader == "1"
    assert members.voters == ("1", "2")
    assert refusal(THREE, Step(Act.REMOVE, "0"), "0") == not_yet("0 leads; it hands over first")


def test_from_one_to_three_to_five_and_back() -> None:
    members, leader = founding(["0"]), "0"
    for add, remove in ((("1", "2"), ()), (("3", "4"), ()), ((), ("0", "2")), ((), ("1", "4"))):
        members, _, leader = walk(members, Goal("x", add, remove), leader)
    assert members.voters == ("3",) and members.highest == 4


def test_a_removed_replica_is_not_taken_again() -> None:
    members, _, _ = walk(THREE, Goal("x", remove=("2",)))
    assert members.retired("2")
    why = refusal(members, Step(Act.ADD, "2"), "0")
    assert why is not None and not why.passes and "next replica has number 3" in why.text
    assert "number 3" in in_vain(members, Goal("y", add=("2",)))
    assert next_step(members, Goal("y", add=("2",)), "0", lambda r: True).act is Act.DONE


def test_voters_and_learners_are_bounded() -> None:
    members = founding([str(n) for n in range(VOTERS_MAX)])
    for n in range(LEARNERS_MAX):
        members = after(members, Step(Act.ADD, str(VOTERS_MAX + n)), "x")
    for step in (Step(Act.ADD, "99"), Step(Act.PROMOTE, str(VOTERS_MAX))):
        why = refusal(members, step, "0")
        assert why is not None and why.passes
        assert ("2 learners" if step.act is Act.ADD else "7 voters") in why.text


@pytest.mark.parametrize("act", [Act.HAND_OVER, Act.WAIT, Act.DONE])
def test_what_changes_nothing_is_no_change(act: Act) -> None:
    assert refusal(THREE, Step(act, "1"), "0") is not None


def test_a_learner_waits_two_rounds() -> None:
    rounds = Rounds(100)
    rounds.look(99, 150)
    assert rounds.done == 0
    rounds.look(100, 180)
    assert rounds.done == 1, "it has what the leader had at first"
    rounds.look(179, 200)
    assert rounds.done == 1, "and now what came meanwhile"
    rounds.look(180, 260)
    assert rounds.done == ROUNDS == 2


def test_who_may_still_vote_is_remembered_while_a_change_is_open() -> None:
    """Otherwise a replica that lost its disk would not ask one that is standing for election with its old
    vote."""
    fewer = after(THREE, Step(Act.REMOVE, "2"), "x")
    circle = Circle("1", [THREE, fewer])
    assert (circle.voters, circle.may_vote, circle.votes) == (("0",), {"0", "2"}, True)
    circle.follow([fewer])
    assert circle.may_vote == {"0"}
    assert not Circle("3", [NOBODY]).votes


# ------------------------------------------------------------------ whatever is asked for
IDS = st.integers(0, 12).map(str)
STEPS = st.lists(st.tuples(st.sampled_from(CHANGES), IDS).map(lambda s: Step(*s)), max_size=30)


@given(STEPS, st.integers(1, 5))
def test_majorities_of_neighbours_always_meet(steps: list[Step], size: int) -> None:
    members = founding([str(n) for n in range(size)])
    gone: set[str] = set()
    for step in steps:
        if refusal(members, step, members.voters[0]) is not None:
            continue
        before, members = members, after(members, step, "x")
        assert members.version == before.version + 1 and decode_members(encode_members(members)) == members
        assert len(set(before.voters) ^ set(members.voters)) <= 1
        assert members.voters and not gone & set(members.all)
        gone |= set(before.all) - set(members.all)
        assert all(members.retired(replica) for replica in gone)
        for few in combinations(before.voters, len(before.voters) // 2 + 1):
            for many in combinations(members.voters, len(members.voters) // 2 + 1):
                assert set(few) & set(many)


@given(
    st.sets(IDS, max_size=3), st.sets(st.sampled_from(["0", "1", "2"]), max_size=3), st.sampled_from("012")
)
def test_every_goal_is_reached(add: set[str], remove: set[str], leader: str) -> None:
    new = tuple(sorted((r for r in add if id_number(r) > 2), key=int))
    if not new and len(remove) == 3:
        return
    members, _, _ = walk(THREE, Goal("x", new, tuple(sorted(remove))), leader)
    assert set(members.voters) == {"0", "1", "2", *new} - remove and not members.learners


# ------------------------------------------------------------------ bytes
def test_the_bytes_of_an_entry() -> None:
    command = encode_members(Members(2, ("0", "1"), ("2",), "a", 2))
    assert command == bytes.fromhex("02010000 95 02 92 a130 a131 91 a132 a161 02".replace(" ", ""))
    assert decode_members(command) == Members(2, ("0", "1"), ("2",), "a", 2)


@pytest.mark.parametrize(
    "members",
    [
        Members(2, ("0", "1"), ("1",), "a", 2),  # twice
        Members(2, ("0", "r0"), (), "a", 2),  # one number twice
        Members(2, ("0", "9"), (), "a", 2),  # above the highest
        Members(2, ("1", "0"), (), "a", 2),  # out of order
        Members(2, (), ("1",), "a", 2),  # nobody votes
    ],
)
def test_an_entry_that_makes_no_sense_is_refused(members: Members) -> None:
    with pytest.raises(CorruptLog):
        decode_members(encode_members(members))


def test_an_entry_of_newer_software_is_not_guessed_at() -> None:
    command = bytearray(encode_members(THREE))
    command[1] = 2
    with pytest.raises(UnknownVersion, match="upgrade"):
        decode_members(bytes(command))


@given(st.binary(max_size=60))
def test_foreign_bytes_are_no_configuration(junk: bytes) -> None:
    try:
        members = decode_members(b"\x02\x01\0\0" + junk)
    except CorruptLog:
        return
    assert decode_members(encode_members(members)) == members
