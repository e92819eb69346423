"""A client's channel whose calls stand in a list: no threads, no clock, no brokers; the test answers them."""

from __future__ import annotations

import random
from typing import Any

from escrowmq.actors.client.channel import GroupChannel, Request
from escrowmq.actors.client.config import ChannelConfig

CONFIG = ChannelConfig(calls_in_flight=4)


class Wire:
    """Records what a channel sends; the test answers as it likes."""

    def __init__(self, replicas: int = 3) -> None:
        self.sent: list[tuple[int, str, tuple[Any, ...], int]] = []
        self.channel = GroupChannel(replicas, CONFIG, self._start, random.Random(1))
        self.ended: list[Any] = []
        #: Of each ended request: whether an earlier sending may have been executed, and how many there were.
        self.told: list[tuple[bool, int]] = []

    def _start(self, rid: int, method: str, args: tuple[Any, ...], token: int) -> None:
        self.sent.append((rid, method, args, token))

    def _done(self, outcome: Any, repeated: bool, sendings: int) -> None:
        self.ended.append(outcome)
        self.told.append((repeated, sendings))

    def submit(self, what: str, now: float, timeout: float = 30.0, patience_s: float = 0.0) -> Request:
        request = Request("submit", (what,), now + timeout, self._done, patience_s=patience_s)
        self.channel.submit(request, now)
        return request

    def take(self, method: str) -> list[tuple[int, tuple[Any, ...], int]]:
        """The calls of ``method`` sent so far, as (replica, arguments, token); they are taken away."""
        taken = [(rid, args, token) for rid, name, args, token in self.sent if name == method]
        self.sent = [call for call in self.sent if call[1] != method]
        return taken

    def leads(self, rid: int, term: int, now: float) -> None:
        """Every open probe is answered, and ``rid`` is the ready leader."""
        for replica, _, token in self.take("whoami"):
            self.channel.on_answer(token, (replica == rid, rid, term), None, now)

    def answer(self, token: int, answer: Any, now: float) -> None:
        self.channel.on_answer(token, answer, None, now)


def led(rid: int = 0, term: int = 1) -> Wire:
    """One that follows a leader already."""
    wire = Wire()
    wire.submit("first", 0.0)
    wire.leads(rid, term, 0.0)
    ((_, _, token),) = wire.take("submit")
    wire.answer(token, ("ok", []), 0.0)
    wire.ended.clear()
    return wire
