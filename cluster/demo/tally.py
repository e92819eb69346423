"""Counts what happened in a run, from the producers' events."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from escrowmq.cluster.demo.events import Checked, Event, Failed, OrderEnded, Ready
from escrowmq.feedback.states import TransactionState
from escrowmq.replication.errors import EscrowMQError


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
            case Checked():
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
