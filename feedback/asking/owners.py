"""When the owner of a transaction is gone: the producer that prepared it, and may still run its local part.

Only the owner knows whether the local transaction is still running, so while it is online no other producer
is asked: another process would look into the database, find nothing *yet*, and its ROLLBACK would tear the
transaction. Being gone is an observation, like being online (``seats``): no poll of the owner for ``gone_s``,
not even one that was sent away. The time counts from the latest of its last poll, the start of this actor
(which knows nothing of earlier polls), and the moment at which it was first met in a locked row. A hand-out
that was not confirmed says nothing.

Forgetting an owner is safe: it is met again, and waited for again. But owners that are online must not crowd
out those that are not, or the transactions of these would never become free: an owner that is met unheard has
a place that is freed only when it is heard, or gone. Pure: takes ``now`` in seconds.
"""

from __future__ import annotations

from collections import OrderedDict

#: Owners that were heard, and as many that were met unheard (4 MB each). An unheard one that does not fit is
#: met later, when another one is gone: until then its checks wait.
OWNERS_MAX = 20_000
_CLOSED = float("-inf")


class Owners:
    """When each producer was last heard of. ``started``: when the caller began to listen."""

    def __init__(self, gone_s: float, started: float, limit: int = OWNERS_MAX) -> None:
        self._gone_s, self._started, self._limit = gone_s, started, limit
        self._seen: OrderedDict[str, float] = OrderedDict()  # heard ones, the longest silent first
        self._met: OrderedDict[str, float] = OrderedDict()  # unheard ones, and when they were met
        #: Owners whose checks were put off because they were offline, the longest awaited first.
        self.wanted: OrderedDict[str, None] = OrderedDict()

    def heard(self, instance: str, now: float) -> None:
        """A poll of it arrived, or one that was parked until ``now`` ended."""
        self._met.pop(instance, None)
        self._seen[instance] = max(now, self._seen.get(instance, now))
        self._seen.move_to_end(instance)
        if len(self._seen) > self._limit:
            self._seen.popitem(last=False)

    def listen_anew(self, now: float) -> None:
        """The caller was paused until ``now``: polls from that time may still be queued before it."""
        self._started = max(self._started, now)

    def closed(self, instance: str) -> None:
        """It said that it runs nothing and never will again: that is more certain than silence."""
        self._met.pop(instance, None)
        self._seen[instance] = _CLOSED
        self._seen.move_to_end(instance, last=False)
        if len(self._seen) > self._limit:
            self._seen.popitem(last=False)

    def gone_in_s(self, instance: str, now: float) -> float:
        """For how long it still counts as online if it stays silent; 0: it is gone. Notes it if it is new."""
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
        """For how long nothing was heard of it."""
        seen = self._last(instance)
        return 0.0 if seen is None else max(now - max(seen, self._started), 0.0)

    def _make_room(self, now: float) -> bool:
        """Only owners that are gone make room for a new one, or none would ever be considered gone."""
        if len(self._met) < self._limit:
            return True
        oldest = next(iter(self._met))
        if self.gone_in_s(oldest, now) > 0:
            return False
        del self._met[oldest]
        return True

    def __len__(self) -> int:
        return len(self._seen) + len(self._met)
