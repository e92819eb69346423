"""The examples run, and their results are those in their texts. They share the integration tests' cluster."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from examples import (
    compensation,
    consumer_group,
    fence_orders,
    hello_transaction,
    inbox_billing,
    notify_partner,
    order_service,
    ordered_retry,
    outbox_orders,
    pipeline,
    reminders,
    saga,
    share_consumer,
    why_not_dual_write,
)
from tests.support.share_examples import COMPENSATED, DUAL_WRITES, GIVEN_UP, HEARD, ORDERED, SAGAS

if TYPE_CHECKING:
    from escrowmq import Cluster

pytestmark = pytest.mark.ray
ROOT = Path(__file__).resolve().parents[2]
Unique = Callable[[str], str]


def test_hello_transaction(cluster: Cluster, unique: Unique) -> None:
    assert hello_transaction.run(cluster, unique("greetings")) == [b"hello", b"world"]


def test_order_service_ends_with_the_same_orders_in_database_and_topic(
    cluster: Cluster, unique: Unique
) -> None:
    stored, sent = order_service.run(cluster, unique("orders"))
    assert stored == sent
    assert stored == {f"order-{n}" for n in range(12) if n % 4 != 3}


def test_who_pays_in_time_is_not_reminded(cluster: Cluster, unique: Unique) -> None:
    paid, reminded = reminders.run(cluster, unique("orders"), due_s=8.0)  # a busy machine is slow to pay
    assert paid == {f"order-{n}" for n in range(0, 8, 2)}
    assert reminded == {f"order-{n}" for n in range(1, 8, 2)}


def test_consumer_group_counts_every_message_once_over_a_change_of_members(
    cluster: Cluster, unique: Unique
) -> None:
    totals = consumer_group.run(cluster, unique("invoices"), messages=200)
    assert totals == {f"customer-{c}": sum(range(c, 200, 4)) for c in range(4)}


def test_a_partner_that_is_down_is_told_later(cluster: Cluster, unique: Unique) -> None:
    heard, dead, in_the_end = notify_partner.run(cluster, unique("payments"))
    assert (heard, dead) == (HEARD, GIVEN_UP)
    assert in_the_end == HEARD | dict.fromkeys(GIVEN_UP, 1)


def test_a_shop_gives_back_what_the_warehouse_cannot_deliver(cluster: Cluster, unique: Unique) -> None:
    assert compensation.run(cluster, unique("orders")) == COMPENSATED


def test_a_saga_ends_booked_or_undone(cluster: Cluster, unique: Unique) -> None:
    assert saga.run(cluster, unique("trips")) == SAGAS


def test_two_writes_without_a_transaction_break_and_the_escrow_does_not(
    cluster: Cluster, unique: Unique
) -> None:
    assert why_not_dual_write.run(cluster, unique("orders")) == DUAL_WRITES


def test_every_order_gets_its_mail_or_is_a_dead_letter(cluster: Cluster, unique: Unique) -> None:
    sent, dead = share_consumer.run(cluster, unique("orders"))
    assert set(sent) == {f"order-{n}" for n in range(40)} - {"order-1", "order-2", "order-7"}
    assert dead == {
        "order-1": "no such address",
        "order-2": "no such address",
        "order-7": "ValueError: the mailbox is full",
    }


def test_bookings_keep_their_order_through_failures(cluster: Cluster, unique: Unique) -> None:
    assert ordered_retry.run(cluster, unique("bookings")) == ORDERED


def test_an_order_service_that_is_killed_leaves_no_order_in_one_place_only(
    cluster: Cluster, unique: Unique
) -> None:
    stored, sent = fence_orders.run(cluster, unique("orders"))
    # The fourth was killed after its commit, the eighth inside its transaction.
    assert stored == sent == {f"order-{n}" for n in range(12) if n != 7}


def test_a_billing_service_that_is_killed_bills_every_invoice_once(
    cluster: Cluster, unique: Unique, capfd: pytest.CaptureFixture[str]
) -> None:
    totals = inbox_billing.run(cluster, unique("invoices"), invoices=20)
    assert totals == {f"customer-{c}": sum(range(c, 20, 4)) for c in range(4)}
    said = capfd.readouterr().out
    assert "killed: 10 are billed" in said and "came again, and is not billed again" in said


def test_an_order_service_that_is_killed_with_its_relay_sends_every_order_once(
    cluster: Cluster, unique: Unique, capfd: pytest.CaptureFixture[str]
) -> None:
    stored, sent = outbox_orders.run(cluster, unique("orders"))
    assert stored == sent == [f"order-{n}" for n in range(24) if n % 3 != 2]
    said = capfd.readouterr().out
    assert "killed: the broker has the batch" in said and "8 orders sent" in said


def test_members_that_are_killed_make_exactly_one_invoice_for_each_order(
    cluster: Cluster, unique: Unique, capfd: pytest.CaptureFixture[str]
) -> None:
    found = pipeline.run(cluster, unique("orders"), count=300, kills=1)
    assert found == {b"invoice for order-%d" % number: 1 for number in range(300)}
    assert "killed between prepare and commit" in capfd.readouterr().out


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_spark_batch_runs_as_a_script_and_sums_up_what_was_committed() -> None:
    # In its own process: a process has one JVM, and other tests need theirs with RayDP.
    script = [sys.executable, "examples/spark_batch.py", "local"]
    run = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, timeout=220, check=False)
    assert run.returncode == 0, run.stdout + run.stderr[-3000:]
    for customer in range(3):
        amounts = [number / 4 for number in range(200) if number % 3 == customer and number % 5]
        assert re.search(rf"c{customer}\|\s*{sum(amounts)}\|\s*{len(amounts)}\|", run.stdout), run.stdout
