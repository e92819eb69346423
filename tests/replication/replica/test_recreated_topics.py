"""A topic that is deleted and created again, while a leader has entries under way that refer to the old one.

What a leader writes names topics, and the name is looked up when the entry is applied. So the leader must not
name a topic that is about to be replaced by another one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from escrowmq.actors.admin.topic_creation import topic_settings
from escrowmq.replication.errors import InvalidMessage, Overloaded
from escrowmq.replication.format import ops
from escrowmq.replication.model import ResultCode
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
def test_an_offset_of_the_old_topic_is_not_taken_for_one_of_the_new(
    tmp_path: Path, here: bool, applied: bool
) -> None:
    """A broker found the member's offset valid, and queued it when the name already meant another topic."""
    groups = 1 if here else 2
    single = Single(tmp_path, gid=0 if here else 1 - by_name(TOPIC, 0, groups), groups=groups)
    single.submit(CREATE)
    known = single.state.topics.topics
    about = {TOPIC: known[TOPIC]}
    single.node.held = None if applied else []
    single.send(DELETE)
    single.send(CREATE)
    commit, answers = ops.group_offsets("g", TOPIC, {0: 100}), list[tuple[Any, ...]]()
    single.replica.submit(commit, parse_request(commit), answers.append, about)
    single.send()
    single.node.release()
    assert answers[0][1] == [[ResultCode.UNKNOWN_TOPIC, [TOPIC]]]
    assert "g" not in single.state.group_offsets and TOPIC in known


def with_ids(path: Path) -> Single:
    single = Single(path)
    single.submit(CREATE)
    return single


def test_a_late_deletion_of_the_old_topic_drops_nothing_that_is_committed_to_the_new(tmp_path: Path) -> None:
    """A leader leaves out what would go to a topic that is being deleted: this one is not."""
    single = with_ids(tmp_path)
    single.submit(ops.delete_topic(TOPIC, 1))
    single.submit(CREATE)
    single.submit(prepare(["new"]))
    answers = single.send(ops.delete_topic(TOPIC, 1), ops.commit(APP, ["new"]))
    assert [answer[1][0] for answer in answers] == [[ResultCode.OTHER_TOPIC, 2], [0]]
    assert single.texts() == ["new"]


def test_a_deletion_waits_for_the_creation_that_is_under_way(single: Single) -> None:
    """Else nobody would know what goes by it, and a commit to that topic might reach the next one."""
    single.node.held = []
    single.send(CREATE)
    single.send(prepare(["old"]))
    single.send(DELETE)
    single.send(CREATE)
    assert len(single.node.held) == 2, "the deletion waits, and what comes behind it"
    held, single.node.held = single.node.held, None
    for command, done in held:
        single.node.propose(command, done)
    single.send(ops.commit(APP, ["old"]))
    single.send()
    assert TOPIC in single.state.topics.topics and single.texts() == []


def give_up(single: Single) -> None:
    """The proposals under way take too long. Their entries are in the log, and this replica still leads."""
    held, single.node.held = single.node.held or [], []
    for command, done in held:
        done(None, None)
        single.node.held.append((command, lambda results, outcome: None))


def delete_behind_a_creation_given_up(single: Single) -> list[Any]:
    """The results of the deletion, of the next creation, and of committing what was prepared between."""
    single.node.held = []
    single.send(CREATE)
    single.send(prepare(["old"]))
    give_up(single)
    asked = [single.send(DELETE), single.send(CREATE)]
    first, behind = single.node.held[:2], single.node.held[2:]
    single.node.held = first
    single.node.release()
    single.node.held = behind
    asked.append(single.send(ops.commit(APP, ["old"])))
    single.node.release()
    single.send()
    return [answer[1][0][0] for (answer,) in asked]


def test_a_deletion_waits_for_a_creation_that_was_given_up(single: Single) -> None:
    """It is applied after all, and so is the PREPARE behind it, before the deletion."""
    assert delete_behind_a_creation_given_up(single) == [0, 0, 0]
    assert TOPIC in single.state.topics.topics and single.texts() == []


def test_nothing_waits_for_a_creation_that_was_lost_with_the_leadership(single: Single) -> None:
    single.node.held = []
    single.send(CREATE)
    give_up(single)
    assert single.send(DELETE) == [] and len(single.node.held) == 1
    single.fail_over()
    single.node.held = None  # the next leader has cut it off
    assert single.submit(DELETE) == [[ResultCode.UNKNOWN_TOPIC, 0]]


def test_a_later_topic_that_takes_the_place_of_a_left_over_one_counts_as_its_deletion(tmp_path: Path) -> None:
    single = Single(tmp_path, gid=1, groups=2)
    settings = topic_settings(2)
    single.submit(ops.create_topic(TOPIC, settings, 0, 1))
    single.submit(prepare(["old"], partition=1))
    answers = single.send(ops.create_topic(TOPIC, settings, 0, 2), ops.commit(APP, ["old"]))
    assert [answer[1][0][0] for answer in answers] == [0, 0]
    assert single.state.topics.topics[TOPIC].partitions[1].index.end == 0


def test_a_request_that_creates_and_deletes_a_topic_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="send the deletion by itself"):
        parse_request(CREATE + DELETE)
    parse_request(DELETE + CREATE)


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
