"""How long to tolerate failures that may pass, and the loop that does so.

Only the time of failed attempts and of the pauses between them counts, not the work between two calls: a
caller that is busy for minutes does not lose its patience by that.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

# ------------------------------------------------------------------------------------------------------------
# How long to pause before something is tried again.

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


Answer = TypeVar("Answer")


class Patience:
    """One caller's patience: ``patience_s`` seconds of failed attempts and pauses since the last answer."""

    def __init__(self, patience_s: float, backoff: Backoff, rng: random.Random | None = None) -> None:
        self._patience_s, self._backoff, self._rng = patience_s, backoff, rng
        self._failures, self._vain_s = 0, 0.0

    def pause_s(self, took_s: float, error: BaseException) -> float | None:
        """How long to pause after an attempt that took ``took_s`` and ended in ``error``; None: give up.

        An error's ``retry_after_s`` is respected, up to the longest pause.
        """
        self._vain_s += took_s
        if self._vain_s > self._patience_s:
            return None
        asked_s: float = getattr(error, "retry_after_s", 0.0)
        pause = self._backoff.pause_s(self._failures, self._rng, asked_s=asked_s)
        self._failures += 1
        self._vain_s += pause
        return pause

    def heard(self) -> None:
        """Part of an attempt was answered: the time starts again; the pauses keep their length."""
        self._vain_s = 0.0

    def answered(self) -> None:
        """An attempt succeeded: time and pauses start again."""
        self._failures, self._vain_s = 0, 0.0


def patiently(
    attempt: Callable[[], Answer],
    patience: Patience,
    passing: type[Exception] | tuple[type[Exception], ...],
    *,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> Answer:
    """Call ``attempt()`` until it raises none of ``passing``. When patience is over, raises the last
    error."""
    while True:
        began = clock()
        try:
            return attempt()
        except passing as error:
            pause = patience.pause_s(clock() - began, error)
            if pause is None:
                raise
        sleep(pause)
