"""Topics have ids, and what names one does nothing to another topic of the same name.

Every request here arrives when its topic was deleted and created again. Each test of a request without an id
shows what would happen.
"""

from __future__ import annotations

from typing import Any

import pytest

from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import encode_row
from escrowmq.replication.format.ops import PrepareExtra
from escrowmq.replication.model import ResultCode
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.snapshot import capture, encode, restore
from tests.support.fed_state import FedState, dump

OK, OTHER, UNKNOWN = int(ResultCode.OK), int(ResultCode.OTHER_TOPIC), int(ResultCode.UNKNOWN_TOPIC)
NEW = 2  # the id of the topic that there is
ROW = encode_row(None, b"late", None, None)


def create(topic_id: int = 0, name: str = "t", first: int = 0, **settings: Any) -> bytes:
    return ops.create_topic(name, settings, first, topic_id)


def fed(gid: int = 0, groups: int = 1, partitions: int = 1) -> FedState:
    """A group in which topic ``t`` was deleted and created again."""
    log = FedState()
    log.state = StateMachine(gid, groups)
    log.add(create(1, partitions=partitions))
    log.add(ops.delete_topic("t", 1))
    assert log.add(create(NEW, partitions=partitions)) == [[OK, NEW]]
    return log


LATE: dict[str, tuple[bytes, bytes]] = {
    "deletion": (ops.delete_topic("t", 1), ops.delete_topic("t")),
    "alteration": (ops.alter_topic("t", {"check_max": 1}, 0, 1), ops.alter_topic("t", {"check_max": 1}, 0)),
    "trim": (ops.trim("t", {0: 1}, 1), ops.trim("t", {0: 1})),
    "first batch": (
        ops.message("t", 0, "p", 0, 0, [ROW], 10**12, 1),
        ops.message("t", 0, "p", 0, 0, [ROW], 10**12),
    ),
    "transaction": (
        ops.prepare("app", "t", ["x"], None, 0, 0, [1], -1, 1, PrepareExtra(heard_ms=10**12))
        + ops.pre_message("t", 0, [0], [len(ROW)], [ROW], 1),
        ops.prepare("app", "t", ["x"], None, 0, 0, [1], -1, 1, PrepareExtra(heard_ms=10**12))
        + ops.pre_message("t", 0, [0], [len(ROW)], [ROW]),
    ),
}


def content(state: StateMachine) -> dict[str, Any]:
    return {name: value for name, value in dump(state).items() if name != "clock"}


@pytest.mark.parametrize("what", LATE)
def test_what_was_meant_for_the_earlier_topic_does_nothing_to_the_new_one(what: str) -> None:
    with_id, without = LATE[what]
    log = fed()
    log.add(ops.message("t", 0, "somebody", 0, -1, [ROW]))
    before = content(log.state)
    ((code, info),) = log.add(with_id)
    told = info if type(info) is int else info[-1]
    assert (code, told) == (OTHER, NEW), "the answer says so, and which topic there is"
    assert content(log.state) == before
    ((code, *_),) = log.add(without)
    assert code == OK and content(log.state) != before, "by its name alone it is done"


def test_what_is_meant_for_it_is_done() -> None:
    log = fed()
    for frame in (
        ops.message("t", 0, "p", 0, 0, [ROW], -1, NEW),
        ops.prepare("app", "t", ["x"], None, 0, 0, [1], -1, 1)
        + ops.pre_message("t", 0, [0], [len(ROW)], [ROW], NEW),
        ops.trim("t", {0: 1}, NEW),
        ops.alter_topic("t", {"check_max": 1}, 0, NEW),
        ops.delete_topic("t", NEW),
    ):
        assert log.add(frame)[0][0] == OK
    assert log.add(ops.delete_topic("t", NEW)) == [[UNKNOWN, NEW]], "and the id that was given last"


def test_an_alteration_asks_for_the_id_and_tells_it() -> None:
    log = fed()
    ((code, (info, number, topic_id)),) = log.add(ops.alter_topic("t", {}))  # type: ignore[misc]
    assert (code, number, topic_id) == (ResultCode.RETRY, 0, NEW)
    assert "topic_id" not in info


@pytest.mark.parametrize("name", ["t", "u"])
def test_group_0_gives_each_topic_the_next_id(name: str) -> None:
    log = fed()
    assert log.add(create(0, name)) == [[OK, 3] if name == "u" else [ResultCode.DUPLICATE, NEW]]
    log.add(ops.delete_topic(name, 3 if name == "u" else NEW))
    assert log.add(create(0, name))[0] == [OK, 4 if name == "u" else 3]


def test_in_other_groups_a_later_topic_takes_the_place_of_one_whose_deletion_was_cut_short() -> None:
    log = fed(gid=1, groups=2, partitions=2)
    slots = set(log.state.topics.slots)
    log.add(ops.message("t", 1, "p", 0, -1, [ROW]), ops.group_offsets("g", "t", {1: 1}))
    assert log.add(create(5, partitions=2)) == [[OK, 5]]
    assert log.state.topics.topics["t"].info.topic_id == 5 and not slots & set(log.state.topics.slots)
    assert "g" not in log.state.group_offsets
    assert log.add(create(4, partitions=2)) == [[OTHER, 5]], "an earlier one comes too late"
    assert log.add(create(5, partitions=2)) == [[ResultCode.DUPLICATE, 5]]


def test_in_other_groups_a_deletion_takes_what_was_left_of_earlier_ones() -> None:
    log = fed(gid=1, groups=2)
    assert log.add(ops.delete_topic("t", 1)) == [[OTHER, NEW]]
    assert log.add(ops.delete_topic("t", 7)) == [[OK]]
    assert fed().add(ops.delete_topic("t", 7)) == [[OTHER, NEW]], "in group 0 nothing is left over"


@pytest.mark.parametrize(("gid", "of_other"), [(0, 3), (1, 0)], ids=["one with an id", "one without"])
def test_ids_and_deleted_groups_outlive_a_restart(gid: int, of_other: int) -> None:
    log = fed(gid, groups=2, partitions=2)
    log.add(ops.create_topic("other", {}))
    log.add(ops.group_offsets("g", "t", {0: 0}), ops.delete_group("g", 77))
    again = StateMachine(gid, 2)
    restore(again, "snapshot", b"".join(encode(capture(log.state, 1, []))))
    assert dump(again) == dump(log.state)
    assert {name: topic.info.topic_id for name, topic in again.topics.topics.items()} == {
        "t": NEW,
        "other": of_other,
    }
    assert again.topics.topics["t"].partitions[gid].topic_id == NEW
    assert again.deleted_groups.last_void("g") == 77 and again.deleted_groups.last_void("other") == -1


def test_a_deleted_group_has_no_offsets_and_can_have_some_again() -> None:
    log = fed()
    log.add(ops.group_offsets("g", "t", {0: 3}))
    assert log.add(ops.delete_group("g", 7), ops.delete_group("g", 8)) == [[OK], [ResultCode.DUPLICATE]]
    assert "g" not in log.state.group_offsets and log.state.deleted_groups.last_void("g") == 8
    log.add(ops.delete_group("g", 5))
    assert log.state.deleted_groups.last_void("g") == 8, "a late copy takes nothing back"
    log.add(ops.group_offsets("g", "t", {0: 1}))
    assert log.state.group_offsets["g"] == {"t": {0: 1}}
