"""Consumers while replicas die, lag and fail over. Each test kills its own cluster."""

from __future__ import annotations

import time

import pytest

from escrowmq.replication.errors import OutcomeUnknown, Unavailable
from tests.support.brokers import Brokers
from tests.support.polling import numbered, read, settle, values


@pytest.fixture
def cluster(tmp_path):
    running = Brokers(tmp_path)
    running.topic("orders", partitions=3)
    yield running
    running.close()


def test_a_replica_that_dies_is_given_up_long_before_the_call_s_time_out(cluster, consumer_of):
    consumer = consumer_of(cluster)
    consumer.assign([("orders", p) for p in range(3)])
    leader = cluster.leader()
    follower = (leader + 1) % 3
    for p in range(3):
        cluster.produce("orders", p, numbered(0, 10))
    read(consumer, 30)
    cluster.lose(0, follower)
    for p in range(3):
        cluster.produce("orders", p, numbered(10, 20))
    started = time.monotonic()
    records = read(consumer, 30)
    assert time.monotonic() - started < 5.0, "half a second on an idle machine"
    expected = [(p, o) for p in range(3) for o in range(10, 20)]
    assert sorted((r.partition, r.offset) for r in records) == expected


def test_a_replica_that_is_cut_off_does_not_hide_news(cluster, consumer_of):
    """It answers, but has nothing new: the others are asked in turn."""
    consumer = consumer_of(cluster)
    consumer.assign([("orders", 0)])
    cluster.produce("orders", 0, [b"a"])
    read(consumer, 1)
    cut = (cluster.leader() + 1) % 3
    stale = cluster.groups[0].alive[cut].parts.reads
    frozen = stale.fetch([("orders", 0, 1)], 1000, 0.0)

    def fetch(requests, max_bytes, wait_s):
        time.sleep(wait_s)
        return [(*frozen[0][:5], [], b"")]

    stale.fetch = fetch
    (state,) = consumer.core.positions.states()
    with consumer.core.condition:
        state.turn = next(t for t in range(3) if consumer.core.fetch.fetches._choice.pick(0, t, 0.0) == cut)
    cluster.produce("orders", 0, [b"b"])
    started = time.monotonic()
    assert values(read(consumer, 1)) == [b"b"]
    assert time.monotonic() - started < 5.0


def test_a_group_comes_through_a_fail_over_without_moving_a_partition(cluster, unique, consumer_of):
    group = unique("g")
    config = {"heartbeat_interval_s": 0.2}
    members = [consumer_of(cluster, group=group, topics=["orders"], config=config) for _ in range(3)]
    settle(members, lambda: all(len(m.assignment()) == 1 for m in members))
    for p in range(3):
        cluster.produce("orders", p, numbered(0, 10))
    records = [read(m, 10) for m in members]
    for m in members:
        m.commit()
    before = [m.assignment() for m in members]
    cluster.lose(0, cluster.leader())
    for p in range(3):
        cluster.produce("orders", p, numbered(10, 20))
    records = [read(m, 10) for m in members]
    for m, mine in zip(members, records, strict=True):
        assert [r.offset for r in mine] == list(range(10, 20))
        m.commit()  # the new leader knows no members at first: the consumer joins again in the background
    assert [m.assignment() for m in members] == before
    settle(members, lambda: all(m.core.membership.joined for m in members))
    assert members[0].committed(*before[0][0]) == 20
    assert members[0].core.membership.generation >> 32 > 1


def test_without_a_majority_committing_fails_in_time_and_reading_goes_on(cluster, unique, consumer_of):
    cluster.produce("orders", 0, numbered(0, 10))
    consumer = consumer_of(cluster, group=unique("g"), topics=["orders"], config={"call_timeout_s": 2.0})
    read(consumer, 5)
    leader = cluster.leader()
    for rid in range(3):
        if rid != leader:
            cluster.lose(0, rid)
    time.sleep(1.5)  # until the leader has noticed
    started = time.monotonic()
    with pytest.raises((Unavailable, OutcomeUnknown)):
        consumer.commit()
    assert time.monotonic() - started < 8.0, "not the default of 30 s"
    assert len(read(consumer, 5)) == 5


def test_a_dead_cluster_shows_as_unavailable(cluster, consumer_of):
    consumer = consumer_of(cluster, config={"call_timeout_s": 1.5})
    consumer.assign([("orders", 0)])
    assert consumer.poll(timeout_s=0.5) == []
    for rid in range(3):
        cluster.lose(0, rid)
    with pytest.raises(Unavailable, match="no replica"):
        settle([consumer], lambda: False)
