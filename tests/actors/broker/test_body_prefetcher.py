"""A replica that copies a peer's files has the next part on its way while it writes the last one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import ray

from escrowmq.actors.broker import broker as peers_module
from escrowmq.actors.broker.broker import RayPeers
from escrowmq.actors.client.topology import ClusterInfo, broker_name
from escrowmq.replication.errors import Unavailable

FILE = bytes(range(250)) * 4
Part = tuple[str, int, int]


class PeerRay:
    """A stand-in for Ray: one peer with a file. ``lost``: the next answer does not come."""

    exceptions = ray.exceptions

    def __init__(self) -> None:
        self.asked, self.lost = list[Part](), False

    def get_actor(self, name: str, namespace: str) -> Any:
        if name != broker_name(0, 1):
            raise ValueError(name)
        return SimpleNamespace(checkpoint_read=SimpleNamespace(remote=self._remote))

    def _remote(self, *part: Any) -> Part:
        self.asked.append(part)
        return part

    def get(self, part: Part, timeout: float) -> bytes:
        if self.lost:
            self.lost = False
            raise ray.exceptions.GetTimeoutError
        _, pos, size = part
        return FILE[pos : pos + size]


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> PeerRay:
    found = PeerRay()
    monkeypatch.setattr(peers_module, "ray", found)
    return found


@pytest.fixture
def peers() -> RayPeers:
    return RayPeers(ClusterInfo("c", "test", 1, 3), 0)


def test_the_next_part_is_asked_for_before_the_last_one_is_there(peer: PeerRay, peers: RayPeers) -> None:
    read, at = b"", 0
    while at < len(FILE):
        size = min(300, len(FILE) - at)
        read += peers.read("1", "a.log", at, size)
        at = len(read)
        assert peer.asked[-1] == ("a.log", at, size), "on its way while the caller writes"
    assert read == FILE
    assert [pos for _, pos, _ in peer.asked] == [0, 300, 600, 900, 1000], "each part once"


def test_another_position_and_another_file_are_read_as_asked(peer: PeerRay, peers: RayPeers) -> None:
    assert peers.read("1", "a.log", 0, 300) == FILE[:300]
    assert peers.read("1", "a.log", 100, 50) == FILE[100:150]
    assert peers.read("1", "b.log", 150, 20) == FILE[150:170]
    assert peers.read("1", "b.log", 170, 5) == FILE[170:175], "no more than was asked for"


def test_a_part_that_was_lost_is_asked_for_again(peer: PeerRay, peers: RayPeers) -> None:
    peers.read("1", "a.log", 0, 300)
    peer.lost = True
    with pytest.raises(Unavailable, match="replica 1 of group 0 does not answer"):
        peers.read("1", "a.log", 300, 300)
    assert peers.read("1", "a.log", 300, 300) == FILE[300:600]
    with pytest.raises(Unavailable):
        peers.read("2", "a.log", 0, 300)
