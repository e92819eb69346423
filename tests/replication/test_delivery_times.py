"""From ``delay_s`` and ``deliver_at`` to the number in a request; what is wrong is said where it was
written."""

from __future__ import annotations

import copy
import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escrowmq.replication.delivery_times import (
    DELAY_MS_MAX,
    check_not_too_far,
    delivery_time,
    effective_time,
    given_by,
)
from escrowmq.replication.errors import InvalidMessage
from escrowmq.replication.model import Message, RecordMetadata

TEN_YEARS_S = DELAY_MS_MAX / 1000


@given(st.floats(0, TEN_YEARS_S))
def test_a_delay_is_rounded_up_to_a_millisecond(delay_s: float) -> None:
    ms = -delivery_time(delay_s, None)
    assert -1e-3 <= ms - delay_s * 1000 < 1.001  # a float of ten years in ms is exact to 1e-4


@pytest.mark.parametrize(("delay_s", "ms"), [(0, 0), (1, 1000), (0.029, 29), (0.0005, 1), (1800, 1_800_000)])
def test_delays(delay_s: float, ms: int) -> None:
    assert delivery_time(delay_s, None) == -ms
    assert effective_time(-ms, 5_000) == 5_000 + ms


@given(st.one_of(st.integers(-DELAY_MS_MAX, 0), st.integers(100_000_000_000, 1 << 45)))
def test_a_number_can_be_said_as_arguments_again(time_ms: int) -> None:
    arguments = given_by(time_ms)
    assert (
        delivery_time(**{"delay_s": None, "deliver_at": None, **arguments}) if arguments else 0
    ) == time_ms


@given(st.datetimes(datetime(1990, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)))
def test_a_datetime_is_rounded_up_and_never_early(when: datetime) -> None:
    ms = delivery_time(None, when)
    assert timedelta(0) <= datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms) - when
    assert datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms - 1) < when
    assert effective_time(ms, 1) == ms


def test_zones_count() -> None:
    there = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    assert delivery_time(None, there) == delivery_time(None, datetime(2026, 1, 1, 10, tzinfo=UTC))


def test_a_time_long_past_is_a_time() -> None:
    assert 0 < delivery_time(None, datetime(1900, 1, 1, tzinfo=UTC)) <= 100_000_000_000


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"delay_s": 1, "deliver_at": 1_800_000_000_000}, "not both"),
        ({"delay_s": math.nan}, "from 0 on"),
        ({"delay_s": math.inf}, "from 0 on"),
        ({"delay_s": -0.001}, "from 0 on"),
        ({"delay_s": True}, "number of seconds"),
        ({"delay_s": "5"}, "number of seconds"),
        ({"delay_s": timedelta(seconds=5)}, "number of seconds"),
        ({"delay_s": TEN_YEARS_S + 1}, "ten years"),
        ({"delay_s": 10**400}, "ten years"),
        ({"deliver_at": datetime(2030, 1, 1)}, "no time zone"),
        ({"deliver_at": 1_800_000_000.5}, "datetime with a time zone"),
        ({"deliver_at": "2030-01-01"}, "datetime with a time zone"),
        ({"deliver_at": True}, "datetime with a time zone"),
        ({"deliver_at": -1}, "from 0 on"),
        ({"deliver_at": 1_800_000_000}, "looks like seconds"),
    ],
)
def test_what_is_wrong_is_said_when_the_message_is_made(given: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidMessage, match=text):
        Message("t", b"", **given)


def test_a_time_beyond_ten_years_is_refused_when_it_is_sent() -> None:
    assert check_not_too_far(1_000 + DELAY_MS_MAX, 1_000) == 1_000 + DELAY_MS_MAX
    with pytest.raises(InvalidMessage, match="ten years ahead"):
        check_not_too_far(1_001 + DELAY_MS_MAX, 1_000)


def test_messages_and_results_can_be_pickled() -> None:
    for made in (Message("t", b"v", delay_s=5), RecordMetadata("t", 0, -1, 1, 2, "x")):
        assert copy.copy(made) == made  # as pickling does
