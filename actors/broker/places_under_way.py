"""Commits of places that are on their way to the log, so that nobody reads a place that is about to move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from escrowmq.actors.client.consumer_groups import TopicPartition


@dataclass(slots=True, eq=False)
class _Unknown:
    """A commit whose outcome is not known. ``until``: it is applied once the log is, up to here; None: it may
    not be in the log yet."""

    group: str
    places: Sequence[TopicPartition]
    until: int | None = None


class PlacesUnderWay:
    """Places that are queued for the log in this term, and perhaps not applied yet. One whose outcome is not
    known stays here until everything is applied that the log held later, when no request waited to be
    written; or until the term ends, since the next leader has applied everything before its term."""

    def __init__(self) -> None:
        self.term = 0
        self.unknown: list[_Unknown] = []
        self._queued: dict[str, Counter[TopicPartition]] = {}

    def lead(self, term: int) -> None:
        """As the coordinator's: in a new term nothing is under way."""
        if term > self.term:
            self.term = term
            self._queued.clear()
            self.unknown.clear()

    def add(self, group: str, places: Iterable[TopicPartition]) -> None:
        self._queued.setdefault(group, Counter()).update(places)

    def ended(self, term: int, group: str, places: Sequence[TopicPartition], *, known: bool) -> None:
        """``known``: they are applied, or certainly not done. Those of an earlier term are already
        forgotten."""
        if term != self.term:
            return
        if known:
            self._discard(group, places)
        else:
            self.unknown.append(_Unknown(group, places))

    def look(self, noted: Sequence[_Unknown], log_end: int | None, applied: int) -> None:
        """See ``GroupService``. ``log_end`` and ``applied`` were read after these were noted."""
        kept = set(self.unknown)
        for one in noted:
            if one not in kept:
                continue  # of an earlier term, or somebody else has looked
            if one.until is None:
                one.until = log_end
            if one.until is not None and applied >= one.until:
                kept.discard(one)
                self._discard(one.group, one.places)
        self.unknown = [one for one in self.unknown if one in kept]

    def _discard(self, group: str, places: Iterable[TopicPartition]) -> None:
        queued = self._queued.get(group)
        if queued is None:
            return
        for place in places:
            if queued[place] <= 1:
                del queued[place]
            else:
                queued[place] -= 1
        if not queued:
            del self._queued[group]

    def has_any(self, group: str) -> bool:
        return group in self._queued

    def has(self, group: str, places: Iterable[TopicPartition]) -> bool:
        queued = self._queued.get(group)
        return queued is not None and any(place in queued for place in places)
