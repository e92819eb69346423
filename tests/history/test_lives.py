"""A topic that is deleted and created again: what may be in which of its lives; what may not be is found.

Every history has one topic, which is created with the id 1 first.
"""

from __future__ import annotations

import pytest

from tests.history.events import BadHistory, Sent
from tests.history.written import Written


def first() -> Written:
    return Written().created(1)


def again(history: Written, id: int = 2) -> Written:
    return history.deleted().created(id)


def prepared_across(*messages: str) -> Written:
    """A transaction whose PREPARE is answered only when the topic is another one."""
    history = first()
    op = history.recorder.invoke("prepare", app="a", tx="x", messages=history.sent(*messages))
    again(history).recorder.ok(op)
    return history


def with_another_topic() -> Written:
    """A committed transaction with one message in the topic, and one in a topic that stays."""
    history = first()
    sent = [*history.sent("a"), Sent("b", "stays", 0)]
    history.recorder.ok(history.recorder.invoke("prepare", app="a", tx="x", messages=sent))
    return history.commit("x")


def stays(history: Written, *ids: str, cut: str | None = None) -> Written:
    history.recorder.read("final", "stays", 0, list(enumerate(ids)), start=0, end=len(ids), cut=cut)
    return history


GOOD = {
    "what was in the topic went with it": again(first().send("a", at=[0]).poll((0, "a"))).holds(life=2),
    "and was read completely before": again(first().send("a", at=[0]).holds("a", life=1)).holds(life=2),
    "each life has its own messages at one place": (
        again(first().send("a", at=[0]).holds("a", life=1)).send("b", at=[0]).holds("b", life=2)
    ),
    "a commit of what went with the topic": again(first().prepare("x", "a")).commit("x").holds(life=2),
    "a send under way may be in either": again(first().send("a", end="unknown")).holds("a", life=2),
    "or in none": again(first().send("a", end="unknown")).holds(life=2),
    "so may a transaction, as a whole": (
        prepared_across("a@0", "b@1").commit("x").holds("a", life=2).holds("b", p=1, life=2)
    ),
    "or it went as a whole": prepared_across("a@0", "b@1").commit("x").holds(life=2).holds(p=1, life=2),
    "a message that was refused because the topic is another one": (
        again(first()).send("a", end="earlier").holds(life=2)
    ),
    "and was sent again": (
        again(again(first()).prepare("x", "a", end="earlier"), 3)
        .prepare("x", "a")
        .commit("x")
        .holds("a", life=3)
    ),
    "a member that begins at the new topic's start": (
        again(first().send("a", "b", at=[0, 1]).poll((0, "a"), (1, "b")))
        .send("c", at=[0])
        .poll((0, "c"))
        .holds("c", life=2)
    ),
    "members of two lives at one place": (
        again(first().send("a", at=[0]).poll((0, "a")))
        .send("b", at=[0])
        .poll((0, "b"), by="s")
        .poll((0, "a"), by="q")
        .holds("b", life=2)
    ),
    "a group begins anew": again(first().offset(5)).offset_is(-1),
    "a group has a place in the new topic": again(first().offset(5)).offset(2).offset_is(2),
    "a commit that was answered when the topic was another one": again(
        first().offset(5, "unknown")
    ).offset_is(-1),
    "the other half of a transaction went with its topic": (
        stays(again(with_another_topic()), "b", cut="c").holds(life=2)
    ),
}

BAD = {
    "a message that was stored before": (
        again(first().send("a", at=[0])).holds("a", life=2),
        "namesake",
    ),
    "a transaction that was prepared before": (
        again(first().prepare("x", "a")).commit("x").holds("a", life=2),
        "namesake",
    ),
    "a message that was polled before": (
        again(first().send("a", at=[0]).poll((0, "a"))).holds("a", life=2),
        "namesake",
    ),
    "a message that was sent later": (again(first()).send("a", at=[0]).holds("a", life=1), "namesake"),
    "a message that was refused": (
        again(again(first()).send("a", end="earlier"), 3).holds("a", life=3),
        "namesake",
    ),
    "the same topic": (again(first(), id=1), "namesake"),
    "a message in two lives": (
        again(first().send("a", end="unknown").holds("a", life=1)).holds("a", life=2),
        "duplicate",
    ),
    "a transaction in two lives": (
        prepared_across("a").commit("x").holds("a", life=1).holds("a", life=2),
        "committed-twice",
    ),
    "a lost message": (again(first()).send("a", at=[0]).holds(life=2), "lost-write"),
    "a lost message of the first life": (first().send("a", at=[0]).holds(life=1), "lost-write"),
    "a part of a transaction": (
        prepared_across("a@0", "b@1").commit("x").holds("a", life=2).holds(p=1, life=2),
        "torn",
    ),
    "a transaction divided among two lives": (
        prepared_across("a@0", "b@1").commit("x").holds("a", life=1).holds("b", p=1, life=2),
        "torn",
    ),
    "another place than was told": (
        again(first()).send("b", at=[0]).send("a", at=[0]).holds("b", "a", life=2),
        "wrong-place",
    ),
    "a group's place of the earlier topic": (again(first().offset(5)).offset_is(5), "lost-offset"),
    "one that was under way": (again(first().offset(5, end="unknown")).offset_is(5), "lost-offset"),
    "a member is led past what is in the new topic": (
        again(first().send("a", at=[0]).poll((0, "a")))
        .send("b", "c", "d", at=[0, 1, 2])
        .poll((2, "d"))
        .holds("b", "c", "d", life=2),
        "poll-skip",
    ),
    "the half of a transaction in a topic that stays": (
        stays(again(with_another_topic())).holds(life=2),
        "lost-write",
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_what_may_happen_passes(name: str) -> None:
    report = GOOD[name].check()
    assert report.ok, report.summary()


@pytest.mark.parametrize("name", BAD)
def test_what_may_not_happen_is_found(name: str) -> None:
    history, kind = BAD[name]
    report = history.check()
    assert set(report.found) == {kind}, report.summary()


def test_what_went_with_a_topic_is_counted() -> None:
    report = again(first().send("a", at=[0])).holds(life=2).check()
    assert report.ok and report.counts["missing, with a deleted topic"] == 1


def test_a_recording_without_the_topics_creation_is_refused() -> None:
    with pytest.raises(BadHistory, match="does not create"):
        first().send("a", at=[0]).holds("a", life=7).check()
    with pytest.raises(BadHistory, match="never created"):
        Written().deleted().check()


def test_a_cut_shows_a_torn_transaction_although_a_part_went_with_a_topic() -> None:
    history = first()
    sent = [*history.sent("a", "b", "c", "d", "e"), Sent("y", "stays", 0), Sent("z", "stays", 0)]
    history.recorder.ok(history.recorder.invoke("prepare", app="a", tx="x", messages=sent))
    again(history.commit("x"))
    stays(history, "y", cut="1")
    assert set(stays(history, "y", "z").holds(life=2).check().found) == {"torn"}
