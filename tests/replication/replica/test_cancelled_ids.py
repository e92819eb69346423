"""An application gives a transaction's id again while the message of the first one is being cancelled.

Both messages have the same key: delivery time, partition, transaction and ordinal. What was prepared before
the cancellation and is committed after it lies between the cancelled message and the CANCEL.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from escrowmq.replication.format import ops, timer_ops
from escrowmq.replication.format.codec import encode_row
from escrowmq.replication.format.timer_ops import owner_of
from escrowmq.replication.model import ResultCode
from escrowmq.replication.replica.replica import Limits
from escrowmq.replication.timers.record import TIME_MAX
from tests.support.single import Single

FAR_MS = 1_000_000


@pytest.fixture
def single(tmp_path: Path) -> Iterator[Single]:
    running = Single(tmp_path, limits=Limits(carry_ahead_ms=100))
    running.topic(partitions=1)
    yield running
    running.close()


def prepare(single: Single, value: str, at: int) -> None:
    row = encode_row(None, value.encode(), None, None)
    timed = timer_ops.pre_scheduled("t", 0, [0], [len(row)], [at], [0], [row], 0)
    single.submit(ops.prepare("app", "t", ["x"], None, 60_000, 0, [1], -1, 1) + timed)


def commit(single: Single) -> None:
    """Settles the transaction, and forgets its id, so that it may be given again."""
    assert single.submit(ops.commit("app", ["x"]))[0][0] == 0
    single.state.transactions.look("app").settled.young.clear()


def cancel(single: Single, at: int) -> object:
    (result,) = single.submit(timer_ops.cancel("t", 0, [(at, owner_of("app", "x"), 0)], 0))
    return result


def later(single: Single, ms: int) -> None:
    """What is due meanwhile is released."""
    for _ in range(ms):
        single.send()


def stored(single: Single) -> int:
    """Records that wait: they are as many as the state says."""
    waiting = single.state.timers
    records, _ = waiting.store.listed(waiting.released, TIME_MAX, 1 << 30)
    assert len(records) == waiting.counts.total
    return len(records)


def test_what_is_prepared_before_a_cancellation_and_committed_after_it_is_read(single: Single) -> None:
    at = single.now_ms + FAR_MS
    prepare(single, "older", at)
    commit(single)
    prepare(single, "newer", at)
    assert cancel(single, at) == [0]
    commit(single)
    assert stored(single) == 1
    single.send(now_ms=at)
    assert single.texts() == ["newer"]


def test_what_was_carried_is_cancelled_when_no_older_transaction_of_the_same_id_is_open(
    single: Single,
) -> None:
    """The carried message lies above the second one's PREPARE: no bound could kill the first one alone."""
    at = single.now_ms + FAR_MS
    prepare(single, "older", at)
    commit(single)
    bound = single.journal.last_index + 1
    prepare(single, "newer", at)
    single.replica.admission.carrying.begin(bound)
    single.send(now_ms=single.now_ms + 60)
    assert single.replica.admission.carrying.carried == 1
    assert cancel(single, at) == [ResultCode.PARTIAL, [[0, ResultCode.RETRY, None]]]
    commit(single)
    assert stored(single) == 2
    assert cancel(single, at) == [0] and stored(single) == 0
    single.send(now_ms=at)
    assert single.texts() == []


def test_an_id_used_again_for_a_time_that_has_passed_is_not_reported_as_cancelled(single: Single) -> None:
    """Its second message is read at once."""
    at = single.now_ms + 50
    prepare(single, "first", at)
    commit(single)
    assert cancel(single, at) == [0] and cancel(single, at) == [0]
    later(single, 100)
    assert cancel(single, at) == [0], "its time is past, and it was never read"
    prepare(single, "second", at)
    commit(single)
    later(single, 100)
    assert single.texts() == ["second"] and stored(single) == 0
    assert cancel(single, at) == [ResultCode.PARTIAL, [[0, ResultCode.UNKNOWN_TIMER, None]]]
