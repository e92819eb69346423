"""Format levels in the state: they rise alone, snapshots keep them, and what is newer stops a replica."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from msgspec import field

from escrowmq.replication.errors import CorruptLog, UnknownVersion
from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import Op, decode_ops
from escrowmq.replication.format.operation import Operation, encode_msgpack
from escrowmq.replication.format.settings import Settings
from escrowmq.replication.model import TopicInfo
from escrowmq.replication.replica.validation import level_needed
from escrowmq.replication.state.machine import LEVEL_MAX, StateMachine
from escrowmq.replication.state.snapshot import NewerLevel, capture, encode, restore
from tests.support.fed_state import FedState, busy_state, dump, state_with_letters
from tests.support.next_level import know_the_next_level

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "operations.json").read_text())


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Software that knows three levels more."""
    know_the_next_level(monkeypatch, LEVEL_MAX + 3)


def restored(data: bytes) -> StateMachine:
    state = StateMachine(0, 1)
    restore(state, "x.snap", data)
    return state


def snapshot_of(log: FedState) -> bytes:
    return b"".join(encode(capture(log.state, 1, [])))


def without_runs(state: StateMachine) -> dict[str, object]:
    """Without what is in other files than the snapshot."""
    return {name: value for name, value in dump(state).items() if name not in ("runs", "waiting", "counts")}


@pytest.mark.parametrize(
    ("name", "original"),
    [("snapshot", busy_state), ("snapshot with everything", state_with_letters)],
)
def test_snapshots_bring_back_the_state(name: str, original: Callable[[], FedState]) -> None:
    state = restored(bytes.fromhex(GOLDEN[name]))
    assert state.level == LEVEL_MAX
    assert without_runs(state) == without_runs(original().state)


def test_a_level_or_a_setting_of_newer_software_stops_the_replica_before_anything_is_changed() -> None:
    log = state_with_letters()
    before = dump(log.state)
    for frame in (
        ops.level(LEVEL_MAX + 1),
        ops.settings({"groups_kept": 9, "of tomorrow": 1}),
        ops.alter_topic("t", {"check_max": 9, "of tomorrow": 1}),
        ops.alter_topic("t", {"partitions": 9}),
    ):
        with pytest.raises(UnknownVersion, match="upgrade"):
            log.add(frame)
        log.index -= 1
    before["clock"] = dump(log.state)["clock"]
    assert dump(log.state) == before


def test_a_state_begins_at_level_1_and_there_is_no_way_down(newer: None) -> None:
    log = FedState()
    assert log.state.level == 1
    assert log.add(ops.level(LEVEL_MAX + 1)) == [[0, LEVEL_MAX + 1]]
    assert log.add(ops.level(LEVEL_MAX)) == [[0, LEVEL_MAX + 1]] and log.state.level == LEVEL_MAX + 1
    assert log.add(ops.level(LEVEL_MAX + 3)) == [[0, LEVEL_MAX + 3]], "several at once"


def test_a_snapshot_keeps_its_level_and_one_of_a_newer_level_is_refused(newer: None) -> None:
    log, highest = FedState(), LEVEL_MAX + 3
    log.add(ops.level(highest))
    assert restored(snapshot_of(log)).level == highest
    log.state.level += 1
    with pytest.raises(NewerLevel, match=f"level {highest + 1}; .*up to {highest}: upgrade it"):
        restored(snapshot_of(log))


class TopicOfTomorrow(TopicInfo):
    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "of_tomorrow": 1}


def test_a_newer_level_is_refused_before_what_it_may_have_changed_is_read() -> None:
    """A topic with a field that today's software does not have is no damage."""
    log = FedState()
    topic = log.state.topics.topics["t"]
    topic.info = TopicOfTomorrow(**topic.info.settings())
    with pytest.raises(CorruptLog, match="of_tomorrow"):
        restored(snapshot_of(log))
    log.state.level = LEVEL_MAX + 1
    with pytest.raises(NewerLevel, match=f"level {LEVEL_MAX + 1}; .*up to {LEVEL_MAX}: upgrade it"):
        restored(snapshot_of(log))


class SettingsOfTomorrow(Settings):
    def values(self) -> dict[str, int]:
        return {**super().values(), "of tomorrow": 1}


def test_a_snapshot_with_a_setting_of_newer_software_is_refused_and_no_damage() -> None:
    log = FedState()
    log.state.settings = SettingsOfTomorrow()
    with pytest.raises(NewerLevel, match="'of tomorrow' is not known to this software; upgrade it"):
        restored(snapshot_of(log))


def test_a_request_needs_the_highest_level_of_its_operations() -> None:
    class Later(Operation, frozen=True):
        LEVEL = 3

    class Latest(Operation, frozen=True):
        LEVEL = 4

    plain, later, latest = (Op(0, made, 0, 0) for made in (ops.Retain(1), Later(), Latest()))
    assert level_needed([]) == level_needed([plain]) == 1
    assert level_needed([plain, later]) == level_needed([later, plain]) == 3
    assert level_needed([later, latest]) == level_needed([latest, plain, later]) == 4


class LaterExtra(ops.PrepareExtra, frozen=True):
    LEVELS: ClassVar[Mapping[str, int]] = {"of_tomorrow": 3, "of_next_year": 4}
    of_tomorrow: str = ""
    of_next_year: list[int] = field(default_factory=list)


@pytest.mark.parametrize(
    ("extra", "level"),
    [
        (LaterExtra(), 1),
        (LaterExtra(on_timeout=ops.ROLLBACK), 1),
        (LaterExtra(of_tomorrow="x"), 3),
        (LaterExtra(of_tomorrow="x", of_next_year=[1]), 4),
    ],
)
def test_a_field_that_came_later_needs_its_level_where_it_is_used(extra: LaterExtra, level: int) -> None:
    used = Op(0, ops.Prepare("app", "t", ["x"], None, 0, 0, [0], -1, 0, extra), 0, 0)
    plain = Op(0, ops.Retain(1), 0, 0)
    assert level_needed([used]) == level_needed([plain, used]) == level
    (todays,) = decode_ops(ops.prepare("app", "t", ["x"], None, 0, 0, [0], -1, 0))
    assert (encode_msgpack(todays.meta) == encode_msgpack(used.meta)) is (extra == LaterExtra())
