"""Which version a producer uses towards a group: it tries, falls back without harm, and tries again."""

from __future__ import annotations

from typing import Any

import pytest

from escrowmq.actors.client.failures import Failure, FailureKind
from escrowmq.actors.producer.batcher import TRY_AGAIN_S, BuiltRequest, GroupBatcher
from escrowmq.actors.producer.config import ProducerConfig
from escrowmq.actors.producer.encoding.blocks import DecisionBlock, Outcome, PrepareBlock
from escrowmq.replication.format.codec import Op, OpType, decode_ops

REFUSALS = [FailureKind.UNSUPPORTED, FailureKind.MALFORMED]


def block(tx_id: str, given: bool = False) -> tuple[PrepareBlock, list[Outcome]]:
    made = PrepareBlock("a", -1, 0, 0, (tx_id,), (tx_id,), (1,), ("a", 0, b"row"), 3, given)
    outcomes: list[Outcome] = []
    made.deadline, made.done = 1e9, outcomes.append
    return made, outcomes


def a_batcher(*tx_ids: str) -> tuple[GroupBatcher, list[list[Outcome]]]:
    batcher, outcomes = GroupBatcher("shop", ProducerConfig(), "producer-1"), []
    for tx_id in tx_ids:
        made, ended = block(tx_id)
        batcher.prepare(made, 0.0)
        outcomes.append(ended)
    return batcher, outcomes


def built(batcher: GroupBatcher) -> tuple[BuiltRequest, list[Op]]:
    request = batcher.build()
    assert request is not None
    return request, decode_ops(b"".join(request.frames))


def extra(op: Op) -> Any:
    return op.meta[9] if len(op.meta) > 9 else None


def test_a_prepare_names_its_instance_and_what_was_heard() -> None:
    batcher, outcomes = a_batcher("x")
    request, (prepare, _) = built(batcher)
    assert (extra(prepare).instance, extra(prepare).heard_ms, extra(prepare).given) == (
        "producer-1",
        -1,
        False,
    )
    batcher.answered(request, ("ok", [[0]], 1_234), False)
    assert outcomes == [[{}]]
    batcher.prepare(block("y", given=True)[0], 0.0)
    batcher.prepare(block("z")[0], 0.0)
    _, (given, _, generated, _) = built(batcher)
    assert (extra(given).given, extra(generated).given) == (True, False), "never in one operation"
    assert extra(given).heard_ms == extra(generated).heard_ms == 1_234


@pytest.mark.parametrize("kind", REFUSALS)
def test_an_older_group_gets_version_1_and_is_tried_again_later(kind: FailureKind) -> None:
    batcher, outcomes = a_batcher("x", "y")
    request, _ = built(batcher)
    batcher.answered(request, Failure(kind, "no"), False)
    assert outcomes == [[], []], "nobody is told of it"
    request, (prepare, _) = built(batcher)
    assert extra(prepare) is None and prepare.meta[2] == ["x", "y"]
    batcher.answered(request, ("ok", [[0]]), False)
    assert outcomes == [[{}], [{}]]
    batcher._speech.pass_time(1.0)
    batcher._speech.pass_time(1.0 + TRY_AGAIN_S)
    batcher.prepare(block("z")[0], 0.0)
    assert extra(built(batcher)[1][0]) is not None


@pytest.mark.parametrize("kind", REFUSALS)
def test_what_may_be_refused_travels_by_itself_until_the_first_success(kind: FailureKind) -> None:
    batcher, _ = a_batcher("x")
    decision = DecisionBlock(True, ("done",))
    ended: list[Outcome] = []
    decision.deadline, decision.done = 1e9, ended.append
    batcher.decide(decision, 0.0)
    request, found = built(batcher)
    assert [op.type for op in found] == [OpType.PREPARE, OpType.PRE_MESSAGE]
    batcher.answered(request, Failure(kind, "no"), False)
    assert ended == []
    request, found = built(batcher)
    assert [op.type for op in found] == [OpType.COMMIT, OpType.PREPARE, OpType.PRE_MESSAGE]
    batcher.answered(request, ("ok", [[0], [0]]), False)
    assert ended == [{}]


def test_after_the_first_success_a_malformed_request_is_what_it_is() -> None:
    batcher, _ = a_batcher("x")
    batcher.answered(built(batcher)[0], ("ok", [[0]], 5), False)
    made, ended = block("y")
    batcher.prepare(made, 0.0)
    failure = Failure(FailureKind.MALFORMED, "no such thing")
    batcher.answered(built(batcher)[0], failure, False)
    assert ended == [failure]


def test_what_is_malformed_in_both_versions_is_told_its_caller() -> None:
    batcher, (ended,) = a_batcher("x")
    failure = Failure(FailureKind.MALFORMED, "no such thing")
    for _ in range(2):
        assert ended == []
        batcher.answered(built(batcher)[0], failure, False)
    assert ended == [failure]


def test_a_refusal_from_before_the_first_success_is_told_nobody() -> None:
    """The group reached level 2 between the two requests, and their answers came in reverse order."""
    batcher = GroupBatcher("shop", ProducerConfig(), "me")
    first, told = block("a")
    batcher.prepare(first, 0.0)
    early = batcher.build()
    batcher._speech.taken()
    assert early is not None
    batcher.answered(early, Failure(FailureKind.UNSUPPORTED, "level 2"), False)
    assert told == []
    again, (op, _) = built(batcher)
    assert extra(op).instance == "me"
    batcher.answered(again, ("ok", [[0]], 70), False)
    assert told == [{}]
