"""Drawn lives of groups that consume, transform and produce, and planted faults that these must find."""

from __future__ import annotations

from typing import Any

import pytest

from escrowmq.actors.consumer import arguments, group_work
from escrowmq.actors.consumer.ordered_retries import OrderedRetries
from escrowmq.actors.consumer.positions import PartitionState
from tests.support.pipeline_lives import PipelineLife

LIVES = 3


@pytest.mark.parametrize("kind", ["ordered", "plain"])
@pytest.mark.parametrize("seed", range(LIVES))
def test_each_input_has_one_output_or_is_one_dead_letter(seed: int, kind: str) -> None:
    life = PipelineLife(seed, kind)
    assert life.run() == set()
    assert life.done["committed"] and life.done["nacked"]


def found(kind: str, start: int, within: int = 6) -> set[str]:
    """What a planted fault shows in the first life in which it shows."""
    for seed in range(start, start + within):
        if kinds := PipelineLife(seed, kind).run():
            return kinds
    return set()


def test_planted_a_nack_moves_the_offset_over_uncommitted_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartitionState, "has_work_before", lambda self, offset: False)
    assert "skipped" in found("ordered", 0)


def test_planted_a_nack_in_the_block_is_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    suspended = OrderedRetries._suspended

    def unseen(self: OrderedRetries, record: Any) -> Any:
        state = suspended(self, record)
        if state is not None:
            state.nacked_at = None
        return state

    monkeypatch.setattr(OrderedRetries, "_suspended", unseen)
    assert found("ordered", 0) & {"skipped", "both", "doubled"}


def test_planted_what_a_transaction_has_is_nacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "check_not_taken", lambda record, taken: None)
    assert "doubled" in found("ordered", 2)


def test_planted_a_transaction_while_nacked_records_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_work, "_check_nothing_waits", lambda core: None)
    assert found("plain", 0) & {"skipped", "doubled"}
