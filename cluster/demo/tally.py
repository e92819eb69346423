"""What happened in a run, counted from the producers' events."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from escrowmq.cluster.demo.events import Checked, Event, Failed, OrderEnded, Ready
from escrowmq.feedback.states import TransactionState
from escrowmq.replication.errors import EscrowMQError


class DemoFailed(EscrowMQError):
    """The demo's own promise was not kept, or it could not go on; the text says which."""


@dataclass(slots=True)
class Tally:
    """Counts of one run. ``through`` orders are decided, left to the check, or found done."""

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
        """From the leader's death to the first commit that was asked for and acknowledged after it.

        Commits asked for before are left out: their answers may have been under way already.
        """
        killed = self.leader_killed_s
        if killed is None:
            return None
        after = [done for asked, done in self.commits if asked >= killed]
        return min(after) - killed if after else None

    def resolved_as(self, state: TransactionState) -> int:
        """Transactions that a check decided this way."""
        return sum(answer == state.value for answer in self.resolved.values())
