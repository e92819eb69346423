"""Creating topics: what counts as the same topic, concurrent creations, interrupted creations.

The broker groups are the replicated tables themselves, without the replicas around them.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escrowmq.actors.admin.topic_creation import (
    TopicOptions,
    create_topic,
    kept,
    new_name_problem,
    spread_over,
    topic_settings,
)
from escrowmq.replication.errors import ConfigError, TopicExists
from escrowmq.replication.format.codec import decode_ops
from escrowmq.replication.model import TopicInfo
from escrowmq.replication.state.topics import TopicTable
from tests.support.places import by_name

DAY_MS = 86_400_000
WEEK_MS = 7 * DAY_MS
Options = dict[str, int | str | None]


class CutShort(Exception):
    """The creator died."""


class Groups:
    """The topics of every broker group."""

    def __init__(self, count: int = 1) -> None:
        self.tables = [TopicTable(gid, count) for gid in range(count)]
        #: What happens once, before a group is asked, e.g. another creation in between.
        self.before: dict[int, Any] = {}

    def submit(self, gid: int, request: bytes) -> tuple[int, Any]:
        if gid in self.before:
            self.before.pop(gid)()
        (op,) = decode_ops(request)
        table, topic = self.tables[gid], op.meta
        if table.is_left_over(topic.name, topic.topic_id):
            table.delete(topic.name)
        code, *info = table.create(topic.name, topic.settings, topic.first_group, topic.topic_id)
        return code, info[0] if info else None

    def create(self, partitions: int = 1, **options: int | str | None) -> TopicInfo:
        return create_topic(self.submit, len(self.tables), "t", partitions, options)

    def hosts(self) -> list[int]:
        """For each partition the group that has it; asserts that each is in exactly one."""
        found = [(number, table.gid) for table in self.tables for number in table.topics["t"].partitions]
        assert [number for number, _ in sorted(found)] == list(range(len(found)))
        return [gid for _, gid in sorted(found)]

    def create_as_an_old_client(self, partitions: int = 1, **options: int | str) -> None:
        """Creates the topic as a client whose default is seven days, and which states it like every
        setting."""
        self.create(partitions, **{**asdict(TopicOptions()), "retention_ms": WEEK_MS, **options})

    def settings(self) -> list[TopicInfo | None]:
        """The topic's settings in each group."""
        return [table.topics["t"].info if "t" in table.topics else None for table in self.tables]


@pytest.mark.parametrize("name", [".", "..", "größe", "a b", "a/b", "t\n", "", "t" * 201, "٣"])
def test_a_new_topic_has_a_plain_name(name: str) -> None:
    assert "choose 1 to 200 of the characters" in (new_name_problem(name) or "")


@pytest.mark.parametrize("name", ["__retry.g", "__dead.g", "__mine", "__"])
def test_names_of_our_own_topics_are_reserved(name: str) -> None:
    assert "begin with '__'" in (new_name_problem(name) or "")


def test_plain_names_are_fine() -> None:
    assert {new_name_problem(name) for name in ("orders", "...", ".a", "A-1_b.c", "t" * 200)} == {None}


def test_messages_of_a_topic_about_which_nothing_was_said_are_kept_for_ever() -> None:
    groups = Groups()
    made = groups.create()
    assert (made.retention_ms, made.retention_bytes) == (-1, -1)
    assert groups.settings() == [made]


def test_every_setting_is_written_into_the_log() -> None:
    written: list[dict[str, Any]] = []

    def submit(gid: int, request: bytes) -> tuple[int, Any]:
        (op,) = decode_ops(request)
        written.append(op.meta.settings)
        return 0, None

    made = create_topic(submit, 1, "t", 2, {"check_max": 3})
    assert written == [{key: value for key, value in made.settings().items() if key != "name"}]


@pytest.mark.parametrize(
    ("existing", "again", "differs"),
    [
        ({}, {}, None),
        ({"retention_ms": WEEK_MS}, {}, None),
        ({"retention_ms": WEEK_MS}, {"retention_ms": None}, None),
        ({"retention_ms": WEEK_MS}, {"retention_ms": WEEK_MS}, None),
        ({"retention_ms": WEEK_MS, "check_max": 3}, {"check_max": 3}, None),
        ({"retention_ms": WEEK_MS}, {"retention_ms": -1}, "retention_ms is 604800000, not -1"),
        ({}, {"retention_ms": WEEK_MS}, "retention_ms is -1, not 604800000"),
        ({"partitions": 4}, {}, "partitions is 4, not 1"),
        (
            {"on_check_exhausted": "rollback", "retention_bytes": 9},
            {"on_check_exhausted": "hold", "retention_bytes": 9, "check_max": 15, "partitions": 2},
            "on_check_exhausted is 'rollback', not 'hold', partitions is 1, not 2",
        ),
    ],
)
def test_only_what_was_stated_is_compared(existing: Options, again: Options, differs: str | None) -> None:
    groups = Groups(3)
    made = groups.create(**existing)  # type: ignore[arg-type]
    if differs is None:
        assert groups.create(**again) == made  # type: ignore[arg-type]
    else:
        with pytest.raises(TopicExists) as refused:
            groups.create(**again)  # type: ignore[arg-type]
        said, _, todo = str(refused.value).partition("; ")
        assert said == f"topic 't' exists with other settings: {differs}"
        keeps = "partitions" not in differs
        assert todo.startswith("give the same settings, or alter" if keeps else "give the same number of")
    assert groups.settings() == [made] * 3


