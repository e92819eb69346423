"""How long producers' polls are parked: longer, the more producers share one feedback process.

A parked poll costs nothing, but each one that ends and comes again costs 1 to 2.5 ms of processor time
in the actor and about 1 ms in the producer, nearly all of it Ray's. With polls of a fixed 5 s, ten
thousand idle producers need five cores; with fewer cores, polls queue before the actor instead of
being parked in it, and checks queue with them. So the rate is bounded, not the length. Pure: takes ``now``.
"""

from __future__ import annotations

import math

from escrowmq.feedback.config import FeedbackConfig


class PollPace:
    """Counts the producers that poll; it remembers as many as make a difference.

    Producers are counted, not parked polls: when the processor is the bottleneck few polls are parked,
    and that is when they must become longer.
    """

    def __init__(self, config: FeedbackConfig) -> None:
        self._config = config
        self._longest_s = max(config.poll_wait_max_s, config.poll_wait_s)
        self._count_max = math.ceil(self._longest_s * config.polls_per_s)
        self._seen: dict[str, float] = {}  # instance -> its last poll; the oldest first

    def arrive(self, instance: str, now: float) -> None:
        """A poll arrived."""
        self._seen.pop(instance, None)
        self._seen[instance] = now
        while len(self._seen) > self._count_max or self._oldest() < now - 2 * self._longest_s:
            del self._seen[next(iter(self._seen))]

    def leave(self, instance: str) -> None:
        """It will not poll again."""
        self._seen.pop(instance, None)

    @property
    def producers(self) -> int:
        """How many polled recently; no more than make a difference."""
        return len(self._seen)

    def wait_s(self) -> float:
        """How long a poll that arrives now may be parked."""
        return min(max(len(self._seen) / self._config.polls_per_s, self._config.poll_wait_s), self._longest_s)

    def retry_s(self) -> float:
        """When a producer that is sent away comes back: such calls cost as much as polls that end."""
        return self.wait_s() / self._config.poll_wait_s

    def _oldest(self) -> float:
        return next(iter(self._seen.values()))
