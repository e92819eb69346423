"""An empty directory while the supervisor is silent: no group is started that may have a history."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from escrowmq.actors.broker.config import BrokerConfig
from escrowmq.replication.errors import Unavailable
from escrowmq.replication.host.repair import NoPeers
from escrowmq.replication.host.replica_process import open_replica
from escrowmq.replication.host.replica_setup import ReplicaSetup
from tests.support.broker_group import BrokerGroup


class AllEmpty(NoPeers):
    """Two of three have lost their disks; the third, which has everything, is still starting."""

    def founded(self, peer: str) -> bool | None:
        return False if peer == "1" else None


def lost(tmp_path: Path, replicas: int) -> ReplicaSetup:
    """Replica 0 of a group that had a leader, its directory emptied; Ray has restarted the process with the
    arguments of its creation."""
    with BrokerGroup(tmp_path, BrokerConfig(disk_reserve_bytes=0), replicas) as group:
        group.topic()
        setup = replace(group.setup(0), source=AllEmpty())
    shutil.rmtree(setup.data_dir)
    return setup


def test_two_empty_ones_of_three_begin_nothing_while_nobody_says_that_the_group_is_new(
    tmp_path: Path,
) -> None:
    setup = replace(lost(tmp_path, 3), founded=lambda: None)
    with pytest.raises(Unavailable, match="the supervisor does not say"):
        open_replica(setup, patience_s=0.5)
    with pytest.raises(Unavailable, match="no leader to copy"):
        open_replica(replace(setup, founded=lambda: True), patience_s=0.5)


@pytest.mark.parametrize("told", [(), (0, 1, 2)])
def test_who_began_alone_does_not_begin_again_beside_those_that_came(
    tmp_path: Path, told: Iterable[int]
) -> None:
    """The group has grown since this process was created; its arguments name only itself."""
    setup = replace(lost(tmp_path, 1), founded=lambda: True, ask_members=lambda: told)
    with pytest.raises(Unavailable, match="no leader to copy" if told else "does not say"):
        open_replica(setup, patience_s=0.5)


def test_an_answer_that_comes_late_is_waited_for(tmp_path: Path) -> None:
    answers = iter([None, None, False])
    setup = replace(lost(tmp_path, 1), founded=lambda: next(answers))
    open_replica(setup, patience_s=5.0).close()
    assert list(answers) == []


def test_who_has_only_begun_counts_again_after_a_crash(tmp_path: Path) -> None:
    """Its log has nothing but the entry that every log begins with: it knows all that it acknowledged. As
    learners, three that stop right after their first election would have no leader again."""
    group = BrokerGroup(tmp_path, BrokerConfig(disk_reserve_bytes=0), 3)
    setup = replace(group.setup(0), source=AllEmpty(), founded=lambda: False)
    open_replica(setup, patience_s=0.5).close()
    setup = replace(setup, founded=lambda: True)
    running = open_replica(setup, patience_s=0.5)
    try:
        assert not running.driver.node.rejoining
    finally:
        running.close()
    (setup.data_dir / "log" / "vote").unlink()
    with pytest.raises(Unavailable, match="no leader to copy"):
        open_replica(setup, patience_s=0.5)
