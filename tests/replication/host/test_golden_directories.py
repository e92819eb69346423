"""Data directories of earlier versions, opened by this one: what was written and what was open is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from escrowmq.replication.format import ops
from escrowmq.replication.format.internal_topics import dead_topic
from escrowmq.replication.format.ops import PrepareExtra
from escrowmq.replication.state.machine import LEVEL_MAX, StateMachine
from tests.support import golden_directory as golden
from tests.support.broker_group import BrokerGroup, Member, texts
from tests.support.requests import APP, TOPIC, prepare
from tests.support.waiting import wait_until


def states(group: BrokerGroup, *tx_ids: str) -> list[str]:
    answer = group.leader().parts.inspection.tx_states(APP, tx_ids)
    assert answer[0] == "ok", answer
    found: list[str] = answer[1]
    return found


def group_over(path: Path) -> BrokerGroup:
    group = BrokerGroup(path, golden.config())
    group.had_a_leader = True
    return group


def has_the_rest(member: Member) -> None:
    """What waits, what a share group has finished and given up, and who has claimed a name."""
    state: StateMachine = member.parts.running.replica.state
    assert state.timers.counts.total == golden.WAITING
    other = state.topics.topics[golden.OTHER].partitions[0]
    pair = state.shares.get(golden.SHARES, other)
    assert pair is not None and [offset for offset in range(3) if pair.has(offset)] == [0, 1]
    assert state.topics.topics[dead_topic(golden.SHARES)].partitions[0].index.end == 1
    assert state.claims.by_name[golden.NAME].epoch == golden.EPOCH


def test_there_is_one_of_format_1() -> None:
    assert "format-1" in golden.NAMES


@pytest.mark.parametrize("name", golden.NAMES)
def test_everything_is_there_and_can_be_decided(tmp_path: Path, name: str) -> None:
    golden.unpack(name, tmp_path)
    logs = {file: file.read_bytes() for file in tmp_path.rglob("*.log")}
    assert len(logs) > 6 and list(tmp_path.rglob("*.snap")) and list(tmp_path.rglob("*.runs"))
    assert list(tmp_path.rglob("*.timers"))
    with group_over(tmp_path) as group:
        for member in group.alive.values():
            assert texts(member, len(golden.PUBLISHED)) == golden.PUBLISHED
            has_the_rest(member)
        assert states(group, *golden.OPEN, golden.ROLLED_BACK) == ["PREPARE", "PREPARE", "ROLLBACK"]
        reads = group.leader().parts.reads
        assert reads.committed(golden.GROUP) == ("ok", {TOPIC: {0: golden.OFFSET}})
        group.submit(ops.commit(APP, [golden.OPEN[1]]))
        group.submit(ops.rollback(APP, [golden.OPEN[0]]))
        wait_until(
            lambda: all(m.parts.running.levels() == (LEVEL_MAX, LEVEL_MAX) for m in group.alive.values()),
            20.0,
            "the highest level",
        )
        assert group.submit(prepare(["owned"], extra=PrepareExtra(instance="me"))) == [[0]]
        group.submit(ops.commit(APP, ["owned"]))
    assert all(file.read_bytes().startswith(data) for file, data in logs.items() if file.exists())
    with group_over(tmp_path) as group:
        expected = [*golden.PUBLISHED, golden.OPEN[1], "owned"]
        for member in group.alive.values():
            assert texts(member, len(expected)) == expected
            has_the_rest(member)
        assert states(group, *golden.OPEN, "owned") == ["ROLLBACK", "COMMITTED", "COMMITTED"]


@pytest.mark.parametrize("name", golden.NAMES)
def test_a_replica_that_lost_its_disk_copies_from_earlier_versions(tmp_path: Path, name: str) -> None:
    golden.unpack(name, tmp_path)
    group = group_over(tmp_path)
    group.setup(1)  # known as incarnation 0 before its disk is lost
    (tmp_path / "r1").rename(tmp_path / "lost")
    try:
        group.start(0, 2)
        group.publish("more")
        (copied,) = group.start(1)
        assert texts(copied, len(golden.PUBLISHED) + 1, 20.0) == [*golden.PUBLISHED, "more"]
        has_the_rest(copied)
    finally:
        group.close()
