"""The other members of its group as one replica knows them, before its log tells and after.

At first they are the group's founders, and the replicas that the supervisor named when it started the
process. Members change while a replica is away or is being repaired; then none that it knows may be left,
and it does not know those that could send it the entries that say so. So any caller that knows better tells
it (``tell``). Once the replica runs, its node decides from the log whom it listens to (``follow``).

The version of the configuration is the list's epoch: an older list changes nothing. A replica on the list may
be asked and listened to. Which ones count is decided by the log alone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from escrowmq.replication.format.membership import in_order


class PeerList(Sequence[str]):
    """Raft ids of the others, ordered by number. Thread-safe: an iteration is over the
    list as it was when the iteration began."""

    def __init__(self, own: str, first: Iterable[str]) -> None:
        self._own, self._lock = own, threading.Lock()
        self._now = self._others(first)
        self.epoch = 0

    def tell(self, epoch: int, members: Iterable[str]) -> None:
        """A caller says that these are the members in configuration ``epoch``. No id is removed from the
        list: only the log can tell that the caller is right."""
        with self._lock:
            if epoch >= self.epoch:
                self.epoch = epoch
                self._now = self._others({*self._now, *members})

    def follow(self, epoch: int, heard: Iterable[str]) -> None:
        """The node listens to these, according to a log whose newest configuration is ``epoch``."""
        with self._lock:
            self.epoch = max(self.epoch, epoch)
            self._now = self._others(heard)

    def _others(self, members: Iterable[str]) -> tuple[str, ...]:
        return in_order(set(members) - {self._own})

    def __iter__(self) -> Iterator[str]:
        return iter(self._now)

    def __len__(self) -> int:
        return len(self._now)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[str]: ...
    def __getitem__(self, place: int | slice) -> str | Sequence[str]:
        return self._now[place]
