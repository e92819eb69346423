"""Following a leader, without calls: which claims about the leader are believed, and when questions are
due."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from escrowmq.replication.calling.leader import REDIRECTS_MAX, LeaderFollower, Probing
from escrowmq.replication.calling.patience import Backoff

PROBING = Probing(every_s=0.1, repeat=Backoff(first_s=2.0, longest_s=8.0))
HUGE = 1_000_000_000


class TakesHintedTermsOver(LeaderFollower):
    """The inverted rule: what a hint says about the term is believed."""

    def refused(self, rid: int, hint: int | None, term: int) -> None:
        super().refused(rid, hint, term)
        if self.leader == hint and hint is not None:
            self.term = max(self.term, term)


Make = Callable[[int, Probing], LeaderFollower]


def led(rid: int = 0, term: int = 5, make: Make = LeaderFollower, replicas: int = 3) -> LeaderFollower:
    follower = make(replicas, PROBING)
    assert follower.heard(rid, True, term, 0.0)
    return follower


# ---------------------------------------------------------------- hints


def misled(make: Make) -> LeaderFollower:
    """Replica 0 led in term 5, was deposed, and points at replica 2, which is dead, in a term without a
    leader. Replica 1 leads in term 6, says so, and is asked again and again."""
    follower = led(0, 5, make)
    follower.refused(0, 2, HUGE)
    assert follower.leader == 2, "a hint is followed: it saves a question"
    for second in range(1, 4):
        follower.heard(1, True, 6, float(second))
    follower.failed(2)
    for second in range(4, 8):
        follower.heard(1, True, 6, float(second))
    return follower


def test_a_hint_with_a_huge_term_does_not_make_deaf_to_the_real_leader() -> None:
    follower = misled(LeaderFollower)
    assert (follower.leader, follower.term) == (1, 6)


def test_taking_the_hinted_term_over_would_make_deaf_for_good() -> None:
    """The negative control of the test above: its schedule shows what the rule is for."""
    follower = misled(TakesHintedTermsOver)
    assert (follower.leader, follower.term) == (None, HUGE)


def test_a_hint_is_followed_but_only_from_the_leader_itself() -> None:
    follower = led(0)
    follower.refused(2, 1, 9)
    assert follower.leader == 0, "somebody else's word does not part us from a leader that answers"
    follower.refused(0, 1, 6)
    assert (follower.leader, follower.term) == (1, 5)


@pytest.mark.parametrize(("hint", "term"), [(None, 6), (0, 6), (-1, 6), (1, 4)])
def test_a_hint_at_nobody_or_from_the_past_is_of_no_use(hint: int | None, term: int) -> None:
    follower = led(0, 5)
    follower.refused(0, hint, term)
    assert follower.leader is None


def test_one_that_came_after_our_list_is_found_by_the_hints_of_those_on_it() -> None:
    follower = led(0, 5)
    follower.refused(0, 3, 6)
    assert follower.leader == 3
    follower.failed(3)
    assert follower.round(1.0) == [0, 1, 2, 3]
    follower.follow(2, [1, 2, 3])
    assert follower.stranger is None

    follower = led(0, 5)
    follower.failed(0)
    assert follower.round(1.0) == [0, 1, 2]
    assert not follower.heard(1, False, 6, 1.1, hint=3)
    assert 3 in follower.round(1.2)
    assert follower.heard(3, True, 6, 1.3, hint=3) and follower.leader == 3


def test_replicas_that_point_at_each_other_are_not_followed_in_circles() -> None:
    follower = led(0)
    for _ in range(REDIRECTS_MAX):
        assert follower.leader is not None
        follower.refused(follower.leader, (follower.leader + 1) % 3, 5)
    assert follower.leader is not None
    follower.refused(follower.leader, (follower.leader + 1) % 3, 5)
    assert follower.leader is None and follower.round(1.0) == [0, 1, 2]


def test_a_rumour_is_worth_a_question_and_changes_nothing() -> None:
    follower = led(0, 5)
    assert follower.is_rumour(1, 2, 6)
    assert not follower.is_rumour(1, 2, 5) and not follower.is_rumour(1, 0, 6)
    assert not follower.is_rumour(1, None, 6) and not follower.is_rumour(2, 2, 6)
    assert (follower.leader, follower.term) == (0, 5)


# ---------------------------------------------------------------- a leader's own word


def test_a_deposed_leader_that_still_believes_in_itself_is_not_followed_back() -> None:
    follower = led(1, 5)
    assert not follower.heard(0, True, 4, 1.0)
    follower.failed(1)
    assert not follower.heard(0, True, 4, 2.0) and follower.leader is None


def test_a_leader_that_was_lost_by_mistake_is_followed_again_in_its_term() -> None:
    follower = led(1, 5)
    follower.failed(1)
    assert follower.heard(1, True, 5, 1.0) and follower.leader == 1


def test_one_that_leads_but_is_not_ready_is_not_followed() -> None:
    follower = led(1, 5)
    assert not follower.heard(2, False, 6, 1.0) and follower.leader == 1


@dataclass
class World:
    """A group whose leaders come and go, in which replicas believe outdated things, and one of them lies."""

    rng: random.Random
    replicas: int
    term: int = 1
    leader: int | None = 0
    deposed: dict[int, int] = field(default_factory=dict)  # still believe in themselves: replica -> term
    dead: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.believed: list[tuple[int | None, int]] = [(0, 1)] * self.replicas
        self.liar = self.rng.randrange(self.replicas)

    def happen(self) -> None:
        rng, what = self.rng, self.rng.randrange(5)
        one = rng.randrange(self.replicas)
        if what == 0 and one != self.liar:
            if self.leader is not None and rng.random() < 0.5:
                self.deposed[self.leader] = self.term
            self.leader, self.term = one, self.term + rng.randrange(1, 3)
            self.deposed.pop(one, None)
            self.dead.discard(one)
        elif what == 1:
            self.believed[one] = (self.leader, self.term)
        elif what == 2:
            self.dead.add(one)
            self.deposed.pop(one, None)
            self.leader = None if self.leader == one else self.leader
        elif what == 3:
            self.dead.discard(one)
        else:
            self.deposed.pop(one, None)

    def heal(self) -> None:
        """A majority without the liar elects a leader; deposed and dead replicas learn of it."""
        self.deposed.clear()
        self.dead.clear()
        self.leader = (self.liar + 1) % self.replicas
        self.term += 1

    def whoami(self, rid: int) -> tuple[bool, int | None, int]:
        if rid == self.leader:
            return True, rid, self.term
        if rid in self.deposed:
            return True, rid, self.deposed[rid]
        if rid == self.liar:
            return False, self.rng.randrange(self.replicas), self.rng.randrange(HUGE)
        return False, *self.believed[rid]

    def turn(self, follower: LeaderFollower, now: float) -> None:
        """One call of a caller that needs an answer, or a round of questions."""
        rid = follower.leader
        if rid is not None:
            if rid not in self.dead:
                ready, hint, term = self.whoami(rid)
                if ready:
                    follower.answered(rid, now)
                else:
                    follower.refused(rid, hint, term)
            elif self.rng.random() < 0.5:
                follower.failed(rid)
        if follower.leader is None or follower.leader in self.dead | self.deposed.keys():  # or silent
            for asked in follower.round(now):
                if asked not in self.dead:
                    ready, _, term = self.whoami(asked)
                    follower.heard(asked, ready, term, now)


def finds_the_leader(seed: int, make: Make) -> bool:
    """Whether the real leader is followed five seconds after the last fault; the successor of a dead leader
    must be asked after two seconds at the latest."""
    rng = random.Random(seed)
    world = World(rng, rng.choice([3, 5]))
    probing = Probing(PROBING.every_s, Backoff(first_s=2.0, longest_s=2.0))
    follower, now, proven = make(world.replicas, probing), 0.0, -1
    for _ in range(200):
        now += 0.05
        if rng.random() < 0.3:
            world.happen()
        world.turn(follower, now)
        assert follower.term >= proven, "no term that was proven is forgotten"
        proven = follower.term
    world.heal()
    for _ in range(100):
        now += 0.05
        world.turn(follower, now)
    return follower.leader == world.leader


def test_whatever_happened_and_whoever_lied_the_real_leader_is_followed_in_the_end() -> None:
    missed = [seed for seed in range(300) if not finds_the_leader(seed, LeaderFollower)]
    assert not missed


def test_with_the_rule_turned_round_it_is_not() -> None:
    missed = [seed for seed in range(300) if not finds_the_leader(seed, TakesHintedTermsOver)]
    assert len(missed) >= 10, "the random schedules above would show it, too"


# ---------------------------------------------------------------- questions and silence


def test_rounds_are_a_tenth_of_a_second_apart_and_a_question_is_put_again_when_it_stays_without_answer() -> (
    None
):
    follower = LeaderFollower(3, PROBING)
    assert follower.round(0.0) == [0, 1, 2] and follower.round(0.05) == []
    follower.heard(0, False, 1, 0.1)
    follower.unheard(1)
    assert follower.round(0.1) == [0, 1], "2 has not answered yet"


def test_questions_to_a_frozen_replica_become_rare() -> None:
    follower = LeaderFollower(3, PROBING)
    asked = 0
    for tenth in range(600):
        asked += 2 in follower.round(tenth / 10)
        follower.unheard(0)
        follower.unheard(1)
    assert 8 <= asked <= 12, "after 2, 4, and then every 8 seconds"
    follower.heard(2, False, 1, 60.0)
    assert 2 in follower.round(60.0) and 2 in follower.round(62.5)


def test_a_slow_leader_is_left_in_peace_for_longer_each_time_until_it_is_prompt_again() -> None:
    follower = led(0)
    trusted = []
    for now in (1.0, 2.0, 3.0, 4.0, 5.0):
        follower.answered(0, now, late=True)
        trusted.append(round(follower.trusted_until - now, 3))
    assert trusted == [0.2, 0.4, 0.8, 1.0, 1.0]
    follower.answered(0, 6.0)
    follower.answered(0, 7.0, late=True)
    assert follower.trusted_until == 7.2
    follower.answered(1, 8.0, late=True)
    assert follower.trusted_until == 7.2, "a late answer of somebody else says nothing of the leader"
    follower.heard(1, True, 6, 8.0)
    assert follower.trusted_until < 0.0, "nobody has been slow in the new leadership"


def test_a_silent_leader_that_says_that_it_leads_is_merely_slow() -> None:
    follower = led(0, 5)
    assert not follower.heard(0, True, 5, 1.0)
    assert follower.leader == 0 and follower.trusted_until == 1.2
