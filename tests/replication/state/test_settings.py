"""Settings of topics, and those of a broker group: in force from their entry on, and what is refused."""

from __future__ import annotations

import re
from dataclasses import asdict

import pytest

from escrowmq.replication.errors import InvalidMessage
from escrowmq.replication.format import ops
from escrowmq.replication.format.settings import BOUNDS, Settings, setting_problem
from escrowmq.replication.limits import NUMBER_MAX, TIMEOUT_MS_MAX
from escrowmq.replication.model import ResultCode
from escrowmq.replication.replica.validation import parse_request
from tests.support.fed_state import FedState


def test_a_topic_is_altered_at_its_entry() -> None:
    log = FedState()
    log.prepare(["before"])
    ((code, told),) = log.add(ops.alter_topic("t", {"check_max": 1, "transaction_timeout_ms": 70}, 0))
    info, number, _ = told  # type: ignore[misc]
    assert (code, info["check_max"], info["partitions"], number) == (0, 1, 2, log.index)
    asked = log.add(ops.alter_topic("t", {}))
    assert asked == [[ResultCode.RETRY, told]], "changes nothing, and tells what is in force"
    log.prepare(["after"])
    opened = log.state.transactions.look("app").open
    assert (opened["before"].timeout_ms, opened["after"].timeout_ms) == (6000, 70)
    log.add(ops.checked("app", ["before"]))
    log.add(ops.alter_topic("t", {"on_check_exhausted": "rollback"}, number))
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
        ({"partitions": 4}, "move to other partitions; create another topic with that number"),
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
    for n in range(5):
        log.add(ops.group_offsets(f"g{n}", "t", {0: n}))
    log.add(ops.settings({"groups_kept": 2, "producers_generation": 3, "settled_generation": 4}))
    assert list(log.state.group_offsets) == ["g3", "g4"]
    assert log.state.settings == Settings(4, 3, 2)
    for n in range(7):
        log.add(ops.message("t", 0, f"p{n}", 0, 0, [b"\x94\xc0\xc4\x00\xc0\xc0"], log.now_ms))
    assert len(log.state.producers) == 4


def test_settings_of_clients_have_bounds() -> None:
    assert set(BOUNDS) == set(Settings().values())
    for name, (least, most) in BOUNDS.items():
        assert least <= Settings().values()[name] <= most
        assert setting_problem({name: least}) is None and setting_problem({name: most}) is None
        assert f"{least} to {most}" in (setting_problem({name: most + 1}) or "")
    assert setting_problem({}) is None, "changes nothing, and tells what is in force"
    assert "unknown setting" in (setting_problem({"x": 1}) or "")
