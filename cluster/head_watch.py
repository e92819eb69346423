"""A program's eye on Ray's head: says in its log when the head is lost, when it is back, and before the end.

Ray ends every process that could not reach its head for a while (a minute by default): without an exception,
and with a line about "GCS" on standard error. So a thread of ours looks at the head's port every few
seconds, and says in words what has happened, how long there is still time, and what to do. It ends nothing:
other threads may be inside Ray, which cannot be left under their feet.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from escrowmq.cluster.head import HOW_TO

log = logging.getLogger(__name__)

#: One look is a connection to the head, and every connected program takes them ...
LOOK_EVERY_S = 5.0
#: ... and at least so many are taken in the time that there is.
LOOKS_MIN = 12
#: An absence shorter than this is a busy machine, or a control store that is started again.
SAY_AFTER_S = 2.0
#: The last word is said so long before Ray's end of the process, at most ...
LAST_WORD_S = 10.0
#: ... or this part of the whole time, if that is less.
LAST_WORD_PART = 0.3


@dataclass(frozen=True, slots=True)
class Word:
    """What is to be said, at which level of logging: ERROR when Ray ends the process soon."""

    level: int
    text: str


class HeadAbsence:
    """Looks at the head come in, words go out. No clock: ``now`` in seconds, of any origin."""

    def __init__(self, address: str, patience_s: float) -> None:
        """``patience_s``: after such an absence Ray ends this process."""
        self._address, self._patience_s = address, patience_s
        self._last_word_s = patience_s - min(LAST_WORD_S, LAST_WORD_PART * patience_s)
        self._say_after_s = min(SAY_AFTER_S, self._last_word_s / 2)
        self._since: float | None = None
        self._said = self._ended = False

    def seen(self, there: bool, now: float) -> Word | None:
        """A look was taken; what to say of it, if anything."""
        if there:
            since, said = self._since, self._said
            self._since, self._said, self._ended = None, False, False
            if since is None or not said:
                return None
            return Word(logging.WARNING, f"Ray's head at {self._address} is back after {now - since:.0f} s")
        if self._since is None:
            self._since = now
        away = now - self._since
        if away >= self._last_word_s and not self._ended:
            self._said = self._ended = True
            return Word(logging.ERROR, self._last_word(away))
        if away >= self._say_after_s and not self._said:
            self._said = True
            return Word(logging.WARNING, self._first_word(away))
        return None

    def _first_word(self, away: float) -> str:
        return (
            f"Ray's head at {self._address} cannot be reached for {away:.0f} s now. What runs goes on; "
            "nothing that ends is started again. If it is not back in time, Ray ends this process "
            f"{self._patience_s:g} s after the loss; {HOW_TO}"
        )

    def _last_word(self, away: float) -> str:
        return (
            f"Ray's head at {self._address} has been lost for {away:.0f} s, and Ray ends this process "
            f"{self._patience_s:g} s after the loss. Nothing that was acknowledged is lost: when the head "
            "and the cluster are back, start this program again. What it had open then is checked as after "
            f"any crash; {HOW_TO}"
        )


class HeadWatch:
    """The thread. ``reachable`` blocks for a few seconds at most."""

    def __init__(self, address: str, patience_s: float, reachable: Callable[[], bool]) -> None:
        self._absence, self._reachable = HeadAbsence(address, patience_s), reachable
        self._every_s = min(LOOK_EVERY_S, patience_s / LOOKS_MIN)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="escrowmq-head", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more. Does not wait for a look under way."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(self._every_s):
            there = self._reachable()
            if self._stopping.is_set():
                return
            word = self._absence.seen(there, time.monotonic())
            if word is not None:
                log.log(word.level, "%s", word.text)
