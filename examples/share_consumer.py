"""A share group: independent jobs, handled by several workers, each message acked by itself.

Mails are sent for orders by two workers with four threads each. Some addresses are wrong for ever: these
orders become dead letters at once. One mail server is down at first: its orders come again later, and hold up
no others. One order is refused at each attempt: after three of them it is a dead letter, with its reason.

Run it: ``python examples/share_consumer.py`` (starts an embedded cluster; takes some seconds).
"""

from __future__ import annotations

import threading
import time
from collections import Counter

import escrowmq
from escrowmq import Cluster, Message, ShareConsumer, ShareRecord


class Mails:
    """Stands for a mail server. Remembers what was sent to whom."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._down = {"order-5", "order-6"}

    def send(self, order: str) -> None:
        """Sends one mail; raises if that is not possible now."""
        with self._lock:
            if order == "order-7":
                raise ValueError("the mailbox is full")
            if order in self._down:
                self._down.discard(order)  # it is up again at the next attempt
                raise ConnectionError("the mail server does not answer")
            self.sent[order] += 1


def run(cluster: Cluster, topic: str = "orders", orders: int = 40) -> tuple[Counter[str], dict[str, str]]:
    """Places orders and sends their mails; returns how many mails each order got, and the dead letters with
    their reasons."""
    cluster.admin.create_topic(topic, partitions=2)
    group = f"{topic}-mail"
    cluster.admin.set_group(group, max_attempts=3, delays_s=[0.2])
    mails, stop = Mails(), threading.Event()

    def handle(queue: ShareConsumer, record: ShareRecord) -> None:
        order = record.value.decode()
        if order in ("order-1", "order-2"):
            queue.reject(record, "no such address")  # no attempt will ever succeed
            return
        mails.send(order)  # returns: acked; raises: it comes again later

    def work(queue: ShareConsumer) -> None:
        with queue:
            queue.run(lambda record: handle(queue, record), threads=4, stop=stop)

    queues = [cluster.share_consumer(group, [topic], auto_offset_reset="earliest") for _ in range(2)]
    workers = [threading.Thread(target=work, args=(queue,)) for queue in queues]
    with cluster.producer(app=f"{topic}-shop") as producer:
        for number in range(orders):
            producer.send(Message(topic, f"order-{number}".encode()))
    for worker in workers:
        worker.start()
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        dead = {letter.value.decode(): letter.reason for letter in cluster.admin.dead_letters(group)}
        if len(mails.sent) + len(dead) == orders:
            break
        time.sleep(0.1)
    stop.set()
    for worker in workers:
        worker.join()
    print(f"{sum(mails.sent.values())} mails are sent, {len(dead)} orders are dead letters:")
    for order, reason in sorted(dead.items()):
        print(f"  {order}: {reason}")
    return mails.sent, dead


if __name__ == "__main__":
    with escrowmq.start_local() as cluster:
        run(cluster)
