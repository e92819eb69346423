"""Counting what happened, the events it is counted from, and the tables it is shown in."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from escrowmq.cluster.demo import story
from escrowmq.cluster.demo.events import (
    COMMITTED,
    LEFT_OPEN,
    CheckAnswered,
    DemoFailed,
    Event,
    EventWriter,
    Failed,
    Finished,
    OrderEnded,
    Ready,
    Tally,
    read_events,
)
from escrowmq.cluster.demo.options import MishapPlan
from escrowmq.cluster.demo.queries import QUESTIONS
from escrowmq.feedback.states import TransactionState

EVENTS: list[Event] = [
    Ready(skipped=2),
    OrderEnded(1, COMMITTED, 1.0, 1.5),
    OrderEnded(2, LEFT_OPEN),
    CheckAnswered("t2", "UNKNOWN"),
    CheckAnswered("t2", "COMMITTED"),
    CheckAnswered("t9", "ROLLBACK"),
    Finished(),
]


def test_events_survive_the_pipe_and_a_cut_off_line_is_dropped() -> None:
    stream = io.StringIO()
    writer = EventWriter(stream)
    for event in EVENTS:
        writer.write(event)
    text = stream.getvalue()
    assert list(read_events(io.StringIO(text))) == EVENTS
    assert list(read_events(io.StringIO(text[:-5]))) == EVENTS[:-1]


def test_counts() -> None:
    tally = Tally()
    for event in EVENTS:
        tally.add(event)
    assert tally.through == 4 and tally.taken_over == 2
    assert tally.resolved == {"t2": "COMMITTED", "t9": "ROLLBACK"}
    assert tally.resolved_as(TransactionState.ROLLBACK) == 1 and tally.answers["UNKNOWN"] == 1
    with pytest.raises(DemoFailed, match="no disk"):
        tally.add(Failed("no disk"))


def test_fail_over_ends_with_the_first_commit_asked_for_after_the_kill() -> None:
    tally = Tally(leader_killed_s=10.0)
    assert tally.fail_over_s() is None
    tally.commits = [(9.9, 10.01), (10.1, 11.4), (11.0, 11.3), (12.0, 12.1)]
    assert tally.fail_over_s() == pytest.approx(1.3)


def shown(table: object) -> str:
    console = Console(file=io.StringIO(), width=140)
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_answers_are_equal_only_row_for_row() -> None:
    title = list(QUESTIONS)[1]
    columns = ["o_orderpriority", "orders", "revenue"]
    duck = (columns, [["1-URGENT", "3", "10.00"], ["2-HIGH", "4", "11.00"]])
    assert story.side_by_side(title, duck, duck)[1]
    for rows in (
        [duck[1][0]],
        [*duck[1], duck[1][0]],
        [["1-URGENT", "3", "10.01"], duck[1][1]],
        duck[1][::-1],
    ):
        table, equal = story.side_by_side(title, (columns, rows), duck)
        assert not equal and "differs" in shown(table)
    assert story.side_by_side(title, None, duck)[1]


def test_the_table_of_what_happened_names_the_fail_over() -> None:
    tally = Tally(leader_killed_s=10.0, commits=[(10.1, 11.25)])
    table = story.happened(tally, MishapPlan({}, 0.3, 0.6), 10, 50, production_s=2.0, resolve_s=3.0)
    assert "1.25 s" in shown(table)
