"""Answers between versions: any answer may get a field later, and whoever does not know it reads the rest."""

from __future__ import annotations

import inspect
import io
import pickle
from dataclasses import fields
from types import ModuleType
from typing import Any

import msgspec
import pytest

from escrowmq.actors.client import consumer_groups
from escrowmq.actors.client.consumer_groups import (
    GroupAssignment,
    GroupJoined,
    GroupSnapshot,
    MemberDescription,
)
from escrowmq.feedback.asking import shard_report
from escrowmq.replication.calling import answers, finding_answers, offset_answers
from escrowmq.replication.calling.answers import (
    AcrossReport,
    FoundTransaction,
    GivenIdsReport,
    MembersReport,
    OpenTransactions,
    OverdueReport,
    PeerReport,
    ReplicaReport,
    ScrubReport,
    SettledTransaction,
)
from escrowmq.replication.calling.carried_answers import Carried
from escrowmq.replication.model import Message, OpenTransaction, RecordMetadata, TopicInfo, TransactionState

REPORT = ReplicaReport(
    gid=0,
    rid=1,
    role="follower",
    term=7,
    applied_index=50,
    snapshots=[20, 40],
    peers=[PeerReport("2", True, 50)],
    learner=True,
    incarnation=2,
    superseded_by=3,
    scrub=ScrubReport(bytes=9),
    level=1,
    across=AcrossReport(undone=2),
    given_ids=GivenIdsReport(count=1, most=2),
)
OPEN = OpenTransaction("shop", "t", "q", "orders", 1, 2, 3, True, 4, 1, 77, "alarm")
LISTED = OpenTransactions.of([[getattr(OPEN, item.name) for item in fields(OPEN)]])
FOUND = FoundTransaction("shop", TransactionState.PREPARE, OPEN)
SETTLED = SettledTransaction("q", "orders", 3, 4, 5, 6, "feedback", 7)


def plain(struct: Any) -> Any:
    """The values of a struct; a tuple and a list count as equal."""
    return msgspec.json.decode(msgspec.json.encode(struct))


class Today(Carried, frozen=True):
    """An answer as this version knows it."""

    number: int
    opened: OpenTransaction | None = None


class Detail(msgspec.Struct):
    """A class that only the later version has."""

    text: str


class Tomorrow(Carried, frozen=True):
    """The same answer in a later version."""

    number: int
    opened: OpenTransaction | None = None
    detail: Detail | None = None


class _Reader(pickle.Unpickler):
    """Unpickles as in a process that has ``known`` in place of both versions of the answer, and no others."""

    def __init__(self, data: bytes, known: type) -> None:
        super().__init__(io.BytesIO(data))
        self._known = known

    def find_class(self, module: str, name: str) -> Any:
        if name in (Today.__name__, Tomorrow.__name__):
            return self._known
        if module == __name__:
            raise AttributeError(name)
        return super().find_class(module, name)


def read_as(known: type, sent: Any) -> Any:
    return _Reader(pickle.dumps(sent, 5), known).load()


SENT = Tomorrow(5, OPEN, Detail("new"))


def test_whoever_lacks_a_field_and_its_class_reads_the_rest() -> None:
    """Otherwise a supervisor takes every upgraded replica for silent, and clients report it unreachable."""
    assert read_as(Today, SENT) == Today(5, OPEN)


def test_what_an_earlier_version_does_not_tell_has_its_default() -> None:
    assert read_as(Tomorrow, Today(5, OPEN)) == Tomorrow(5, OPEN, None)


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (OPEN, 12),
        (Message("t", b"v", partition=2), 5),
        (RecordMetadata("t", 0, 7, 1), 4),
        (TopicInfo("t", 3, "hold", 15, 6_000, -1, -1), 7),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_by_position_may_get_fields_at_their_end(sent: Any, told: int) -> None:
    """Of those that the sender does not know the receiver has the defaults, and it passes over others."""
    values = sent.__getstate__()
    assert values == [getattr(sent, item.name) for item in fields(sent)]
    for arrived in (values[:told], values, [*values, "of tomorrow"]):
        found = object.__new__(type(sent))
        found.__setstate__(arrived)
        assert found.__getstate__() == values


