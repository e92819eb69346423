"""Best-effort notification: a partner is told of each payment, at growing intervals, until it answers.

The partner's service is down at times. A share group retries each notification by itself: one that waits
holds up no other. After the last attempt it becomes a dead letter, and a person may redrive it; the partner
may also ask back, which is what makes the pattern complete: nobody depends on the last notification.

Run it: ``python examples/notify_partner.py`` (starts an embedded cluster; takes some seconds).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import escrowmq
from escrowmq import Cluster, Message


class Partner:
    """Stands for the partner's service: it refuses some calls."""

    def __init__(self, payments: int) -> None:
        self._payments, self.down_for = payments, payments - 1
        self.heard: dict[str, int] = {}

    def notify(self, payment: str, attempt: int) -> None:
        """Raises ConnectionError: for every third payment at the first attempt, for the last one always."""
        number = int(payment.rpartition("-")[2])
        if number == self.down_for or (number % 3 == 1 and attempt == 1):
            raise ConnectionError("the partner does not answer")
        self.heard[payment] = attempt


def run(
    cluster: Cluster,
    topic: str = "payments",
    payments: int = 6,
    delays_s: tuple[float, ...] = (0.2, 0.5),  # usually a minute, five, half an hour, ...
    patience_s: float = 60.0,
) -> tuple[dict[str, int], list[str], dict[str, int]]:
    """Notifies; returns at which attempt the partner heard of each payment, those given up, and what it knows
    after these were redriven."""
    group, names = f"{topic}-partner", [f"payment-{n}" for n in range(payments)]
    cluster.admin.create_topic(topic, partitions=2)
    cluster.admin.set_group(group, max_attempts=len(delays_s) + 1, delays_s=list(delays_s))
    partner = Partner(payments)
    with cluster.share_consumer(group, [topic], auto_offset_reset="earliest") as queue:
        with cluster.producer(app=f"{topic}-shop") as producer:
            for name in names:
                producer.send(Message(topic, name.encode(), key=name.encode())).result()
        deadline = time.monotonic() + patience_s

        def tell(enough: Callable[[], bool]) -> None:
            while time.monotonic() < deadline:
                for record in queue.poll(timeout_s=0.5):
                    try:
                        partner.notify(record.value.decode(), record.attempt)
                    except ConnectionError as error:
                        queue.nack(record, reason=str(error))  # back after the group's next delay
                    else:
                        queue.ack(record)
                queue.flush()
                if enough():
                    return

        tell(lambda: len(partner.heard) + len(cluster.admin.dead_letters(group)) >= payments)
        heard = dict(partner.heard)
        dead = cluster.admin.dead_letters(group)
        for letter in dead:
            print(f"gave up {letter.value.decode()} after {letter.attempts} attempts: {letter.reason}")
        partner.down_for = -1  # it works again; an operator has the rest sent once more
        cluster.admin.redrive(group, by="kim")
        tell(lambda: len(partner.heard) == payments)
    print(f"the partner heard of {len(heard)} payments at once or later, and of all after the redrive")
    return heard, [letter.value.decode() for letter in dead], partner.heard


if __name__ == "__main__":
    with escrowmq.start_local() as cluster:
        run(cluster)
