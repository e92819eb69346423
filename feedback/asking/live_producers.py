"""The producers of an app that can be asked right now. Pure: takes ``now`` in seconds.

A producer has a seat while it polls. Being online is an observation about polls, never a claim of the
producer or of Ray: a parked poll, or one that ended a moment ago. A producer that died with its poll
parked looks online until its poll ends or a hand-out to it is not confirmed.
"""

from __future__ import annotations

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
