"""The examples of retries and replies run in a cluster in memory, too, where nobody has to wait for them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from escrowmq.testing import InMemoryCluster
from examples import compensation, notify_partner, ordered_retry, saga, why_not_dual_write
from tests.support.share_examples import COMPENSATED, DUAL_WRITES, GIVEN_UP, HEARD, ORDERED, SAGAS


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    with InMemoryCluster() as made:
        yield made


def test_a_partner_that_is_down_is_told_later(cluster: InMemoryCluster) -> None:
    heard, dead, in_the_end = notify_partner.run(cluster)
    assert (heard, dead) == (HEARD, GIVEN_UP)
    assert in_the_end == HEARD | dict.fromkeys(GIVEN_UP, 1)


def test_a_shop_gives_back_what_the_warehouse_cannot_deliver(cluster: InMemoryCluster) -> None:
    assert compensation.run(cluster) == COMPENSATED


def test_a_saga_ends_booked_or_undone(cluster: InMemoryCluster) -> None:
    assert saga.run(cluster) == SAGAS


def test_bookings_keep_their_order_through_failures(cluster: InMemoryCluster) -> None:
    assert ordered_retry.run(cluster) == ORDERED


def test_two_writes_without_a_transaction_break_and_the_escrow_does_not(cluster: InMemoryCluster) -> None:
    assert why_not_dual_write.run(cluster) == DUAL_WRITES
