"""The history also contains what the client does by itself."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from escrowmq import EscrowMQError, OutcomeUnknown, Overloaded, TopicRecreated, Unavailable, UnknownTopic
from tests.chaos.recording import Recorded
from tests.history.events import Recorder


def phases(error: EscrowMQError | None, generated: bool) -> list[tuple[str, str | None]]:
    """(phase, outcome) of all events of one PREPARE that ends in ``error``."""
    recorder = Recorder("p")
    recorded = Recorded(recorder)

    def call() -> Any:
        if error is not None:
            raise error

    op = recorded.prepare("shop", "tx", [])
    recorded.prepared(op, call, ("shop", "tx") if generated else None)
    return [(event.phase, event.fields.get("outcome")) for event in recorder.events]


def test_an_unanswered_prepare_of_a_generated_id_may_be_rolled_back_by_the_client() -> None:
    rolled_back = [("invoke", "ROLLBACK"), ("unknown", None)]
    assert phases(Unavailable("late"), generated=True) == [("invoke", None), ("unknown", None), *rolled_back]


@pytest.mark.parametrize("error", [None, Overloaded("full", 1.0)])
def test_an_answered_one_is_not(error: EscrowMQError | None) -> None:
    assert len(phases(error, generated=True)) == 2


def test_nor_is_an_id_of_the_callers_own() -> None:
    assert phases(OutcomeUnknown("tx"), generated=False) == [("invoke", None), ("unknown", None)]


@pytest.mark.parametrize(
    ("error", "earlier"),
    [(TopicRecreated("t"), True), (UnknownTopic("t"), None), (OutcomeUnknown("x"), None)],
)
def test_what_was_refused_because_its_topic_is_another_one_may_be_in_the_earlier_one_only(
    error: EscrowMQError, earlier: bool | None
) -> None:
    recorder = Recorder("p")
    recorded, future = Recorded(recorder), Future[Any]()

    def call() -> Any:
        raise error

    future.set_exception(error)
    recorded.prepared(recorded.prepare("shop", "tx", []), call)
    recorded.callback(recorded.prepare("shop", "tx", []), [], call)
    recorded.stored(recorder.invoke("send", producer="p", messages=[]), future)
    ends = [event for event in recorder.events if event.phase == "unknown"]
    assert [event.fields.get("earlier") for event in ends] == [earlier] * 3
