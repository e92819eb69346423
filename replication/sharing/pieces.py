"""Pieces of a window: ranges of offsets that share a holder and a number of expiries, in sorted lists."""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter

_first = attrgetter("first")

#: In place of the number of a member's call: the member does not number them.
UNNUMBERED = -1


class Grant:
    """What one call was given: the holder and the time of all its pieces. ``first`` and ``last``: bounds of
    them. ``until_ms`` None: it never expires, because an ack or a nack is under way. ``doomed``: how often
    the leader has nacked them itself; 0: somebody has them. ``call``: the number of the member's call."""

    __slots__ = ("call", "doomed", "first", "last", "member", "until_ms")

    def __init__(
        self,
        member: str,
        until_ms: int | None,
        first: int,
        last: int,
        *,
        doomed: int = 0,
        call: int = UNNUMBERED,
    ) -> None:
        self.member, self.until_ms, self.first, self.last, self.doomed = member, until_ms, first, last, doomed
        self.call = call


#: The grant of pieces that nobody holds.
NOBODY = Grant("", None, 0, 0)


class Piece:
    """Offsets ``first`` to ``last``. ``expiries``: how many leases of them have run out under this leader.
    ``before``: the grant that an ack or a nack under way has taken the place of."""

    __slots__ = ("before", "expiries", "first", "grant", "last")

    def __init__(
        self, first: int, last: int, expiries: int, grant: Grant, before: Grant | None = None
    ) -> None:
        self.first, self.last, self.expiries, self.grant = first, last, expiries, grant
        self.before = before

    @property
    def count(self) -> int:
        """How many messages."""
        return self.last - self.first + 1


def cut(pieces: list[Piece], first: int, last: int) -> tuple[int, int]:
    """Split pieces at both ends of a range; returns the part of the list that lies in it."""
    low = bisect_right(pieces, first, key=_first)
    if low and pieces[low - 1].last >= first:
        if pieces[low - 1].first < first:
            _split(pieces, low - 1, first)
        else:
            low -= 1
    high = bisect_right(pieces, last, low, key=_first)
    if high > low and pieces[high - 1].last > last:
        _split(pieces, high - 1, last + 1)
    return low, high


def _split(pieces: list[Piece], at: int, offset: int) -> None:
    piece = pieces[at]
    pieces.insert(at + 1, Piece(offset, piece.last, piece.expiries, piece.grant, piece.before))
    piece.last = offset - 1


def put(pieces: list[Piece], new: Piece) -> None:
    """Insert a piece that overlaps none, joined with its neighbours if they are of the same kind."""
    at = bisect_right(pieces, new.first, key=_first)
    if at and _joins(pieces[at - 1], new):
        pieces[at - 1].last = new.last
        if at < len(pieces) and _joins(pieces[at - 1], pieces[at]):
            pieces[at - 1].last = pieces[at].last
            del pieces[at]
    elif at < len(pieces) and _joins(new, pieces[at]):
        pieces[at].first = new.first
    else:
        pieces.insert(at, new)


def _joins(left: Piece, right: Piece) -> bool:
    alike = left.expiries == right.expiries and left.grant is right.grant and left.before is right.before
    return alike and left.last + 1 == right.first


def below(pieces: list[Piece], offset: int) -> int:
    """Drop what lies below ``offset``; returns how many messages those were."""
    return sum(piece.count for piece in drop(pieces, 0, offset - 1))


def drop(pieces: list[Piece], first: int, last: int) -> list[Piece]:
    """Take a range out of the list; returns what was in it."""
    low, high = cut(pieces, first, last)
    found = pieces[low:high]
    del pieces[low:high]
    return found


def gaps(pieces: list[Piece], first: int, last: int) -> list[tuple[int, int]]:
    """The parts of a range that no piece covers. Splits pieces at its ends."""
    low, high = cut(pieces, first, last)
    found = []
    for piece in pieces[low:high]:
        if piece.first > first:
            found.append((first, piece.first - 1))
        first = piece.last + 1
    if first <= last:
        found.append((first, last))
    return found
