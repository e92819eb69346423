"""Each anomaly of share groups in a short history that shows it, beside a history that must pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from escrowmq.replication.format.share_ops import BY_TABLE, REJECT
from tests.history.checker import check
from tests.history.events import Recorder
from tests.history.report import Report
from tests.history.sharing import ANOMALIES

MS = 1_000_000
TOPIC, RETRY, DEAD = "t", "__retry.g", "__dead.g"


class Shared:
    """A history of one share group, written by hand; each operation takes a millisecond. The message ``a``
    is sent to offset 0 of its topic, and comes back at offset 0 of the topic of retries, and so on."""

    def __init__(self, max_attempts: int = 3, delay_ms: int = 10) -> None:
        self._now = 0
        self.recorder = Recorder("hand", clock=self._clock)
        self._ok("share-group", {}, max_attempts=max_attempts, delays_ms=[delay_ms])

    def _clock(self) -> int:
        self._now += MS // 2
        return self._now

    @property
    def now_ms(self) -> int:
        return self._now // MS

    def _ok(self, kind: str, asked: dict[str, Any], **told: Any) -> Shared:
        self.recorder.ok(self.recorder.invoke(kind, group="g", **asked), **told)
        return self

    def wait(self, ms: int) -> Shared:
        self._now += ms * MS
        return self

    def handed(self, attempt: int = 1, topic: str = "", at: int = 0, by: str = "r0", ms: int = -1) -> Shared:
        """``a`` is handed out by a leader. ``ms``: when it became readable; -1: now."""
        place = topic or (TOPIC if attempt == 1 else RETRY), 0, at
        record = [*place, "a", attempt, self.now_ms if ms < 0 else ms]
        asked = {"member": "m", "since_ms": self.now_ms}
        return self._ok("share-acquire", asked, leader=by, lease_ms=100, records=[record])

    def ack(self, attempt: int = 1, at: int = 0, refused: tuple[int, ...] = ()) -> Shared:
        place = TOPIC if attempt == 1 else RETRY, 0, at
        return self._ok("share-ack", {"records": [place]}, refused=list(refused))

    def nack(self, attempt: int = 1, delay_ms: int = BY_TABLE, at: int = 0) -> Shared:
        place = TOPIC if attempt == 1 else RETRY, 0, at
        asked = {"records": [place], "delays_ms": [delay_ms], "since_ms": self.now_ms}
        return self._ok("share-nack", asked)

    def polled(self, tag: str | None) -> Shared:
        """The application gets ``a``, which was sent with this tag."""
        return self._ok("share-poll", {"records": [(TOPIC, 0, 0)], "tags": [tag]})

    def passed(self, tag: str | None) -> Shared:
        return self._ok("share-pass", {"records": [(TOPIC, 0, 0)], "tags": [tag]})

    def tagged(self, *tags: str) -> Shared:
        """The group wants these."""
        return self._ok("share-group", {}, tags=list(tags))

    def deleted(self, *topics: str) -> Shared:
        """The group is deleted, with these topics."""
        return self._ok("share-delete", {}, topics=list(topics))

    def amid_a_deletion(self, work: Callable[[Shared], object]) -> Shared:
        """Something happens while the group is being deleted."""
        op = self.recorder.invoke("share-delete", group="g")
        work(self)
        self.recorder.ok(op)
        return self

    def release(self) -> Shared:
        return self._ok("share-release", {"records": [(TOPIC, 0, 0)]})

    def extend(self, member: str = "m", by: str = "r0") -> Shared:
        asked = {"member": member, "lease_ms": 100, "records": [(TOPIC, 0, 0)]}
        return self._ok("share-extend", asked, leader=by, refused=[])

    def settings(self, max_attempts: int, delay_ms: int) -> Shared:
        """An operator changes them."""
        return self._ok("share-group", {"max_attempts": max_attempts, "delays_ms": [delay_ms]})

    def redrive(self) -> Shared:
        return self._ok("share-redrive", {"records": [(DEAD, 0, 0)], "ids": ["a"]})

    def redirect(self, to: str = "lost", **answer: bool) -> Shared:
        """The dead letter is redriven into this topic."""
        return self._ok("share-redirect", {"to": to, "records": [(DEAD, 0, 0)], "ids": ["a"]}, **answer)

    def landed(self, *topics: str) -> Shared:
        """In the end its copies are there, and it is final."""
        for topic in topics:
            place = {"topic": topic, "partition": 0, "start": 0, "ranges": (), "end": 0}
            self._ok("share-end", {}, **place, of="redirected", records=[("a", (DEAD, 0, 0))])
        return self

    def ends(self, start: int = 1, end: int = 1, ranges: tuple[tuple[int, int], ...] = ()) -> Shared:
        told = {"topic": TOPIC, "partition": 0, "start": start, "ranges": ranges, "end": end}
        return self._ok("share-end", {}, **told, records=[(0, "a")])

    def copies(self, kind: str, *attempts: int) -> Shared:
        records = [(n, "a", attempt) for n, attempt in enumerate(attempts)]
        end, topic = len(records), RETRY if kind == "retry" else DEAD
        told = {"of": kind, "topic": topic, "partition": 0, "start": end, "ranges": (), "end": end}
        return self._ok("share-end", {}, **told, records=records)

    def handle(self, at: int, done: bool = True) -> Shared:
        op = self.recorder.invoke("share-handle", group="g", records=[(TOPIC, 0, at)])
        if done:
            self.recorder.ok(op)
        else:
            self.recorder.fail(op, "the handler has failed")
        return self

    def check(self) -> Report:
        return check(self.recorder.events)


def failed() -> Shared:
    """Its first attempt has failed."""
    return Shared().handed().nack()


def dead() -> Shared:
    """It was rejected, and is a dead letter."""
    return Shared().handed().nack(delay_ms=REJECT).copies("dead", 1).ends()


BAD = {
    "acked-again: after an ack": (Shared().handed().ack().handed(), "acked-again"),
    "acked-again: by another leader": (Shared().handed().ack().handed(by="r1"), "acked-again"),
    "acked-again: after it had failed there": (failed().handed(), "acked-again"),
    "double-lease: while it is leased": (Shared().handed().handed(), "double-lease"),
    "double-lease: while its lease was extended": (
        Shared().handed().wait(90).extend().wait(50).handed(),
        "double-lease",
    ),
    "stuck: at the end of a partition": (Shared().handed().ends(start=0), "stuck"),
    "stuck: before what is final": (
        Shared().handed().ack().ends(start=0, end=3, ranges=((1, 2),)),
        "stuck",
    ),
    "dead-early: at the first attempt": (failed().copies("dead", 1).ends(), "dead-early"),
    "over-attempts: handed out": (
        Shared(max_attempts=1).handed().nack().wait(20).handed(attempt=2),
        "over-attempts",
    ),
    "over-attempts: the attempt is not carried on": (
        failed().wait(20).handed(attempt=2).nack(attempt=2).wait(20).handed(attempt=2, at=1),
        "over-attempts",
    ),
    "over-attempts: a retry that nobody needed": (
        Shared(max_attempts=1).handed().nack().copies("retry", 2).copies("dead", 1),
        "over-attempts",
    ),
    "over-attempts: after both settings": (
        Shared(max_attempts=1).settings(2, 10).handed().nack().copies("dead", 3).ends(),
        "over-attempts",
    ),
    "retry-early: by both tables": (
        Shared(delay_ms=90).settings(3, 40).handed().nack().wait(20).handed(attempt=2),
        "retry-early",
    ),
    "retry-early: by the table": (failed().handed(attempt=2), "retry-early"),
    "retry-early: by the delay that was asked for": (
        Shared(delay_ms=1_000).handed().nack(delay_ms=50).wait(30).handed(attempt=2),
        "retry-early",
    ),
    "retried-twice: two copies": (failed().copies("retry", 2, 2), "retried-twice"),
    "retried-twice: two dead letters": (
        Shared().handed().nack(delay_ms=REJECT).copies("dead", 1, 1),
        "retried-twice",
    ),
    "dead-letter-lost: rejected": (Shared().handed().nack(delay_ms=REJECT).ends(), "dead-letter-lost"),
    "dead-letter-lost: never handed out": (Shared().ends(), "dead-letter-lost"),
    "redriven-twice: one redrive, two copies": (dead().redrive().copies("retry", 1, 1), "redriven-twice"),
    "redriven-twice: nobody asked for it": (dead().copies("retry", 1), "redriven-twice"),
    "redriven-twice: into two topics": (
        dead().redirect().redirect("found").landed("lost", "found"),
        "redriven-twice",
    ),
    "redriven-twice: into a topic that nobody has named": (
        dead().redirect(refused=True).redirect("found", refused=True).landed("lost"),
        "redriven-twice",
    ),
    "redriven-twice: to the group, and into a topic": (
        dead().redrive().redirect().copies("retry", 1).landed("lost"),
        "redriven-twice",
    ),
    "redrive-lost: it was reported, and is not there": (dead().redirect(), "redrive-lost"),
    "redrive-lost: it is final, and nowhere": (dead().redirect(refused=True), "redrive-lost"),
    "acked-again: in a later life": (Shared().deleted().handed().ack().handed(), "acked-again"),
    "acked-again: from a topic of an earlier life": (
        failed().deleted(RETRY).wait(20).handed(attempt=2),
        "acked-again",
    ),
    "over-attempts: in a later life": (
        Shared(max_attempts=16).deleted().handed().nack().wait(2_000).handed(attempt=17),
        "over-attempts",
    ),
    "dead-letter-lost: in a later life": (Shared().deleted().handed().ends(), "dead-letter-lost"),
    "other-tag: another one": (Shared().tagged("red", "blue").handed().polled("green"), "other-tag"),
    "other-tag: none": (Shared().tagged("red").handed().polled(None), "other-tag"),
    "passed-over: a tag that is wanted": (Shared().tagged("red").handed().passed("red"), "passed-over"),
    "passed-over: no tags are": (Shared().handed().passed("red"), "passed-over"),
    "order-broken: one is left out": (Shared().handle(0).handle(2), "order-broken"),
    "order-broken: the one before has failed": (Shared().handle(0, done=False).handle(1), "order-broken"),
}

GOOD = {
    "an attempt that counts a lease that has run out comes again after a fail-over": (
        Shared()
        .handed(attempt=2, topic=TOPIC)
        .wait(4_000)
        .handed(by="r1")
        .nack()
        .wait(4_000)
        .handed(attempt=2)
        .ack(2)
    ),
    "handed out, acknowledged": Shared().handed().ack().ends(),
    "again after the lease is over": Shared().handed().wait(200).handed().ack().ends(),
    "again after the lease that was extended": Shared().handed().wait(90).extend().wait(110).handed(),
    "again while somebody else extends": Shared().handed().wait(90).extend("n").wait(20).handed(),
    "dead by later settings": (
        Shared(max_attempts=2).settings(1, 10).handed().nack().copies("dead", 1).ends()
    ),
    "again by another leader": Shared().handed().handed(by="r1").ack().ends(),
    "again once it was released": Shared().handed().release().handed().ack(),
    "again although an ack without answer may be in the log": Shared()
    .handed()
    .ack(refused=(0,))
    .handed(by="r1"),
    "fails, comes back, is done": failed()
    .wait(20)
    .handed(attempt=2)
    .ack(attempt=2)
    .ends()
    .copies("retry", 2),
    "fails until it is a dead letter": (
        Shared(max_attempts=2)
        .handed()
        .nack()
        .wait(20)
        .handed(attempt=2)
        .nack(attempt=2)
        .ends()
        .copies("retry", 2)
        .copies("dead", 2)
    ),
    "a dead letter without an answer to the last failure": (
        Shared(max_attempts=1).handed().wait(900).ends().copies("dead", 1)
    ),
    "rejected at once": dead(),
    "redriven once": dead().redrive().handed(attempt=1, topic=RETRY).ack(attempt=2).copies("retry", 1),
    "redriven twice, from two dead letters": (
        Shared().handed().nack(delay_ms=REJECT).redrive().copies("dead", 1, 1).copies("retry", 1)
    ),
    "redriven into a topic, where another call was refused": (
        dead().redirect().redirect("found", refused=True).landed("lost")
    ),
    "a shorter pause than the table's": (
        Shared(delay_ms=1_000).handed().nack(delay_ms=5).wait(10).handed(attempt=2)
    ),
    "again in a later life": Shared().handed().ack().deleted().handed().ack().ends(),
    "done amid a deletion, and again": (
        Shared().amid_a_deletion(lambda life: life.handed().ack()).handed().ack().ends()
    ),
    "fails again in a later life": (
        failed().wait(20).handed(attempt=2).deleted().handed().nack().wait(1_500).handed(attempt=2, at=1)
    ),
    "lost with the topics of its group": Shared().handed().nack().deleted().ends(),
    "with one of the tags": Shared().tagged("red", "blue").handed().polled("blue").ack().ends(),
    "passed over, and done": Shared().tagged("red").handed().passed("green").ends(),
    "in order, one of them twice": Shared().handle(0).handle(1, done=False).handle(1).handle(2),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_history_is_found_as_what_it_is(name: str) -> None:
    history, kind = BAD[name]
    report = history.check()
    assert set(report.found) == {kind}, report.summary()


@pytest.mark.parametrize("name", GOOD)
def test_a_good_history_passes(name: str) -> None:
    report = GOOD[name].check()
    assert report.ok, report.summary()


def test_every_kind_has_a_bad_history() -> None:
    assert {kind for _, kind in BAD.values()} == ANOMALIES
