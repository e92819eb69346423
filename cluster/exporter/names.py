"""Limits the label values that applications choose: some get their own series, the others share one.

Each series costs Prometheus storage, so their number must be bounded whatever applications do. Names get a
place in the order in which they appear, and keep it until they have been absent for a while; if places
changed hands often, each change would create a new series. Pure: takes ``now``.
"""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)

#: The label value for all names without a place. An application's name "other" counts here, too.
OTHER = "other"
#: A name that was not seen for this long loses its place. Longer than a restart of an application.
FORGET_AFTER_S = 3600.0
#: How often the log repeats that the limit is reached.
SAY_EVERY_S = 600.0


class Names:
    """The values of one label. Not thread-safe."""

    def __init__(self, label: str, most: int) -> None:
        """``label``: the name of the label; ``most``: number of places, not counting ``OTHER``."""
        self.label, self.most = label, most
        #: Whether a name was recently refused a place.
        self.limited = False
        self._seen: dict[str, float] = {}
        self._limited_at = self._said_at = float("-inf")

    def place(self, name: str, now: float) -> str:
        """The label value for this name: the name itself, or ``OTHER``."""
        if name in self._seen or len(self._seen) < self.most:
            self._seen[name] = now
            return name
        self.sent_away(now)
        return OTHER

    def has(self, name: str) -> bool:
        """Whether the name has a place. Does not count as seeing it."""
        return name in self._seen

    def sent_away(self, now: float) -> None:
        """Record, and log from time to time, that there are names without a place."""
        self._limited_at, self.limited = now, True
        if now - self._said_at >= SAY_EVERY_S:
            self._said_at = now
            text = "there are more than %d values of label %r; the others are counted as %r"
            log.warning(text, self.most, self.label, OTHER)

    def tidy(self, now: float) -> list[str]:
        """Remove and return the names not seen for FORGET_AFTER_S. Call it once per look."""
        gone = [name for name, seen in self._seen.items() if now - seen >= FORGET_AFTER_S]
        for name in gone:
            del self._seen[name]
        self.limited = now - self._limited_at < FORGET_AFTER_S
        return gone
