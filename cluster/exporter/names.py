"""Label values that applications choose: so many have a series of their own, the rest counts as one.

Whoever stores series pays for each, so their number has a bound whatever applications do. Who comes first is
shown, and keeps its place until it has been away for a while: a place that changed hands all the time would
make a new series each time. Pure: takes ``now``.
"""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)

#: The series of all that have no place. A name that is this one counts there, too.
OTHER = "other"
#: Nothing was heard of it for so long: its place is free. Longer than a restart of an application.
FORGET_AFTER_S = 3600.0
#: How often the log repeats that the bound is reached.
SAY_EVERY_S = 600.0


class Names:
    """The values of one label. Not thread-safe."""

    def __init__(self, label: str, most: int) -> None:
        """``label``: what they name, for the log; ``most``: places beside that of all others."""
        self.label, self.most = label, most
        #: Whether a name was sent away lately.
        self.limited = False
        self._seen: dict[str, float] = {}
        self._limited_at = self._said_at = float("-inf")

    def place(self, name: str, now: float) -> str:
        """The value that stands for this name: itself, or ``OTHER``."""
        if name in self._seen or len(self._seen) < self.most:
            self._seen[name] = now
            return name
        self.sent_away(now)
        return OTHER

    def has(self, name: str) -> bool:
        """Whether it has a place of its own. Asking is no news of it."""
        return name in self._seen

    def sent_away(self, now: float) -> None:
        """There are names without a place: say so."""
        self._limited_at, self.limited = now, True
        if now - self._said_at >= SAY_EVERY_S:
            self._said_at = now
            text = "there are more than %d values of label %r: further ones are counted as %r"
            log.warning(text, self.most, self.label, OTHER)

    def tidy(self, now: float) -> list[str]:
        """Forget those of which nothing was heard for long; which they were. Once in every look."""
        gone = [name for name, seen in self._seen.items() if now - seen >= FORGET_AFTER_S]
        for name in gone:
            del self._seen[name]
        self.limited = now - self._limited_at < FORGET_AFTER_S
        return gone
