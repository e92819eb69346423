"""The examples run, and end as their text says. They share the cluster of the other integration tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from examples import consumer_group, hello_transaction, order_service, spark_batch

if TYPE_CHECKING:
    from escrowmq import Cluster

pytestmark = pytest.mark.ray
Unique = Callable[[str], str]


def test_hello_transaction(cluster: Cluster, unique: Unique) -> None:
    assert hello_transaction.run(cluster, unique("greetings")) == [b"hello", b"world"]


def test_order_service_ends_with_the_same_orders_in_database_and_topic(
    cluster: Cluster, unique: Unique
) -> None:
    stored, sent = order_service.run(cluster, unique("orders"))
    assert stored == sent
    assert stored == {f"order-{n}" for n in range(12) if n % 4 != 3}


def test_consumer_group_counts_every_message_once_over_a_change_of_members(
    cluster: Cluster, unique: Unique
) -> None:
    totals = consumer_group.run(cluster, unique("invoices"), messages=200)
    assert totals == {f"customer-{c}": sum(range(c, 200, 4)) for c in range(4)}


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_spark_batch_sums_up_what_was_committed(cluster: Cluster, unique: Unique) -> None:
    revenue = spark_batch.run(cluster, unique("sales"), mode="local")
    assert revenue == {f"c{c}": sum(n / 4 for n in range(200) if n % 3 == c and n % 5) for c in range(3)}