def test_planted_an_answer_by_class_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Carried, "__reduce__")
    with pytest.raises((AttributeError, TypeError)):
        read_as(Today, SENT)


def structs_of(module: ModuleType) -> list[Any]:
    kinds = [kind for _, kind in inspect.getmembers(module, inspect.isclass)]
    ours = [kind for kind in kinds if kind.__module__ == module.__name__]
    return [kind for kind in ours if issubclass(kind, msgspec.Struct)]


ASSIGNED = GroupAssignment(3, frozenset({("orders", 0), ("orders", 1)}), True, {"orders": 5})
SAMPLES: list[Any] = [
    REPORT,
    LISTED,
    FOUND,
    SETTLED,
    PeerReport("2", True, 50),
    MembersReport(version=4, voters=[0, 1, 3], learners=[4], highest=4, change_id="c"),
    ScrubReport(bytes=9),
    AcrossReport(undone=2),
    GivenIdsReport(count=1, most=2),
    OverdueReport(count=3, app="shop"),
    answers.TimersReport(waiting=2, most=9, next_ms=5),
    finding_answers.FoundRows(0, 9, 7, [5], [1_000], [b"row"]),
    finding_answers.ShareProgress("mail", "leased", 2, 5_000, "no answer", "kim"),
    finding_answers.MessageOrigin(how="committed", index=3, by="producer"),
    finding_answers.MessageAt(
        start=1, end=9, time_ms=5, row=b"r", origin=finding_answers.MessageOrigin(how="sent", index=3)
    ),
    answers.ScheduledMessages.of([[0, 5, 7, 1, 20], [1, 6, 7, 2, 30]], b"key"),
    answers.TopicNames(7, 3, ["orders"]),
    answers.SharePlaces(["orders"], [0], [1], [2], [3], [0], [0], [0], [1]),
    answers.FinalRanges(0, 9, [1, 3], 5),
    offset_answers.HeldPlaces({"orders": {0: 5}}, {"orders": [0]}),
    answers.PartitionBounds([0], [1], [2]),
    answers.PartitionSpans([0], [1], [2]),
    answers.FoundOffsets([0], [1], [5]),
    answers.FetchEnds(0, [1, 2]),
    answers.LockedChecks.of([answers.LockedRow("t", "q", 1, 2, 3, True, "i", 4, 5)]),
    answers.DuePairs(1, 2, [("shop", "orders")]),
    answers.OpenPairs(1, [("shop", "orders")]),
    answers.AuditEntry(1, "operator:me", "shop", "t", "COMMITTED"),
    shard_report.ShardReport(shard=0, shards=2, poll_wait_s=5.0, counts={"errors": 3}),
    ASSIGNED,
    GroupJoined(ASSIGNED, frozenset({("orders", 0)}), 2, frozenset({("orders", 0), ("orders", 2)})),
    consumer_groups.InstanceTaken("why"),
    consumer_groups.MembershipStale("why"),
    consumer_groups.GroupCallRefused("why"),
    consumer_groups.GroupCallRefused("why", "share"),
    consumer_groups.GroupCallRefused("why", held=("orders", 0)),
    consumer_groups.TopicMissing("orders"),
    consumer_groups.TopicIsOther("orders"),
    consumer_groups.GroupLives(("m",)),
    consumer_groups.PlacesMoved(),
    GroupSnapshot((MemberDescription("m", 3, ("orders",), (("orders", 0),), 2.5),), {"orders": {0: 7}}),
]


def test_every_answer_may_get_a_field() -> None:
    """A field that a later version adds is ignored; known fields arrive unchanged."""
    kinds = {
        kind
        for module in (answers, finding_answers, offset_answers, consumer_groups, shard_report)
        for kind in structs_of(module)
    }
    assert {type(sample) for sample in SAMPLES} == kinds
    for sample in SAMPLES:
        assert isinstance(sample, Carried), f"{type(sample)} is pickled by class and position"
        make, (names, kind) = sample.__reduce__()
        read = make({**names, "of_tomorrow": {"x": 1}}, kind)
        again = pickle.loads(pickle.dumps(sample))  # noqa: S301
        assert type(read) is type(again) is type(sample) and read == again
        assert read == sample or plain(read) == plain(sample)
