"""What the supervisor takes for a group's members, from what its replicas report."""

from __future__ import annotations

from escrowmq.cluster.supervisor.supervisor import newest, possible_voters, to_be_told
from escrowmq.replication.calling.answers import MembersReport, ReplicaReport


def told(rid: int, version: int, *voters: int, applied: bool = True, gid: int = 0) -> ReplicaReport:
    members = MembersReport(
        version=version, voters=voters, change_id="c" if version > 1 else "", applied=applied
    )
    return ReplicaReport(gid=gid, rid=rid, role="follower", members=members)


def test_the_newest_configuration_that_somebody_has_applied_counts() -> None:
    reports = [
        told(0, 3, 0, 1, 2),
        None,
        told(1, 2, 0, 1),
        told(2, 4, 0, 2, applied=False),
        told(0, 1, 7, gid=1),
    ]
    found = newest(reports)
    assert {gid: members.version for gid, members in found.items()} == {0: 3, 1: 1}


def test_one_that_is_not_applied_may_be_in_force_and_an_older_one_is_not() -> None:
    reports = [told(0, 3, 0, 1, 2), told(1, 2, 0, 1), told(2, 4, 0, 2, applied=False), told(3, 3, 0, 1, 2)]
    assert possible_voters(reports) == {0: [frozenset((0, 1, 2)), frozenset((0, 2))]}


def test_one_that_was_cut_off_and_is_still_reported_counts_for_nothing() -> None:
    """A replica reported it that is silent by now, perhaps for good: others must still be replaced."""
    reports = [told(0, 5, 0, 1, 2, 3, applied=False), told(1, 5, 0, 1, 2), told(2, 4, 0, 1, 2)]
    assert possible_voters(reports) == {0: [frozenset((0, 1, 2))]}


def test_one_that_belongs_to_no_group_yet_and_one_that_starts_say_nothing() -> None:
    nobody = told(3, 0)
    assert possible_voters([nobody, ReplicaReport(gid=0, rid=4, role="starting"), None]) == {}


def test_who_is_behind_is_told_and_in_a_group_that_never_changed_nobody() -> None:
    known = told(0, 3, 0, 1).members
    assert to_be_told(told(1, 2, 0, 1), known) and to_be_told(None, known)
    assert to_be_told(ReplicaReport(gid=0, rid=2, role="starting"), known), (
        "it may need whom it does not know"
    )
    assert not to_be_told(told(1, 3, 0, 1), known) and not to_be_told(told(1, 4, 0), known)
    assert not to_be_told(None, None) and not to_be_told(None, told(0, 1, 0, 1).members)
