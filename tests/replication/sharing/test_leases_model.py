"""Any sequence of hand-outs, acks, nacks, expiries and fail-overs, against a dict with an entry for each
message."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from escrowmq.replication.sharing import leases as under_test
from escrowmq.replication.sharing.leases import Leases
from escrowmq.replication.sharing.pieces import UNNUMBERED
from escrowmq.replication.sharing.ranges import Range
from escrowmq.replication.sharing.window import DOOMED_RETRY_MS, EXPIRIES_MAX
from tests.support.final_ranges import FinalSet

PAIR = ("mail", 7)
MEMBERS = ("a", "b", "c")
LEASE_MS = (10, 30, 100)
SETTLING, DOOMED = "(settling)", "(doomed)"
END = 60

offsets = st.integers(0, END - 1)
members = st.sampled_from(MEMBERS)


@dataclass
class Message:
    """One that was handed out by this leader, or has an ack or nack under way, and is not final."""

    holder: str | None
    until_ms: int = 0
    expiries: int = 0
    before: str | None = None  # who held it when an ack or nack of it began
    call: int = 0  # of the holder's call for messages


@st.composite
def some_ranges(draw: st.DrawFn) -> list[Range]:
    bounds = sorted(draw(st.sets(offsets, min_size=2, max_size=6)))
    return [(bounds[at], bounds[at + 1] - 1) for at in range(0, len(bounds) - 1, 2)]


class LeasesAndADict(RuleBasedStateMachine):
    """``known``: by offset. ``given``: everything below was handed out by this leader."""

    def __init__(self) -> None:
        super().__init__()
        self.final, self.end, self.now = FinalSet(), 0, 0
        self.leases, self.known, self.given = Leases(), dict[int, Message](), 0
        self.calls = 0

    @initialize(start=st.integers(0, 5))
    def begin(self, start: int) -> None:
        self.final, self.given = FinalSet(start), start

    # ------------------------------------------------------------ what happens
    @rule(count=st.integers(1, 20))
    def messages_arrive(self, count: int) -> None:
        self.end = min(self.end + count, END)

    @rule(
        member=members, wanted=st.integers(1, 30), lease_ms=st.sampled_from(LEASE_MS), bite=st.integers(1, 9)
    )
    def acquire(self, member: str, wanted: int, lease_ms: int, bite: int) -> None:
        self.calls += 1
        taken = self.leases.acquire(
            PAIR,
            self.final,
            self.end,
            member,
            self.now + lease_ms,
            wanted,
            lambda first, last, left: min(last, first + min(left, bite) - 1),
            self.calls,
        )
        assert taken == sorted(taken)
        got = {o: t.expiries for t in taken for o in range(t.first, t.last + 1)}
        again = [o for o in self.waiting() if self.known[o].expiries < EXPIRIES_MAX]
        new = [o for o in range(self.given, self.end) if o not in self.final and o not in self.known]
        assert sorted(got) == sorted((again + new)[:wanted])
        for offset, expiries in got.items():
            assert expiries == (self.known[offset].expiries if offset in self.known else 0)
            self.known[offset] = Message(member, self.now + lease_ms, expiries, call=self.calls)
        self.given = max([self.given, *(offset + 1 for offset in got)])

    @rule(member=members, lease_ms=st.sampled_from(LEASE_MS))
    def acquire_alone(self, member: str, lease_ms: int) -> None:
        last_chances = [o for o in self.waiting() if self.known[o].expiries >= EXPIRIES_MAX]
        held = [m for o, m in self.known.items() if m.holder == member]  # perhaps final, and not told
        mine = [o for o in self.held_by(member) if self.known[o].expiries >= EXPIRIES_MAX]
        allowed = self.leases.alone(member, [(PAIR, self.final)], self.now)
        assert allowed is not None or not self.open({*last_chances, *mine})
        assert not allowed or (last_chances and not self.open(set(mine)))
        assert allowed == [PAIR] or held or not last_chances
        self.calls += 1
        until_ms = self.now + lease_ms
        taken = self.leases.acquire_alone(PAIR, self.final, member, until_ms, lambda f, _, w: f, self.calls)
        assert taken == [(o, o, EXPIRIES_MAX) for o in last_chances[:1]]
        for offset in last_chances[:1]:
            self.known[offset] = Message(member, until_ms, EXPIRIES_MAX, call=self.calls)

    @rule(ranges=some_ranges())
    def acknowledged(self, ranges: list[Range]) -> None:
        for first, last in ranges:
            self.final.add(first, min(last, self.end - 1))
            if first < self.end:
                self.leases.settled(PAIR, first, min(last, self.end - 1))

    @rule(ranges=some_ranges())
    def acknowledged_and_not_told(self, ranges: list[Range]) -> None:
        """As by an entry that was given up."""
        for first, last in ranges:
            self.final.add(first, min(last, self.end - 1))

    @rule(start=offsets)
    def retention(self, start: int) -> None:
        self.final.raise_start(min(start, self.end))

    @rule(ranges=some_ranges())
    def under_way(self, ranges: list[Range]) -> None:
        for first, last in ranges:
            if last < self.end:
                self.leases.settling(PAIR, self.final, first, last)
                for offset in range(first, last + 1):
                    if offset not in self.final and (offset >= self.given or offset in self.known):
                        message = self.known.setdefault(offset, Message(None))
                        if message.holder != SETTLING:
                            message.before, message.holder = message.holder, SETTLING

    @rule(ranges=some_ranges())
    def came_to_nothing(self, ranges: list[Range]) -> None:
        for first, last in ranges:
            self.leases.unsettled(PAIR, first, last)
            for offset in range(first, last + 1):
                message = self.known.get(offset)
                if message is not None and message.holder == SETTLING:
                    message.holder, message.before = message.before, None
                    if offset >= self.given:
                        del self.known[offset]

    @rule(member=members, ranges=some_ranges(), late=st.integers(0, 3) | st.none())
    def release(self, member: str, ranges: list[Range], late: int | None) -> None:
        """``late``: the member has made so many calls since; None: it does not number them."""
        call = UNNUMBERED if late is None else max(self.calls - late, 0)
        before = {o for o in self.held_by(member) if late is None or self.known[o].call <= call}
        lost = flat(self.leases.release(PAIR, member, ranges, call))
        for offset in flat(ranges) & before:
            self.known[offset].holder = None
        self.check_lost(lost, flat(ranges), before)

    @rule(member=members, ranges=some_ranges(), lease_ms=st.sampled_from(LEASE_MS))
    def extend(self, member: str, ranges: list[Range], lease_ms: int) -> None:
        before = self.held_by(member)
        lost = flat(self.leases.extend(PAIR, member, ranges, self.now + lease_ms))
        there = [self.known[o] for o in flat(ranges) & self.known.keys()]
        call = max((message.call for message in there if message.holder == member), default=0)
        for offset in flat(ranges) & before:
            self.known[offset].until_ms, self.known[offset].call = self.now + lease_ms, call
        self.check_lost(lost, flat(ranges), before)

    @rule(member=members, ranges=some_ranges())
    def ask_who_may_nack(self, member: str, ranges: list[Range]) -> None:
        others = {o for o, m in self.known.items() if m.holder not in (None, SETTLING, member)}
        for first, last in ranges:
            asked = flat(self.leases.others(PAIR, member, first, last))
            assert self.open(asked) == self.open(others & set(range(first, last + 1)))

    @rule(ms=st.sampled_from((1, 10, 50, DOOMED_RETRY_MS)))
    def time_passes(self, ms: int) -> None:
        self.now += ms
        doomed = {o for d in self.leases.expire(self.now, lambda pair: self.final) for o in flat(d.ranges)}
        over = [o for o in self.known if o not in self.final and self.is_over(self.known[o])]
        expected = set()
        for offset in over:
            message = self.known[offset]
            if message.holder == DOOMED or message.expiries >= EXPIRIES_MAX:
                message.holder, message.until_ms = DOOMED, self.now + DOOMED_RETRY_MS
                message.expiries = EXPIRIES_MAX
                expected.add(offset)
            else:
                message.holder, message.expiries = None, message.expiries + 1
        assert doomed == expected

    @rule()
    def fail_over(self) -> None:
        self.leases, self.known, self.given = Leases(), {}, self.final.start

    # ------------------------------------------------------------ what holds
    @invariant()
    def somebody_is_told_that_there_is_something(self) -> None:
        free = any(self.known[o].expiries < EXPIRIES_MAX for o in self.waiting())
        new = any(o not in self.final and o not in self.known for o in range(self.given, self.end))
        if free or new:
            assert self.leases.has_some(PAIR, self.final, self.end)

    @invariant()
    def what_is_held_is_counted(self) -> None:
        held = {o for o, m in self.known.items() if m.holder is not None and o not in self.final}
        assert self.leases.held(PAIR) == self.leases.messages >= len(held)

    @invariant()
    def whoever_has_a_message_is_told(self) -> None:
        for offset in range(END):
            message = self.known.get(offset)
            holder = None if message is None else message.holder
            if message is not None and holder == SETTLING:
                holder = message.before
            lease = self.leases.lease_of(PAIR, offset)
            if offset in self.final:
                continue  # what was not reported as final may still be held
            if message is None or holder in (None, DOOMED):
                assert lease is None
            else:
                assert lease == (holder, message.until_ms)

    def waiting(self) -> list[int]:
        """What nobody has, in order."""
        return [o for o, m in sorted(self.known.items()) if m.holder is None and o not in self.final]

    def is_over(self, message: Message) -> bool:
        return message.holder not in (None, SETTLING) and message.until_ms <= self.now

    def held_by(self, member: str) -> set[int]:
        return {o for o, m in self.known.items() if m.holder == member}

    def open(self, found: set[int]) -> set[int]:
        return {offset for offset in found if offset not in self.final}

    def check_lost(self, lost: set[int], asked: set[int], before: set[int]) -> None:
        settling = {o for o, m in self.known.items() if m.holder == SETTLING}
        assert self.open(lost) == self.open(asked - before - settling)


def flat(ranges: list[Range]) -> set[int]:
    return {offset for first, last in ranges for offset in range(first, last + 1)}


LeasesAndADict.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestAnySequence = LeasesAndADict.TestCase


def test_a_late_release_frees_nothing_that_a_later_call_has_brought() -> None:
    """The member has called for the third time when its release of what the first call brought arrives."""
    leases, final = Leases(), FinalSet(0)

    def acquired(call: int, wanted: int) -> list[Range]:
        taken = leases.acquire(PAIR, final, END, "a", 100, wanted, lambda f, last, left: f + left - 1, call)
        return [each[:2] for each in taken]

    assert (acquired(1, 5), acquired(2, 5)) == ([(0, 4)], [(5, 9)])
    assert leases.release(PAIR, "a", [(0, 9)], call=1) == [(5, 9)]
    assert acquired(3, 5) == [(0, 4)]
    assert leases.release(PAIR, "a", [(0, 9)], call=2) == [(0, 4)]
    assert (leases.held(PAIR), acquired(4, 2)) == (5, [(5, 6)])
    assert leases.extend(PAIR, "a", [(0, 6)], 200) == []
    assert leases.release(PAIR, "a", [(0, 4)], call=3) == [(0, 4)], "extended together with later ones"
    assert leases.release(PAIR, "a", [(0, 6)], call=4) == []
    assert leases.held(PAIR) == 0


def test_a_message_that_the_leader_gives_up_itself_is_leased_to_nobody() -> None:
    leases, final, now = Leases(), FinalSet(0), 0
    for expiries in range(EXPIRIES_MAX):
        leases.acquire(PAIR, final, 1, "a", now + 10, 1, lambda first, last, left: last)
        assert leases.lease_of(PAIR, 0) == ("a", now + 10), expiries
        now += 10
        assert leases.expire(now, lambda pair: final) == []
        assert leases.lease_of(PAIR, 0) is None
    leases.acquire_alone(PAIR, final, "b", now + 10, lambda first, last, left: first)
    assert leases.lease_of(PAIR, 0) == ("b", now + 10)
    (doomed,) = leases.expire(now + 10, lambda pair: final)
    assert doomed.ranges == [(0, 0)] and leases.held(PAIR) == 1
    assert leases.lease_of(PAIR, 0) is None
    assert leases.lease_of(("mail", 8), 0) is None


def test_every_lease_ends_at_its_time_also_after_its_times_were_tidied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Finds times that are tidied wrongly: dropped while their lease runs, out of order, or never dropped."""
    monkeypatch.setattr(under_test, "TIDY_MIN", 200)
    leases, final, drawn = Leases(), FinalSet(0), random.Random(1)
    pairs, ends = [("mail", 7), ("mail", 8), ("post", 7)], dict[tuple[tuple[str, int], int], int]()
    for offset in range(300):
        for pair in pairs:
            ends[pair, offset] = drawn.randrange(1_000, 9_000)
            leases.acquire(pair, final, offset + 1, "a", ends[pair, offset], 1, lambda f, last, left: f)
            again = drawn.randrange(offset + 1)
            ends[pair, again] = drawn.randrange(1_000, 9_000)
            assert leases.extend(pair, "a", [(again, again)], ends[pair, again]) == []
    assert len(leases._due) < len(ends) * 2, "each lease was extended once, and its earlier time is tidied"
    for now in range(1_000, 9_001, 100):
        while (due := leases.next_ms()) is not None and due <= now:
            assert leases.expire(now, lambda pair: final) == []
        for (pair, offset), end in ends.items():
            expected = None if end <= now else ("a", end)
            assert leases.lease_of(pair, offset) == expected, (pair, offset, now)
    assert (leases.messages, leases.expired) == (0, len(ends))


def test_a_lease_whose_time_ends_under_an_ack_that_is_refused_ends_then() -> None:
    """While the ack is under way the lease does not expire, and its time has passed by. Finds a lease that
    is in force again after that, and has no time: nobody else would ever get its message."""
    leases, final = Leases(), FinalSet(0)
    assert leases.acquire(PAIR, final, 1, "a", 10, 1, lambda first, last, left: last)
    leases.settling(PAIR, final, 0, 0)
    assert leases.expire(20, lambda pair: final) == []
    assert (leases.held(PAIR), leases.expired, leases.next_ms()) == (1, 0, None)
    leases.unsettled(PAIR, 0, 0)
    assert leases.next_ms() == 10 and leases.lease_of(PAIR, 0) == ("a", 10)
    assert leases.expire(20, lambda pair: final) == []
    assert (leases.held(PAIR), leases.expired, leases.next_ms()) == (0, 1, None)
    assert leases.acquire(PAIR, final, 1, "b", 30, 1, lambda first, last, left: last) == [(0, 0, 1)]
