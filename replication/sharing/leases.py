"""The leases of one leader: of every share group, in every partition of its broker group.

They are gone with its leadership: a new leader begins with an empty object of this class, and hands out again
whatever is not final. Times are of the leader's monotonic clock, in ms: nobody else needs to
know them, and no step of a wall clock may end a lease. ``now_ms`` never falls.

Every range of a call is ``(first, last)``, and the ranges of a call are sorted and disjoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from escrowmq.replication.sharing.pieces import UNNUMBERED, Grant
from escrowmq.replication.sharing.ranges import Final, Range
from escrowmq.replication.sharing.window import DOOMED_RETRY_MAX_MS, DOOMED_RETRY_MS, Stretch, Taken, Window

#: A share group and the slot of a partition.
Pair = tuple[str, int]
#: Messages handed out and not final, of all windows: 200 MB if each was handed out alone.
MESSAGES_MAX = 1_000_000
#: Grants looked at by one call of ``expire``: a few milliseconds.
EXPIRED_ENOUGH = 1_000
#: How long members may go on with what they hold before messages at their last chance come beside it: as
#: long as a lease of a group that has not set another.
DRAIN_MS = 30_000
#: Times that are known before those are dropped whose leases were extended or acknowledged since.
TIDY_MIN = 10_000


class Doomed(NamedTuple):
    """Messages that the leader nacks itself, because their leases have expired too often. ``again_ms``: after
    how long it does so again if that nack is refused."""

    pair: Pair
    ranges: list[Range]
    again_ms: int = DOOMED_RETRY_MS


class Lease(NamedTuple):
    """A member has a message until then, unless it extends its lease."""

    member: str
    until_ms: int


class Leases:
    """See the module's text. One thread."""

    def __init__(self) -> None:
        #: Where anything was ever handed out.
        self.windows: dict[Pair, Window] = {}
        #: By time; the number keeps grants themselves from being compared.
        self._due: list[tuple[int, int, Pair, Grant]] = []
        self._numbers = count()
        self._tidy_at = TIDY_MIN
        #: Where messages may be at their last chance, and since when.
        self._doubtful: dict[Pair, int] = {}
        #: Handed out and not final. Since leadership began: leases that have run out, by messages.
        self.messages = self.expired = 0

    @property
    def full(self) -> bool:
        """Whether nothing more is handed out to anybody."""
        return self.messages >= MESSAGES_MAX

    def held(self, pair: Pair) -> int:
        """How many messages of a pair are handed out, or have an ack or a nack under way."""
        window = self.windows.get(pair)
        return 0 if window is None else window.messages

    def lease_of(self, pair: Pair, offset: int) -> Lease | None:
        """Who has a message, and until when; None: no member has it. It may be final."""
        window = self.windows.get(pair)
        grant = None if window is None else window.lease_of(offset)
        if grant is None:
            return None
        assert grant.until_ms is not None
        return Lease(grant.member, grant.until_ms)

    def has_some(self, pair: Pair, final: Final, end: int) -> bool:
        """Whether ``acquire`` may find something. Cheap."""
        window = self.windows.get(pair)
        return final.start < end if window is None else window.has_some(final, end)

    @property
    def doubtful(self) -> bool:
        """Whether some message may be at its last chance."""
        return bool(self._doubtful)

    def alone(self, member: str, partitions: Sequence[tuple[Pair, Final]], now_ms: int) -> list[Pair] | None:
        """None: nothing in these partitions, which are those of a call, is at its last chance. Otherwise:
        where ``acquire_alone`` finds something for the member.

        A message at its last chance must not be given up for one that kills the process beside it. So a
        member gets it alone, when it holds nothing else, and nothing else while it holds it; and meanwhile
        nobody gets anything else, so that members finish what they hold. After ``DRAIN_MS`` that has to do:
        then what a member still holds may be beside it.
        """
        waiting, recent, mine = list[Pair](), True, False
        for pair, final in partitions:
            if pair not in self._doubtful:
                continue
            window = self.windows[pair]
            window.doubtful = window.has_last_chances()
            if not window.doubtful:
                del self._doubtful[pair]
                continue
            mine = mine or window.has_last_chances(member)
            if window.last_chance(final) is not None:
                waiting.append(pair)
                recent = recent and now_ms < self._doubtful[pair] + DRAIN_MS
        if not waiting and not mine:
            return None
        return [] if mine or (recent and self._holds(member, partitions)) else waiting

    def _holds(self, member: str, partitions: Sequence[tuple[Pair, Final]]) -> bool:
        windows = (self.windows.get(pair) for pair, _ in partitions)
        return any(window is not None and window.holds(member) for window in windows)

    def acquire_alone(
        self,
        pair: Pair,
        final: Final,
        member: str,
        until_ms: int,
        stretch: Stretch,
        call: int = UNNUMBERED,
    ) -> list[Taken]:
        """Lease one message at its last chance; see ``alone``."""
        grant = Grant(member, until_ms, 0, 0, call=call)
        with self._window(pair, final) as window:
            taken = window.take_last_chance(final, grant, stretch)
        if taken:
            self._wake(pair, grant)
        return taken

    def acquire(
        self,
        pair: Pair,
        final: Final,
        end: int,
        member: str,
        until_ms: int,
        wanted: int,
        stretch: Stretch,
        call: int = UNNUMBERED,
    ) -> list[Taken]:
        """Lease about ``wanted`` messages before ``end`` to a member, in order of their offsets, but none at
        its last chance. ``stretch`` says how far the answer reaches; see ``window.py``."""
        grant = Grant(member, until_ms, 0, 0, call=call)
        with self._window(pair, final) as window:
            taken = window.take(final, end, grant, wanted, stretch)
        if taken:
            self._wake(pair, grant)
        return taken

    def extend(self, pair: Pair, member: str, ranges: Sequence[Range], until_ms: int) -> list[Range]:
        """The member's leases of these run until then. Returns what it does not hold (any more)."""
        window = self.windows.get(pair)
        if window is None or not ranges:
            return list(ranges)
        grant, lost = window.extend(member, ranges, until_ms)
        if lost != list(ranges):
            self._wake(pair, grant)
        return lost

    def release(
        self, pair: Pair, member: str, ranges: Sequence[Range], call: int = UNNUMBERED
    ) -> list[Range]:
        """These may be handed out again at once, and that is no failure, if the member has them from ``call``
        or from an earlier one. Returns what it does not hold."""
        window = self.windows.get(pair)
        if window is None:
            return list(ranges)
        with self._counted(window):
            return window.release(member, ranges, call)

    def others(self, pair: Pair, member: str, first: int, last: int) -> list[Range]:
        """What somebody other than ``member`` holds of a range: it may not be nacked, only acknowledged. A
        message that nobody holds may be nacked by anybody: its lease may have been lost with a leader. What
        is doomed is the leader's, whose nack bears the member ""."""
        window = self.windows.get(pair)
        return [] if window is None else window.others(member, first, last)

    # -------------------------------------------------------------- acks and nacks
    def settling(self, pair: Pair, final: Final, first: int, last: int) -> None:
        """An ack or a nack of these goes into the log: until it has ended they are not handed out, nor do
        their leases expire."""
        with self._window(pair, final) as window:
            window.settling(first, last)

    def unsettled(self, pair: Pair, first: int, last: int) -> None:
        """That ack or nack has certainly not become effective: leases that still run are in force again."""
        window = self.windows.get(pair)
        if window is not None:
            with self._counted(window):
                grants = window.unsettled(first, last)
            for grant in grants:
                self._wake(pair, grant)

    def settled(self, pair: Pair, first: int, last: int) -> None:
        """These have become final."""
        window = self.windows.get(pair)
        if window is not None:
            with self._counted(window):
                window.settled(first, last)

    # -------------------------------------------------------------- time
    def expire(
        self,
        now_ms: int,
        final_of: Callable[[Pair], Final | None],
        is_hopeless: Callable[[Pair], bool] = lambda pair: False,
    ) -> list[Doomed]:
        """Leases whose time is over: their messages are free, except for the doomed. ``final_of``: None if
        the partition is gone. ``is_hopeless``: the leader's nacks there will be refused until somebody does
        something, so pauses between them grow."""
        found: list[Doomed] = []
        for _ in range(EXPIRED_ENOUGH):
            if not self._due or self._due[0][0] > now_ms:
                break
            _, _, pair, grant = heappop(self._due)
            window, final = self.windows.get(pair), final_of(pair)
            if window is None:
                continue
            if final is None:
                self.forget(pair)
                continue
            with self._counted(window):
                before = window.messages
                doomed = window.expire(grant, final)
                if not grant.doomed:
                    self.expired += before - window.messages
                if window.doubtful:
                    self._doubtful.setdefault(pair, now_ms)
                if doomed:
                    pause_ms = DOOMED_RETRY_MS
                    if is_hopeless(pair):
                        pause_ms = min(DOOMED_RETRY_MS << min(grant.doomed, 16), DOOMED_RETRY_MAX_MS)
                    self._wake(pair, window.doom(doomed, now_ms + pause_ms, grant.doomed + 1))
                    found.append(Doomed(pair, doomed, pause_ms))
        return found

    def next_ms(self) -> int | None:
        """When the first lease expires at the earliest; None: there is none."""
        return self._due[0][0] if self._due else None

    def forget(self, pair: Pair) -> None:
        """The partition, or the group, is gone."""
        window = self.windows.pop(pair, None)
        if window is not None:
            self.messages -= window.messages
            self._doubtful.pop(pair, None)

    def members(self, group: str) -> set[str]:
        """Who holds messages of a group. What the leader gives up itself, nobody holds."""
        windows = (window for pair, window in self.windows.items() if pair[0] == group)
        return {piece.grant.member for window in windows for piece in window.held} - {""}

    def pairs(self) -> list[Pair]:
        """Those of which something is remembered."""
        return list(self.windows)

    def _wake(self, pair: Pair, grant: Grant) -> None:
        assert grant.until_ms is not None
        heappush(self._due, (grant.until_ms, next(self._numbers), pair, grant))
        if len(self._due) >= self._tidy_at:
            alive = {id(piece.grant) for window in self.windows.values() for piece in window.held}
            self._due = sorted(due for due in self._due if id(due[3]) in alive)
            self._tidy_at = max(TIDY_MIN, 2 * len(self._due))

    @contextmanager
    def _window(self, pair: Pair, final: Final) -> Iterator[Window]:
        window = self.windows.get(pair)
        if window is None:
            window = self.windows[pair] = Window(final.start)
        with self._counted(window):
            window.follow(final)
            yield window

    @contextmanager
    def _counted(self, window: Window) -> Iterator[None]:
        before = window.messages
        try:
            yield
        finally:
            self.messages += window.messages - before
