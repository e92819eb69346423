"""Fixtures that several tests of whole replicas use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from escrowmq.actors.broker.config import BrokerConfig
from escrowmq.actors.broker.parts import Parts
from escrowmq.replication.format import ops
from escrowmq.replication.host.replica_setup import ReplicaSetup
from escrowmq.replication.log.datadir import Identity
from tests.support.broker_group import BrokerGroup
from tests.support.one_replica import running
from tests.support.requests import prepare
from tests.support.waiting import wait_until


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[BrokerGroup]:
    """Three running replicas with small segments."""
    with BrokerGroup(tmp_path, BrokerConfig(segment_bytes=200_000, disk_reserve_bytes=0)) as trio:
        yield trio


@pytest.fixture
def group(tmp_path: Path) -> Iterator[BrokerGroup]:
    """Three running replicas, with a message."""
    with BrokerGroup(tmp_path) as group:
        group.topic()
        group.publish("before")
        yield group


@pytest.fixture
def setup(tmp_path: Path) -> ReplicaSetup:
    """A group of one, whose directory holds segments, snapshots and run files of an earlier run."""
    setup = ReplicaSetup(
        config=BrokerConfig(segment_bytes=64 << 10, disk_reserve_bytes=0),
        identity=Identity("c", 0, 0),
        groups=1,
        founders=1,
        data_dir=tmp_path / "r0",
        listen_host="127.0.0.1",
        secret=b"s" * 32,
        resolve=lambda peer: None,
        fatal=lambda error: pytest.fail(f"the process would have ended: {error}"),
    )
    with running(setup) as replica:
        submit = Parts(replica).requests.submit
        assert submit(ops.create_topic("t", {"partitions": 1}))[0] == "ok"
        for number in range(20):
            assert submit(prepare([f"x{number}"], size=10_000))[:2] == ("ok", [[0]])
            assert submit(ops.commit("app", [f"x{number}"])) == ("ok", [[0]])
        wait_until(lambda: list((setup.data_dir / "log").glob("*.runs")), what="a checkpoint")
    return setup
