"""What has come against what was acknowledged. Pure.

A message is a number; its time follows from the number. Messages are sent in batches: one that was
acknowledged comes once, one whose answer nobody heard at most once, and none before its time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

#: So many of each kind are named.
NAMED = 5


@dataclass(frozen=True)
class Plan:
    """When each message can be read: within ``span_ms`` from ``begin_ms`` on, in an order of no meaning."""

    begin_ms: int
    span_ms: int

    def due_ms(self, number: int) -> int:
        return self.begin_ms + number * 7_919 % self.span_ms


@dataclass
class Sent:
    """Batches by their first number, each of ``batch`` messages."""

    batch: int
    begun: list[int] = field(default_factory=list)
    acknowledged: set[int] = field(default_factory=set)

    def messages(self, firsts: Iterable[int]) -> Iterable[int]:
        return (number for first in firsts for number in range(first, first + self.batch))

    @property
    def unknown(self) -> list[int]:
        """Batches whose answers were lost."""
        return [first for first in self.begun if first not in self.acknowledged]


def judge(sent: Sent, plan: Plan, read: Sequence[tuple[int, int]]) -> list[str]:
    """What is wrong. ``read``: number and timestamp of all that can be read in the end."""
    times: dict[int, list[int]] = {}
    for number, timestamp_ms in read:
        times.setdefault(number, []).append(timestamp_ms)
    acknowledged = set(sent.messages(sent.acknowledged))
    unknown = set(sent.messages(sent.unknown))
    early = [n for n, found in times.items() if min(found) < plan.due_ms(n)]
    kinds = {
        "lost": acknowledged - times.keys(),
        "twice": [n for n, found in times.items() if len(found) > 1],
        "early": early,
        "never sent": times.keys() - acknowledged - unknown,
    }
    return [
        f"{kind}: {len(numbers):,} messages: {sorted(numbers)[:NAMED]}"
        for kind, numbers in kinds.items()
        if numbers
    ]
