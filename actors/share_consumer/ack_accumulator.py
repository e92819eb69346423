"""Acks on their way: gathered for some milliseconds, so that one request carries many of them as few ranges.

An ack may be sent as often as needed: what is final stays final, whoever says it, also after the lease. So
acks whose request failed are put back, and go with the next one. Pure: takes ``now``.
"""

from __future__ import annotations

from collections.abc import Collection

from escrowmq.actors.share_consumer.held_batches import PlaceOfBatch
from escrowmq.actors.share_consumer.ranges import merged

Ranges = list[tuple[int, int]]


class _Waiting:
    """Acks for one broker group."""

    __slots__ = ("by_place", "count", "due")

    def __init__(self, due: float) -> None:
        self.by_place: dict[PlaceOfBatch, Ranges] = {}
        self.count, self.due = 0, due


class AckAccumulator:
    """The acks of one consumer that are in no request yet, by broker group and partition."""

    def __init__(self, linger_s: float, records_max: int) -> None:
        self._linger_s, self._records_max = linger_s, records_max
        self._waiting: dict[int, _Waiting] = {}

    def __len__(self) -> int:
        return sum(waiting.count for waiting in self._waiting.values())

    def add(self, gid: int, place: PlaceOfBatch, offset: int, now: float) -> bool:
        """Takes one ack. True if the time of the next request has changed."""
        waiting = self._waiting.get(gid)
        news = waiting is None
        if waiting is None:
            waiting = self._waiting[gid] = _Waiting(now + self._linger_s)
        ranges = waiting.by_place.get(place)
        if ranges is None:
            waiting.by_place[place] = [(offset, offset)]
        elif ranges[-1][1] + 1 == offset:  # the usual case: handled in order
            ranges[-1] = ranges[-1][0], offset
        else:
            ranges.append((offset, offset))
        waiting.count += 1
        if waiting.count == self._records_max:
            waiting.due, news = now, True
        return news

    def put_back(self, gid: int, place: PlaceOfBatch, ranges: Ranges, due: float) -> None:
        """Takes acks whose request failed; they are sent again at ``due``, or with an earlier request."""
        waiting = self._waiting.get(gid)
        if waiting is None:
            waiting = self._waiting[gid] = _Waiting(due)
        waiting.by_place.setdefault(place, []).extend(ranges)
        waiting.count += sum(last - first + 1 for first, last in ranges)

    def hurry(self, now: float) -> None:
        """Everything is due now: somebody waits for it."""
        for waiting in self._waiting.values():
            waiting.due = min(waiting.due, now)

    def due(self, now: float) -> list[int]:
        """The broker groups whose acks must not wait longer."""
        return [gid for gid, waiting in self._waiting.items() if waiting.due <= now]

    def next_due(self, but: Collection[int] = ()) -> float:
        """When the next acks must be sent, but those for some groups; infinity if there are none."""
        times = (waiting.due for gid, waiting in self._waiting.items() if gid not in but)
        return min(times, default=float("inf"))

    def take(self, gid: int) -> dict[PlaceOfBatch, Ranges]:
        """Everything that waits for this broker group, as sorted ranges."""
        waiting = self._waiting.pop(gid, None)
        if waiting is None:
            return {}
        return {place: merged(ranges) for place, ranges in waiting.by_place.items()}
