"""How long to tolerate failures that may pass, and the loop that does so.

Only the time of failed attempts and of the pauses between them counts, not the work between two calls: a
caller that is busy for minutes does not lose its patience by that.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

from escrowmq.replication.calling.backoff import Backoff

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
