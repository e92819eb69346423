"""Answers between versions: each version reads the fields it knows, from earlier and later senders."""

from __future__ import annotations

import inspect
import io
import pickle
from collections.abc import Callable
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
from escrowmq.cluster.supervisor.member_steps import Condition
from escrowmq.cluster.supervisor.watch import condition_of
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
from escrowmq.replication.model import OpenTransaction, TransactionState
from tests.support import answers_at_level_1, answers_at_level_2

OURS = ("escrowmq.replication.calling.answers", "escrowmq.replication.model")
EARLIER = [answers_at_level_1, answers_at_level_2]

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
    level=3,
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


class _Reader(pickle.Unpickler):
    """Unpickles as in a process in which our modules are those of another version."""

    def __init__(self, data: bytes, classes: Callable[[str, str], Any]) -> None:
        super().__init__(io.BytesIO(data))
        self._classes = classes

    def find_class(self, module: str, name: str) -> Any:
        found = self._classes(module, name)
        return super().find_class(module, name) if found is None else found


def read_by(earlier: ModuleType, sent: Any) -> Any:
    """What a process of an earlier version reads from it. AttributeError: a class it does not have."""

    def classes(module: str, name: str) -> Any:
        if module in OURS and name != "TransactionState":
            return getattr(earlier, name)
        if module.startswith("escrowmq.") and module not in OURS:
            raise ModuleNotFoundError(module)
        return None

    return _Reader(pickle.dumps(sent, 5), classes).load()


def sent_by(earlier: ModuleType, made: Any) -> Any:
    """What a process of this version reads from an earlier version's answer."""

    def classes(module: str, name: str) -> Any:
        if module != earlier.__name__:
            return None
        return OpenTransaction if name == "OpenTransaction" else getattr(answers, name)

    return _Reader(pickle.dumps(made, 5), classes).load()


@pytest.mark.parametrize("earlier", EARLIER)
def test_an_earlier_version_reads_the_report_of_an_upgraded_replica(earlier: Any) -> None:
    """Otherwise its supervisor takes every upgraded replica for silent, and its clients report it
    unreachable."""
    read = read_by(earlier, REPORT)
    assert type(read) is earlier.ReplicaReport
    known = {name: value for name, value in plain(REPORT).items() if hasattr(read, name)}
    assert plain(read) == known and read.peers[0].match_index == 50
    starting = ReplicaReport(gid=0, rid=1, role="starting")
    assert plain(read_by(earlier, starting)) == plain(earlier.ReplicaReport(gid=0, rid=1, role="starting"))


@pytest.mark.parametrize("earlier", EARLIER)
def test_planted_a_report_by_class_cannot_be_read(earlier: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Carried, "__reduce__")
    with pytest.raises((AttributeError, TypeError)):
        read_by(earlier, REPORT)


def test_the_version_before_sees_who_was_replaced_and_who_learns() -> None:
    """The supervisor acts on both."""
    read = read_by(answers_at_level_2, REPORT)
    assert condition_of(read) is Condition.SUPERSEDED
    learner = msgspec.structs.replace(REPORT, superseded_by=None)
    assert condition_of(read_by(answers_at_level_2, learner)) is Condition.LEARNING


@pytest.mark.parametrize("earlier", EARLIER)
def test_an_earlier_version_reads_transactions(earlier: Any) -> None:
    (row,) = read_by(earlier, LISTED).rows()
    found = read_by(earlier, FOUND)
    assert type(row) is type(found.open) is earlier.OpenTransaction
    assert row == found.open and found.state is TransactionState.PREPARE
    for item in fields(row):
        assert getattr(row, item.name) == getattr(OPEN, item.name)


@pytest.mark.parametrize("earlier", EARLIER)
def test_answers_of_an_earlier_version_are_read(earlier: Any) -> None:
    report = sent_by(earlier, earlier.ReplicaReport(gid=0, rid=1, role="leader", term=3))
    assert report == ReplicaReport(gid=0, rid=1, role="leader", term=3)
    values = [getattr(OPEN, item.name) for item in fields(earlier.OpenTransaction)]
    columns = [[value] for value in values]
    (row,) = sent_by(earlier, earlier.OpenTransactions(*columns)).rows()
    opened = earlier.OpenTransaction(*values)
    found = sent_by(earlier, earlier.FoundTransaction("shop", TransactionState.PREPARE, opened))
    assert row == found.open == OpenTransaction(*values), "what it does not tell has its default"


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
    GroupJoined(ASSIGNED, frozenset({("orders", 0)}), 2),
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
