"""Clients that send one message or transaction at a time and record when each was acknowledged."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING

import escrowmq
from escrowmq import Message

if TYPE_CHECKING:
    from escrowmq import Cluster

#: Longest time for one message, including a fail-over.
PATIENCE_S = 60.0
KINDS = ("plain", "transactions")


class Sender:
    """A thread that sends plain messages or transactions of one message. ``errors``: what it raised."""

    def __init__(self, cluster: Cluster, kind: str) -> None:
        self.kind, self.errors = kind, list[str]()
        self._topic = f"live-{kind}"
        cluster.admin.create_topic(self._topic)
        self._producer = cluster.producer(app=self._topic, linger_ms=0)
        self._moments: list[float] = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"send-{kind}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                self._send(Message(self._topic, b"%d" % len(self._moments)))
            except escrowmq.EscrowMQError as error:
                self.errors.append(repr(error))
            else:
                self._moments.append(time.monotonic())

    def _send(self, message: Message) -> None:
        if self.kind == "plain":
            self._producer.send(message).result(PATIENCE_S)
            return
        with self._producer.transaction() as tx:
            tx.send(message)

    @property
    def acknowledged(self) -> int:
        return len(self._moments)

    def worst_gap(self, begin: float, end: float) -> float:
        """The longest time in seconds without an acknowledgement between two moments."""
        within = [moment for moment in list(self._moments) if begin < moment < end]
        return max(later - earlier for earlier, later in pairwise([begin, *within, end]))

    def next_after(self, moment: float) -> float:
        """The time of the first acknowledgement after a moment; waits for it."""
        deadline = time.monotonic() + PATIENCE_S
        while not self._moments or self._moments[-1] <= moment:
            if time.monotonic() >= deadline:
                raise TimeoutError(f"no acknowledgement of {self.kind} for {PATIENCE_S:g} s")
            time.sleep(0.01)
        return next(found for found in list(self._moments) if found > moment)

    def close(self) -> None:
        self._ending.set()
        self._thread.join(PATIENCE_S)
        self._producer.close()


class Senders:
    """One Sender of each kind."""

    def __init__(self, cluster: Cluster) -> None:
        self.all: Sequence[Sender] = [Sender(cluster, kind) for kind in KINDS]

    def go_on(self, more: int = 20) -> None:
        """Wait until each Sender has ``more`` further acknowledgements."""
        wanted = [sender.acknowledged + more for sender in self.all]
        deadline = time.monotonic() + PATIENCE_S
        while any(sender.acknowledged < count for sender, count in zip(self.all, wanted, strict=True)):
            if time.monotonic() >= deadline:
                raise TimeoutError(f"{[sender.errors[-1:] for sender in self.all]}")
            time.sleep(0.02)

    def gaps_ms(self, begin: float, end: float) -> dict[str, int]:
        """The worst gap of each kind, in ms."""
        return {sender.kind: round(1000 * sender.worst_gap(begin, end)) for sender in self.all}

    def worst_gap(self, begin: float, end: float) -> float:
        """The worst gap of all kinds, in seconds."""
        return max(sender.worst_gap(begin, end) for sender in self.all)

    def errors(self) -> list[str]:
        return [f"{sender.kind}: {error}" for sender in self.all for error in sender.errors]

    def close(self) -> None:
        for sender in self.all:
            sender.close()


@contextmanager
def senders(cluster: Cluster) -> Iterator[Senders]:
    """Senders that run until the block ends."""
    running = Senders(cluster)
    try:
        running.go_on()
        yield running
    finally:
        running.close()