def test_an_old_client_states_seven_days_and_gets_what_it_states_or_an_error() -> None:
    first = Groups()
    first.create_as_an_old_client()
    assert first.create().retention_ms == WEEK_MS, "a new client takes the topic as it is"
    second = Groups()
    second.create()
    with pytest.raises(TopicExists, match="retention_ms is -1, not 604800000"):
        second.create_as_an_old_client()


def test_what_an_old_client_began_is_ended_as_it_began() -> None:
    groups = Groups(3)
    groups.before[1] = fail
    with pytest.raises(CutShort):
        groups.create_as_an_old_client(2)
    made = groups.create(2)
    assert made.retention_ms == WEEK_MS
    assert groups.settings() == [made] * 3


def test_in_a_group_that_kept_a_deleted_topic_the_new_one_replaces_it() -> None:
    groups = Groups(2)
    groups.create(retention_ms=WEEK_MS)
    groups.tables[0].delete("t")
    made = groups.create()
    assert groups.settings() == [made] * 2 and made.retention_ms == -1
    assert {made.topic_id} == {info and info.topic_id for info in groups.settings()}


def fail() -> None:
    raise CutShort


retention = st.sampled_from([None, -1, WEEK_MS])
creators = st.fixed_dictionaries({"retention_ms": retention, "check_max": st.sampled_from([None, 15, 3])})


@given(
    count=st.integers(1, 3),
    first=creators,
    second=creators,
    comes_at=st.integers(0, 2),
    dies_at=st.integers(0, 3),
)
def test_two_creators_that_meet_leave_one_topic_and_no_promise_broken(
    count: int, first: Options, second: Options, comes_at: int, dies_at: int
) -> None:
    groups = Groups(count)
    ended: list[tuple[Options, TopicInfo]] = []

    def other() -> None:
        if dies_at < count:
            groups.before[dies_at] = fail
        with contextlib.suppress(TopicExists, CutShort):
            ended.append((second, groups.create(**second)))
        groups.before.clear()

    if comes_at < count:
        groups.before[comes_at] = other
    with contextlib.suppress(TopicExists):
        ended.append((first, groups.create(**first)))
    last = groups.create()

    assert groups.settings() == [last] * count, (
        "all groups have the same, and a creation without options accepts it"
    )
    for options, made in ended:
        assert made == last
        assert all(value is None or getattr(made, key) == value for key, value in options.items())


def test_an_unknown_option_is_refused_though_it_is_none() -> None:
    with pytest.raises(ConfigError, match="retention_ms"):
        Groups().create(retention=None)


@pytest.mark.parametrize(
    ("retention_ms", "retention_bytes", "words"),
    [
        (-1, -1, "for ever"),
        (WEEK_MS, -1, "deleted after 7 days"),
        (DAY_MS, -1, "deleted after 1 day"),
        (36 * 3_600_000, -1, "deleted after 36 hours"),
        (1500, -1, "deleted after 1500 ms"),
        (0, -1, "deleted after 0 ms"),
        (-1, 1 << 30, "deleted beyond 1 GiB a partition"),
        (60_000, 1000, "deleted after 1 minute or beyond 1000 bytes a partition"),
    ],
)
def test_retention_in_words(retention_ms: int, retention_bytes: int, words: str) -> None:
    settings = topic_settings(1, retention_ms=retention_ms, retention_bytes=retention_bytes)
    assert kept(TopicInfo("t", **settings)) == words  # type: ignore[arg-type]


# ---------------------------------------------------------------- where a topic begins


def fullest(place: Callable[[str, int], int], groups: int) -> float:
    """For a thousand similar names: how many times the mean the fullest group has."""
    hosted = Counter(place(f"orders-{number:03}", groups) for number in range(1_000))
    return max(hosted.values()) * groups / 1_000


@pytest.mark.parametrize(
    ("groups", "by_bytes", "by_checksum"), [(8, 1.02, 1.01), (16, 1.20, 1.02), (64, 4.80, 1.09)]
)
def test_new_topics_are_spread_evenly_over_many_groups(
    groups: int, by_bytes: float, by_checksum: float
) -> None:
    """The figures of docs/decisions.md, 53."""
    assert round(fullest(lambda name, count: by_name(name, 0, count), groups), 2) == by_bytes
    assert round(fullest(spread_over, groups), 2) == by_checksum


def test_every_group_hosts_what_the_creator_has_written() -> None:
    groups = Groups(5)
    made = groups.create(7)
    assert made.first_group == spread_over("t", 5) != by_name("t", 0, 5)
    assert groups.hosts() == [(made.first_group + number) % 5 for number in range(7)]
    assert groups.create(7) == made, "repeating it changes nothing"


def test_a_topic_whose_deletion_was_cut_short_is_not_created_in_two_places() -> None:
    groups = Groups(3)
    groups.create(4)
    groups.tables[0].delete("t")
    groups.create(7)
    assert len(groups.hosts()) == 7
