"""A cluster in memory with one topic."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from escrowmq.testing import InMemoryCluster


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    with InMemoryCluster() as made:
        made.admin.create_topic("orders")
        yield made
