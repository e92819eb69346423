"""A group raises its format level by itself, when all replicas of all groups know the next one; never
back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from escrowmq.replication.calling.answers import LevelReport
from escrowmq.replication.errors import UnknownVersion
from escrowmq.replication.format import codec, ops
from escrowmq.replication.format.codec import OpType, PrepareExtra
from escrowmq.replication.host import running_replica
from escrowmq.replication.replica import replica
from escrowmq.replication.replica.replica import ahead_of, next_level
from escrowmq.replication.state import machine, snapshot
from tests.support.broker_group import BrokerGroup
from tests.support.single import Single
from tests.support.waiting import wait_until

NEW, OLD = LevelReport(2, 1), LevelReport(1, 1)
#: Types and versions that came with level 6.
OF_LEVEL_6 = (
    (OpType.MESSAGE, 3),
    (OpType.PRE_MESSAGE, 2),
    (OpType.CREATE_TOPIC, 3),
    (OpType.DELETE_TOPIC, 2),
    (OpType.ALTER_TOPIC, 3),
    (OpType.TRIM, 2),
    (OpType.DELETE_GROUP, 1),
)
HIGHEST = (machine.LEVEL_MAX, machine.LEVEL_MAX)


def test_the_next_level_needs_every_replica_of_every_group() -> None:
    assert next_level(1, [NEW] * 6) == 2
    assert next_level(1, [*[NEW] * 5, None]) is None, "no answer, or software that does not know the question"
    assert next_level(1, [NEW, OLD]) is None
    assert next_level(1, []) is None, "nobody to ask"
    assert next_level(2, [LevelReport(2, 2)] * 3) is None
    assert next_level(2, [LevelReport(3, 2), LevelReport(3, 1)]) is None, "a group is still on its way to 2"
    assert next_level(2, [LevelReport(3, 2), LevelReport(3, 3)]) == 3
    assert next_level(1, [LevelReport(3, 1)] * 3) == 2, "one by one"


def test_group_0_gives_topics_ids_once_every_replica_of_every_other_group_takes_them() -> None:
    before, after = LevelReport(6, 5), LevelReport(6, 6)
    found: dict[tuple[int, int], LevelReport | None] = {(g, r): before for g in range(3) for r in range(3)}

    def raises(gid: int) -> bool:
        return next_level(5, list(found.values()), ahead_of(gid, found)) == 6

    assert [raises(gid) for gid in range(3)] == [False, True, True]
    found |= {(g, r): after for g in (1, 2) for r in range(3)}
    assert raises(0)
    for late in before, None:
        found[2, 1] = late
        assert not raises(0)
    assert next_level(3, [LevelReport(6, 3)] * 6, [LevelReport(6, 3)] * 3) == 4, "no ids before level 6"


def test_who_holds_group_0_back_is_reported() -> None:
    told, raised = list[str](), list[Any]()
    state = SimpleNamespace(level=5, topics=SimpleNamespace(gid=0))
    found = {(0, 0): LevelReport(6, 5), (1, 0): LevelReport(6, 6), (1, 1): LevelReport(6, 5)}
    watch = running_replica.LevelWatch(
        cast(Any, SimpleNamespace(state=state, raise_level=lambda *reports: raised.append(reports))),
        leads=lambda: True,
        later=lambda fn: fn(),
        ask=lambda: found,
        report=told.append,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running_replica, "ASK_S", 0.01)
        patch.setattr(running_replica, "ASK_S_MAX", 0.02)
        watch.start()
        wait_until(lambda: told, 10.0, "the report")
        assert told[0].endswith("missing: replica 1 of group 1") and not raised
        found[1, 1] = LevelReport(6, 6)
        wait_until(lambda: raised, 10.0, "the level")
    watch.stop()


def test_what_needs_level_2_is_refused_below_it_and_done_from_it_on(tmp_path: Path) -> None:
    single = Single(tmp_path)
    single.topic()
    prepare = ops.prepare("app", "t", ["x"], None, 0, 0, [1], -1, 0, PrepareExtra(instance="me"))
    requests = [prepare, ops.settings({"groups_kept": 9}), ops.rollback_under("app", ["x"], "feedback", [5])]
    assert [single.send(frame) for frame in requests] == [[("unsupported", 2)]] * 3
    assert single.submit(ops.rollback("app", ["x"])), "what level 1 knows is done"
    single.replica.raise_level([NEW, None, NEW])
    assert single.send(prepare) == [("unsupported", 2)]
    single.replica.raise_level([NEW, NEW, NEW])
    single.replica.raise_level([NEW, NEW, NEW])
    single.replica.pump(single.now_ms)
    ((status, results, time_ms),) = single.send(prepare)
    assert (status, results, time_ms) == ("ok", [[0]], single.now_ms)
    assert single.submit(ops.settings({"groups_kept": 9}))[0][0] == 0
    single.close()
    again = Single(tmp_path)
    assert (again.state.level, again.state.settings.groups_kept) == (2, 9)
    again.close()


def test_what_needs_level_3_is_refused_below_it_and_done_from_it_on(tmp_path: Path) -> None:
    single = Single(tmp_path)
    single.topic()
    alter = ops.alter_topic("t", {"retention_ms": 5})
    assert single.send(alter, ops.settings({}) + alter) == [("unsupported", 3)] * 2
    single.to_level_2()
    assert single.state.level == 2 and single.submit(ops.settings({}))[0][0] == 0
    assert single.send(alter, ops.settings({}) + alter) == [("unsupported", 3)] * 2
    single.replica.raise_level([LevelReport(3, 2), LevelReport(2, 2)])
    assert single.send(alter) == [("unsupported", 3)]
    single.to_highest_level()
    assert single.submit(alter)[0][0] == 0
    single.close()
    again = Single(tmp_path)
    assert (again.state.level, again.state.topics.topics["t"].info.retention_ms) == (machine.LEVEL_MAX, 5)
    again.close()


def test_what_needs_level_4_is_refused_below_it_and_done_from_it_on(tmp_path: Path) -> None:
    single = Single(tmp_path)
    create = ops.create_topic("t", {}, 0)
    single.to_level_2()
    single.replica.raise_level([LevelReport(3, 2)])
    assert single.submit(ops.settings({}))[0][0] == 0 and single.state.level == 3
    assert single.send(create, ops.settings({}) + create) == [("unsupported", 4)] * 2
    single.to_highest_level()
    assert single.submit(create) == [[0]]
    single.close()
    again = Single(tmp_path)
    assert (again.state.level, again.state.topics.topics["t"].info.first_group) == (machine.LEVEL_MAX, 0)
    again.close()


def test_what_needs_level_6_is_refused_below_it_and_done_from_it_on(tmp_path: Path) -> None:
    single = Single(tmp_path)
    row = codec.encode_row(None, b"x", None, None)
    create = ops.create_topic("t", {}, 0, 0)
    requests = [
        create,
        ops.delete_topic("t", 1),
        ops.alter_topic("t", {}, -1, ops.ANY_ID),
        ops.trim("t", {0: 1}, 1),
        ops.message("t", 0, "p", 0, 0, [row], -1, 1),
        ops.prepare("app", "t", ["x"], None, 0, 0, [1], -1, 1)
        + ops.pre_message("t", 0, [0], [len(row)], [row], 1),
        ops.delete_group("g", 1),
    ]
    single.to_level_2()
    for level in range(3, 6):
        single.replica.raise_level([LevelReport(level, level - 1)])
        assert single.submit(ops.settings({}))[0][0] == 0 and single.state.level == level
    assert single.send(*requests, ops.settings({}) + create) == [("unsupported", 6)] * 8
    single.to_highest_level()
    assert [single.submit(frame)[0][0] for frame in requests] == [0, 0, 3, 3, 3, 3, 2]
    assert single.submit(create) == [[0, 2]]
    single.close()
    again = Single(tmp_path)
    assert (again.state.level, again.state.topics.topics["t"].info.topic_id) == (machine.LEVEL_MAX, 2)
    again.close()


def test_a_new_group_is_at_the_highest_level_within_a_moment(tmp_path: Path) -> None:
    with BrokerGroup(tmp_path) as group:
        wait_until(
            lambda: all(m.parts.running.levels() == HIGHEST for m in group.alive.values()), 10.0, "level 3"
        )


def test_a_replica_without_an_answer_holds_the_level_back(tmp_path: Path) -> None:
    group = BrokerGroup(tmp_path)
    group.old = {2}
    with group:
        group.topic()
        group.publish("x")
        assert group.submit(ops.rollback("app", ["y"]))
        assert all(m.parts.running.levels() == (machine.LEVEL_MAX, 1) for m in group.alive.values())
        group.old = set()
        wait_until(lambda: group.leader().parts.running.levels() == HIGHEST, 15.0, "level 3")


def test_with_that_taken_away_an_older_replica_would_be_given_what_it_cannot_read(tmp_path: Path) -> None:
    def whoever_answers(level: int, reports: Sequence[LevelReport | None], *ahead: Any) -> int | None:
        return next_level(level, [report for report in reports if report is not None])

    group = BrokerGroup(tmp_path)
    group.old = {2}
    with pytest.MonkeyPatch.context() as patch, group:
        patch.setattr(running_replica, "next_level", whoever_answers)
        patch.setattr(replica, "next_level", whoever_answers)
        older = group.alive[2].parts.running
        wait_until(lambda: older.levels().applied >= 2, 10.0, "LEVEL at the older replica")


def old_software(patch: pytest.MonkeyPatch, level: int) -> None:
    """Types and versions as they were in software that knows this level as the highest; 1: none."""
    later = {kind | version << 8 for kind, version in OF_LEVEL_6}
    if level < 4:
        later |= {OpType.CREATE_TOPIC | 2 << 8}
    if level < 3:
        later |= {OpType.ALTER_TOPIC, OpType.ALTER_TOPIC | 2 << 8}
    known = {kind: decode for kind, decode in codec._decode_meta.items() if kind not in later}
    if level == 1:
        known = {kind: decode for kind, decode in known.items() if kind < 256 + OpType.TX_DONE}
        patch.setattr(snapshot, "VERSION_MAX", 1)
    patch.setattr(codec, "_decode_meta", known)
    patch.setattr(machine, "LEVEL_MAX", level)


@pytest.mark.parametrize(
    ("level", "what_it_met"),
    [(1, "type 31"), *((level, f"format level {level + 1}") for level in range(2, machine.LEVEL_MAX))],
)
def test_older_software_meets_a_newer_level_and_stops_without_harm(
    tmp_path: Path, level: int, what_it_met: str
) -> None:
    with BrokerGroup(tmp_path, replicas=1) as group:
        group.topic()
        group.publish("before")
        wait_until(lambda: group.leader().parts.running.levels() == HIGHEST, 10.0, "level 3")
        group.publish("after")
        group.stop(0)
        files = {path.name: path.read_bytes() for path in (tmp_path / "r0" / "log").glob("*.log")}
        with pytest.MonkeyPatch.context() as patch:
            old_software(patch, level)
            (member,) = group.start(0)
            ended = wait_until(lambda: group.ended.get(0), 10.0, "the end of the old software")
            assert isinstance(ended.__cause__, UnknownVersion) and what_it_met in str(ended)
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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot, "LEVEL_MAX", 1)
        with pytest.raises(UnknownVersion, match="format level 2; this software knows up to 1: upgrade it"):
            Single(tmp_path, segment_bytes=2_000)
    again = Single(tmp_path, segment_bytes=2_000)
    assert again.state.level == 2 and len(again.texts()) == 40
    again.close()
