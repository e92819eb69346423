"""Whom one replica takes for the other members of its group, before its log says so and after.

At first they are those of the group's beginning, and whoever the supervisor named when it started the
process. Members change while a replica is away or is being repaired; then nobody that it knows may be left,
and those who could send it the entries that say so are strangers to it. So whoever knows better tells it
(``tell``). Once the replica runs, its node decides from the log whom it hears (``follow``).

The version of the configuration is the list's epoch: an older list changes nothing. Being on the list lets a
replica be asked and be heard. Who counts is decided by the log alone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from escrowmq.replication.format.membership import in_order


class PeerList(Sequence[str]):
    """Raft ids of the others, in the order of their numbers. Thread-safe: whoever iterates does so over the
    list as it was when that began."""

    def __init__(self, own: str, first: Iterable[str]) -> None:
        self._own, self._lock = own, threading.Lock()
        self._now = self._others(first)
        self.epoch = 0

    def tell(self, epoch: int, members: Iterable[str]) -> None:
        """Somebody says that these are the members in configuration ``epoch``. Nobody is taken off the list:
        that the teller is right is known once the log says so."""
        with self._lock:
            if epoch >= self.epoch:
                self.epoch = epoch
                self._now = self._others({*self._now, *members})

    def follow(self, epoch: int, heard: Iterable[str]) -> None:
        """The node hears these, by a log whose newest configuration is ``epoch``."""
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
