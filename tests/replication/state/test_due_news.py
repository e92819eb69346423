"""Which pairs came to have due checks: each is reported once, none is missed, and a look is short."""

from __future__ import annotations

import random

from escrowmq.replication.state.due_queue import GAPS_MAX, LOOK_MAX, DueNews
from tests.support.fed_state import FedState

Pair = tuple[str, str]


def everything(news: DueNews, seen: int = 0, part: int = 0, parts: int = 1) -> tuple[int, list[Pair]]:
    """All that is new, however many looks it takes."""
    found: list[Pair] = []
    while True:
        seen, pairs = news.after(seen, lambda pair: len(pair[1]) % parts == part)
        found += pairs
        if seen >= news.last:
            return seen, found


def test_each_pair_is_told_once_and_again_when_it_has_something_anew() -> None:
    news = DueNews()
    news.add(("shop", "orders"))
    seen, pairs = everything(news)
    assert pairs == [("shop", "orders")] and everything(news, seen) == (seen, [])
    news.add(("shop", "bills"))
    seen, pairs = everything(news, seen)
    assert pairs == [("shop", "bills")]
    news.remove(("shop", "orders"))
    news.add(("shop", "orders"))
    assert everything(news, seen)[1] == [("shop", "orders")]
    news.clear()
    assert everything(news)[1] == [] and len(news) == 0


def test_who_looks_at_a_part_sees_that_part_alone() -> None:
    news = DueNews()
    for n in range(12):
        news.add(("shop", "x" * n))
    parts = [everything(news, part=part, parts=3)[1] for part in range(3)]
    assert sorted(pair for part in parts for pair in part) == [("shop", "x" * n) for n in range(12)]


def test_an_app_is_told_its_own_topics_and_none_is_kept_of_an_app_without_due_checks() -> None:
    news = DueNews()
    for pair in (("shop", "orders"), ("shop", "bills"), ("bank", "orders")):
        news.add(pair)
    news.add(("shop", "orders"))  # it has got a new number
    assert (news.topics("shop"), news.topics("bank"), news.topics("none")) == (
        ["orders", "bills"],
        ["orders"],
        [],
    )
    news.remove(("bank", "orders"))
    news.remove(("bank", "orders"))
    assert list(news._topics) == ["shop"]
    news.clear()
    assert not news._topics and not news.topics("shop")


def test_a_number_that_nobody_gave_is_taken_for_the_last() -> None:
    news = DueNews()
    news.add(("shop", "orders"))
    assert news.after(1 << 60, lambda pair: True) == (1, [])


def test_no_pair_is_missed_and_no_look_is_long_in_any_history() -> None:
    rng, news, due = random.Random(7), DueNews(), set[Pair]()
    seen, told = 0, set[Pair]()
    pairs = [("app", str(n)) for n in range(50)]
    for step in range(60_000):
        pair = rng.choice(pairs) if step % 3 else ("app", f"once {step}")
        if pair in due:
            due.discard(pair)
            told.discard(pair)
            news.remove(pair)
        else:
            due.add(pair)
            news.add(pair)
            if step % 3 == 0:
                due.discard(pair)
                news.remove(pair)
        if rng.random() < 0.01:
            seen, found = everything(news, seen)
            told.update(found)
            assert told >= due, "a pair with due checks was never told"
            told &= due
        assert len(news) == len(due)
        assert sorted(news.topics("app")) == sorted(topic for _, topic in due)
        if due:
            assert news.last - min(news._pairs) <= 2 * len(due) + GAPS_MAX + 2
    looks = 0
    at = 0
    while at < news.last:
        at, _ = news.after(at, lambda pair: True)
        looks += 1
    assert looks <= 1 + (2 * len(due) + GAPS_MAX) // LOOK_MAX + 1


def test_the_queue_of_checks_tells_which_pairs_have_due_ones() -> None:
    log = FedState()
    log.prepare(["a", "b"], timeout_ms=1_000)
    due, later = log.state.due, log.now_ms + 2_000
    due.advance(later)
    assert everything(due.news)[1] == [("app", "t")]
    assert len(due.lock("app", "t", 1, "me", 5_000, later)) == 1 and len(due.news) == 1
    due.lock("app", "t", 5, "me", 5_000, later)
    assert len(due.news) == 0, "both are leased"
    seen = due.news.last
    due.advance(later + 6_000)
    assert everything(due.news, seen)[1] == [("app", "t")], "the leases ended"
    log.commit(["a", "b"])
    assert due.lock("app", "t", 5, "me", 5_000, later + 6_000) == [] and len(due.news) == 0
    due.resign(later)
    assert len(due.news) == 0
