"""A range fetched piece by piece: the ends of the pieces are known before, and none goes past the range."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from escrowmq.actors.admin.topic_creation import topic_settings
from escrowmq.actors.broker.config import BrokerConfig
from escrowmq.replication.calling.answers import FetchEnds
from escrowmq.replication.errors import Unavailable
from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import encode_row
from escrowmq.replication.model import NO_ID, ResultCode
from escrowmq.replication.replica import fetching
from escrowmq.replication.replica.fetching import FETCH_ENDS_MAX
from tests.support.broker_group import BrokerGroup
from tests.support.requests import message
from tests.support.single import Single

MESSAGES = 400


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Single]:
    single = Single(tmp_path_factory.mktemp("ends"))
    single.topic()
    rng = random.Random(11)
    sent = 0
    while sent < MESSAGES:
        rows = [encode_row(None, b"x" * rng.randrange(300), None, None) for _ in range(rng.randrange(1, 9))]
        single.submit(ops.message("t", 0, "p", 0, -1, rows[: MESSAGES - sent]))
        sent += len(rows)
    yield single


@pytest.mark.parametrize("seed", range(40))
def test_fetches_end_where_it_was_told(single: Single, seed: int) -> None:
    rng = random.Random(seed)
    start = rng.randrange(MESSAGES)
    until = rng.randrange(start + 1, MESSAGES + 50)
    max_bytes = rng.choice([1, 700, 5_000, 1 << 20])
    code, told = fetching.fetch_ends(single.state, "t", 0, start, until, max_bytes, 1_000)
    assert code == ResultCode.OK
    at, found = start, []
    while at < min(until, MESSAGES):
        ((_, _, code, _, _, runs, blob),) = single.replica.fetch([("t", 0, at, until)], max_bytes)
        assert code == ResultCode.OK and len(blob) == sum(run[3] for run in runs)
        assert runs[-1][0] < until, f"seed {seed}: nothing that begins behind the range"
        assert len(blob) <= max_bytes or len(runs) == 1
        at = runs[-1][0] + runs[-1][1]
        found.append(at)
    assert told == found, f"seed {seed}"


def test_how_many_are_told_is_bounded_and_nothing_is_told_of_what_is_not_there(tmp_path: Path) -> None:
    with BrokerGroup(tmp_path, BrokerConfig(disk_reserve_bytes=0)) as trio:
        trio.topic()
        for number in range(FETCH_ENDS_MAX + 5):
            trio.submit(message("t", 0, [b"x"], seq=number))
        leader = trio.leader()
        reads = leader.parts.reads
        assert reads.fetch_ends("t", 0, 0, 10, 1, 3) == FetchEnds(ResultCode.OK, [1, 2, 3])
        assert reads.fetch_ends("t", 0, 0, 1 << 40, 1, 1 << 40).ends == list(range(1, FETCH_ENDS_MAX + 1))
        assert reads.fetch_ends("t", 0, FETCH_ENDS_MAX + 5, 1 << 40, 1, 9) == FetchEnds(ResultCode.OK, [])
        assert reads.fetch_ends("t", 0, 7, 7, 1, 9) == FetchEnds(ResultCode.OK, [])
        assert reads.fetch_ends("t", 9, 0, 1, 1, 1) == FetchEnds(ResultCode.BAD_PARTITION, [])
        assert reads.fetch_ends("u", 0, 0, 1, 1, 1) == FetchEnds(ResultCode.UNKNOWN_TOPIC, [])
        trio.stop(leader.rid)
        with pytest.raises(Unavailable):
            reads.fetch_ends("t", 0, 0, 1, 1, 1)


def test_a_fetch_that_names_a_topic_gets_nothing_of_another_one(tmp_path: Path) -> None:
    """Not even a newer one that has those offsets; and whoever names none gets what is there."""
    single = Single(tmp_path)
    create = ops.create_topic("t", topic_settings(1), topic_id=NO_ID)
    (((_, old),),) = ((single.submit(create)),)
    single.submit(message("t", 0, [b"old"]))
    single.submit(ops.delete_topic("t"))
    (((_, new),),) = ((single.submit(create)),)
    single.submit(message("t", 0, [b"new", b"er"]))
    assert new > old > NO_ID
    refused = ("t", 0, int(ResultCode.OTHER_TOPIC), new, new, [], b"")
    assert single.replica.fetch([("t", 0, 0, 1, old)], 1 << 20) == [refused]
    for request in (("t", 0, 0, 2, new), ("t", 0, 0, 2), ("t", 0, 0)):
        ((_, _, code, start, end, runs, _),) = single.replica.fetch([request], 1 << 20)
        assert (code, start, end, sum(run[1] for run in runs)) == (ResultCode.OK, 0, 2, 2)
