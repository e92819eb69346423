"""Which peers a replica listens to: more than those that count.

A voter that has not heard of a change yet is needed by one that has, and a new replica must learn of the
group before its own log says anything. So a replica listens to every member of any configuration that may
be in force, and to every peer named by somebody who may know. Only peers that the *applied* configuration has
retired are excluded. A link may be up before its peer is known to be a member; it is adopted when that
becomes known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from escrowmq.replication.format.membership import Members, in_order


class Change(NamedTuple):
    """Peers that are listened to from now on and were not before, and vice versa; ordered by number."""

    came: tuple[str, ...]
    gone: tuple[str, ...]


class KnownPeers:
    """State of one replica. ``known``: the peers that it listens to now."""

    def __init__(self, self_id: str, told: Iterable[str], possible: Callable[[], list[Members]]) -> None:
        """``told``: the peers named at the start. ``possible()``: the applied configuration, and those after
        it in the log."""
        self._self_id, self._possible = self_id, possible
        self._told = set(told)
        self.known = self.named()

    def told_of(self, peer: str) -> None:
        """Somebody who may know says that ``peer`` belongs to the group."""
        self._told.add(peer)

    def named(self) -> set[str]:
        """The peers to listen to, given the present log."""
        possible = self._possible()
        named = self._told.union(*[members.all for members in possible])
        return {peer for peer in named if peer != self._self_id and not possible[0].retired(peer)}

    def look(self) -> Change:
        """Adopt the present set of peers to listen to; returns what changes."""
        before, self.known = self.known, self.named()
        self._told &= self.known
        return Change(in_order(self.known - before), in_order(before - self.known))

    def retired(self, peers: Iterable[str]) -> list[str]:
        """Those of ``peers`` that were members and certainly are no longer."""
        return [peer for peer in peers if self._possible()[0].retired(peer)]
