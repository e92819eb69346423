"""A broker that is offered more than its queue holds: refused with a hint, or done, and nothing between."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchmarks.load.ledger import name_of, value_of
from escrowmq.actors.broker.config import BrokerConfig
from escrowmq.actors.broker.parts import Parts
from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import decode_rows, encode_row
from tests.support.broker_group import BrokerGroup
from tests.support.queued_checks import queued_checks

QUEUE_BYTES, BODY_BYTES = 64 << 10, 8 << 10
CALLERS, CALLS = 64, 40


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Parts]:
    config = BrokerConfig(queue_bytes=QUEUE_BYTES, segment_bytes=1 << 20)
    with BrokerGroup(tmp_path, config, replicas=1) as group:
        yield group.leader(30.0).parts


def test_what_is_refused_is_not_there_and_what_is_accepted_is_there_once(broker: Parts) -> None:
    assert broker.requests.submit(ops.create_topic("t", {"partitions": 1}))[0] == "ok"
    queued: list[int] = []

    def caller(client: int) -> list[tuple[str, int, int]]:
        told = []
        for number in range(CALLS):
            row = encode_row(None, value_of(client, number, BODY_BYTES), None, None)
            answer = broker.requests.submit(ops.message("t", 0, f"p{client}", 0, -1, [row]))
            if answer[0] == "overloaded":
                assert answer[1] > 0, "when to come back"
            else:
                assert answer[0] == "ok" and answer[1][0][0] == 0, answer
            told.append((answer[0], client, number))
            queued.append(broker.running.replica.admission.waiting())
        return told

    with ThreadPoolExecutor(CALLERS) as pool:
        told = [item for items in pool.map(caller, range(CALLERS)) for item in items]
    accepted = sorted((client, number) for status, client, number in told if status == "ok")
    assert len(accepted) < len(told), "64 callers of 8 KiB fill a queue of 64 KiB"
    assert max(queued) <= QUEUE_BYTES // BODY_BYTES + 1
    assert sorted(name for name in map(name_of, _values(broker)) if name) == accepted


def _values(broker: Parts) -> list[bytes]:
    values: list[bytes] = []
    end = broker.reads.partition_bounds("t")[0][1]
    while len(values) < end:
        (result,) = broker.reads.fetch([("t", 0, len(values))], 1 << 20, 0.0)
        at = 0
        for base, count, _, size in result[5]:
            assert base == len(values)
            values += [row[1] for row in decode_rows(result[6][at : at + size], count)]
            at += size
    return values


def test_open_transactions_beyond_the_limit_are_refused_and_the_others_stay(tmp_path: Path) -> None:
    config = BrokerConfig(open_transactions_max=1_000)
    with BrokerGroup(tmp_path, config, replicas=1) as group:
        broker = group.leader(30.0).parts
        broker.requests.submit(ops.create_topic("t", {"partitions": 1}))

        def opens(batch: int) -> Any:
            ids = [f"{batch}-{i}" for i in range(100)]
            rows = [encode_row(None, b"v", None, tx) for tx in ids]
            return broker.requests.submit(
                ops.prepare("app", "t", ids, None, 0, 0, [1] * 100, -1, 1)
                + ops.pre_message("t", 0, list(range(100)), [len(row) for row in rows], rows)
            )

        with ThreadPoolExecutor(16) as pool:
            results = [answer[1][0] for answer in pool.map(opens, range(40))]
        assert sorted({result[0] for result in results}) == [0, 7], "OK and TOO_MANY_OPEN"
        assert sum(result[0] == 0 for result in results) == 10
        assert broker.inspection.status().open_transactions == 1_000
        assert queued_checks(broker.running.replica.state.due) == 1_000
