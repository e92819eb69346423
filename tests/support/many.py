"""A producer in the cluster in memory whose topic gets many messages at once, and what is read of them."""

from __future__ import annotations

from typing import Any

from escrowmq import Producer, ProducerConfig
from escrowmq.testing import InMemoryCluster

PARTITIONS = 4


def producer_of_memory(cluster: InMemoryCluster, **settings: Any) -> Producer:
    return cluster.producer("shop", config=ProducerConfig(**settings))


def values_of(cluster: InMemoryCluster) -> list[bytes]:
    with cluster.consumer("reader", ["t"], auto_offset_reset="earliest") as consumer:
        found: list[bytes] = []
        while records := consumer.poll():
            found += [record.value for record in records]
        return found
