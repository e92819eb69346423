"""Shared by the producer tests: a cluster in memory with two topics."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from escrowmq.testing import InMemoryCluster


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    """Topic "orders" has one partition, topic "t" has four."""
    with InMemoryCluster() as made:
        made.admin.create_topic("orders")
        made.admin.create_topic("t", partitions=4)
        yield made
