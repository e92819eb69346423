"""A saga: a trip is booked in steps, each by another service; if one fails, the earlier ones are undone.

The coordinator keeps the state of each trip in its database. A step is a message with ``reply_to``; its
reply moves the trip on: to the next step, or, if it failed, to undoing what is done, the last step first.
Each step is sent as a transaction whose id names trip and step, so a step that is sent again after a crash
is done once.

The broker knows nothing of sagas: replies are all that is needed.

Run it: ``python examples/saga.py`` (starts an embedded cluster; takes some seconds).
"""

from __future__ import annotations

import time

import escrowmq
from escrowmq import Cluster, Message, Producer, ShareConsumer

STEPS = ("flight", "hotel", "car")


class Coordinator:
    """Trips, and what is booked of each. A real one keeps both in tables, with an inbox of replies."""

    def __init__(self, producer: Producer, topic: str, app: str) -> None:
        self._producer, self._topic, self._app = producer, topic, app
        self.booked: dict[str, list[str]] = {}
        self.ended: dict[str, str] = {}

    def begin(self, trip: str) -> None:
        """Sends the first step."""
        self.booked[trip] = []
        self._send(trip, "book", STEPS[0])

    def heard(self, trip: str, action: str, step: str, *, done: bool) -> None:
        """What one step has come to."""
        booked = self.booked[trip]
        if action == "cancel":
            booked.remove(step)
        elif done:
            booked.append(step)
            if step != STEPS[-1]:
                self._send(trip, "book", STEPS[STEPS.index(step) + 1])
                return
            self.ended[trip] = "booked"
            return
        if booked:
            self._send(trip, "cancel", booked[-1])
        else:
            self.ended[trip] = "undone"

    def _send(self, trip: str, action: str, step: str) -> None:
        command = f"{trip}/{action}/{step}"
        message = Message(self._topic, command.encode(), command.encode(), tag=step, reply_to=self._app)
        with self._producer.transaction(tx_id=command) as tx:
            tx.send(message)


def run(cluster: Cluster, topic: str = "trips", trips: int = 4, patience_s: float = 60.0) -> dict[str, str]:
    """Books trips; there is no car for every other one. Returns how each ended."""
    app = f"{topic}-agency"
    cluster.admin.create_topic(topic, partitions=2)
    with (
        cluster.replies(app) as replies,
        cluster.share_consumer(f"{topic}-services", [topic], auto_offset_reset="earliest") as services,
        cluster.producer(app=app) as producer,
    ):
        saga = Coordinator(producer, topic, app)
        for number in range(trips):
            saga.begin(f"trip-{number}")
        deadline = time.monotonic() + patience_s
        while len(saga.ended) < trips and time.monotonic() < deadline:
            serve(services)
            for reply in replies.poll(timeout_s=0.5):
                trip, action, step = (reply.record.key or b"").decode().split("/")
                print(f"{trip}: {action} {step}: {reply.outcome} {reply.reason}")
                saga.heard(trip, action, step, done=reply.done)
            replies.commit()
    return saga.ended


def serve(services: ShareConsumer) -> None:
    """Stands for three services."""
    for record in services.poll(timeout_s=0.5):
        trip, action, step = record.value.decode().split("/")
        if (action, step) == ("book", "car") and int(trip.rpartition("-")[2]) % 2:
            services.reject(record, "no car is left")
        else:
            services.ack(record, result=f"{step} {action}ed".encode())


if __name__ == "__main__":
    with escrowmq.start_local() as cluster:
        run(cluster)
