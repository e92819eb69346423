"""The events that a producer process reports to the demo: one JSON object per line of standard output.

A killed process may leave an incomplete line, which is dropped. What was not reported is found from the
database and the broker, as in production. Times are CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import IO

from escrowmq.feedback.states import TransactionState
from escrowmq.replication.errors import EscrowMQError, UnknownVersion

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
class CheckAnswered:
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


Event = OrderEnded | CheckAnswered | Ready | Finished | Failed
_KINDS: dict[str, type[Event]] = {
    kind.__name__: kind for kind in (OrderEnded, CheckAnswered, Ready, Finished, Failed)
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


# ------------------------------------------------------------------------------------------------------------
# Counts what happened in a run, from the producers' events.


class DemoFailed(EscrowMQError):
    """The demo found a violation of a guarantee, or could not continue; the text says which."""


@dataclass(slots=True)
class Tally:
    """Counts of one run. ``through``: orders that were decided, left to a check, or found done already."""

    outcomes: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    resolved: dict[str, str] = field(default_factory=dict)
    commits: list[tuple[float, float]] = field(default_factory=list)
    taken_over: int = 0
    producer_killed_s: float | None = None
    leader_killed_s: float | None = None

    @property
    def through(self) -> int:
        return self.outcomes.total() + self.taken_over

    def add(self, event: Event) -> None:
        """Count an event. Raises DemoFailed if a producer process failed."""
        match event:
            case OrderEnded():
                self.outcomes[event.outcome] += 1
                if event.acknowledged_s:
                    self.commits.append((event.requested_s, event.acknowledged_s))
            case CheckAnswered():
                self.answers[event.answer] += 1
                if event.answer != TransactionState.UNKNOWN.value:
                    self.resolved[event.tx_id] = event.answer
            case Ready():
                self.taken_over += event.skipped
            case Failed():
                raise DemoFailed(f"a producer failed: {event.error}")

    def fail_over_s(self) -> float | None:
        """Seconds from the leader's death to the first commit requested and acknowledged after it.

        Commits requested before it do not count: their answers may already have been on the way.
        """
        killed = self.leader_killed_s
        if killed is None:
            return None
        after = [done for asked, done in self.commits if asked >= killed]
        return min(after) - killed if after else None

    def resolved_as(self, state: TransactionState) -> int:
        """Number of transactions that a check decided this way."""
        return sum(answer == state.value for answer in self.resolved.values())
