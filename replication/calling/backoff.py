"""How long to pause before something is tried again."""

from __future__ import annotations

import random
from dataclasses import dataclass

#: Beyond this many failures the pause has reached its maximum anyway; bounds the exponent.
_FAILURES_MAX = 64


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses in seconds that grow from ``first_s`` by ``factor`` up to ``longest_s``.

    ``jitter``: each pause is lengthened at random by up to this share of itself, so that callers that failed
    together do not return together. It is never shortened: a pause that the other side asked for is kept.
    """

    first_s: float
    longest_s: float
    factor: float = 2.0
    jitter: float = 0.0

    def pause_s(self, failures: int, rng: random.Random | None = None, *, asked_s: float = 0.0) -> float:
        """The pause after a failure that ``failures`` others preceded in a row (0: this is the first).

        ``asked_s``: what the other side asked for, at most ``longest_s``. Without ``rng`` there is no jitter.
        """
        grown = self.first_s * self.factor ** min(failures, _FAILURES_MAX)
        pause = min(max(grown, asked_s), self.longest_s)
        return pause if rng is None else pause * (1.0 + self.jitter * rng.random())
