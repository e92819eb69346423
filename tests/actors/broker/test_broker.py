"""The Broker actor's shell, without Ray: what callers are told while its replica is being opened."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from escrowmq.actors.broker import broker as module
from escrowmq.actors.broker import broker as peers_module
from escrowmq.actors.broker.broker import Broker
from escrowmq.actors.broker.config import BrokerConfig
from escrowmq.actors.client.topology import SUPERVISOR, ClusterInfo
from escrowmq.replication.calling.answers import LevelReport
from escrowmq.replication.carried_settings import pack_settings
from escrowmq.replication.errors import DataDirLocked, Unavailable
from escrowmq.replication.format import ops
from escrowmq.replication.host.repair import NoPeers
from escrowmq.replication.host.replica_process import ReplicaProcess
from escrowmq.replication.host.replica_setup import ReplicaSetup
from escrowmq.replication.log.datadir import Identity
from escrowmq.replication.replica.replica import next_level
from escrowmq.replication.state.machine import LEVEL_MAX
from tests.support.waiting import wait_until


class SilentPeers(NoPeers):
    """Peers that are not there yet; an empty replica waits for them."""

    def __init__(self, info: ClusterInfo, gid: int) -> None:
        pass

    def resolve(self, peer: str) -> tuple[str, int] | None:
        return None

    def levels(self, own_group: Sequence[int]) -> dict[tuple[int, int], LevelReport | None]:
        return dict.fromkeys((0, rid) for rid in own_group)

    def members(self) -> Sequence[int]:
        return ()

    def group_founded(self) -> bool:
        return False


class SomeRay:
    """Ray's actors by name; others do not exist. ``asked``: those that were asked for their level."""

    exceptions = ray.exceptions

    def __init__(self, actors: dict[str, object]) -> None:
        self.actors, self.asked = actors, list[str]()

    def get_actor(self, name: str, namespace: str) -> Any:
        if name in self.actors:
            return self.actors[name]
        if name == SUPERVISOR:
            raise ValueError(name)
        self.asked.append(name)
        return SimpleNamespace(levels=SimpleNamespace(remote=lambda: LevelReport(LEVEL_MAX + 1, LEVEL_MAX)))

    def get(self, answer: Any, timeout: float) -> Any:
        return answer

    def wait(self, answers: Sequence[Any], num_returns: int, timeout: float) -> None:
        pass


def levels_seen(monkeypatch: pytest.MonkeyPatch, supervisor: object) -> tuple[int | None, set[str]]:
    """Which level a leader of group 0 proposes after its replicas and those of group 1 were asked, and which
    of them it asked. Group 1 began with three replicas and now has five."""
    found = SomeRay({} if supervisor is None else {SUPERVISOR: supervisor})
    monkeypatch.setattr(peers_module, "ray", found)
    reports = peers_module.RayPeers(ClusterInfo("c", "test", 2, 3), 0).levels((0, 1, 2))
    return next_level(LEVEL_MAX, list(reports.values())), {name for name in found.asked if "1-" in name}


