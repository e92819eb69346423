"""Watches Ray's head for a program: logs when the head is lost, when it is back, and before Ray ends it.

Ray ends every process that has not reached the head for a while (a minute by default), without an exception
and with only a line about "GCS" on standard error. So a thread here tries the head's port every few seconds
and logs what has happened, how much time is left, and what to do. It does not disconnect from Ray itself:
other threads may be inside calls to Ray.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from escrowmq.cluster.head import HOW_TO

log = logging.getLogger(__name__)

#: Each check opens a connection to the head, and every connected program makes them ...
LOOK_EVERY_S = 5.0
#: ... but at least this many are made before Ray ends the process.
LOOKS_MIN = 12
#: A shorter absence means a busy machine, or a control store that is restarting.
SAY_AFTER_S = 2.0
#: The final message is logged at most this long before Ray ends the process ...
LAST_WORD_S = 10.0
#: ... or this fraction of the whole time, if that is less.
LAST_WORD_PART = 0.3


@dataclass(frozen=True, slots=True)
class Word:
    """A message for the log, and its level: ERROR if Ray will end the process soon."""

    level: int
    text: str


class HeadAbsence:
    """Turns the results of checks into log messages. Pure: takes ``now`` in seconds, of any origin."""

    def __init__(self, address: str, patience_s: float) -> None:
        """``patience_s``: length of an absence after which Ray ends this process."""
        self._address, self._patience_s = address, patience_s
        self._last_word_s = patience_s - min(LAST_WORD_S, LAST_WORD_PART * patience_s)
        self._say_after_s = min(SAY_AFTER_S, self._last_word_s / 2)
        self._since: float | None = None
        self._said = self._ended = False

    def seen(self, there: bool, now: float) -> Word | None:
        """Record a check's result; returns the message to log, if any."""
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
            f"Ray's head at {self._address} has been unreachable for {away:.0f} s. Running processes "
            "continue, but none that ends is restarted. If the head stays away, Ray ends this process "
            f"{self._patience_s:g} s after the loss; {HOW_TO}"
        )

    def _last_word(self, away: float) -> str:
        return (
            f"Ray's head at {self._address} has been unreachable for {away:.0f} s, and Ray ends this process "
            f"{self._patience_s:g} s after the loss. Nothing that was acknowledged is lost: when the head "
            "and the cluster are back, restart this program. Its open transactions are checked as after "
            f"any crash; {HOW_TO}"
        )


class HeadWatch:
    """The thread that checks and logs. ``reachable`` may block for a few seconds."""

    def __init__(self, address: str, patience_s: float, reachable: Callable[[], bool]) -> None:
        self._absence, self._reachable = HeadAbsence(address, patience_s), reachable
        self._every_s = min(LOOK_EVERY_S, patience_s / LOOKS_MIN)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="escrowmq-head", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop checking. Does not wait for a check in progress."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(self._every_s):
            there = self._reachable()
            if self._stopping.is_set():
                return
            word = self._absence.seen(there, time.monotonic())
            if word is not None:
                log.log(word.level, "%s", word.text)
