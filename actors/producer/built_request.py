"""One call to a broker group as the producer builds it: the frames of its operations, and who gets their
results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from escrowmq.actors.client.failures import Failure

#: Called with one operation's result, or how the request ended, and whether an earlier sending of it may have
#: been carried out.
Handler = Callable[["Sequence[Any] | Failure", bool], None]


class BuiltRequest:
    """The frames of one call, and the handler of each operation's result."""

    __slots__ = ("blocks", "deadline", "frames", "handlers", "sendings", "size")

    def __init__(self) -> None:
        self.blocks = 0  # blocks of transactions
        self.sendings = 1  # how often it was sent; known with its outcome
        self.frames: list[bytes] = []
        self.handlers: list[Handler] = []
        self.deadline = float("inf")
        self.size = 0

    def add(self, frame: bytes, handler: Handler, deadline: float) -> None:
        """Adds one operation."""
        self.frames.append(frame)
        self.handlers.append(handler)
        self.size += len(frame)
        self.deadline = min(self.deadline, deadline)
