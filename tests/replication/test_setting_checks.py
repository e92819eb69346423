"""Numbers that make no sense as a setting are refused where they are set."""

from __future__ import annotations

from typing import Any

import pytest

from escrowmq.actors.consumer.config import ConsumerConfig
from escrowmq.actors.producer.config import ProducerConfig
from escrowmq.replication.errors import ConfigError


@pytest.mark.parametrize("wrong", [float("nan"), -1.0, 0, True, "1", None])
def test_what_is_no_number_above_0(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="delivery_timeout_s must be a number above 0"):
        ProducerConfig(delivery_timeout_s=wrong)


@pytest.mark.parametrize("wrong", [float("nan"), -1.0, False, "1", None])
def test_what_is_no_number_of_0_or_more(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="fetch_linger_ms must be a number of 0 or more"):
        ConsumerConfig(fetch_linger_ms=wrong)
