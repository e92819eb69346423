"""The checker's result: figures, and the anomalies with the events that show them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.table import Table

from tests.history.events import Event

KEPT_PER_KIND = 20  # a broken system produces many anomalies; the first ones are enough

#: Every kind of anomaly, and its meaning. Kinds that also exist in Jepsen's Kafka workload have its names.
MEANING = {
    "lost-write": "acknowledged (or read before), and missing at the end",
    "G1a": "aborted read: a message of a rolled-back transaction or of a failed send was read",
    "precommitted-read": "a message was read before its transaction was decided",
    "duplicate": "one message is stored at two places",
    "committed-twice": "one transaction was published twice: all its messages in a partition are there twice",
    "inconsistent-offsets": "two messages at one place",
    "gap": "a complete read lacks offsets",
    "torn": "only a part of a transaction is readable at a stable cut, or at the end",
    "torn-across": "a transaction over several broker groups is readable at the end in only some of them",
    "branch-against-home": "a branch was decided differently from its home group",
    "orphan-branch": "a branch is still open at the end, although its home group has decided it or does not "
    "know it",
    "nonmonotonic-send": "a producer's order within a partition, or the order of real time, is broken",
    "divided-key": "two messages of one key are in two partitions of their topic, where nothing orders them",
    "nonmonotonic-poll": "a reader's position went backwards",
    "poll-skip": "a reader skipped offsets",
    "both-decided": "commit and rollback of one transaction were both acknowledged",
    "unstable-outcome": "the broker's answer about a transaction changed",
    "invented-decision": "an outcome that no producer, check or operator had asked for, or that contradicts "
    "the producer's own database",
    "fence-split": "the application's database holds what its transaction wrote and the messages are rolled "
    "back, or the reverse, although a fence ties them together",
    "unresolved": "a transaction was prepared and is still undecided at the end",
    "never-checked": "a transaction was prepared and is still open at the end, and no producer of its app, "
    "which answers checks, was ever asked about it",
    "unknown-message": "a message was read that was never sent, or its bytes were changed",
    "wrong-place": "the answer to a send named a place that holds another message",
    "namesake": "a message is in a topic that was created after it had been stored, or was deleted before it "
    "was sent; or a topic that was created again has the id of an earlier one",
    "acked-again": "a share group got a message again after it had been acknowledged, or had failed, there",
    "double-lease": "one leader has leased a message to two members at once",
    "stuck": "a message is neither final for a share group in the end nor handed out to it",
    "dead-early": "a message became a dead letter before its last attempt, and nobody had rejected it",
    "over-attempts": "a message came back more often than its group's settings allow, or as an attempt that "
    "it had had before",
    "retry-early": "a message came back before the pause after its failure was over",
    "retried-twice": "one failure of a message made two copies of it",
    "dead-letter-lost": "a message is final for a share group, nobody was done with it, and it is not dead",
    "redriven-twice": "a dead letter was redriven more often than once, or elsewhere than was reported",
    "redrive-lost": "a dead letter is final, and nowhere",
    "other-tag": "a member of a share group was given a message with none of the tags that its group wants",
    "passed-over": "a member has acked, unasked, a message with a tag that its group wants",
    "order-broken": "an ordered consumer has handled a message before the one in front of it was done",
    "lost-offset": "a group's committed offset went back, or was never committed",
}


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One broken promise."""

    kind: str
    text: str
    events: tuple[Event, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass
class Report:
    """Figures and anomalies of one history. ``anomalies`` holds the first ones of each kind, ``found`` counts
    all of them."""

    anomalies: list[Anomaly] = field(default_factory=list)
    found: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    operations: dict[str, Counter[str]] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.found

    def add(self, kind: str, text: str, *events: Event) -> None:
        assert kind in MEANING, kind
        self.found[kind] += 1
        if self.found[kind] <= KEPT_PER_KIND:
            self.anomalies.append(Anomaly(kind, text, events))

    def summary(self) -> str:
        """The anomalies in one line, for an error's text."""
        kinds = ", ".join(f"{kind} x{count}" for kind, count in sorted(self.found.items()))
        first = self.anomalies[0] if self.anomalies else None
        return f"{kinds}; first: {first}" if first else "no anomalies"

    def tables(self) -> RenderableType:
        """All figures and anomalies as tables for a terminal."""
        operations = Table("operation", "invoked", "ok", "failed", "unknown", title="Operations")
        for kind, row in sorted(self.operations.items()):
            operations.add_row(kind, *(str(row[k]) for k in ("invoke", "ok", "fail", "unknown")))
        counts = Table("what", "how many", title="History")
        for name, count in sorted(self.counts.items()):
            counts.add_row(name, str(count))
        if self.ok:
            return Group(operations, counts, "[green]no anomalies")
        anomalies = Table("anomaly", "times", "meaning", "first of them", title="Anomalies")
        for kind, count in sorted(self.found.items()):
            texts = [a.text for a in self.anomalies if a.kind == kind][:3]
            anomalies.add_row(f"[red]{kind}", str(count), MEANING[kind], "\n".join(texts))
        return Group(operations, counts, anomalies)

    def show(self, console: Console | None = None) -> None:
        (console or Console()).print(self.tables())
