"""Since when a replica is away: what newcomers are given up for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
import ray

from escrowmq.cluster.supervisor import watch
from escrowmq.cluster.supervisor.member_steps import Condition, Seat
from escrowmq.cluster.supervisor.watch import StartFailure, Track, Watch
from escrowmq.replication.calling.answers import ReplicaReport

START_S = 60.0
STARTING = ReplicaReport(gid=0, rid=3, role="starting")


def created(at: float) -> Track:
    """A track as ``Watch.start`` leaves it."""
    return Track(Seat(0, 3, "n1"), condition=Condition.STARTING, begun_at=at)


def answered(track: Track) -> None:
    """Note the answer as ``Watch`` does."""
    track.question = object()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch, "ray", SimpleNamespace(get=lambda *_, **__: STARTING, exceptions=ray.exceptions))
        Watch._note(cast(Watch, None), track, 0.0)
    assert track.status is STARTING


def looked(track: Track, now: float, condition: Condition) -> float | None:
    track.condition = condition
    track.note_presence(now, START_S)
    return track.away_since


def test_a_process_that_is_being_created_is_not_away() -> None:
    """Once each newcomer was given up that a busy node took longer for than ``replace_after_s``."""
    track = created(100.0)
    assert looked(track, 101.0, Condition.SILENT) is None and looked(track, 159.0, Condition.SILENT) is None
    assert looked(track, 161.0, Condition.SILENT) == 161.0, "something is wrong with it"
    answered(track)
    assert looked(track, 170.0, Condition.STARTING) is None


def test_one_that_has_answered_is_away_as_soon_as_it_does_not() -> None:
    track = created(100.0)
    answered(track)
    assert looked(track, 101.0, Condition.STARTING) is None
    assert looked(track, 102.0, Condition.SILENT) == 102.0 and looked(track, 104.0, Condition.SILENT) == 102.0


def test_one_that_cannot_start_or_whose_node_is_missing_is_away() -> None:
    failed, lost = created(100.0), created(100.0)
    failed.failure = StartFailure("DiskFull", "no room")
    assert looked(failed, 101.0, Condition.GONE) == 101.0
    lost.node_missing_since = 101.0
    assert looked(lost, 101.0, Condition.SILENT) == 101.0
