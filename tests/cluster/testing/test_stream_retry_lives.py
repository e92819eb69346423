"""Drawn lives of groups with ``retry``, and planted faults that these must find."""

from __future__ import annotations

from typing import Any

import pytest

from escrowmq.actors.consumer.ordered_retries import OrderedRetries
from escrowmq.actors.consumer.positions import Positions
from escrowmq.actors.consumer.record_drain import Redelivery
from tests.support.stream_retries import Life

LIVES = 15


@pytest.mark.parametrize("order", ["concurrent", "ordered"])
@pytest.mark.parametrize("seed", range(LIVES))
def test_nothing_is_lost_and_each_failure_counts_once(seed: int, order: str) -> None:
    assert Life(seed, order).run() == []


def found(order: str) -> set[str]:
    """What a planted fault shows, within twice as many lives as are free of anomalies above."""
    kinds: set[str] = set()
    for seed in range(2 * LIVES):
        kinds |= set(Life(seed, order).run())
        if kinds:
            break
    return kinds


def test_planted_an_attempt_is_forgotten_over_a_rebalance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OrderedRetries, "found", lambda self, messages: None)
    assert found("ordered") == {"over-attempts"}


def test_planted_a_commit_passes_a_message_before_its_copy_is_durable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add = Redelivery.add

    def only_known(self: Redelivery, record: Any, due: float) -> None:
        if due < float("inf"):
            add(self, record, due)

    monkeypatch.setattr(Redelivery, "add", only_known)
    assert found("concurrent") == {"lost"}


def test_planted_a_partition_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading goes on behind a message that has failed, and comes back to it never."""
    monkeypatch.setattr(Positions, "suspend", lambda self, state, until: None)
    restart = OrderedRetries._suspended

    def onward(self: OrderedRetries, record: Any) -> Any:
        state = self._reader.assigned(record.topic, record.partition)
        position = state.position
        suspended = restart(self, record)
        state.restart(position)
        return suspended

    monkeypatch.setattr(OrderedRetries, "_suspended", onward)
    assert found("ordered") & {"order-broken", "lost"}
