"""Which answers of this leader a member has received: what it was given in others was never with a handler.

A member numbers its calls, and each call names the answer that it received last, by the leader's number. So
when a call arrives, whatever was given to earlier calls in other answers is lost on the way: it is free at
once, and that is no failure. A member that died says nothing; then its leases expire, and that counts, since
one of the messages may have killed it.

A call may arrive more than once, and late: a copy of a call gives nothing back of what the call itself was
given, and after a later call of the same member a copy is given nothing.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from escrowmq.replication.sharing.leases import Pair
from escrowmq.replication.sharing.pieces import NOBODY, UNNUMBERED, Piece, gaps
from escrowmq.replication.sharing.ranges import Range

#: How long a member is remembered that asks for nothing: longer than any of its calls is under way.
REMEMBERED_MS = 600_000
#: Partitions of answers to one member that are remembered until its next call: far more than one call gets.
GIVEN_MAX = 10_000


class Given(NamedTuple):
    """What one answer brought of one partition. ``number``: of the answer."""

    call: int
    number: int
    pair: Pair
    ranges: list[Range]


class _Member:
    __slots__ = ("call", "given", "seen_ms")

    def __init__(self) -> None:
        self.call, self.seen_ms = UNNUMBERED, 0
        self.given: list[Given] = []


class Receipts:
    """Of all members of one leader. A key is a group and a member."""

    def __init__(self) -> None:
        self._members: dict[Hashable, _Member] = {}

    def __len__(self) -> int:
        return len(self._members)

    def called(self, key: Hashable, call: int, received: int, now_ms: int) -> list[Given]:
        """A call has arrived. Returns what was lost on the way to this member."""
        if call == UNNUMBERED:
            return []
        member = self._members.setdefault(key, _Member())
        member.seen_ms = now_ms
        if call <= member.call:
            return []
        member.call = call
        given, member.given = member.given, []
        return _without(given, [one for one in given if one.number == received])

    def is_late(self, key: Hashable, call: int) -> bool:
        """Whether the member has made a later call."""
        member = self._members.get(key)
        return call != UNNUMBERED and member is not None and call < member.call

    def gave(self, key: Hashable, given: Given) -> None:
        """Something was handed out."""
        if given.call != UNNUMBERED:
            member = self._members.setdefault(key, _Member())
            member.given.append(given)
            del member.given[:-GIVEN_MAX]

    def tidy(self, now_ms: int) -> None:
        """Forget members that ask for nothing any more."""
        self._members = {
            key: member for key, member in self._members.items() if now_ms < member.seen_ms + REMEMBERED_MS
        }


def _without(given: list[Given], received: list[Given]) -> list[Given]:
    """What was not received, in any of the answers."""
    found: list[Given] = []
    for one in given:
        if one in received:
            continue
        there = [
            Piece(*each, 0, NOBODY) for other in received if other.pair == one.pair for each in other.ranges
        ]
        ranges = [left for first, last in one.ranges for left in gaps(there, first, last)]
        if ranges:
            found.append(one._replace(ranges=ranges))
    return found
