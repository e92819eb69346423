"""A topic that is deleted and created again, while a leader has entries under way that refer to the old one.

What a leader writes names topics, and the name is looked up when the entry is applied. So the leader must not
name a topic that is about to be replaced by another one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from escrowmq.actors.admin.topic_creation import topic_settings
from escrowmq.replication.errors import Overloaded
from escrowmq.replication.format import ops
from escrowmq.replication.model import ResultCode
from escrowmq.replication.replica.admission import Admission
from escrowmq.replication.replica.replica import Limits
from escrowmq.replication.replica.validation import parse_request
from tests.support.places import by_name
from tests.support.requests import APP, TOPIC, message, prepare
from tests.support.single import Single

CREATE = ops.create_topic(TOPIC, topic_settings(1))
DELETE = ops.delete_topic(TOPIC)


@pytest.fixture(params=[0, 1 << 20], ids=["referred-to", "copied"])
def single(tmp_path: Path, request: pytest.FixtureRequest) -> Single:
    return Single(tmp_path, limits=Limits(copy_bytes=request.param))


def test_a_commit_behind_deletion_and_creation_in_one_entry_publishes_nothing(single: Single) -> None:
    single.topic()
    single.submit(prepare(["old"]))
    answers = single.send(DELETE, CREATE, ops.commit(APP, ["old"]))
    assert [answer[1][0][0] for answer in answers] == [0, 0, 0]
    assert single.texts() == []


def test_so_does_one_behind_entries_that_are_under_way(single: Single) -> None:
    single.topic()
    single.submit(prepare(["old"]))
    single.node.held = []
    single.send(DELETE)
    single.send(CREATE)
    single.send(ops.commit(APP, ["old"]))
    single.node.release()
    assert single.texts() == []


def test_retention_does_not_trim_a_topic_that_comes_before_it_is_written(tmp_path: Path) -> None:
    single = Single(tmp_path, limits=Limits(retention_pause_ms=0, retention_interval_ms=0))
    single.submit(ops.create_topic(TOPIC, {"partitions": 1, "retention_ms": 1_000}))
    single.submit(message(TOPIC, 0, [b"x"] * 5))
    single.now_ms += 60_000
    single.node.held = []
    single.send(DELETE)
    single.send(ops.create_topic(TOPIC, {"partitions": 1}))
    single.send(message(TOPIC, 0, [b"new1", b"new2"]))
    single.replica.on_timer(single.now_ms)
    single.send()
    single.node.release()
    single.send()
    assert single.state.topics.topics[TOPIC].partitions[0].index.start == 0


@pytest.mark.parametrize("here", [True, False], ids=["in its group", "in another group than its partitions"])
@pytest.mark.parametrize("applied", [True, False], ids=["behind both", "while both are under way"])
def test_a_place_in_the_old_topic_is_not_taken_for_one_in_the_new(
    tmp_path: Path, here: bool, applied: bool
) -> None:
    """A broker found the member's place valid, and queued it when the name already meant another topic."""
    groups = 1 if here else 2
    single = Single(tmp_path, gid=0 if here else 1 - by_name(TOPIC, 0, groups), groups=groups)
    single.submit(CREATE)
    known = single.state.topics.topics
    about = {TOPIC: known[TOPIC]}
    single.node.held = None if applied else []
    single.send(DELETE)
    single.send(CREATE)
    place, answers = ops.group_offsets("g", TOPIC, {0: 100}), list[tuple[Any, ...]]()
    single.replica.submit(place, parse_request(place), answers.append, about)
    single.send()
    single.node.release()
    assert answers[0][1] == [[ResultCode.UNKNOWN_TOPIC, [TOPIC]]]
    assert "g" not in single.state.group_offsets and TOPIC in known


def test_a_deletion_that_no_log_took_leaves_the_topic_as_it_is(tmp_path: Path) -> None:
    single = Single(tmp_path)
    single.topic()
    single.submit(prepare(["old"]))
    single.node.held = []
    answers = single.send(DELETE)
    ((_, done),), single.node.held = single.node.held, None
    done(Overloaded("too many entries wait", 0.05), False)
    assert answers[0][0] == "overloaded"
    single.submit(ops.commit(APP, ["old"]))
    assert single.texts() == ["old"]


def test_without_a_note_of_deletions_a_new_topic_gets_the_old_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Admission, "_note_deletion", lambda *args: None)
    single = Single(tmp_path)
    single.topic()
    single.submit(prepare(["old"]))
    single.send(DELETE, CREATE, ops.commit(APP, ["old"]))
    assert single.texts() == ["old"]
