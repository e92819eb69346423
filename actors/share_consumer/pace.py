"""How many messages a share consumer has ahead: those that its application begins within half a second.

What lies in one consumer's buffer, no other one gets. A number cannot say how much that may be: a hundred
messages are a moment of one application and half an hour of another. So the time that a message takes is
measured, from poll to poll, and what is held (with the application and ahead of it) is what is done within
``AHEAD_S``. A consumer whose messages take longer has nothing ahead, and waits for one call to the broker
before each: a hundredth of its time at most.

Pure: takes ``now``.
"""

from __future__ import annotations

#: A hundred calls to a broker: a longer time keeps nobody busier.
AHEAD_S = 0.5
#: What has waited here for so long goes back to the broker: the application has become slower than it was.
HOLD_S = 1.0
#: What a message is taken to need before one was measured: the first has one ahead.
FIRST_S = 0.25
#: Polls that get something are looked at together, for so long or until so many messages are done: a fast
#: application pays for each look.
LOOK_S, LOOK_DONE = 0.01, 16
#: A message has an eighth of the weight, and less if others are worked on at the same time: what begins
#: together often ends together, and then one of them has taken all of the time.
WEIGHT_OF_ONE = 8


class Pace:
    """What a message takes, by the time between polls: an average whose newest messages count most."""

    __slots__ = ("_busy", "_done", "_each_s", "_looked_at", "_spent_s")

    def __init__(self) -> None:
        self._each_s, self._spent_s, self._looked_at = FIRST_S, 0.0, -LOOK_S
        self._done, self._busy = 0, False

    def polled(self, now: float, done: int, held: int, given: int) -> None:
        """The application polls and is given some messages. By now it has ``done`` so many altogether, and
        still ``held`` some others."""
        if given and self._busy and done < self._done + LOOK_DONE and now < self._looked_at + LOOK_S:
            return
        self._spent_s += self._since(now)
        self._looked_at, self._busy = now, held + given > 0
        count, self._done = done - self._done, done
        if count > 0:
            old = _old_weight(held) ** count
            self._each_s = self._each_s * old + self._spent_s / count * (1 - old)
            self._spent_s = 0.0

    def holds(self, now: float, held: int) -> int:
        """How many are done within ``AHEAD_S``. One that takes long counts while it is not done."""
        old = _old_weight(held)
        each_s = self._each_s * old + (self._spent_s + self._since(now) - LOOK_S) * (1 - old)
        return int(AHEAD_S / max(self._each_s, each_s, 1e-6))

    def _since(self, now: float) -> float:
        """Time of work since the last poll. Without messages the application has nothing to do."""
        return now - self._looked_at if self._busy else 0.0


def _old_weight(held: int) -> float:
    return 1 - 1 / (WEIGHT_OF_ONE + 2 * held)
