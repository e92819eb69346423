"""How members never change, and who never leads. How they do is told in tests/scenarios."""

from __future__ import annotations

import pytest

from escrowmq.replication.errors import SafetyViolation
from escrowmq.replication.format.membership import Members
from tests.support.stage import OurMember, our_group


def test_no_group_changes_its_members_in_stocks_own_way() -> None:
    """With it on, stock unpickles every entry whose first byte is 2: including ours."""
    member = our_group().members["r0"]
    assert member.raft._core.conf.dynamicMembershipChange is False
    stage = our_group()
    leader = stage.elect("r0")
    with pytest.raises(Exception, match="dynamicMembershipChange is disabled"):
        leader.raft._core.addNodeToCluster("r9")
    stage.run(0.3)
    assert leader.raft.members == Members(1, ("r0", "r1", "r2"), (), "", 2)


def test_a_newcomer_that_is_elected_all_the_same_stops() -> None:
    newcomer = OurMember(our_group(), "r3", joining=True)
    with pytest.raises(SafetyViolation):
        newcomer.raft.role_changed(0, 2)
