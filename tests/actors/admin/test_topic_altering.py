"""Altering topics: what is refused, concurrent alterations, interrupted alterations.

The broker groups are the replicated tables themselves, without the replicas around them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from escrowmq.actors.admin.topic_creation import alter_topic, create_topic
from escrowmq.replication.errors import ConfigError, EscrowMQError, Overloaded, TopicExists, UnknownTopic
from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import decode_ops
from escrowmq.replication.format.operation import OpType
from escrowmq.replication.host.due_checks import lock_due
from escrowmq.replication.model import TopicInfo
from escrowmq.replication.replica.compaction import RetentionRound
from escrowmq.replication.state.topics import TopicTable
from tests.support.requests import prepare
from tests.support.single import Single

Settings = dict[str, int | str | None]


class CutShort(Exception):
    """The client that alters the topic died."""


def fail() -> None:
    raise CutShort


class Groups:
    """The topic ``t`` in every broker group."""

    def __init__(self, count: int = 3) -> None:
        self.tables = [TopicTable(gid, count) for gid in range(count)]
        #: What happens once, before the call with this number, e.g. another alteration in between.
        self.before: dict[int, Callable[[], None]] = {}
        self.calls = self.index = 0
        self.made = create_topic(self.submit, count, "t", 4, {})
        self.calls = 0

    def submit(self, gid: int, request: bytes) -> tuple[int, Any]:
        self.before.pop(self.calls, lambda: None)()
        self.calls += 1
        (op,) = decode_ops(request)
        table = self.tables[gid]
        self.index += 1
        fields = msgspec.structs.astuple(op.meta)
        altered = op.type == OpType.ALTER_TOPIC
        code, *info = table.alter(self.index, *fields) if altered else table.create(*fields)
        return int(str(code)), info[0] if info else None

    def alter(self, **settings: int | str | None) -> TopicInfo:
        altered = alter_topic(self.submit, len(self.tables), "t", settings)
        return replace(altered, first_group=self.made.first_group)  # as Admin does, from a leader's answer

    def settings(self) -> list[TopicInfo]:
        return [table.topics["t"].info for table in self.tables]


def test_what_is_stated_changes_in_every_group_and_the_rest_stays() -> None:
    groups = Groups()
    altered = groups.alter(retention_ms=5, check_max=None)
    assert altered == replace(groups.made, retention_ms=5)
    assert groups.settings() == [altered] * 3
    assert groups.alter(retention_ms=5) == altered, "repeating it changes nothing"
    assert groups.alter() == altered
    assert create_topic(groups.submit, 3, "t", 4, {}) == altered, "a creation without options accepts it"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"partitions": 8}, "number of partitions cannot be altered.*; create another topic"),
        ({"partitions": None}, "number of partitions cannot be altered.*; create another topic"),
        ({"retention": None}, "unknown topic setting 'retention'"),
        ({"retention_ms": "7d"}, "must be int"),
        ({"retention_ms": True}, "must be int"),
        ({"on_check_exhausted": "commit"}, "'hold' or 'rollback'"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_sent(settings: Settings, problem: str) -> None:
    groups = Groups()
    with pytest.raises(ConfigError, match=problem):
        groups.alter(**settings)
    assert not groups.calls and groups.settings() == [groups.made] * 3


def test_a_topic_that_there_is_not_or_not_everywhere() -> None:
    groups = Groups()
    with pytest.raises(UnknownTopic):
        alter_topic(groups.submit, 3, "gone", {"check_max": 1})
    groups.tables[2].delete("t")
    with pytest.raises(EscrowMQError, match="group 2 does not know topic 't', which group 0 has"):
        groups.alter(check_max=1)
    create_topic(groups.submit, 3, "t", 4, {})
    assert groups.settings() == [groups.alter(check_max=1)] * 3


@pytest.mark.parametrize("call", range(4))
def test_what_was_cut_short_is_ended_by_repeating_it_or_by_altering_nothing(call: int) -> None:
    for again in ({"retention_ms": 5}, {}):
        groups = Groups()
        groups.before[call] = fail
        with pytest.raises(CutShort):
            groups.alter(retention_ms=5)
        made = groups.alter(**again)  # type: ignore[arg-type]
        assert made.retention_ms == (5 if call > 1 or again else -1)
        assert groups.settings() == [made] * 3


def test_creating_a_topic_whose_alteration_was_cut_short_says_so() -> None:
    groups = Groups()
    groups.before[2] = fail
    with pytest.raises(CutShort):
        groups.alter(retention_ms=5)
    with pytest.raises(TopicExists, match=r"group 1 than in group 0 .* alter it again"):
        create_topic(groups.submit, 3, "t", 4, {})


def test_others_that_alter_all_the_time_end_in_an_error() -> None:
    groups = Groups(2)
    topic = groups.tables[0].topics["t"]
    for call in range(100):
        groups.before[call] = lambda: setattr(topic, "altered", topic.altered + 1)
    with pytest.raises(Overloaded):
        groups.alter(retention_ms=5)


values = st.fixed_dictionaries(
    {}, optional={"retention_ms": st.integers(1, 4), "check_max": st.integers(1, 3)}
)


def meeting(
    count: int, first: Mapping[str, int], others: list[tuple[int, Mapping[str, int]]]
) -> tuple[Groups, list[TopicInfo]]:
    """An alteration with others in between, each before its n-th call."""
    groups = Groups(count)
    ended: list[TopicInfo] = []

    def other(settings: Mapping[str, int]) -> None:
        before, groups.before = groups.before, {}
        ended.append(groups.alter(**settings))
        groups.before = before

    for call, settings in others:
        groups.before[call] = lambda chosen=settings: other(chosen)  # type: ignore[misc]
    ended.append(groups.alter(**first))
    return groups, ended


@given(
    count=st.integers(1, 3), first=values, others=st.lists(st.tuples(st.integers(0, 8), values), max_size=3)
)
def test_alterers_that_meet_leave_the_same_in_all_groups(
    count: int, first: Mapping[str, int], others: list[tuple[int, Mapping[str, int]]]
) -> None:
    groups, ended = meeting(count, first, others)
    assert len(set(groups.settings())) == 1
    assert groups.settings()[0] in ended


def told_and_cut_short(enters: int, dies: int) -> list[TopicInfo]:
    """One alteration comes before call ``enters`` of another one, whose client dies before its call
    ``dies``."""
    groups = Groups()

    def come_in() -> None:
        before, groups.before, calls = groups.before, {}, groups.calls
        groups.alter(check_max=2)
        groups.before, groups.calls = before, calls

    groups.before = {dies: fail} | {enters: come_in}
    with contextlib.suppress(CutShort):
        groups.alter(retention_ms=5)
    return groups.settings()


WAYS = [(enters, dies) for dies in range(1, 5) for enters in range(dies)]


@pytest.mark.parametrize(("enters", "dies"), WAYS)
def test_what_was_told_as_done_is_not_undone_by_who_was_slower_and_died(enters: int, dies: int) -> None:
    assert {info.check_max for info in told_and_cut_short(enters, dies)} == {2}


@given(
    count=st.integers(2, 3),
    alterations=st.lists(st.tuples(values, st.integers(0, 5)), min_size=1, max_size=4),
    late=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20))),
)
def test_copies_that_arrive_late_change_nothing(
    count: int, alterations: list[tuple[Mapping[str, int], int]], late: list[tuple[int, int]]
) -> None:
    """One alteration after the other, some interrupted; a copy of each request may arrive at any later
    time."""
    groups, sent = Groups(count), list[tuple[int, bytes]]()
    again = [(min(pair), max(pair)) for pair in late]

    def submit(gid: int, request: bytes) -> tuple[int, Any]:
        if len(sent) == dies:
            raise CutShort
        for first, at in again:
            if at == len(sent) and first < at:
                groups.submit(*sent[first])
        sent.append((gid, request))
        return groups.submit(gid, request)

    ended = groups.made
    for settings, calls in alterations:
        dies = len(sent) + calls if calls else -1
        with contextlib.suppress(CutShort):
            ended = alter_topic(submit, count, "t", settings)
    dies = -1
    last = alter_topic(submit, count, "t", {"check_max": 9})
    last = replace(last, first_group=groups.made.first_group)
    assert groups.settings() == [last] * count and last.check_max == 9
    for request in sent:
        groups.submit(*request)
    assert groups.settings() == [last] * count
    assert ended.name == "t"


def test_a_topic_that_was_made_anew_is_not_altered_by_an_earlier_request() -> None:
    groups, sent = Groups(2), list[tuple[int, bytes]]()

    def submit(gid: int, request: bytes) -> tuple[int, Any]:
        sent.append((gid, request))
        return groups.submit(gid, request)

    alter_topic(submit, 2, "t", {"retention_ms": 5})
    for table in groups.tables:
        table.delete("t")
    create_topic(groups.submit, 2, "t", 4, {})
    for request in sent:
        groups.submit(*request)
    assert groups.settings() == [groups.made] * 2


def test_what_runs_already_goes_by_the_new_settings(tmp_path: Path) -> None:
    single = Single(tmp_path)
    single.topic()
    single.publish("a", "b", "c")
    single.submit(prepare(["open"], timeout_ms=10))
    single.submit(ops.checked("app", ["open"]))
    hour = single.now_ms + 3_600_000

    def due() -> list[tuple[Any, ...]]:
        single.state.due.advance(hour)
        return [tuple(row) for row in lock_due(single.state, "app", "t", 9, 0.001, "me", hour)]

    def trims() -> list[bytes]:
        return RetentionRound(single.state, hour, None).step(1_000)

    assert not trims()
    ((tx_id, *_, rolls_back),) = (row[:6] for row in due())
    assert (tx_id, rolls_back) == ("open", False)
    settings = {"retention_ms": 60_000, "check_max": 1, "on_check_exhausted": "rollback"}
    single.submit(ops.alter_topic("t", settings, number=0))
    assert trims() == [ops.trim("t", {0: 3})]
    assert not due(), "it is leased"
    hour += 1_000
    ((tx_id, *_, rolls_back),) = (row[:6] for row in due())
    assert (tx_id, rolls_back) == ("open", True), "feedback rolls it back"
    single.close()
