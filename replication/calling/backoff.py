"""How long to pause before something is tried again."""

from __future__ import annotations

import random
from dataclasses import dataclass

#: Beyond this many failures the pause is the longest one anyway; bounds the power that is computed.
_FAILURES_MAX = 64


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses in seconds that grow from ``first_s`` by ``factor`` up to ``longest_s``.

    ``jitter``: each pause is drawn out at random by up to this share of itself, so that many who failed
    together do not come back together. It is never shortened: whoever asked for a pause gets all of it.
    """

    first_s: float
    longest_s: float
    factor: float = 2.0
    jitter: float = 0.0

    def pause_s(self, failures: int, rng: random.Random | None = None, *, asked_s: float = 0.0) -> float:
        """The pause after a failure that ``failures`` others preceded (0: the first in a row).

        ``asked_s``: what the other side asked for; it counts up to ``longest_s``. Without ``rng``, no jitter.
        """
        grown = self.first_s * self.factor ** min(failures, _FAILURES_MAX)
        pause = min(max(grown, asked_s), self.longest_s)
        return pause if rng is None else pause * (1.0 + self.jitter * rng.random())
