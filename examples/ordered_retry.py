"""Retries that keep the order: bookings of accounts, each of which builds on the one before.

A booking that fails must not be overtaken by a later one of its account. So its partition waits and tries it
again, while other partitions go on. The bank does not answer twice; that booking comes again. One booking is
wrong for ever: after three attempts it is a dead letter, and its account goes on behind it. A second service
takes over in the middle, and goes on counting.

Run it: ``python examples/ordered_retry.py`` (starts an embedded cluster; takes some seconds).
"""

from __future__ import annotations

import threading

import escrowmq
from escrowmq import Cluster, Consumer, Message, RetryPolicy, StreamRecord

ACCOUNTS, BOOKINGS = 4, 5


class Bank:
    """Stands for a service that books. Remembers the bookings of each account, in order."""

    def __init__(self) -> None:
        self.booked: dict[str, list[int]] = {}
        self.refused: list[tuple[str, int]] = []
        self._outages = 2

    def book(self, account: str, number: int, attempt: int) -> None:
        """Books once; raises if that is not possible now, or ever."""
        if (account, number) == ("account-0", 3):
            self.refused.append((account, attempt))
            raise ValueError("the amount is no number")
        if (account, number) == ("account-1", 2) and self._outages:
            self._outages -= 1
            raise ConnectionError("the bank does not answer")
        self.booked.setdefault(account, []).append(number)

    @property
    def count(self) -> int:
        """How many bookings are done."""
        return sum(map(len, self.booked.values()))


def run(cluster: Cluster, topic: str = "bookings") -> tuple[dict[str, list[int]], list[int], dict[str, str]]:
    """Sends bookings and carries them out; returns those of each account in order, the attempts at the wrong
    one, and the dead letters with their reasons."""
    cluster.admin.create_topic(topic, partitions=2)
    group = f"{topic}-bank"
    cluster.admin.set_group(group, max_attempts=3, delays_s=[0.2])
    with cluster.producer(app=f"{topic}-shop") as producer:
        for number in range(BOOKINGS):
            for account in range(ACCOUNTS):  # an account's key: its bookings are in one partition, in order
                producer.send(Message(topic, b"%d" % number, key=b"account-%d" % account)).result()
    bank = Bank()

    def service(ends: int) -> None:
        """Books until so many bookings are done or dead."""
        stop = threading.Event()

        def handle(record: StreamRecord) -> None:
            account = (record.key or b"").decode()
            try:
                bank.book(account, int(record.value), record.attempt)  # raises: again later, in order
            finally:
                if bank.count + len(bank.refused) >= ends:
                    stop.set()

        consumer: Consumer = cluster.consumer(
            group, [topic], auto_offset_reset="earliest", retry=RetryPolicy(order="ordered")
        )
        with consumer:
            consumer.run(handle, ordered=True, stop=stop)

    service(ends=ACCOUNTS * BOOKINGS // 2)
    service(ends=ACCOUNTS * BOOKINGS - 1 + 3)  # all but the wrong one, and three attempts at that
    dead = {letter.value.decode(): letter.reason for letter in cluster.admin.dead_letters(group)}
    for name, numbers in sorted(bank.booked.items()):
        print(f"{name}: {numbers}")
    print(f"dead letters: {dead}")
    return bank.booked, [attempt for _, attempt in bank.refused], dead


if __name__ == "__main__":
    with escrowmq.start_local() as cluster:
        run(cluster)
