"""What is wrong with a replica, in an operator's words."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from escrowmq.actors.admin.status import problems_of, unheard_by
from escrowmq.replication.calling.answers import PeerReport, ReplicaReport, ScrubReport

MIB = 1 << 20
WELL = ReplicaReport(gid=0, rid=1, role="follower", free_bytes=900 * MIB, reserve_bytes=256 * MIB)


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (WELL, None),
        (replace(WELL, role="leader"), None),
        (None, "gives no answer"),
        (replace(WELL, role="starting"), "does not run: it starts, or is being repaired"),
        (replace(WELL, role="starting", failure="CorruptLog: x"), "does not run: CorruptLog: x"),
        (replace(WELL, superseded_by=2), "was replaced by its incarnation 2"),
        (
            replace(WELL, room_problem="it has not answered for 9 s"),
            "the free space of its file system is not known: it has not answered for 9 s",
        ),
        (
            replace(WELL, disk_full=True, free_bytes=12 * MIB),
            "its disk is full, new work is refused: 12 MiB are free, 256 MiB are kept free",
        ),
        (replace(WELL, learner=True), "copies the log, and does not count for a majority yet"),
        (
            replace(WELL, scrub=ScrubReport(damaged=3)),
            "3 entries of its log are damaged and not repaired yet",
        ),
        (replace(WELL, scrub=ScrubReport(damaged=0, mended=9)), None),
    ],
)
def test_each_is_said_in_words(report: ReplicaReport | None, said: str | None) -> None:
    assert problems_of(report, ()) == (() if said is None else (said,))


def test_who_is_silent_to_the_leader_is_not_well() -> None:
    leader = replace(WELL, rid=0, role="leader", peers=[PeerReport("1", False, 7), PeerReport("2", True, 9)])
    unheard = unheard_by(leader)
    assert problems_of(WELL, unheard) == ("the leader has no connection to it",)
    assert problems_of(replace(WELL, rid=2), unheard) == problems_of(leader, unheard) == ()
    assert unheard_by(None) == frozenset()
