"""One share group in one partition: what this leader has handed out, and to whom.

Everything from the group's start to ``cursor`` was handed out by this leader, or was final before. It is
final, or ``held`` (leased, or an ack or a nack of it is under way), or ``free`` to be handed out again. From
the cursor on nothing was handed out. Acknowledgements split pieces, so that the cost depends on the number
of calls and not on that of messages.

What is final is asked at every hand-out, whatever was reported by ``settled``: a message that is final is
never handed out.

**Last chances.** A message whose lease has expired ``EXPIRIES_MAX`` times is handed out alone (``leases.py``
says to whom): if that lease expires, too, it was this message, and not one that was leased beside it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple

from escrowmq.replication.sharing.pieces import NOBODY, UNNUMBERED, Grant, Piece, below, cut, drop, gaps, put
from escrowmq.replication.sharing.ranges import Final, Range, joined, open_within

#: After so many expiries the next one is a failed attempt: a message that kills its consumer must end, too.
EXPIRIES_MAX = 2
#: Messages handed out and not final, for each window: some seconds of work for many consumers.
HELD_MAX = 20_000
#: Final ranges above the start, for each window: nothing new is handed out then until they join up.
RANGES_MAX = 10_000
#: How long the leader waits for its own nack of a message that was doomed, before it repeats it; and at most,
#: if the group has no topic that the copy could go to.
DOOMED_RETRY_MS, DOOMED_RETRY_MAX_MS = 1_000, 60_000


class Taken(NamedTuple):
    """Offsets that were handed out together; ``expiries``: how many leases of them had run out before."""

    first: int
    last: int
    expiries: int


#: ``(first, last, wanted)`` -> the last offset to hand out of this range, about ``wanted`` of them; less than
#: ``first``: none fits into the answer any more.
Stretch = Callable[[int, int, int], int]


class Window:
    """See the module's text."""

    __slots__ = ("_settling", "cursor", "doubtful", "free", "held", "messages", "start")

    def __init__(self, start: int) -> None:
        self.start = self.cursor = start
        self.held: list[Piece] = []
        self.free: list[Piece] = []
        self.messages = 0  # held
        self.doubtful = False  # whether a message has become free for its last chance
        self._settling = Grant("", None, 0, 0)

    # -------------------------------------------------------------- handing out
    def follow(self, final: Final) -> None:
        """Forget what lies below the group's start, which retention moves, too."""
        start = final.start
        if start > self.start:
            self.start, self.cursor = start, max(start, self.cursor)
            self.messages -= below(self.held, start)
            below(self.free, start)

    def has_some(self, final: Final, end: int) -> bool:
        """Whether ``take`` may find something. Cheap."""
        free = any(piece.expiries < EXPIRIES_MAX for piece in self.free)
        return free or (self.cursor < end and self._has_room(final))

    def _has_room(self, final: Final) -> bool:
        return self.messages < HELD_MAX and final.ranges < RANGES_MAX

    def take(self, final: Final, end: int, grant: Grant, wanted: int, stretch: Stretch) -> list[Taken]:
        """Hand out about ``wanted`` messages: what is free again, then from the cursor up to ``end``."""
        self.follow(final)
        taken: list[Taken] = []
        full = self._take_free(final, grant, wanted, stretch, taken)
        left = wanted - sum(last - first + 1 for first, last, _ in taken)
        while not full and left > 0 and self.cursor < end and self._has_room(final):
            first, last = self._next(final, end)
            if first >= end:
                self.cursor = end
                break
            stop = min(stretch(first, last, min(left, HELD_MAX - self.messages)), last)
            if stop < first:
                break
            self.cursor = stop + 1
            self._hold(Piece(first, stop, 0, grant))
            taken.append(Taken(first, stop, 0))
            left -= stop - first + 1
        if taken:
            grant.first, grant.last = min(t.first for t in taken), max(t.last for t in taken)
        return sorted(taken)

    def take_last_chance(self, final: Final, grant: Grant, stretch: Stretch) -> list[Taken]:
        """Hand out one message that is at its last chance, and nothing else."""
        offset = self.last_chance(final)
        if offset is None or stretch(offset, offset, 1) < offset:
            return []
        drop(self.free, offset, offset)
        grant.first = grant.last = offset
        self._hold(Piece(offset, offset, EXPIRIES_MAX, grant))
        return [Taken(offset, offset, EXPIRIES_MAX)]

    def last_chance(self, final: Final) -> int | None:
        """The first message that waits for its last chance."""
        for piece in self.free:
            if piece.expiries >= EXPIRIES_MAX:
                for first, _ in open_within(final, piece.first, piece.last):
                    return first
        return None

    def has_last_chances(self, member: str | None = None) -> bool:
        """Whether a message at its last chance is leased, to that member; None: to anybody, or waits."""
        if member is None and any(piece.expiries >= EXPIRIES_MAX for piece in self.free):
            return True
        return any(
            piece.expiries >= EXPIRIES_MAX and piece.grant.member == (member or piece.grant.member)
            for piece in self.held
        )

    def holds(self, member: str) -> bool:
        """Whether anything is leased to the member."""
        return any(piece.grant.member == member for piece in self.held)

    def lease_of(self, offset: int) -> Grant | None:
        """Who has this message, also while an ack or a nack of it is under way; None: no member."""
        found = bisect_right(self.held, offset, key=attrgetter("first"))
        if not found or self.held[found - 1].last < offset:
            return None
        piece = self.held[found - 1]
        grant = piece.before if piece.grant is self._settling else piece.grant
        return None if grant is None or grant.doomed else grant

    def _take_free(
        self, final: Final, grant: Grant, wanted: int, stretch: Stretch, taken: list[Taken]
    ) -> bool:
        """Returns whether the answer has no room for more."""
        kept: list[Piece] = []
        full, left, seen = False, wanted, 0
        for piece in self.free:
            if full or left <= 0:
                break
            seen += 1
            if piece.expiries >= EXPIRIES_MAX:
                kept.append(piece)
                continue
            for first, last in open_within(final, piece.first, piece.last):
                while first <= last and not full and left > 0:
                    stop = min(stretch(first, last, left), last)
                    full = stop < first
                    if not full:
                        self._hold(Piece(first, stop, piece.expiries, grant))
                        taken.append(Taken(first, stop, piece.expiries))
                        left -= stop - first + 1
                        first = stop + 1
                if first <= last:
                    kept.append(Piece(first, last, piece.expiries, NOBODY))
        self.free[:seen] = kept
        return full

    def _next(self, final: Final, end: int) -> Range:
        """The first range from the cursor on that is neither final nor held (acks and nacks under way)."""
        offset = self.cursor
        while True:
            first, last = final.open_from(offset)
            last = end - 1 if last is None or last >= end else last
            if first >= end:
                return end, end
            clear = gaps(self.held, first, last)
            if clear:
                return clear[0]
            offset = last + 1

    def _hold(self, piece: Piece) -> None:
        self.messages += piece.count
        put(self.held, piece)

    # -------------------------------------------------------------- a member's calls
    def extend(self, member: str, ranges: Sequence[Range], until_ms: int) -> tuple[Grant, list[Range]]:
        """The leases of these ranges run until then. Returns their new grant, and what the member has not."""
        grant = Grant(member, until_ms, ranges[0][0], ranges[-1][1])
        lost: list[Range] = []
        for first, last in ranges:
            lost += self._not_of(member, first, last)
            for piece in self._held_in(first, last):
                if piece.grant.member == member:
                    grant.call = max(grant.call, piece.grant.call)
                    piece.grant = grant
        return grant, lost

    def release(self, member: str, ranges: Sequence[Range], call: int = UNNUMBERED) -> list[Range]:
        """The member gives these back, unhandled: they are free at once, and that is no failure. Only what it
        was given in answer to ``call`` or an earlier one: the request may be late. Returns what it has
        not."""
        lost: list[Range] = []
        for first, last in ranges:
            lost += self._not_of(member, first, last, call)
            for piece in self._drop_held(first, last, lambda grant: _is_of(grant, member, call)):
                self._free(piece.first, piece.last, piece.expiries)
        return lost

    def _not_of(self, member: str, first: int, last: int, call: int = UNNUMBERED) -> list[Range]:
        others = [
            (piece.first, piece.last)
            for piece in self._held_in(first, last)
            if piece.grant is not self._settling and not _is_of(piece.grant, member, call)
        ]
        return joined(sorted(others + gaps(self.held, first, last)))

    def others(self, member: str, first: int, last: int) -> list[Range]:
        """What another member holds, or the leader is about to nack itself."""
        return [
            (piece.first, piece.last)
            for piece in self._held_in(first, last)
            if piece.grant.member != member and piece.grant is not self._settling
        ]

    def _held_in(self, first: int, last: int) -> list[Piece]:
        low, high = cut(self.held, first, last)
        return self.held[low:high]

    def _drop_held(self, first: int, last: int, which: Callable[[Grant], bool]) -> list[Piece]:
        low, high = cut(self.held, first, last)
        pieces = self.held[low:high]
        gone = [piece for piece in pieces if which(piece.grant)]
        if gone:
            self.held[low:high] = [piece for piece in pieces if not which(piece.grant)]
            self.messages -= sum(piece.count for piece in gone)
        return gone

    # -------------------------------------------------------------- acks and nacks
    def settling(self, first: int, last: int) -> None:
        """An ack or a nack of these is under way: whatever comes of it, they are not handed out meanwhile.
        What lies far beyond the cursor is not asked for so soon."""
        first, last = max(first, self.start), min(last, self.cursor + HELD_MAX)
        for piece in drop(self.free, first, last):
            self._hold(Piece(piece.first, piece.last, piece.expiries, self._settling))
        if last >= self.cursor:
            for begin, end in gaps(self.held, max(first, self.cursor), last):
                self._hold(Piece(begin, end, 0, self._settling))
        for piece in self._held_in(first, last):
            if piece.grant is not self._settling:
                piece.before, piece.grant = piece.grant, self._settling

    def unsettled(self, first: int, last: int) -> list[Grant]:
        """Nothing came of it: who held them holds them again, since an ack may come from somebody else. The
        rest is free, and what was never handed out is as before. Returns the grants that are in force again:
        their time may have passed meanwhile."""
        again: list[Grant] = []
        for piece in self._drop_held(first, last, lambda grant: grant is self._settling):
            if piece.before is None:
                self._free(piece.first, piece.last, piece.expiries)
                continue
            self._hold(Piece(piece.first, piece.last, piece.expiries, piece.before))
            if not again or again[-1] is not piece.before:
                again.append(piece.before)
        return again

    def settled(self, first: int, last: int) -> None:
        """These are final."""
        self.messages -= sum(piece.count for piece in drop(self.held, first, last))
        drop(self.free, first, last)

    def _free(self, first: int, last: int, expiries: int) -> None:
        """From the cursor on nothing need be remembered."""
        last = min(last, self.cursor - 1)
        if first <= last:
            self.doubtful = self.doubtful or expiries >= EXPIRIES_MAX
            put(self.free, Piece(first, last, expiries, NOBODY))

    # -------------------------------------------------------------- expiry
    def expire(self, grant: Grant, final: Final) -> list[Range]:
        """The time of a grant is over: its pieces are free, except those for which it was once too often.
        Returns these, for ``doom``."""
        doomed: list[Range] = []
        for piece in self._drop_held(grant.first, grant.last, lambda other: other is grant):
            for first, last in open_within(final, piece.first, piece.last):
                if grant.doomed or piece.expiries >= EXPIRIES_MAX:
                    doomed.append((first, last))
                else:
                    self._free(first, last, piece.expiries + 1)
        return doomed

    def doom(self, ranges: Sequence[Range], until_ms: int, attempt: int = 1) -> Grant:
        """Keep what ``expire`` has returned: the leader nacks it, and looks again then."""
        grant = Grant("", until_ms, ranges[0][0], ranges[-1][1], doomed=attempt)
        for first, last in ranges:
            self._hold(Piece(first, last, EXPIRIES_MAX, grant))
        return grant


def _is_of(grant: Grant, member: str, call: int) -> bool:
    """Whether the member has it from ``call``, or from an earlier one."""
    return grant.member == member and (call == UNNUMBERED or grant.call <= call)
