"""Reminders: an order and its reminder are sent together; whoever pays in time is not reminded.

The order and a delayed message go into one transaction, so there is a reminder exactly if there is an order.
A payment cancels the reminder by its id, which the shop keeps with the order. The broker says whether that
was in time: a customer is never reminded after ``cancel`` has returned True.

Run it: ``python examples/reminders.py`` (starts an embedded cluster; takes some seconds).
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import escrowmq
from escrowmq import Cluster, Message


def run(
    cluster: Cluster, topic: str = "orders", orders: int = 8, due_s: float = 4.0
) -> tuple[set[str], set[str]]:
    """Places orders, half of which are paid in time; returns those that were paid and those reminded of."""
    reminders = f"{topic}-reminders"
    cluster.admin.create_topic(topic, partitions=2)
    cluster.admin.create_topic(reminders, partitions=2)
    paid: set[str] = set()
    with cluster.producer(app=f"{topic}-shop") as producer:
        schedule_ids: dict[str, str | None] = {}
        due = datetime.now(UTC) + timedelta(seconds=due_s)  # usually days
        for number in range(orders):
            order = f"order-{number}"
            with producer.transaction(query_id=order) as tx:
                tx.send(Message(topic, order.encode(), key=order.encode()))
                tx.send(Message(reminders, order.encode(), key=order.encode(), deliver_at=due))
                (schedule_ids[order],) = tx.schedule_ids
                tx.prepare()
                # Here your database stores the order and the id of its reminder.
        waiting = cluster.admin.scheduled(reminders)
        print(f"{orders} orders are placed, {len(waiting)} reminders wait")
        for order in list(schedule_ids)[::2]:
            schedule_id = schedule_ids[order]
            if schedule_id is not None and producer.cancel(schedule_id):
                print(f"{order} is paid, and will not be reminded of")
                paid.add(order)
    reminded = read_all(cluster, reminders, orders - len(paid))
    print(f"reminded of {len(reminded)} orders: {', '.join(sorted(reminded))}")
    return paid, reminded


def read_all(cluster: Cluster, topic: str, expected: int, patience_s: float = 60.0) -> set[str]:
    """All reminders in the topic, once so many have become readable."""
    found: set[str] = set()
    with cluster.consumer(group=f"{topic}-mail", topics=[topic], auto_offset_reset="earliest") as consumer:
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            records = consumer.poll(timeout_s=1.0)
            for record in records:
                print(f"dear customer, please pay {record.value.decode()}")
                found.add(record.value.decode())
            if len(found) >= expected and not records:
                break
    return found


if __name__ == "__main__":
    with escrowmq.start_local() as cluster:
        run(cluster)
