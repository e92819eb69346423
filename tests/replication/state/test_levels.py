"""Format levels in the state: what comes with level 2, and what a state of level 1 never writes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from escrowmq.replication.errors import InvalidMessage, UnknownVersion
from escrowmq.replication.format import ops, timer_ops
from escrowmq.replication.format.codec import PrepareExtra
from escrowmq.replication.model import ResultCode
from escrowmq.replication.replica.validation import NUMBER_MAX, TIMEOUT_MS_MAX, level_needed, parse_request
from escrowmq.replication.state.dedup import BOUNDS, Settings, setting_problem
from escrowmq.replication.state.machine import LEVEL_MAX, StateMachine
from escrowmq.replication.state.snapshot import capture, encode, restore
from tests.support.fed_state import (
    FedState,
    busy_state,
    busy_state_of_level_2,
    busy_state_of_level_3,
    dump,
    state_with_a_first_group,
    state_with_a_numbered_alteration,
    state_with_claims,
    state_with_fences,
    state_with_held_places,
    state_with_letters,
    state_with_lives,
    state_with_overtaken,
    state_with_shares,
    state_with_timers,
)

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "operations.json").read_text())


def prepare(log: FedState, tx_id: str, extra: PrepareExtra | None, digest: int = 7, part: int = 0) -> int:
    """Applies one PREPARE without messages; returns its index."""
    log.add(ops.prepare("app", "t", [tx_id], None, 0, part, [digest], -1, 0, extra))
    return log.index


def restored(data: bytes) -> StateMachine:
    state = StateMachine(0, 1)
    restore(state, "x.snap", data)
    return state


def without_runs(state: StateMachine) -> dict[str, object]:
    """Without what is in other files than the snapshot."""
    return {name: value for name, value in dump(state).items() if name not in ("runs", "waiting", "counts")}


@pytest.mark.parametrize(
    ("name", "level", "original"),
    [
        ("snapshot", 1, busy_state),
        ("snapshot version 2", 2, busy_state_of_level_2),
        ("snapshot of level 3", 3, busy_state_of_level_3),
        ("snapshot with a numbered alteration", 3, state_with_a_numbered_alteration),
        ("snapshot with a first group", 4, state_with_a_first_group),
        ("snapshot of level 5", 5, state_with_lives),
        ("snapshot of level 8", 8, state_with_timers),
        ("snapshot of level 9", 9, state_with_shares),
        ("snapshot with claims", 9, state_with_claims),
        ("snapshot with held places", 9, state_with_held_places),
        ("snapshot with overtaken transactions", 9, state_with_overtaken),
        ("snapshot of level 10", 10, state_with_fences),
        ("snapshot with letters", 10, state_with_letters),
    ],
)
def test_snapshots_of_all_levels_bring_back_the_state(
    name: str, level: int, original: Callable[[], FedState]
) -> None:
    state = restored(bytes.fromhex(GOLDEN[name]))
    assert state.level == level
    assert without_runs(state) == without_runs(original().state)


def test_a_state_of_level_1_writes_what_older_software_reads() -> None:
    """A group in which one replica is upgraded: the others still install its snapshots."""
    log = busy_state()
    data = b"".join(encode(capture(log.state, 1, [])))
    assert data[:8] == b"EMQS\x01\0\0\0"
    log.add(ops.level(2))
    assert b"".join(encode(capture(log.state, 1, [])))[:8] == b"EMQS\x02\0\0\0"


def test_a_transaction_keeps_its_fence_and_is_of_no_other_one() -> None:
    log = FedState()
    log.add(*(ops.level(level) for level in range(2, 11)))
    mine, other = b"m" * 16, b"o" * 16

    def again(tx_id: str, instance: str, fence: bytes) -> list[list[object]]:
        extra = PrepareExtra(instance, heard_ms=log.now_ms + 1, fence=fence)
        return log.add(ops.prepare("app", "t", [tx_id], None, 0, 0, [7], -1, 0, extra))

    log.add(ops.prepare("app", "t", ["x", "y"], None, 0, 0, [7, 7], -1, 0, PrepareExtra("one", fence=mine)))
    table = log.state.transactions.look("app").open
    assert table["x"].fence == table["y"].fence == mine, "also of those that form a block"
    conflict = [[int(ResultCode.PARTIAL), [[0, int(ResultCode.TX_CONFLICT), "PREPARE"]]]]
    assert again("x", "two", other) == conflict
    assert table["x"].instance == "one", "the one that was refused owns nothing"
    assert again("x", "two", b"") == [[0]] == again("x", "three", mine)
    assert (table["x"].instance, table["x"].fence) == ("three", mine), "one that names none keeps it"
    assert again("z", "old", b"") == [[0]] == again("z", "new", mine) and table["z"].fence == mine


@pytest.mark.parametrize(
    ("fence", "home", "problem"), [(b"short", -1, "16 bytes"), (b"f" * 16, 1, "follows its home")]
)
def test_a_fence_has_16_bytes_and_is_homes_alone(fence: bytes, home: int, problem: str) -> None:
    request = ops.prepare("app", "t", ["x"], None, 0, 0, [7], home, 0, PrepareExtra(fence=fence))
    with pytest.raises(InvalidMessage, match=problem):
        parse_request(request)


def test_only_a_group_of_level_10_takes_a_fence() -> None:
    fenced = ops.prepare("app", "t", ["x"], None, 0, 0, [7], -1, 0, PrepareExtra(fence=b"f" * 16))
    claim, plain = timer_ops.claim("n", 1, "c"), ops.rollback("app", ["x"])
    assert level_needed(parse_request(plain + fenced)) == level_needed(parse_request(claim + fenced)) == 10
    assert level_needed(parse_request(claim + plain)) == level_needed(parse_request(plain + claim)) == 9


def test_an_open_transaction_knows_its_owner_and_its_newest_prepare() -> None:
    log = FedState()
    log.add(ops.level(2))
    first = prepare(log, "x", PrepareExtra(instance="one", parts=2, given=True))
    record = log.state.transactions.look("app").open["x"]
    assert (record.instance, record.newest_index, record.log_index) == ("one", first, first)
    assert (record.participants, record.parts, record.given, record.home_index) == ((), 2, True, -1)
    second = prepare(log, "x", PrepareExtra(instance="two", heard_ms=log.now_ms + 1), part=1)
    again = prepare(log, "x", PrepareExtra(instance="three", heard_ms=log.now_ms + 1))
    record = log.state.transactions.look("app").open["x"]
    assert (record.instance, record.newest_index, record.log_index) == ("three", again, first)
    assert record.digests == (7, 7) and first < second < again
    prepare(log, "x", PrepareExtra(instance="other content"), digest=8)
    assert log.state.transactions.look("app").open["x"] == record, "a conflict changes nothing"
    old = prepare(log, "x", None)
    record = log.state.transactions.look("app").open["x"]
    assert (record.instance, record.newest_index) == ("", old), (
        "an older client took it up: nobody knows whose"
    )


def test_at_level_1_nothing_is_kept_that_its_snapshots_do_not_hold() -> None:
    """Otherwise a replica that was restored and one that was not would decide differently at level 2."""
    log = FedState()
    first = prepare(log, "x", None)
    prepare(log, "x", None)
    data = b"".join(encode(capture(log.state, 1, [])))
    for state in (log.state, restored(data)):
        assert state.transactions.look("app").open["x"].newest_index == first


def test_a_check_rolls_back_only_what_was_not_prepared_again_since() -> None:
    log = FedState()
    log.add(ops.level(2))
    places = [prepare(log, tx_id, PrepareExtra(instance="one")) for tx_id in ("a", "b", "c")]
    prepare(log, "b", PrepareExtra(instance="two", heard_ms=log.now_ms + 1))
    under = ops.rollback_under("app", ["a", "b", "c", "gone"], "feedback", [*places, 1])
    # Leaders leave out what is not open, so an entry settles all of its ids; here one is left in.
    table = log.state.transactions.look("app")
    assert log.add(under) == [
        [ResultCode.PARTIAL, [[n, ResultCode.RETRY, None] for n in range(3)] + [[3, 6, None]]]
    ]
    assert set(table.open) == {"a", "b", "c"}
    under = ops.rollback_under("app", ["a", "b", "c"], "feedback", places)
    assert log.add(under) == [[ResultCode.PARTIAL, [[1, ResultCode.RETRY, None]]]]
    assert set(table.open) == {"b"} and table.outcome("a") == table.outcome("c") == 2
    assert log.add(ops.rollback_under("app", ["b"], "feedback", [])) == [[0]], "unconditional"


def test_of_two_prepares_in_one_entry_neither_may_roll_back() -> None:
    """Two new instances run one id. Both are told the index of this entry, and neither knows of the other."""
    log = FedState()
    log.add(ops.level(LEVEL_MAX))
    first = PrepareExtra(given=True)
    told = log.add(*(ops.prepare("app", "t", ["x"], None, 0, 0, [7], -1, 0, first) for _ in range(3)))
    assert told == [[0, log.index], [0, [log.index, log.index]], [0, [log.index, log.index]]]
    index, table = log.index, log.state.transactions.look("app")
    refused = [[ResultCode.PARTIAL, [[0, ResultCode.RETRY, None]]]]
    assert log.add(ops.rollback_under("app", ["x"], "producer", [index])) == refused
    data = b"".join(encode(capture(log.state, 1, [])))
    assert restored(data).transactions.look("app").open["x"] == table.open["x"]
    under = ops.rollback_under("app", ["x"], "feedback", [table.open["x"].newest_index])
    assert level_needed(parse_request(under)) == 2
    assert log.add(under) == [[0]], "a check asks under the PREPARE that it was shown"


def test_a_level_or_a_setting_of_newer_software_stops_the_replica_before_anything_is_changed() -> None:
    log = busy_state_of_level_2()
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


def test_there_is_no_way_down() -> None:
    log = FedState()
    assert log.add(ops.level(2)) == [[0, 2]]
    assert log.add(ops.level(1)) == [[0, 2]] and log.state.level == 2


def test_a_topic_is_altered_at_its_entry() -> None:
    log = FedState()
    log.add(ops.level(2), ops.level(3))
    log.prepare(["before"])
    ((code, info),) = log.add(ops.alter_topic("t", {"check_max": 1, "transaction_timeout_ms": 70}))
    assert (code, info["check_max"], info["partitions"]) == (0, 1, 2)
    assert log.add(ops.alter_topic("t", {})) == [[0, info]], "changes nothing, and tells what is in force"
    log.prepare(["after"])
    opened = log.state.transactions.look("app").open
    assert (opened["before"].timeout_ms, opened["after"].timeout_ms) == (6000, 70)
    log.add(ops.checked("app", ["before"]))
    log.add(ops.alter_topic("t", {"on_check_exhausted": "rollback"}))
    log.add(ops.checked("app", ["after"]))
    assert opened["before"].due_ms == -1, "what is parked is left to a person"
    assert opened["after"].due_ms == log.now_ms, "due at once, to be rolled back"
    assert log.add(ops.alter_topic("gone", {"check_max": 1})) == [[ResultCode.UNKNOWN_TOPIC]]
    assert log.add(ops.create_topic("t", {"partitions": 2, "check_max": 3})) == [
        [ResultCode.TOPIC_EXISTS, asdict(log.state.topics.topics["t"].info)]
    ]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"partitions": 4}, "number of partitions cannot be altered"),
        ({"retention": 4}, "unknown topic setting 'retention'"),
        ({"retention_ms": "4"}, "must be int"),
        ({"retention_ms": -2}, "-1 (unlimited) or more"),
        ({"retention_bytes": NUMBER_MAX + 1}, "must be at most"),
        ({"transaction_timeout_ms": TIMEOUT_MS_MAX + 1}, "must be at most"),
        ({"check_max": 0}, "must be at least 1"),
        ({"on_check_exhausted": "commit"}, "must be 'hold' or 'rollback'"),
    ],
)
def test_what_cannot_be_altered_is_refused_before_it_is_written(
    settings: dict[str, int | str], problem: str
) -> None:
    with pytest.raises(InvalidMessage, match=re.escape(problem)):
        parse_request(ops.alter_topic("t", settings))


def test_settings_take_effect_at_their_entry() -> None:
    log = FedState()
    log.add(ops.level(2))
    for n in range(5):
        log.add(ops.group_offsets(f"g{n}", "t", {0: n}))
    log.add(ops.settings({"groups_kept": 2, "producers_generation": 3, "settled_generation": 4}))
    assert list(log.state.group_offsets) == ["g3", "g4"]
    assert log.state.settings == Settings(4, 3, 2)
    for n in range(7):
        log.add(ops.message("t", 0, f"p{n}", 0, 0, [b"\x94\xc0\xc4\x00\xc0\xc0"]))
    assert len(log.state.producers) == 4


def test_settings_of_clients_have_bounds() -> None:
    assert set(BOUNDS) == set(Settings().values())
    for name, (least, most) in BOUNDS.items():
        assert least <= Settings().values()[name] <= most
        assert setting_problem({name: least}) is None and setting_problem({name: most}) is None
        assert f"{least} to {most}" in (setting_problem({name: most + 1}) or "")
    assert setting_problem({}) is None, "changes nothing, and tells what is in force"
    assert "unknown setting" in (setting_problem({"x": 1}) or "")
