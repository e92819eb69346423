"""The producers of an app that can be asked right now. Pure: takes ``now`` in seconds.

A producer has a seat while it polls. Being online is an observation about polls, never a claim of the
producer or of Ray: a parked poll, or one that ended a moment ago. A producer that died with its poll
parked looks online until its poll ends or a hand-out to it is not confirmed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Set
from dataclasses import dataclass, field

CheckKey = tuple[int, str]  # broker group, transaction id


@dataclass(slots=True)
class LiveProducer:
    """One producer instance. ``room``: checks it accepts now; never more than its last poll said."""

    instance: str
    last_seen: float
    room: int = 0
    had_room_at: float = 0.0
    parked: bool = False
    fence: bytes = b""  # the table that it answers from; empty: none, or it has not told
    holding: dict[CheckKey, None] = field(default_factory=dict)  # in the order of handing out

    @property
    def load(self) -> int:
        return len(self.holding)

    def may_answer(self, fence: bytes) -> bool:
        """Whether it has the table whose rows decide."""
        return not fence or self.fence == fence

    def online(self, now: float, silent_s: float) -> bool:
        """Whether it can be asked, judging by its polls."""
        return self.parked or now - self.last_seen < silent_s


class LiveProducers:
    """All seats of one app and topic, at most ``limit``.

    ``silent_s``: without a poll for this long it is offline. ``full_s``: without room for this long it is
    no longer waited for (all its queries hang); a busy one has room again within moments.
    """

    def __init__(self, limit: int, silent_s: float, full_s: float) -> None:
        self._limit, self._silent_s, self._full_s = limit, silent_s, full_s
        self._seats: dict[str, LiveProducer] = {}

    def get(self, instance: str) -> LiveProducer | None:
        return self._seats.get(instance)

    def arrive(self, instance: str, room: int, now: float, wanted: bool = False) -> LiveProducer | None:
        """A poll arrived; None if there is no seat left. ``wanted``: it gets one beyond the limit."""
        seat = self._seats.get(instance)
        if seat is None:
            if len(self._seats) >= self._limit and not wanted:
                return None
            seat = self._seats[instance] = LiveProducer(instance, now)
        seat.last_seen, seat.room = now, room
        if room > 0:
            seat.had_room_at = now
        return seat

    def there(self, instance: str, now: float) -> bool:
        """Whether this one can be asked."""
        seat = self._seats.get(instance)
        return seat is not None and seat.online(now, self._silent_s)

    def remove(self, instance: str) -> LiveProducer | None:
        """It left, or it is dead."""
        return self._seats.pop(instance, None)

    def online(self, now: float) -> Iterator[LiveProducer]:
        """Those that can be asked."""
        return (seat for seat in self._seats.values() if seat.online(now, self._silent_s))

    def taking(self, now: float) -> list[LiveProducer]:
        """Those that can be asked and accept checks, now or in a moment."""
        return [seat for seat in self.online(now) if seat.room > 0 or now - seat.had_room_at < self._full_s]

    def silent(self, now: float) -> list[str]:
        """Those that can no longer be asked."""
        return [name for name, seat in self._seats.items() if not seat.online(now, self._silent_s)]

    def room(self, now: float) -> int:
        """Checks that all of them together accept now."""
        return sum(seat.room for seat in self.online(now))

    def others(self, now: float, tried: Set[str], fence: bytes = b"") -> bool:
        """Whether one that was not tried yet accepts checks of this table."""
        return any(seat.instance not in tried and seat.may_answer(fence) for seat in self.taking(now))

    def names(self) -> list[str]:
        """The instances of all seats."""
        return list(self._seats)

    def __len__(self) -> int:
        return len(self._seats)


# ------------------------------------------------------------------------------------------------------------
# When the owner of a transaction is gone: the producer that prepared it, and may still run its local part.
#
# Only the owner knows whether the local transaction is still running, so while it is online no other producer
# is asked: another process would look into the database, find nothing *yet*, and its ROLLBACK would tear the
# transaction. Being gone is an observation, like being online (``seats``): no poll of the owner for
# ``gone_s``, not even one that was sent away. The time counts from the latest of its last poll, the start of
# this actor (which knows nothing of earlier polls), and the moment at which it was first met in a locked row.
# A hand-out that was not confirmed says nothing.
#
# Forgetting an owner is safe: it is met again, and waited for again. But owners that are online must not
# crowd out those that are not, or the transactions of these would never become free: an owner that is met
# unheard has a slot that is freed only when it is heard, or gone. Pure: takes ``now`` in seconds.

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
