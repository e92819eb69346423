"""What a producer process tells the demo: one JSON object per line on its standard output.

A killed process may leave half a line, which is dropped: what was not reported is found out from the
database and the broker, as in life. Times are CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import IO

from escrowmq.replication.errors import UnknownVersion

#: How each order ended, as its producer knows it.
COMMITTED, ROLLED_BACK, LEFT_OPEN = "committed", "rolled back", "left to the check"


@dataclass(frozen=True, slots=True)
class OrderEnded:
    """An order is through. For committed ones: when COMMIT was asked for and when it was acknowledged."""

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
    """The process is connected and begins; ``skipped`` orders of its share are in the database already."""

    skipped: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """All orders are through; the process stays to answer checks."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The process cannot go on."""

    error: str


Event = OrderEnded | Checked | Ready | Finished | Failed
_KINDS: dict[str, type[Event]] = {
    kind.__name__: kind for kind in (OrderEnded, Checked, Ready, Finished, Failed)
}


@dataclass(slots=True)
class EventWriter:
    """Writes whole lines from any thread."""

    stream: IO[str]
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def write(self, event: Event) -> None:
        """One line, at once."""
        line = json.dumps([type(event).__name__, asdict(event)]) + "\n"
        with self._lock:
            self.stream.write(line)
            self.stream.flush()


def read_events(lines: Iterable[str]) -> Iterable[Event]:
    """The events of a process until its output ends."""
    for line in lines:
        if not line.endswith("\n"):
            return  # killed while writing
        kind, fields = json.loads(line)
        if kind not in _KINDS:
            raise UnknownVersion(f"event {kind!r} of a producer process is not known here")
        yield _KINDS[kind](**fields)
