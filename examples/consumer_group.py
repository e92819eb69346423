"""Two consumers share a topic; one leaves, the other takes over; nothing is handled twice.

Delivery is at least once, so the handler is made idempotent with an *inbox*: it inserts the message's
(topic, partition, offset) into the consumer's own database, in the same local transaction as the work. If the
message is delivered again, the row is already there, and the handler skips it.

Run it: ``python examples/consumer_group.py``.
"""

from __future__ import annotations

import sqlite3
import threading
import time

import escrowmq
from escrowmq import Cluster, ConsumerRecord, Message

SCHEMA = """
create table inbox (topic text, partition int, offset int, primary key (topic, partition, offset));
create table totals (customer text primary key, amount int not null);
"""
ADD = "insert into totals values (?, ?) on conflict do update set amount = amount + excluded.amount"


class Billing:
    """The consumer's own database: totals by customer, and the messages that it has handled."""

    def __init__(self) -> None:
        self._db = sqlite3.connect(":memory:", check_same_thread=False)
        self._db.executescript(SCHEMA)
        self._lock = threading.Lock()

    def handle(self, record: ConsumerRecord) -> None:
        """Adds an amount to its customer's total once, however often the record is delivered."""
        with self._lock, self._db:
            address = (record.topic, record.partition, record.offset)
            if self._db.execute("insert or ignore into inbox values (?, ?, ?)", address).rowcount:
                self._db.execute(ADD, ((record.key or b"").decode(), int(record.value)))

    def handled(self) -> int:
        with self._lock:
            (count,) = self._db.execute("select count(*) from inbox").fetchone()
        return int(count)

    def totals(self) -> dict[str, int]:
        with self._lock:
            return dict(self._db.execute("select customer, amount from totals order by customer"))


def work(cluster: Cluster, topic: str, name: str, billing: Billing, stop: threading.Event) -> None:
    """One member of the group: poll, handle, commit."""
    with cluster.consumer(group=f"{topic}-billing", topics=[topic], auto_offset_reset="earliest") as consumer:
        shown: list[tuple[str, int]] = []
        while not stop.is_set():
            for record in consumer.poll(max_records=100, timeout_s=0.5):
                billing.handle(record)
            consumer.commit()
            if consumer.assignment() != shown:
                shown = consumer.assignment()
                print(f"{name} reads partitions {[partition for _, partition in shown]}")
    print(f"{name} has left")


def run(cluster: Cluster, topic: str = "invoices", messages: int = 400) -> dict[str, int]:
    """Sends amounts for four customers and returns the totals that two consumers added up."""
    cluster.admin.create_topic(topic, partitions=4)
    billing, leave, end = Billing(), threading.Event(), threading.Event()
    members = [
        threading.Thread(target=work, args=(cluster, topic, "first", billing, leave)),
        threading.Thread(target=work, args=(cluster, topic, "second", billing, end)),
    ]
    for member in members:
        member.start()
    try:
        with cluster.producer(app="invoicing") as producer:
            for number in range(messages):
                key = b"customer-%d" % (number % 4)
                producer.send(Message(topic, b"%d" % number, key=key))
                if number == messages // 2:
                    leave.set()  # the first member leaves; its partitions move to the second
                time.sleep(0.002)
        deadline = time.monotonic() + 60
        while billing.handled() < messages and time.monotonic() < deadline:
            time.sleep(0.1)
    finally:
        leave.set()
        end.set()
        for member in members:
            member.join()
    print(billing.totals())
    return billing.totals()


if __name__ == "__main__":
    with escrowmq.start_local() as cluster:
        run(cluster)