def test_no_level_is_taken_while_nobody_says_who_the_other_groups_members_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The founders may all be upgraded while two later replicas are not: those would stop."""
    assert levels_seen(monkeypatch, None)[0] is None
    starting = SimpleNamespace(seated=SimpleNamespace(remote=dict))
    assert levels_seen(monkeypatch, starting)[0] is None
    knowing = SimpleNamespace(seated=SimpleNamespace(remote=lambda: {0: [0, 1, 2], 1: [0, 1, 2, 3, 4]}))
    level, asked = levels_seen(monkeypatch, knowing)
    assert level == LEVEL_MAX + 1 and len(asked) == 5


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[int], Broker]]:
    monkeypatch.setattr(module, "RayPeers", SilentPeers)
    thresholds, started = gc.get_threshold(), list[Broker]()

    def start(replicas: int) -> Broker:
        info = ClusterInfo("c", "test", 1, replicas)
        config = pack_settings(BrokerConfig(disk_reserve_bytes=0))
        broker = Broker(pack_settings(info), 0, 0, config, str(tmp_path), "127.0.0.1", b"s" * 32)
        started.append(broker)
        return broker

    yield start
    for broker in started:
        broker.stop()
    gc.set_threshold(*thresholds)


LEADERS_CALLS: list[tuple[str, tuple[Any, ...]]] = [
    ("submit", (ops.create_topic("t", {"partitions": 1}),)),
    ("due_pairs", (0, 0, 0, 1, 0.0)),
    ("lock_pairs", ([("app", "t", 1)], 1.0, "me")),
    ("open_pairs", (["app"], 0, 1)),
    ("release_locks", ("app", "t", ["x"], "me")),
    ("tx_states", ("app", ["x"])),
    ("topics", (True,)),
    ("topic_names", (0, 0)),
    ("committed", ("g",)),
    ("held_places", ("g", ["t"])),
    ("failed_attempts", ("g", [("t", 0, 1)])),
    ("transactions", ()),
    ("find_transaction", ("x",)),
    ("audit", ()),
    ("group_join", ("g", "m", ["t"], 10.0)),
    ("group_heartbeat", ("g", "m", 1)),
    ("group_leave", ("g", "m")),
    ("commit_offsets", ("g", "m", 1, {"t": {0: 1}})),
    ("group_delete", ("g", {})),
    ("group_list", ()),
    ("group_describe", ("g",)),
    ("checkpoint_manifest", ()),
    ("change_members", ("c", [], [], 0)),
    ("never_voted", (3,)),
]
CALLS_OF_ALL: list[tuple[str, tuple[Any, ...]]] = [
    ("fetch", ([("t", 0, 0)], 1000, 0.0)),
    ("watch", ([("t", 0, -1)], 0.0)),
    ("spans", ([("t", 0, 0, 1, 1)],)),
    ("fetch_ends", ("t", 0, 0, 1, 1, 1)),
    ("offsets", ([("t", 0, -1)],)),
    ("topics", ()),
    ("members", ()),
    ("partition_bounds", ("t",)),
    ("raft_address", ()),
    ("checkpoint_read", ("0000000000000001.log", 0, 10)),
    ("checkpoint_suspect", ("0000000000000001.log", 10)),
]


def test_while_it_is_opened_calls_for_a_leader_are_answered_as_by_a_follower(
    start: Callable[[int], Broker],
) -> None:
    """Clients must know that nothing was done; an error would leave that open."""
    broker = start(3)
    for method, arguments in LEADERS_CALLS:
        assert getattr(broker, method)(*arguments) == ("not_leader", None, 0), method
    assert broker.whoami() == (False, None, 0)
    assert broker.founded() is False
    assert broker.levels() == (LEVEL_MAX, 0), "it holds the level back until it has read its log"


def test_while_it_is_opened_other_calls_are_told_to_come_back(start: Callable[[int], Broker]) -> None:
    broker = start(3)
    for method, arguments in CALLS_OF_ALL:
        with pytest.raises(Unavailable, match="replica 0 of group 0 is starting") as told:
            getattr(broker, method)(*arguments)
        assert 0 < told.value.retry_after_s < 1


def test_once_it_is_open_every_call_is_answered(start: Callable[[int], Broker]) -> None:
    broker = start(1)
    wait_until(lambda: broker.whoami()[0], what="the leader")
    for method, arguments in LEADERS_CALLS:
        assert getattr(broker, method)(*arguments)[0] != "not_leader", method
    for method, arguments in CALLS_OF_ALL:
        getattr(broker, method)(*arguments)
    assert broker.founded()


def test_it_is_told_of_members_from_its_first_moment_on(start: Callable[[int], Broker]) -> None:
    """While it repairs itself, it may need members that it does not know."""
    broker = start(3)
    broker.told(4, [0, 5, 6])
    assert list(broker._host.setup.peers) == ["1", "2", "5", "6"]
    broker.told(3, [0, 9])
    assert "9" not in broker._host.setup.peers


def test_a_locked_directory_is_the_constructors_error(start: Callable[[int], Broker]) -> None:
    """The supervisor sees the error there, and delays the next attempt."""
    start(3)
    with pytest.raises(DataDirLocked):
        start(3)


def test_stopping_gives_the_directory_back_open_or_not(
    start: Callable[[int], Broker], tmp_path: Path
) -> None:
    setup = ReplicaSetup(
        config=BrokerConfig(),
        identity=Identity("c", 0, 0),
        groups=1,
        founders=3,
        data_dir=tmp_path,
        listen_host="127.0.0.1",
        secret=b"s",
        resolve=lambda peer: None,
    )
    for replicas in (3, 1):
        broker = start(replicas)
        if replicas == 1:
            wait_until(lambda b=broker: b.whoami()[0], what="the leader")
        broker.stop()
        broker.stop()
        ReplicaProcess(setup).close()
        assert broker.submit(ops.create_topic("t", {"partitions": 1})) == ("not_leader", None, 0)
        with pytest.raises(Unavailable, match="stopping"):
            broker.topics()
