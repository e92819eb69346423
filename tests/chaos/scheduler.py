"""A process that sends delayed messages and cancels some: ``python -m tests.chaos.scheduler SETTINGS``.

It writes what it does, before and after, to a file of its own (``<name>.delays``): the history checker knows
nothing of times. delays.py judges them.
"""

from __future__ import annotations

import json
import random
import sys
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from escrowmq import EscrowMQError, Message, Producer
from tests.chaos.client import ClientSettings, Parent, connected, crash, say_ready, say_rested
from tests.chaos.delays import CANCELLED, CANCELLING, SENDING, STORED, TOO_LATE, TOPIC
from tests.history.events import body

#: Mean of the delays, and the longest: a round ends when all of them have come.
MEAN_S, LONGEST_S = 4.0, 20.0
CANCELLED_SHARE = 0.15


class Scheduler:
    """Schedules and cancels until the parent wants rest."""

    def __init__(self, producer: Producer, settings: ClientSettings, parent: Parent) -> None:
        self.producer, self.settings, self.parent = producer, settings, parent
        self.rng = random.Random(f"{settings.seed}/{settings.name}")
        self._file = (Path(settings.directory) / f"{settings.name}.delays").open("ab", buffering=0)
        self._count = 0

    def run(self) -> None:
        while not self.parent.resting.is_set():
            stored = self._send()
            for identity, schedule_id in stored:
                if self.rng.random() < CANCELLED_SHARE:
                    self._cancel(identity, schedule_id)
            self.parent.resting.wait(self.rng.expovariate(1 / self.settings.pause_s))

    def _write(self, what: str, identity: str, due_ms: int = 0) -> None:
        self._file.write(json.dumps([what, identity, due_ms]).encode() + b"\n")

    def _send(self) -> list[tuple[str, str]]:
        """Some messages, some of them for one time; ids of those that were stored."""
        under_way: list[tuple[str, Future[Any]]] = []
        due_ms = self._due_ms()
        for _ in range(self.rng.choice((1, 1, 3, 20))):
            self._count += 1
            identity = f"{self.settings.name}-{self._count}"
            if self.rng.random() < 0.5:
                due_ms = self._due_ms()
            value = body(identity, self.rng.choice((60, 300, 20_000)))
            self._write(SENDING, identity, due_ms)
            try:
                under_way.append((identity, self.producer.send(Message(TOPIC, value, deliver_at=due_ms))))
            except EscrowMQError:
                continue
        if self.rng.random() < self.settings.crashes:
            crash()
        stored = []
        for identity, future in under_way:
            try:
                found = future.result(60)
            except EscrowMQError:
                continue  # nobody knows whether it will come
            self._write(STORED, identity)
            if found.schedule_id is not None:
                stored.append((identity, found.schedule_id))
        return stored

    def _due_ms(self) -> int:
        return round(1000 * (time.time() + min(self.rng.expovariate(1 / MEAN_S), LONGEST_S)))

    def _cancel(self, identity: str, schedule_id: str) -> None:
        self._write(CANCELLING, identity)
        try:
            cancelled = self.producer.cancel(schedule_id)
        except EscrowMQError:
            return
        self._write(CANCELLED if cancelled else TOO_LATE, identity)


def main() -> int:
    """Run until the parent closes the standard input."""
    settings = ClientSettings(**json.loads(sys.argv[1]))
    parent = Parent()
    with connected(settings) as cluster, cluster.producer(app="scheduler") as producer:
        say_ready()
        Scheduler(producer, settings, parent).run()
        say_rested()
        parent.ending.wait()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
