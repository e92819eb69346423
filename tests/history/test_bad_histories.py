"""Each anomaly in the shortest history that shows it: the checker reports exactly that one, once."""

from __future__ import annotations

import pytest

from tests.history import sharing
from tests.history.report import MEANING
from tests.history.written import Written


def two(tx: str = "x") -> Written:
    """A prepared transaction over two partitions."""
    return Written().prepare(tx, "a@0", "b@1")


def one() -> Written:
    return Written().prepare("x", "a")


def across() -> Written:
    """A prepared transaction over two broker groups; its home is group 0."""
    return Written().prepare("x", "a@0#0", "b@1#1")


BAD = {
    "lost-write: a committed transaction": (one().commit("x").holds(), "lost-write"),
    "lost-write: a committed transaction that a check learned": (
        one().commit("x", by="check").holds(),
        "lost-write",
    ),
    "lost-write: a plain message": (Written().send("a", at=[0]).holds(), "lost-write"),
    "lost-write: another message stands in its place": (
        Written().send("a", at=[0]).send("b", by="q", end="unknown").holds("b"),
        "lost-write",
    ),
    "lost-write: what a reader had seen": (
        Written().send("a", end="unknown").poll((0, "a")).holds(),
        "lost-write",
    ),
    "lost-write: nobody read its partition": (Written().send("a"), "lost-write"),
    "lost-write: retention removed fewer than are missing": (
        Written().send("a").send("b").send("c").holds("c", start=1),
        "lost-write",
    ),
    "G1a: rolled back and read later": (one().commit("x", end="unknown").rollback("x").holds("a"), "G1a"),
    "G1a: read by one poll only": (
        one().commit("x", end="unknown").poll((0, "a")).rollback("x"),
        "G1a",
    ),
    "G1a: the commit was told that it is rolled back": (
        one().rollback("x", end="unknown").commit("x", told="ROLLBACK").holds("a"),
        "G1a",
    ),
    "G1a: a failed send": (Written().send("a", end="fail").holds("a"), "G1a"),
    "G1a: a failed prepare": (
        Written().prepare("x", "a", end="fail").commit("x", end="unknown").holds("a"),
        "G1a",
    ),
    "precommitted-read: decided later": (one().poll((0, "a")).commit("x").holds("a"), "precommitted-read"),
    "precommitted-read: never decided": (one().holds("a"), "precommitted-read"),
    "duplicate: in one partition": (Written().send("a", at=[0]).holds("a", "a"), "duplicate"),
    "duplicate: in two partitions": (
        Written().send("a@-1").poll((0, "a"), p=0).poll((0, "a"), p=1),
        "duplicate",
    ),
    "duplicate: one of two messages of a transaction": (
        Written().prepare("x", "a", "b").commit("x").holds("a", "b", "a"),
        "duplicate",
    ),
    "committed-twice: one message": (one().commit("x").holds("a", "a"), "committed-twice"),
    "committed-twice: seen by two polls": (
        one().commit("x").poll((0, "a")).poll((1, "a")),
        "committed-twice",
    ),
    "committed-twice: all of it, in two partitions": (
        two().commit("x").holds("a", "a").holds("b", "b", p=1),
        "committed-twice",
    ),
    "committed-twice: in one of its broker groups": (
        across().commit("x").holds("a").holds("b", "b", p=1),
        "committed-twice",
    ),
    "torn-across: a broker group has nothing of it": (
        across().commit("x").holds("a").holds(p=1),
        "torn-across",
    ),
    "torn-across: its home has nothing of it": (
        across().commit("x", end="unknown").holds().holds("b", p=1),
        "torn-across",
    ),
    "torn: in a broker group, of two": (
        Written().prepare("x", "a@0#0", "b@0#0", "c@1#1").commit("x").holds("a").holds("c", p=1),
        "torn",
    ),
    "branch-against-home: committed against a rollback": (
        across().commit("x", end="unknown").rollback("x").outcome("x", "COMMITTED", branch=1),
        "branch-against-home",
    ),
    "branch-against-home: that commit was read, too": (
        across().commit("x", end="unknown").rollback("x").outcome("x", "COMMITTED", branch=1).holds("b", p=1),
        "branch-against-home",
    ),
    "branch-against-home: rolled back against a commit": (
        across().commit("x").outcome("x", "ROLLBACK", branch=1).holds("a").holds(p=1),
        "branch-against-home",
    ),
    "orphan-branch: home has committed": (
        across().commit("x").outcome("x", "PREPARE", branch=1).holds("a").holds(p=1),
        "orphan-branch",
    ),
    "orphan-branch: home has rolled back": (
        across().rollback("x").outcome("x", "PREPARE", branch=1).holds().holds(p=1),
        "orphan-branch",
    ),
    "orphan-branch: home knows nothing of it": (
        across().outcome("x", "UNKNOWN").outcome("x", "PREPARE", branch=1).holds().holds(p=1),
        "orphan-branch",
    ),
    "inconsistent-offsets": (
        Written().send("a").send("b", by="q").holds("a", "b").poll((0, "b"), by="late"),
        "inconsistent-offsets",
    ),
    "gap": (Written().send("a").poll((0, "a")).poll(start=0, end=1), "gap"),
    "gap: out of order": (
        Written().send("a").send("b").poll((1, "b"), (0, "a"), start=0, end=2),
        "gap",
    ),
    "torn: at a stable cut": (
        two().commit("x").holds("a", cut="1").holds(p=1, cut="1").holds("a").holds("b", p=1),
        "torn",
    ),
    "torn: at a stable cut whose reader made another": (
        two()
        .commit("x")
        .holds("a", cut="1")
        .holds(p=1, cut="1")
        .holds("a", cut="2")
        .holds("b", p=1, cut="2"),
        "torn",
    ),
    "torn: in the end": (two().commit("x").holds("a").holds(p=1), "torn"),
    "torn: in the end, commit unknown": (two().commit("x", end="crash").holds("a").holds(p=1), "torn"),
    "nonmonotonic-send: by producer": (
        Written().send("a", end="unknown").send("b", end="unknown").holds("b", "a"),
        "nonmonotonic-send",
    ),
    "nonmonotonic-send: within a transaction": (
        Written().prepare("x", "a", "b").commit("x").holds("b", "a"),
        "nonmonotonic-send",
    ),
    "nonmonotonic-send: acknowledged before the other was sent": (
        Written().send("a", by="p").send("b", by="q").holds("b", "a"),
        "nonmonotonic-send",
    ),
    "nonmonotonic-send: two commits, one after the other": (
        one().prepare("y", "b").commit("x").commit("y").holds("b", "a"),
        "nonmonotonic-send",
    ),
    "divided-key: two transactions": (
        Written()
        .prepare("x", "a@-1@k")
        .commit("x")
        .prepare("y", "b@-1@k")
        .commit("y")
        .holds("a")
        .holds("b", p=1),
        "divided-key",
    ),
    "divided-key: a transaction and a plain message of another producer": (
        Written().prepare("x", "a@-1@k").commit("x").send("b@-1@k", by="q").holds("b").holds("a", p=1),
        "divided-key",
    ),
    "nonmonotonic-poll": (
        Written().send("a").send("b").poll((0, "a"), (1, "b")).poll((0, "a")).holds("a", "b"),
        "nonmonotonic-poll",
    ),
    "poll-skip: between polls": (
        Written().send("a", "b", "c").poll((0, "a")).poll((2, "c")).holds("a", "b", "c"),
        "poll-skip",
    ),
    "poll-skip: within a poll": (
        Written().send("a", "b", "c").poll((0, "a"), (2, "c")).holds("a", "b", "c"),
        "poll-skip",
    ),
    "poll-skip: after a seek": (
        Written().send("a", "b").poll((1, "b"), start=0).holds("a", "b"),
        "poll-skip",
    ),
    "both-decided": (one().commit("x").rollback("x", by="operator").holds("a"), "both-decided"),
    "unstable-outcome: a conflict, then the reverse": (
        one().rollback("x", told="COMMITTED").commit("x", told="ROLLBACK"),
        "unstable-outcome",
    ),
    "lost-write: an acknowledged PREPARE that the broker knows nothing of": (
        one().outcome("x", "UNKNOWN").holds(),
        "lost-write",
    ),
    "lost-write: an acknowledged PREPARE, and its rollback without answer": (
        one().rollback("x", end="unknown").outcome("x", "UNKNOWN").holds(),
        "lost-write",
    ),
    "lost-write: an acknowledged PREPARE that was open, then unknown": (
        one().outcome("x", "PREPARE").outcome("x", "UNKNOWN").holds(),
        "lost-write",
    ),
    "unstable-outcome: told, then unknown": (
        one().rollback("x").outcome("x", "UNKNOWN").holds(),
        "unstable-outcome",
    ),
    "unstable-outcome: told to a mere question, then unknown": (
        one().commit("x", end="unknown").outcome("x", "COMMITTED").outcome("x", "UNKNOWN").holds("a"),
        "unstable-outcome",
    ),
    "unstable-outcome: read, then unknown": (
        one().commit("x", end="unknown").poll((0, "a")).outcome("x", "UNKNOWN").holds("a"),
        "unstable-outcome",
    ),
    "unstable-outcome: open again": (one().rollback("x").outcome("x", "PREPARE"), "unstable-outcome"),
    "unstable-outcome: read, and said to be open": (
        one().commit("x", end="unknown").outcome("x", "PREPARE").holds("a"),
        "unstable-outcome",
    ),
    "invented-decision: told a rollback that nobody asked for": (
        one().commit("x", told="ROLLBACK").holds(),
        "invented-decision",
    ),
    "invented-decision: told a commit that nobody asked for": (
        one().rollback("x", told="COMMITTED").holds(),
        "invented-decision",
    ),
    "invented-decision: asked about, and rolled back by nobody": (
        one().outcome("x", "ROLLBACK").holds(),
        "invented-decision",
    ),
    "invented-decision: read, and only a rollback was asked for": (
        one().rollback("x", end="unknown").holds("a"),
        "invented-decision",
    ),
    "precommitted-read: the only commit had failed": (
        one().commit("x", end="fail").holds("a"),
        "precommitted-read",
    ),
    "invented-decision: committed against the producer's database": (
        one().commit("x", by="check").local("x", "ROLLBACK").holds("a"),
        "invented-decision",
    ),
    "invented-decision: rolled back against the producer's database": (
        one().local("x", "COMMITTED").rollback("x", by="check").holds(),
        "invented-decision",
    ),
    "unresolved: nobody decided": (one().holds(), "unresolved"),
    "unresolved: a commit had no effect": (one().commit("x", end="unknown").holds(), "unresolved"),
    "unresolved: a producer was asked, and nobody decided": (
        one().checked("x").outcome("x", "PREPARE").holds(),
        "unresolved",
    ),
    "unresolved: an app of which nobody is ever asked": (one().outcome("x", "PREPARE").holds(), "unresolved"),
    "never-checked": (
        one().checked("x").rollback("x").prepare("y", "b").outcome("y", "PREPARE").holds(),
        "never-checked",
    ),
    "unresolved: the broker says it is open": (
        one().rollback("x", end="unknown").outcome("x", "PREPARE").holds(),
        "unresolved",
    ),
    "unknown-message: never sent": (Written().holds("a"), "unknown-message"),
    "unknown-message: corrupt": (
        Written().send("a", end="unknown").holds("corrupt:00112233"),
        "unknown-message",
    ),
    "wrong-place: told another offset": (
        Written().send("a", "b", at=[1, 0]).holds("a", "b"),
        "wrong-place",
    ),
    "wrong-place: another partition than was wanted": (
        Written().prepare("x", "a@1").commit("x").holds("a", p=0),
        "wrong-place",
    ),
    "wrong-place: a retry was told another one": (
        Written().send("a", at=[0]).send("a", at=[1]).holds("a"),
        "wrong-place",
    ),
    "wrong-place: of a message that was read before retention took it": (
        Written().send("a", end="unknown").poll((0, "a")).send("b", at=[0]).holds(start=1),
        "wrong-place",
    ),
    "lost-offset: set back, and the old one is there again": (
        Written().offset(5).offset(2).offset_is(5),
        "lost-offset",
    ),
    "fence-split: in the database, and rolled back": (
        one().rollback("x", by="check").stored("x", True),
        "fence-split",
    ),
    "fence-split: read, and not in the database": (
        one().commit("x", by="check").holds("a").stored("x", False),
        "fence-split",
    ),
    "fence-split: in the database, and unknown to the broker": (
        Written().prepare("x", "a", end="unknown").outcome("x", "UNKNOWN").stored("x", True),
        "fence-split",
    ),
    "lost-offset: between two that were committed": (
        Written().offset(5).offset(2, end="unknown").offset_is(3),
        "lost-offset",
    ),
    "namesake: a message of an earlier topic of that name": (
        Written().created(1).send("a", at=[0]).deleted().created(2).holds("a", life=2),
        "namesake",
    ),
    "lost-offset: back": (Written().offset(5).offset_is(3), "lost-offset"),
    "lost-offset: gone": (Written().offset(5).offset_is(-1), "lost-offset"),
    "lost-offset: never committed": (Written().offset(5, end="unknown").offset_is(7), "lost-offset"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_history_is_found_as_what_it_is(name: str) -> None:
    history, kind = BAD[name]
    report = history.check()
    assert set(report.found) == {kind}, report.summary()


def test_every_kind_has_a_bad_history() -> None:
    assert {kind for _, kind in BAD.values()} == set(MEANING) - sharing.ANOMALIES


def test_an_anomaly_comes_with_the_events_that_show_it() -> None:
    report = one().commit("x").rollback("x").check()
    (anomaly,) = report.anomalies
    assert [event.kind or event.phase for event in anomaly.events] == ["prepare", "ok", "ok"]
    assert "a/x" in anomaly.text


def test_a_commit_that_failed_after_its_message_was_read_is_an_invented_decision() -> None:
    history = one()
    op = history.recorder.invoke("decide", app="a", tx="x", outcome="COMMITTED", by="producer")
    history.poll((0, "a"))
    history.recorder.fail(op, "refused")
    assert set(history.check().found) == {"invented-decision"}
