"""What several tests of whole replicas work on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from escrowmq.actors.broker.config import BrokerConfig
from tests.support.broker_group import BrokerGroup


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[BrokerGroup]:
    """Three running replicas with small segments."""
    with BrokerGroup(tmp_path, BrokerConfig(segment_bytes=200_000, disk_reserve_bytes=0)) as trio:
        yield trio
