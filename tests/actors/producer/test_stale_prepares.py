"""A PREPARE that a group refuses as stale, since its producer has heard nothing for long, is sent again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from escrowmq.actors.client.failures import Failure
from escrowmq.actors.producer.batcher import STALE_PAUSE_S, GroupBatcher
from escrowmq.actors.producer.config import ProducerConfig
from escrowmq.actors.producer.encoding.blocks import Outcome, PrepareBlock
from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import decode_ops
from escrowmq.replication.format.operation import OpType
from escrowmq.replication.model import Message, ResultCode
from escrowmq.replication.state.transactions import APP_AS_IDS
from tests.support.brokers import Brokers
from tests.support.producing import COMMITTED, ProducerOf, values

STALE, CONFLICT = int(ResultCode.STALE), int(ResultCode.TX_CONFLICT)


def a_block(*tx_ids: str, home_group: int = -1) -> tuple[PrepareBlock, list[Outcome]]:
    column = list(range(len(tx_ids))), [3] * len(tx_ids), [b"row"] * len(tx_ids)
    digests = [1] * len(tx_ids)
    block = PrepareBlock("a", home_group, 0, 0, tx_ids, tx_ids, digests, {("a", 0): column}, 3 * len(tx_ids))
    outcomes: list[Outcome] = []
    block.deadline, block.done = 1e9, outcomes.append
    return block, outcomes


def refused(
    batcher: GroupBatcher, codes: dict[int, int], time_ms: int, repeated: bool = False
) -> list[tuple[list[str], int]]:
    """Sends what waits and answers it with these problems: (ids, heard_ms) of each PREPARE that was sent."""
    request = batcher.build()
    if request is None:
        return []
    sent = [op.meta for op in decode_ops(b"".join(request.frames)) if op.type == OpType.PREPARE]
    problems = [[i, code, "COMMITTED"] for i, code in codes.items()]
    result = [int(ResultCode.PARTIAL), problems] if problems else [0]
    batcher.answered(request, ("ok", [result] * len(sent), time_ms), repeated)
    return [(list(meta.tx_ids), meta.extra.heard_ms) for meta in sent]


def test_it_is_sent_again_with_what_has_been_heard_since() -> None:
    batcher = GroupBatcher("shop", ProducerConfig(), "me")
    block, outcomes = a_block("x")
    batcher.prepare(block, 0.0)
    assert refused(batcher, {0: STALE}, 70) == [(["x"], -1)]
    assert outcomes == []
    assert refused(batcher, {0: STALE}, 90) == [(["x"], 70)]
    assert refused(batcher, {}, 95) == [(["x"], 90)]
    assert outcomes == [{}] and batcher.build() is None


def test_within_one_millisecond_of_the_group_it_waits() -> None:
    """Sent again at once it would be refused until that is over: in memory, where the clock stands still, for
    ever."""
    batcher = GroupBatcher("shop", ProducerConfig(), "me")
    block, outcomes = a_block("x")
    block.deadline = 100.0
    batcher.prepare(block, 0.0)
    refused(batcher, {0: STALE}, 70)
    assert not batcher.waits_for_time
    assert refused(batcher, {0: STALE}, 70) == [(["x"], 70)]
    assert batcher.build() is None and batcher.waits_for_time and not batcher.idle()
    assert batcher._end_pause(5.0) == 5.0 + STALE_PAUSE_S and batcher.build() is None
    batcher._end_pause(5.0 + STALE_PAUSE_S)
    assert not batcher.waits_for_time and refused(batcher, {}, 71) == [(["x"], 70)]
    assert outcomes == [{}] and batcher.idle()


def test_what_an_earlier_sending_may_have_opened_is_not_sent_again() -> None:
    """It may have been committed by an operator, and forgotten, before this sending was refused: with a later
    time it would be opened anew, and be committed twice."""
    batcher = GroupBatcher("shop", ProducerConfig(), "me")
    block, outcomes = a_block("x")
    batcher.prepare(block, 0.0)
    assert refused(batcher, {0: STALE}, 70, repeated=True) == [(["x"], -1)]
    assert outcomes == [{0: (STALE, 70)}] and batcher.build() is None


def test_only_those_that_were_refused_are_sent_again() -> None:
    batcher = GroupBatcher("shop", ProducerConfig(), "me")
    (first, one), (second, two) = a_block("a", "b"), a_block("c", "d")
    batcher.prepare(first, 0.0)
    batcher.prepare(second, 0.0)
    assert refused(batcher, {1: STALE, 2: CONFLICT, 3: STALE}, 70) == [(["a", "b", "c", "d"], -1)]
    assert one == two == []
    assert refused(batcher, {}, 80) == [(["b", "d"], 70)]
    assert one == [{}] and two == [{0: (CONFLICT, "COMMITTED")}]


def test_a_branch_is_not_sent_again_before_home_was_asked() -> None:
    """Home has said that the transaction is open; by now it may have been settled. The answer gives the time
    with which it may be sent again, and that time stays, whatever is heard later."""
    batcher = GroupBatcher("shop", ProducerConfig(), "me")
    block, outcomes = a_block("x", home_group=1)
    block.home_index = [5]
    batcher.prepare(block, 0.0)
    assert refused(batcher, {0: STALE}, 70) == [(["x"], -1)]
    assert outcomes == [{0: (STALE, 70)}] and batcher.build() is None
    other, _ = a_block("y")
    batcher.prepare(other, 0.0)
    refused(batcher, {}, 90)
    block.heard_ms = 70
    batcher.prepare(block, 0.0)
    assert refused(batcher, {}, 95) == [(["x"], 70)]


@pytest.fixture
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """One replica that remembers only the last twenty settled transactions."""
    running = Brokers(tmp_path_factory.mktemp("forgetful"), replicas=1)
    running.topic("t")
    group = running.groups[0]
    assert group.submit(ops.settings({"settled_generation": APP_AS_IDS + 20}))[0][0] == 0
    yield running
    running.close()


def test_producers_notice_nothing_however_soon_transactions_are_forgotten(
    forgetful: Brokers, producer_of: ProducerOf
) -> None:
    quick, slow = producer_of(forgetful), producer_of(forgetful)
    sent = 0
    for _ in range(6):
        for producer, count in ((slow, 1), (quick, 100)):
            results = producer.send_transactions([[Message("t", b"x")] for _ in range(count)])
            assert [result.state for result in results] == [COMMITTED] * count
            sent += count
    assert len(values(forgetful, "t")) == sent
    assert forgetful.groups[0].leader().parts.running.replica.state.forgotten_ms > 0


def test_what_ends_unsent_leaves_no_block_undone_of_which_something_is_prepared() -> None:
    """Otherwise a caller is told that surely nothing was done, and its querier may commit what is open."""
    batcher = GroupBatcher("shop", ProducerConfig(), "me")
    block, outcomes = a_block("open", "stale")
    batcher.prepare(block, 0.0)
    block.deadline = 10.0
    assert refused(batcher, {1: STALE}, 70) == [(["open", "stale"], -1)]
    batcher.expire(11.0)  # the group accepts no more requests, and the time is over
    (outcome,) = outcomes
    assert isinstance(outcome, Failure) and not outcome.nothing_done


def test_what_ends_unsent_is_undone_if_the_rest_was_refused() -> None:
    batcher = GroupBatcher("shop", ProducerConfig(), "me")
    block, outcomes = a_block("another's", "stale")
    batcher.prepare(block, 0.0)
    block.deadline = 10.0
    refused(batcher, {0: CONFLICT, 1: STALE}, 70)
    batcher.expire(11.0)
    (outcome,) = outcomes
    assert isinstance(outcome, Failure) and outcome.nothing_done
