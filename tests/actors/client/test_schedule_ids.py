"""Ids of delayed messages: what goes in comes out, and nothing else is taken for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escrowmq.actors.client.cancelling import Cancellation, OtherTopic, ScheduleId
from escrowmq.replication.errors import InvalidMessage, OutcomeUnknown, UnknownTopic
from escrowmq.replication.model import ResultCode

ONE = ScheduleId("orders", 3, 1_764_000_000_000, 0x4F3C2A1B9D8E7F60, 17)


@given(
    st.text(min_size=1).filter(lambda name: name.isprintable()),
    st.integers(0, (1 << 31) - 1),
    st.integers(0, (1 << 53) - 1),
    st.integers(0, (1 << 64) - 1),
    st.integers(0, (1 << 32) - 1),
)
def test_an_id_says_what_it_was_made_of(
    topic: str, partition: int, time_ms: int, owner: int, ordinal: int
) -> None:
    made = ScheduleId(topic, partition, time_ms, owner, ordinal)
    assert ScheduleId.parse(made.text("c1"), "c1") == made


def test_it_can_be_read_by_people() -> None:
    assert ONE.text("c1").startswith("orders/3/1764000000000/4f3c2a1b9d8e7f60/17/")


def test_an_id_of_another_cluster_is_recognised() -> None:
    with pytest.raises(InvalidMessage, match="comes from another cluster"):
        ScheduleId.parse(ONE.text("c1"), "c2")


@pytest.mark.parametrize("at", range(len(ONE.text("c1"))))
def test_a_wrong_character_anywhere_is_noticed(at: int) -> None:
    text = ONE.text("c1")
    wrong = text[:at] + ("1" if text[at] != "1" else "2") + text[at + 1 :]
    with pytest.raises(InvalidMessage):
        ScheduleId.parse(wrong, "c1")


@pytest.mark.parametrize(
    "text", ["", "orders", "a/b/c/d/e/f", "////// ", "orders/0/1/2", "orders/-1/1/1/1/1", "x" * 5_000]
)
def test_other_text_is_no_id(text: str) -> None:
    with pytest.raises(InvalidMessage, match="schedule id"):
        ScheduleId.parse(text, "c1")


@pytest.mark.parametrize("given", [None, 7, b"orders/0/1/1/1/1", ONE])
def test_other_types_are_refused(given: object) -> None:
    with pytest.raises(InvalidMessage, match="is a str"):
        ScheduleId.parse(given, "c1")


def test_a_number_that_no_request_can_carry_is_refused() -> None:
    for wrong in (ONE._replace(time_ms=1 << 60), ONE._replace(partition=-1), ONE._replace(ordinal=1 << 32)):
        with pytest.raises(InvalidMessage):
            ScheduleId.parse(wrong.text("c1"), "c1")


def test_an_answer_to_a_repeated_cancellation_is_not_taken_for_no() -> None:
    """The first sending may have cancelled it, and the group may have forgotten that since."""
    unknown, other = [1, [[0, int(ResultCode.UNKNOWN_TIMER), None]]], [int(ResultCode.OTHER_TOPIC), 9]
    wanted = Cancellation(ONE)
    assert wanted.is_done([0]) is True and wanted.is_done(unknown) is False
    assert wanted.is_done(other) == OtherTopic(9)
    wanted.note_repeated()
    assert wanted.is_done([0]) is True
    with pytest.raises(OutcomeUnknown):
        wanted.is_done(unknown)
    with pytest.raises(UnknownTopic):
        wanted.is_done([int(ResultCode.BAD_PARTITION)])
