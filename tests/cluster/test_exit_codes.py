"""What a command ends with, by the error that it meets."""

from __future__ import annotations

import pytest

from escrowmq.cluster.cli.failing import FAILED, NOT_FOUND, UNAVAILABLE, USAGE, exit_code, explain
from escrowmq.replication.errors import (
    CorruptLog,
    EscrowMQError,
    NotAuthorized,
    Unavailable,
    UnknownGroup,
    UnknownTopic,
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotAuthorized("wrong secret"), USAGE),
        (UnknownGroup("billing"), NOT_FOUND),
        (UnknownTopic("orders", 17, 2), NOT_FOUND),
        (Unavailable("no leader"), UNAVAILABLE),
        (CorruptLog("a damaged file"), FAILED),
    ],
)
def test_an_error_has_its_exit_code(error: EscrowMQError, code: int) -> None:
    assert exit_code(error) == code


def test_an_unknown_partition_is_told_with_those_that_there_are() -> None:
    assert explain(UnknownTopic("orders", 17, 2)) == (
        "error: topic 'orders' has no partition 17 (it has 2)\nhint: choose one of 0 to 1"
    )
    assert "None" not in str(UnknownTopic("orders", 17))
