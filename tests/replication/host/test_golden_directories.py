"""Data directories of earlier versions, opened by this one: what was written and what was open is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import PrepareExtra
from escrowmq.replication.state.machine import LEVEL_MAX
from tests.support import golden_directory as golden
from tests.support.broker_group import BrokerGroup, texts
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


@pytest.mark.parametrize("level", golden.LEVELS)
def test_everything_is_there_and_can_be_decided(tmp_path: Path, level: int) -> None:
    golden.unpack(level, tmp_path)
    logs = {file: file.read_bytes() for file in tmp_path.rglob("*.log")}
    assert len(logs) > 6 and list(tmp_path.rglob("*.snap")) and list(tmp_path.rglob("*.runs"))
    with group_over(tmp_path) as group:
        for member in group.alive.values():
            assert texts(member, len(golden.PUBLISHED)) == golden.PUBLISHED
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
        assert states(group, *golden.OPEN, "owned") == ["ROLLBACK", "COMMITTED", "COMMITTED"]


def test_a_group_of_level_1_stays_there_while_a_replica_has_the_earlier_software(tmp_path: Path) -> None:
    """The earlier software is simulated by a replica that reports no level."""
    golden.unpack(1, tmp_path)
    group = group_over(tmp_path)
    group.old = {2}
    with group:
        group.publish("more")
        assert all(member.parts.running.levels().applied == 1 for member in group.alive.values())
        assert texts(group.leader(), len(golden.PUBLISHED) + 1) == [*golden.PUBLISHED, "more"]


@pytest.mark.parametrize("level", golden.LEVELS)
def test_a_replica_that_lost_its_disk_copies_from_earlier_versions(tmp_path: Path, level: int) -> None:
    golden.unpack(level, tmp_path)
    group = group_over(tmp_path)
    group.setup(1)  # known as incarnation 0 before its disk is lost
    (tmp_path / "r1").rename(tmp_path / "lost")
    try:
        group.start(0, 2)
        group.publish("more")
        (copied,) = group.start(1)
        assert texts(copied, len(golden.PUBLISHED) + 1, 20.0) == [*golden.PUBLISHED, "more"]
    finally:
        group.close()
