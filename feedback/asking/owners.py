"""When the owner of a transaction is gone: the producer that prepared it, and may still run its local part.

Only the owner knows whether the local transaction still runs, so while it is there nobody else is asked:
another process looks into the database, finds nothing *yet*, and its ROLLBACK tears the transaction. Being
gone is an observation like being online (``seats``): no poll of it for ``gone_s``, not even one that was sent
away, counted from the latest of its last poll, the start of this actor (which knows nothing of polls before),
and the moment at which it was first met in a locked row. A hand-out that nobody confirmed says nothing.
Forgetting an owner is safe: it is met again, and waited for again. But owners that are there must not crowd
out those that are not, or their transactions would never be anybody's: whoever is met unheard has a place
that only its own voice, or its end, gives away. Pure: takes ``now`` in seconds.
"""

from __future__ import annotations

from collections import OrderedDict

#: Owners heard of, and as many that were met unheard (4 MB each). Of the latter one that does not fit in is
#: met later, when another one is gone: its checks wait.
OWNERS_MAX = 20_000
_CLOSED = float("-inf")


class Owners:
    """When each producer was last heard of. ``started``: when whoever asks began to listen."""

    def __init__(self, gone_s: float, started: float, limit: int = OWNERS_MAX) -> None:
        self._gone_s, self._started, self._limit = gone_s, started, limit
        self._seen: OrderedDict[str, float] = OrderedDict()  # those heard of, the longest silent first
        self._met: OrderedDict[str, float] = OrderedDict()  # unheard ones, and when they were met
        #: Those whose checks were put off since they were not there, the longest awaited first.
        self.wanted: OrderedDict[str, None] = OrderedDict()

    def heard(self, instance: str, now: float) -> None:
        """A poll of it came in, or ended that was parked until ``now``."""
        self._met.pop(instance, None)
        self._seen[instance] = max(now, self._seen.get(instance, now))
        self._seen.move_to_end(instance)
        if len(self._seen) > self._limit:
            self._seen.popitem(last=False)

    def listen_anew(self, now: float) -> None:
        """Whoever asks stood still until ``now``: the polls of that time wait before it."""
        self._started = max(self._started, now)

    def closed(self, instance: str) -> None:
        """It said that it runs nothing and never will again: that is better than silence."""
        self._met.pop(instance, None)
        self._seen[instance] = _CLOSED
        self._seen.move_to_end(instance, last=False)
        if len(self._seen) > self._limit:
            self._seen.popitem(last=False)

    def gone_in_s(self, instance: str, now: float) -> float:
        """For how long it still counts as there if it stays silent; 0: it is gone. Meets it, if need be."""
        seen = self._last(instance)
        if seen is None:
            if not self._make_room(now):
                return self._gone_s
            seen = self._met[instance] = now
        if seen == _CLOSED:
            return 0.0
        return max(max(seen, self._started) + self._gone_s - now, 0.0)

    def _last(self, instance: str) -> float | None:
        return self._seen.get(instance, self._met.get(instance))

    def silent_s(self, instance: str, now: float) -> float:
        """How long nothing was heard of it."""
        seen = self._last(instance)
        return 0.0 if seen is None else max(now - max(seen, self._started), 0.0)

    def _make_room(self, now: float) -> bool:
        """Only those that are gone make room for one that is met, or none would ever be gone."""
        if len(self._met) < self._limit:
            return True
        oldest = next(iter(self._met))
        if self.gone_in_s(oldest, now) > 0:
            return False
        del self._met[oldest]
        return True

    def __len__(self) -> int:
        return len(self._seen) + len(self._met)
