"""Which transactions the brokers are asked about when a round has ended."""

from __future__ import annotations

from tests.chaos.audit import never_delivered, never_told
from tests.history.events import Recorder
from tests.history.written import Written


def test_the_brokers_are_asked_for_what_was_prepared_and_of_which_nobody_was_told() -> None:
    history = Written().prepare("told", "a").commit("told").prepare("conflict", "b")
    history.rollback("conflict", told="COMMITTED").prepare("one-way", "c").commit("one-way", end="unknown")
    history.prepare("left", "d").prepare("refused", "e", end="fail").prepare("unheard", "f", end="unknown")
    history.prepare("died", "g").rollback("died", end="crash")
    assert never_told(history.recorder.events) == [("a", "one-way"), ("a", "left"), ("a", "died")]


def test_what_members_got_counts_by_offset_and_in_a_topic_created_again_by_its_messages() -> None:
    members, driver = Recorder("consumer-0.1"), Recorder("driver")
    for topic in ("stays", "again"):
        members.read("m", topic, 0, [(0, "a"), (1, "b")])
    driver.read("life-1", "again", 0, [(0, "a"), (1, "b")], start=0, end=2, life=1)
    driver.read("final-0", "stays", 0, [(0, "a"), (1, "b")], start=0, end=2)
    driver.read("final-0", "again", 0, [(0, "c"), (1, "b")], start=0, end=2, life=2)
    found = never_delivered([*members.events, *driver.events], [("stays", 0), ("again", 0)])
    assert found == ["group auditors was never given 1 messages of again[0]: [0]"]
