"""A further part of a transaction is written, not applied yet, and somebody else commits the transaction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import encode_row
from escrowmq.replication.model import ResultCode
from tests.support.requests import APP, TOPIC
from tests.support.single import Single

RETRY: list[Any] = [[ResultCode.PARTIAL, [[0, ResultCode.RETRY, None]]]]
OPERATOR = "operator:ann"


def part(number: int) -> bytes:
    row = encode_row(None, b"part %d" % number, None, None)
    return ops.prepare(APP, TOPIC, ["x"], None, 0, number, [number], -1, 1) + ops.pre_message(
        TOPIC, 0, [0], [len(row)], [row]
    )


def start(path: Path) -> Single:
    single = Single(path)
    single.topic()
    assert single.submit(part(0)) == [[0]]
    return single


def committed_beside(path: Path, by: str, *, one_entry: bool) -> tuple[Single, list[Any], list[Any]]:
    """The answers to the part and to the commit."""
    single = start(path)
    if one_entry:
        grown, decided = single.send(part(1), ops.commit(APP, ["x"], by))
        return single, grown[1], decided[1]
    single.node.held = []
    grown_later, decided_later = single.send(part(1)), single.send(ops.commit(APP, ["x"], by))
    single.node.release()
    return single, grown_later[0][1], decided_later[0][1]


@pytest.mark.parametrize("one_entry", [True, False])
def test_an_operator_waits_for_a_part_that_is_under_way(tmp_path: Path, one_entry: bool) -> None:
    """Found by the simulator (seed 2700087, three groups): the part was acknowledged, and lost."""
    single, grown, decided = committed_beside(tmp_path, OPERATOR, one_entry=one_entry)
    assert (grown, decided) == ([[0]], RETRY)
    assert single.submit(ops.commit(APP, ["x"], OPERATOR)) == [[0]]
    assert single.texts() == ["part 0", "part 1"]
    assert not single.replica.admission._growing


def test_the_producer_and_whoever_rolls_back_do_not_wait(tmp_path: Path) -> None:
    """A producer knows all its parts, so what is under way here is a late copy; and of what is rolled back
    nothing can be lost."""
    single, _, decided = committed_beside(tmp_path / "producer", "producer", one_entry=False)
    assert decided == [[0]]
    single = start(tmp_path / "rollback")
    single.node.held = []
    single.send(part(1))
    answers = single.send(ops.rollback(APP, ["x"], OPERATOR))
    single.node.release()
    assert answers == [("ok", [[0]])] and single.texts() == []


def test_a_part_that_was_given_up_holds_until_it_is_applied(tmp_path: Path) -> None:
    single = start(tmp_path)
    single.node.held = []
    assert single.send(part(1)) == []
    command, done = single.node.held.pop()
    done(None, None)  # timed out, but still in the log, and this replica still leads
    decided = single.send(ops.commit(APP, ["x"], OPERATOR))
    single.node.held.insert(0, (command, lambda results, outcome: None))
    single.node.release()
    assert decided == [("ok", RETRY)]
    assert single.submit(ops.commit(APP, ["x"], OPERATOR)) == [[0]]
    assert single.texts() == ["part 0", "part 1"]


def test_two_parts_under_way_are_counted(tmp_path: Path) -> None:
    single = start(tmp_path)
    single.node.held = []
    single.send(part(1))
    single.send(part(2))
    later = single.node.held[1:]
    del single.node.held[1:]
    single.node.release()
    single.node.held = later
    decided = single.send(ops.commit(APP, ["x"], OPERATOR))
    single.node.release()
    assert decided == [("ok", RETRY)]
    assert single.submit(ops.commit(APP, ["x"], OPERATOR)) == [[0]]
    assert single.texts() == ["part 0", "part 1", "part 2"]
