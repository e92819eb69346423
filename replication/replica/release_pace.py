"""How many delayed messages a leader releases at a time, so that clients' requests need not wait for them.

An entry with a release of a thousand messages takes 10 ms and more. A million of them, due in one second,
once left clients an eighth of their commits. So while requests come, releases get a share of the time: a
number for each millisecond, in entries that are written anyway.
"""

from __future__ import annotations

#: Messages of one release, if nothing else waits and if something does: some 15 ms of the leader's thread.
RELEASED_MAX, RELEASED_BESIDE = 1_024, 512
#: Beside requests: so many for each ms since the last release, a tenth of the leader's thread; four tenths if
#: each of them must be copied from a place of its own in older segments.
PER_MS = 24
#: Requests count for so long after they came: those of clients that wait for their answers come again.
REQUESTS_MS = 50
#: Fewer get no entry of their own while requests are expected: an entry costs its syncs, whatever is in it.
ALONE_MIN = 4 * PER_MS


class ReleasePace:
    """Of one leader. All times are those of entries."""

    def __init__(self) -> None:
        self._requests_ms = self._released_ms = -1 << 62
        self._full = False

    def requests(self, now_ms: int) -> None:
        """An entry with requests is written, perhaps while a release is under way."""
        self._requests_ms = now_ms

    def room(self, now_ms: int, beside: bool) -> int:
        """So many messages may be released now; 0: none before the next ms. ``beside``: requests wait."""
        if not beside and now_ms - self._requests_ms >= REQUESTS_MS:
            return RELEASED_MAX
        if not self._full:
            return RELEASED_BESIDE
        room = min((now_ms - self._released_ms) * PER_MS, RELEASED_BESIDE)
        return room if beside or room >= ALONE_MIN else 0

    def released(self, now_ms: int, full: bool) -> None:
        """A release is written. ``full``: more is due than there was room for."""
        self._released_ms, self._full = now_ms, full
