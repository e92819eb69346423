"""What tests of the command line share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest

from escrowmq import Cluster
from escrowmq.cluster.cli.options import ConnectionOptions


@pytest.fixture
def commands_join(monkeypatch: pytest.MonkeyPatch) -> Callable[[Cluster], None]:
    """Commands join this cluster. An exporter on this machine does not answer: they mean another address."""

    def join(cluster: Cluster) -> None:
        monkeypatch.setenv("RAY_ADDRESS", "192.0.2.1:6379")
        monkeypatch.setattr(ConnectionOptions, "joined", lambda self: nullcontext(cluster))

    return join
