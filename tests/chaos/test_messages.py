"""Which topics a set of messages is in: the one that is created again now and then, and others."""

from __future__ import annotations

import random
from collections import Counter

from tests.chaos.messages import AVOID_IT, IN_ALL, ONLY_IN_IT, RECREATED, compose


def test_messages_share_a_transaction_with_the_recreated_topic_now_and_then() -> None:
    rng, kinds, sets = random.Random(1), Counter[str](), 2000
    for number in range(sets):
        composed = compose(rng, f"m{number}", [40] * 8, {"a": 3, "b": 2, RECREATED: 3}, "k")
        topics = {sent.topic for sent, _ in composed}
        kinds["in it" if topics == {RECREATED} else "across" if RECREATED in topics else "without"] += 1
    for kind, share in (("without", AVOID_IT), ("in it", ONLY_IN_IT), ("across", IN_ALL)):
        assert abs(kinds[kind] / sets - share) < 0.03


def test_without_that_topic_all_others_are_used() -> None:
    composed = compose(random.Random(1), "m", [40] * 60, {"a": 3, "b": 2}, "k")
    assert {sent.topic for sent, _ in composed} == {"a", "b"}
