"""The events that a producer process reports to the demo: one JSON object per line of standard output.

A killed process may leave an incomplete line, which is dropped. What was not reported is found from the
database and the broker, as in production. Times are CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import IO

from escrowmq.replication.errors import UnknownVersion

#: The outcome of an order, as far as its producer knows.
COMMITTED, ROLLED_BACK, LEFT_OPEN = "committed", "rolled back", "left to the check"


@dataclass(frozen=True, slots=True)
class OrderEnded:
    """The producer is done with an order. If committed: when COMMIT was requested and when acknowledged."""

    key: int
    outcome: str
    requested_s: float = 0.0
    acknowledged_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Checked:
    """A check was answered."""

    tx_id: str
    answer: str


@dataclass(frozen=True, slots=True)
class Ready:
    """The process is connected and starts. ``skipped``: orders of its share that the database already has."""

    skipped: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """All orders are done; the process keeps running to answer checks."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The process cannot continue."""

    error: str


Event = OrderEnded | Checked | Ready | Finished | Failed
_KINDS: dict[str, type[Event]] = {
    kind.__name__: kind for kind in (OrderEnded, Checked, Ready, Finished, Failed)
}


@dataclass(slots=True)
class EventWriter:
    """Writes whole lines. Thread-safe."""

    stream: IO[str]
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def write(self, event: Event) -> None:
        """Write one line and flush it."""
        line = json.dumps([type(event).__name__, asdict(event)]) + "\n"
        with self._lock:
            self.stream.write(line)
            self.stream.flush()


def read_events(lines: Iterable[str]) -> Iterable[Event]:
    """The events of a process, until its output ends."""
    for line in lines:
        if not line.endswith("\n"):
            return  # killed while writing
        kind, fields = json.loads(line)
        if kind not in _KINDS:
            raise UnknownVersion(f"a producer process reported the unknown event {kind!r}")
        yield _KINDS[kind](**fields)
