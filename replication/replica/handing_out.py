"""How far an answer to a share consumer reaches in one partition: whole runs, as far as possible.

Bodies are not decoded, so a member gets the bytes of a run even if only a part of its messages is for it.
Hence a run is divided among members only if it has more than twice as many messages as were asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from escrowmq.replication.sharing.window import Taken
from escrowmq.replication.state.index import PartitionIndex, Run

#: Runs looked up at a time.
RUNS_MAX = 4_096


class HandedOut(NamedTuple):
    """What was handed out of one partition, and the runs that hold it; see ``AcquiredRow``. ``number`` -1:
    this broker group has no partition of the topic, or there is no such topic."""

    topic: str
    number: int
    code: int
    topic_id: int = 0
    runs: Sequence[Run] = ()
    taken: Sequence[Taken] = ()


class Reach:
    """One answer, in one partition. ``bytes_left`` falls; ``runs`` are those in which something was taken."""

    def __init__(self, index: PartitionIndex, bytes_left: int, *, at_least_one: bool) -> None:
        """``at_least_one``: the first run is taken whatever its size."""
        self.bytes_left = bytes_left
        self._index, self._at_least_one = index, at_least_one
        self._runs: dict[int, Run] = {}

    @property
    def runs(self) -> list[Run]:
        """In order of offsets."""
        return [self._runs[base] for base in sorted(self._runs)]

    def stretch(self, first: int, last: int, wanted: int) -> int:
        """See ``sharing.window.Stretch``."""
        stop, count = first - 1, 0
        for run in self._runs_from(first, wanted):
            if run.base > last or not (run.base in self._runs or self._fits(run)):
                break
            end = min(run.base + run.messages - 1, last)
            if count + end - stop > wanted:
                if count:
                    break
                if end - stop > 2 * wanted:
                    end = stop + wanted
            if run.base not in self._runs:
                self._runs[run.base] = run
                self.bytes_left -= run.size
            count += end - stop
            stop = end
            if count >= wanted:
                break
        return stop

    def _fits(self, run: Run) -> bool:
        return run.size <= self.bytes_left or (self._at_least_one and not self._runs)

    def _runs_from(self, first: int, wanted: int) -> Iterator[Run]:
        return iter(self._index.runs_from(first, min(wanted, RUNS_MAX), max(self.bytes_left, 1)))
