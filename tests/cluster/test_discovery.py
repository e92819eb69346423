"""Finding a cluster: what a process keeps of those that it has known."""

from __future__ import annotations

import pytest

from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.cluster import discovery


def test_what_is_kept_of_clusters_is_bounded_and_the_last_ones_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "_known", known := {})
    monkeypatch.setattr(discovery, "within", lambda wait_s, address, ask: ClusterInfo("c", address, 1, 3))
    for number in range(discovery.KNOWN_MAX):
        discovery.discover("escrowmq", f"10.0.0.{number}")
    discovery.discover("escrowmq", "10.0.0.0")
    discovery.discover("escrowmq", "10.0.1.0")
    addresses = [address for address, _ in known]
    assert len(known) == discovery.KNOWN_MAX and addresses[-2:] == ["10.0.0.0", "10.0.1.0"]
    assert "10.0.0.1" not in addresses
