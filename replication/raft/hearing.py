"""Whom a replica hears: more than those who count.

A voter that has not heard of a change yet is needed by one that has, and a newcomer must learn of the group
before its own log says anything. So everybody is heard who belongs to the group in any configuration that may
be in force, and whoever somebody named who may know. Only whom the *applied* one has retired is not. A link
may be up before it is known whose it is; it is taken over when that becomes known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from escrowmq.replication.format.membership import Members, in_order


class Change(NamedTuple):
    """Who is heard from now on and was not before, and the other way round; in the order of their numbers."""

    came: tuple[str, ...]
    gone: tuple[str, ...]


class Hearing:
    """Of one replica. ``known``: whom it hears now."""

    def __init__(self, self_id: str, told: Iterable[str], possible: Callable[[], list[Members]]) -> None:
        """``told``: the first who were named. ``possible()``: the applied configuration, and those after it
        in the log."""
        self._self_id, self._possible = self_id, possible
        self._told = set(told)
        self.known = self.named()

    def told_of(self, peer: str) -> None:
        """Somebody who may know says that ``peer`` belongs to the group."""
        self._told.add(peer)

    def named(self) -> set[str]:
        """Who is to be heard, as the log is now."""
        possible = self._possible()
        named = self._told.union(*[members.all for members in possible])
        return {peer for peer in named if peer != self._self_id and not possible[0].retired(peer)}

    def look(self) -> Change:
        """Take over who is to be heard; what changes by that."""
        before, self.known = self.known, self.named()
        self._told &= self.known
        return Change(in_order(self.known - before), in_order(before - self.known))

    def retired(self, peers: Iterable[str]) -> list[str]:
        """Those of them who were members and surely are none any more."""
        return [peer for peer in peers if self._possible()[0].retired(peer)]
