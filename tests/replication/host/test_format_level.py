"""A group raises its format level by itself, when all replicas of all groups know the next one; never back.

There is one level so far, so these replicas know one more than there is (tests/support/next_level.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from escrowmq.replication.calling.answers import LevelReport
from escrowmq.replication.errors import UnknownVersion
from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import decode_ops
from escrowmq.replication.host import running_replica
from escrowmq.replication.replica import replica
from escrowmq.replication.replica.replica import ahead_of, next_level
from escrowmq.replication.replica.validation import level_needed
from escrowmq.replication.state.snapshot import NewerLevel
from tests.support.broker_group import BrokerGroup
from tests.support.next_level import NEW, NEXT, OLD, REACHED, TODAY, know_the_next_level, raise_level
from tests.support.requests import message, prepare
from tests.support.single import Single
from tests.support.waiting import wait_until

#: The operation that needs the next level.
CUT = ops.cut(["t"], 0)
REFUSAL = f"format level {NEXT}; this software knows up to {TODAY}: upgrade it"


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    know_the_next_level(monkeypatch)


def test_the_next_level_needs_every_replica_of_every_group() -> None:
    assert next_level(1, [LevelReport(2, 1)] * 6) == 2
    assert next_level(1, [*[LevelReport(2, 1)] * 5, None]) is None, "no answer"
    assert next_level(1, [LevelReport(2, 1), LevelReport(1, 1)]) is None
    assert next_level(1, []) is None, "nobody to ask"
    assert next_level(2, [LevelReport(2, 2)] * 3) is None
    assert next_level(2, [LevelReport(3, 2), LevelReport(3, 1)]) is None, "a group is still on its way to 2"
    assert next_level(2, [LevelReport(3, 2), LevelReport(3, 3)]) == 3
    assert next_level(1, [LevelReport(3, 1)] * 3) == 2, "one by one"


def test_group_0_goes_last_once_every_replica_of_every_other_group_is_there() -> None:
    found: dict[tuple[int, int], LevelReport | None] = {(g, r): NEW for g in range(3) for r in range(3)}

    def raises(gid: int) -> bool:
        return next_level(TODAY, list(found.values()), ahead_of(gid, found)) == NEXT

    assert [raises(gid) for gid in range(3)] == [False, True, True]
    found |= {(g, r): REACHED for g in (1, 2) for r in range(3)}
    assert raises(0)
    for late in NEW, None:
        found[2, 1] = late
        assert not raises(0)


def test_who_holds_group_0_back_is_reported() -> None:
    told, raised = list[str](), list[Any]()
    state = SimpleNamespace(level=TODAY, topics=SimpleNamespace(gid=0))
    found = {(0, 0): NEW, (1, 0): REACHED, (1, 1): NEW}
    watch = running_replica.LevelWatch(
        cast(Any, SimpleNamespace(state=state, raise_level=lambda *reports: raised.append(reports))),
        leads=lambda: True,
        later=lambda fn: fn(),
        ask=lambda: found,
        report=told.append,
        pauses_s=(0.01, 0.02),
    )
    watch.start()
    wait_until(lambda: told, 10.0, "the report")
    assert told[0].endswith("missing: replica 1 of group 1") and not raised
    found[1, 1] = REACHED
    wait_until(lambda: raised, 10.0, "the level")
    watch.stop()


def test_the_highest_level_of_a_request_counts() -> None:
    plain = message("t", 0, [b"x"]) + ops.delete_group("g", 1)
    assert level_needed(decode_ops(plain)) == TODAY
    assert level_needed(decode_ops(plain + CUT + ops.settings({}))) == NEXT


def test_what_needs_the_next_level_is_refused_below_it_and_done_from_it_on(tmp_path: Path) -> None:
    single = Single(tmp_path)
    single.topic()
    change = ops.settings({"groups_kept": 9})
    assert single.send(CUT, change + CUT) == [("unsupported", NEXT)] * 2
    assert single.state.settings.groups_kept != 9, "nothing of such a request is done"
    assert single.submit(ops.rollback("app", ["x"])), "what the level knows is done"
    for reports in ([NEW, None, NEW], [NEW, OLD, NEW]):
        single.replica.raise_level(reports)
        assert single.send(CUT) == [("unsupported", NEXT)]
    single.replica.raise_level([NEW, NEW, NEW])
    single.replica.raise_level([NEW, NEW, NEW])
    single.replica.pump(single.now_ms)
    assert [result[0] for result in single.submit(change + CUT)] == [0, 0]
    single.close()
    again = Single(tmp_path)
    assert (again.state.level, again.state.settings.groups_kept) == (NEXT, 9)
    assert again.submit(CUT)[0][0] == 0
    again.close()


def test_a_field_that_the_next_level_has_added_is_refused_below_it_and_the_operation_without_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops.PrepareExtra, "LEVELS", {"on_timeout": NEXT})
    single = Single(tmp_path)
    single.topic()
    later = prepare(["b"], extra=ops.PrepareExtra(on_timeout=ops.ROLLBACK))
    assert single.submit(prepare(["a"])) == [[0]]
    assert single.send(prepare(["c"]) + later) == [("unsupported", NEXT)]
    raise_level(single)
    assert single.submit(later) == [[0]]
    single.close()


def test_all_replicas_reach_the_level_within_a_moment(tmp_path: Path) -> None:
    with BrokerGroup(tmp_path) as group:
        wait_until(
            lambda: all(m.parts.running.levels() == REACHED for m in group.alive.values()), 10.0, "the level"
        )


def test_a_replica_without_an_answer_holds_the_level_back(tmp_path: Path) -> None:
    group = BrokerGroup(tmp_path)
    group.old = {2}
    with group:
        group.topic()
        group.publish("x")
        assert group.submit(ops.rollback("app", ["y"]))
        assert group.leader().parts.requests.submit(CUT) == ("unsupported", NEXT)
        assert all(m.parts.running.levels() == NEW for m in group.alive.values())
        group.old = set()
        wait_until(lambda: group.leader().parts.running.levels() == REACHED, 15.0, "the level")
        assert group.submit(CUT)[0][0] == 0


def test_with_that_taken_away_an_older_replica_would_be_given_what_it_cannot_read(tmp_path: Path) -> None:
    def whoever_answers(level: int, reports: Sequence[LevelReport | None], *ahead: Any) -> int | None:
        return next_level(level, [report for report in reports if report is not None])

    group = BrokerGroup(tmp_path)
    group.old = {2}
    with pytest.MonkeyPatch.context() as patch, group:
        patch.setattr(running_replica, "next_level", whoever_answers)
        patch.setattr(replica, "next_level", whoever_answers)
        older = group.alive[2].parts.running
        wait_until(lambda: older.levels().applied >= NEXT, 10.0, "LEVEL at the older replica")


def test_older_software_meets_a_newer_level_and_stops_without_harm(tmp_path: Path) -> None:
    with BrokerGroup(tmp_path, replicas=1) as group:
        group.topic()
        group.publish("before")
        wait_until(lambda: group.leader().parts.running.levels() == REACHED, 10.0, "the level")
        group.publish("after")
        assert group.submit(CUT)[0][0] == 0
        group.stop(0)
        files = {path.name: path.read_bytes() for path in (tmp_path / "r0" / "log").glob("*.log")}
        with pytest.MonkeyPatch.context() as patch:
            know_the_next_level(patch, TODAY)
            (member,) = group.start(0)
            ended = wait_until(lambda: group.ended.get(0), 10.0, "the end of the old software")
            assert isinstance(ended.__cause__, UnknownVersion) and REFUSAL in str(ended)
            member.stop()
        kept = {path.name: path.read_bytes() for path in (tmp_path / "r0" / "log").glob("*.log")}
        assert all(kept[name].startswith(data) for name, data in files.items()), "nothing was removed"
        group.ended.clear()
        group.start(0)
        group.publish("again")
        wait_until(lambda: len(group.leader().parts.reads.partition_bounds("t")) == 1, 10.0, "the topic")
        assert group.leader().parts.reads.partition_bounds("t") == {0: (0, 3)}


def test_a_snapshot_of_a_newer_level_is_no_damage(tmp_path: Path) -> None:
    """If it were skipped as damaged, the replica would copy its peers' log again and again."""
    single = Single(tmp_path, segment_bytes=2_000)
    single.topic()
    single.replica.raise_level([NEW])
    single.replica.pump(single.now_ms)
    for number in range(40):
        single.publish(f"x{number}", size=200)
    assert single.checkpoints.indexes
    single.close()
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.MonkeyPatch.context() as patch:
        know_the_next_level(patch, TODAY)
        assert issubclass(NewerLevel, UnknownVersion)
        with pytest.raises(NewerLevel, match=REFUSAL):
            Single(tmp_path, segment_bytes=2_000)
    assert files == {path.name: path.read_bytes() for path in tmp_path.iterdir()}, "nothing was removed"
    again = Single(tmp_path, segment_bytes=2_000)
    assert again.state.level == NEXT and len(again.texts()) == 40
    again.close()
