"""Histories that look wrong but are allowed: unknown outcomes, conflicts, retention, retries, seeks."""

from __future__ import annotations

import pytest

from tests.history.events import BadHistory
from tests.history.written import Written


def one() -> Written:
    return Written().prepare("x", "a")


def across() -> Written:
    """A prepared transaction over two broker groups; its home is group 0."""
    return Written().prepare("x", "a@0#0", "b@1#1")


GOOD = {
    "nothing": Written(),
    "a commit": one().commit("x").holds("a"),
    "a rollback": one().rollback("x").holds(),
    "an unknown commit that happened": one().commit("x", end="unknown").holds("a"),
    "a commit of a producer that died, and happened": one().commit("x", end="crash").holds("a"),
    "an unknown commit that did not, and was rolled back": (
        one().commit("x", end="unknown").rollback("x", by="operator").holds()
    ),
    "a commit that was told of the rollback": (
        one().rollback("x", by="operator").commit("x", told="ROLLBACK").local("x", "COMMITTED").holds()
    ),
    "a check that was told of the commit": one().commit("x").rollback("x", told="COMMITTED").holds("a"),
    "decided twice the same": one().commit("x").commit("x", by="check").holds("a"),
    "an unknown send that happened": Written().send("a", end="unknown").holds("a"),
    "an unknown send that did not": Written().send("a", end="unknown").holds(),
    "a failed send": Written().send("a", end="fail").holds(),
    "a failed prepare": Written().prepare("x", "a", end="fail").holds(),
    "an unknown prepare that nobody heard of": Written().prepare("x", "a", end="unknown").holds(),
    "an unknown prepare that a check resolved": (
        Written().prepare("x", "a", end="crash").commit("x", by="check").local("x", "COMMITTED").holds("a")
    ),
    "the same prepare again": one().prepare("x", "a").commit("x").holds("a"),
    "the same send again": (
        Written().send("a", end="unknown").send("a", at=[0]).send("b", at=[1]).holds("a", "b")
    ),
    "one read before the other's answer": (
        Written().prepare("x", "a").commit("x", end="crash").poll((0, "a")).commit("x").holds("a")
    ),
    "retention took what nobody had read": (
        Written().send("a", at=[0]).send("b", at=[1]).send("c", at=[2]).holds("c", start=2)
    ),
    "retention took a committed transaction": (
        one().commit("x").prepare("y", "b").commit("y").holds("b", start=1)
    ),
    "retention took one half of a transaction": (
        Written().prepare("x", "a@0", "b@1").commit("x").holds(start=1).holds("b", p=1)
    ),
    "a cut that starts after one half of a transaction": (
        Written()
        .prepare("x", "a@0", "b@1")
        .commit("x")
        .poll((0, "a"))
        .holds(start=1, cut="1")
        .holds("b", p=1, cut="1")
    ),
    "a cut over some partitions": Written()
    .prepare("x", "a@0", "b@1")
    .commit("x")
    .holds("a", cut="1")
    .holds("b", p=1),
    "a seek back": Written().send("a", "b").poll((0, "a"), (1, "b")).poll((0, "a"), start=0).holds("a", "b"),
    "two transactions of one producer, decided in the other order": (
        one().prepare("y", "b").commit("y").commit("x").holds("b", "a")
    ),
    "messages of two keys, or of none, anywhere": (
        Written()
        .send("a@-1@k")
        .send("b@-1@l")
        .send("c@-1")
        .send("d@-1@k")
        .holds("a", "c", "d")
        .holds("b", p=1)
    ),
    "a partition that was named, whatever the key": (
        Written().send("a@-1@k").send("b@1@k").send("c@-1@k").holds("a", "c").holds("b", p=1)
    ),
    "an offset commit without answer, both ways": (
        Written().offset(3).offset(5, end="unknown").offset_is(3).offset_is(5)
    ),
    "an offset that was set back without an answer": (
        Written().offset(5).offset(2, end="unknown").offset_is(5).offset_is(2)
    ),
    "an offset that was set back on purpose": Written().offset(5).offset(2).offset_is(2),
    "an unknown prepare of which the broker knows nothing": (
        Written().prepare("x", "a", end="unknown").outcome("x", "UNKNOWN").holds()
    ),
    "unknown when it was asked, before the prepare": (
        Written()
        .prepare("x", "a", end="unknown")
        .outcome("x", "UNKNOWN")
        .prepare("x", "a")
        .commit("x")
        .holds("a")
    ),
    "open when it was asked, and committed later": one().outcome("x", "PREPARE").commit("x").holds("a"),
    "a transaction over two broker groups": (
        across().commit("x").outcome("x", "COMMITTED", branch=1).holds("a").holds("b", p=1)
    ),
    "a branch that followed late": (
        across()
        .commit("x")
        .outcome("x", "PREPARE", branch=1)
        .outcome("x", "COMMITTED", branch=1)
        .holds("a")
        .holds("b", p=1)
    ),
    "a late copy of a branch's PREPARE, rolled back": (
        across().commit("x").outcome("x", "ROLLBACK", branch=1).holds("a").holds("b", p=1)
    ),
    "a branch that has forgotten what it committed": (
        across().commit("x").outcome("x", "UNKNOWN", branch=1).holds("a").holds("b", p=1)
    ),
    "a branch that was never prepared": (
        Written()
        .prepare("x", "a@0#0", "b@1#1", end="unknown")
        .rollback("x")
        .outcome("x", "UNKNOWN", branch=1)
        .holds()
        .holds(p=1)
    ),
    "retention took what one of two broker groups had": (
        across().commit("x").send("c@1", end="unknown").holds("a").holds("c", p=1, start=1)
    ),
    "two broker groups publish each in its own time, and retention takes what one had": (
        across().commit("x").send("c@1", by="q").holds(start=1).holds("c", "b", p=1)
    ),
    "a check of what its producer commits meanwhile": one().checked("x").commit("x").holds("a"),
    "no check was needed": (one().checked("x").rollback("x").prepare("y", "b").commit("y").holds("b")),
    "what the fenced database holds": (
        one()
        .commit("x", by="check")
        .stored("x", True)
        .prepare("y", "b", end="unknown")
        .outcome("y", "UNKNOWN")
        .stored("y", False)
        .holds("a")
    ),
    "an operator decides otherwise than the fenced database": (
        one().rollback("x", by="operator").stored("x", True).holds()
    ),
    "an outcome that was asked for": one().rollback("x", end="unknown").outcome("x", "ROLLBACK").holds(),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_history_passes(name: str) -> None:
    report = GOOD[name].check()
    assert report.ok, report.summary()


def test_an_open_transaction_is_fine_while_nobody_has_to_answer() -> None:
    report = one().holds().check(expect_resolved=False)
    assert report.ok and report.counts["transactions open"] == 1


def test_a_rollback_without_answer_is_counted_and_not_judged() -> None:
    report = one().rollback("x", end="unknown").holds().check()
    assert report.ok and report.counts["transactions rolled back, unanswered"] == 1


def test_of_two_offsets_committed_at_once_the_higher_stands_whichever_was_answered_first() -> None:
    for order in ((0, 1), (1, 0)):
        history = Written().offset(5)
        place = {"group": "g", "topic": "t", "partition": 0}
        ops = [history.recorder.invoke("offset-commit", **place, offset=offset) for offset in (7, 9)]
        for number in order:
            history.recorder.ok(ops[number])
        report = history.offset_is(9).check()
        assert report.ok, report.summary()


def test_an_offset_that_is_committed_while_it_is_asked_for_may_be_seen_or_not() -> None:
    for seen in (5, 7, 9):
        history = Written().offset(5)
        asked = history.recorder.invoke("offset-fetch", group="g", topic="t", partition=0)
        history.offset(7).offset(9)
        history.recorder.ok(asked, offset=seen)
        report = history.check()
        assert report.ok, report.summary()


def test_an_answer_counts_from_the_moment_of_its_question() -> None:
    for answer in ("UNKNOWN", "PREPARE"):
        history = Written().prepare("x", "a", end="unknown")
        if answer == "PREPARE":
            history.prepare("x", "a")
        asked = history.recorder.invoke("outcome", app="a", tx="x")
        history.prepare("x", "a").commit("x")
        history.recorder.ok(asked, outcome=answer)
        report = history.holds("a").check()
        assert report.ok, report.summary()


def test_what_was_unknown_and_prepared_later_must_be_resolved() -> None:
    history = Written().prepare("x", "a", end="unknown").outcome("x", "UNKNOWN").prepare("x", "a").holds()
    assert set(history.check().found) == {"unresolved"}


def test_a_recording_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(BadHistory, match="two operations sent"):
        one().prepare("y", "a").check()
    history = one()
    history.recorder.ok(0)
    with pytest.raises(BadHistory, match="was not invoked"):
        history.check()
