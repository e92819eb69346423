"""What several tests of whole replicas work on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from escrowmq.actors.broker.config import BrokerConfig
from tests.support.trio import Trio


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Trio]:
    """Three running replicas with small segments."""
    trio = Trio(tmp_path, BrokerConfig(segment_bytes=200_000, disk_reserve_bytes=0))
    trio.start()
    yield trio
    trio.close()
