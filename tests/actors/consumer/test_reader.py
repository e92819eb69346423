"""The range reader: exactly [start, end), from any replica, and a typed error for what is not there."""

from __future__ import annotations

import time

import pytest

from escrowmq.actors.client.replica_calls import SUPERVISOR_RID
from escrowmq.actors.consumer.reader import PartitionReader, _KnownMembers
from escrowmq.replication.calling.answers import MembersReport
from escrowmq.replication.errors import ConfigError, OffsetOutOfRange, Overloaded, Unavailable, UnknownTopic
from escrowmq.replication.format.codec import decode_rows
from tests.support.brokers import Brokers, ClientCalls


def rows_of(reader):
    """(offset, value) of everything in all its blocks, and the number of blocks."""
    found, blocks = [], 0
    for base, count, ts_ms, blob in reader:
        assert ts_ms > 1_600_000_000_000
        found += [(base + i, row[1]) for i, row in enumerate(decode_rows(blob, count))]
        blocks += 1
    return found, blocks


@pytest.fixture(scope="module")
def topic(brokers):
    brokers.topic("ranges", partitions=1)
    for start in range(0, 5_000, 500):
        brokers.produce("ranges", 0, [b"%d" % i for i in range(start, start + 500)])
    return "ranges"


def reader_of(brokers, topic, start, end, partition=0, **options):
    options = {"lag_patience_s": 0.5, **options}
    return PartitionReader(brokers.info, topic, partition, start, end, calls=ClientCalls(brokers), **options)


@pytest.mark.parametrize(
    ("start", "end"), [(0, 5000), (0, 1), (499, 501), (250, 260), (1000, 1500), (4999, 5000), (7, 7)]
)
@pytest.mark.parametrize("fetch_bytes", [1, 3_000, 1 << 20])
def test_exactly_the_range_whatever_the_borders_of_runs(brokers, topic, start, end, fetch_bytes):
    found, _ = rows_of(reader_of(brokers, topic, start, end, fetch_bytes=fetch_bytes))
    assert found == [(i, b"%d" % i) for i in range(start, end)]


def test_followers_are_read_and_the_leader_only_if_they_do_not_serve(brokers, topic):
    leader = brokers.leader()
    for _ in range(6):
        brokers.asked.clear()
        rows_of(reader_of(brokers, topic, 0, 5_000, fetch_bytes=3_000, leader=leader))
        assert leader not in {rid for _, rid, method in brokers.asked if method == "fetch"}
    brokers.silent |= {(0, rid) for rid in range(3) if rid != leader}
    try:
        found, _ = rows_of(reader_of(brokers, topic, 0, 5_000, leader=leader))
    finally:
        brokers.silent.clear()
    assert found == [(i, b"%d" % i) for i in range(5_000)]


def test_large_fetches_make_few_calls(brokers, topic):
    brokers.asked.clear()
    rows_of(reader_of(brokers, topic, 0, 5000, fetch_bytes=1 << 20))
    assert len(brokers.asked) <= 2


def test_bad_ranges_and_topics(brokers, topic):
    with pytest.raises(ConfigError, match="start <= end"):
        reader_of(brokers, topic, 5, 4)
    with pytest.raises(UnknownTopic):
        rows_of(reader_of(brokers, "nowhere", 0, 1, timeout_s=1.0))
    with pytest.raises(UnknownTopic, match="no partition 9"):
        rows_of(reader_of(brokers, topic, 0, 1, partition=9))


def test_an_offset_that_nobody_has_is_out_of_range_in_the_end(brokers, topic):
    with pytest.raises(OffsetOutOfRange) as caught:
        rows_of(reader_of(brokers, topic, 4_990, 5_010))
    assert (caught.value.offset, caught.value.end) == (5_000, 5_000)


def test_what_retention_removed_is_out_of_range_at_once(brokers, unique):
    topic = unique("trimmed")
    brokers.topic(topic)
    brokers.produce(topic, 0, [b"x"] * 10)
    brokers.trim(topic, {0: 5})
    started = time.monotonic()
    with pytest.raises(OffsetOutOfRange) as caught:
        rows_of(reader_of(brokers, topic, 0, 10))
    assert caught.value.start == 5
    assert time.monotonic() - started < 30.0, "not after the time-out of 60 s"


def test_an_offset_that_a_replica_has_not_got_yet_is_waited_for(brokers, unique):
    topic = unique("fresh")
    brokers.topic(topic)
    reader = reader_of(brokers, topic, 0, 3)
    blocks = iter(reader)
    brokers.produce(topic, 0, [b"a", b"b", b"c"])
    assert next(blocks).messages == 3


class Joining(ClientCalls):
    """Each replica has different runs: here, from the second answer on, everything is one run."""

    def call(self, gid, rid, method, args, done):
        if method != "fetch":
            return super().call(gid, rid, method, args, done)
        ((topic, partition, offset, until),), max_bytes, wait_s = args

        def joined(answer, error):
            head = [(base, count) for base, count, *_ in answer[0][5]] if error is None else []
            if offset and head:  # as a replica answers that never cut its run where the other one did
                super(Joining, self).call(gid, rid, method, ([(topic, partition, 0)], 1 << 20, wait_s), whole)
            else:
                done(answer, error)

        def whole(answer, error):
            _, _, code, start, end, runs, blob = answer[0]
            ends = runs[-1][0] + runs[-1][1]
            done([(topic, partition, code, start, end, [(0, ends, runs[-1][2], len(blob))], blob)], error)

        request = [(topic, partition, offset, until)]
        return super().call(gid, rid, method, (request, max_bytes, wait_s), joined)


def test_runs_need_not_be_the_same_at_all_replicas(brokers, unique):
    topic = unique("runs")
    brokers.topic(topic)
    for start in range(0, 12, 4):
        brokers.produce(topic, 0, [b"%d" % i for i in range(start, start + 4)])
    brokers.everywhere(topic, {0: 12})
    reader = PartitionReader(brokers.info, topic, 0, 2, 11, fetch_bytes=1, calls=Joining(brokers))
    found, blocks = rows_of(reader)
    assert found == [(i, b"%d" % i) for i in range(2, 11)]
    assert blocks == 1, "one run holds everything"
    for in_flight in (1, 3):
        options = {"fetch_bytes": 1, "in_flight": in_flight, "calls": Joining(brokers)}
        found, blocks = rows_of(PartitionReader(brokers.info, topic, 0, 0, 11, **options))
        assert found == [(i, b"%d" % i) for i in range(11)]
        assert in_flight > 1 or blocks == 2, "a run of four, and then what is left of a run of twelve"


class Refusing(ClientCalls):
    """Refuses the first ``times`` fetches, as brokers under load or starting do."""

    def __init__(self, brokers, error, times):
        super().__init__(brokers)
        self.error, self.left = error, times

    def call(self, gid, rid, method, args, done):
        if self.left:
            self.left -= 1
            done(None, self.error)
        else:
            super().call(gid, rid, method, args, done)


@pytest.mark.parametrize(
    ("error", "least"), [(Overloaded("the queue is full", 0.7), 0.7), (Unavailable("starting", 0.0), 0.1)]
)
def test_refusals_make_it_back_off_further_and_further_and_go_on(brokers, topic, error, least):
    pauses = []
    reader = PartitionReader(
        brokers.info, topic, 0, 0, 5_000, calls=Refusing(brokers, error, 9), pause=pauses.append
    )
    found, _ = rows_of(reader)
    assert found == [(i, b"%d" % i) for i in range(5_000)]
    assert len(pauses) == 9 and all(least <= pause <= 3.0 for pause in pauses)
    assert pauses[-1] >= 2.0 and len(set(pauses)) > 1, "bounded, and not all tasks at the same moment"


def test_replicas_may_die_while_it_reads(tmp_path):
    brokers = Brokers(tmp_path)
    try:
        brokers.topic("t")
        for start in range(0, 1_000, 50):
            brokers.produce("t", 0, [b"%d" % i for i in range(start, start + 50)])
        brokers.everywhere("t", {0: 1_000})  # each may be the last one that lives
        found = []
        for at, (base, count, _, blob) in enumerate(reader_of(brokers, "t", 0, 1_000, fetch_bytes=100)):
            found += [(base + i, row[1]) for i, row in enumerate(decode_rows(blob, count))]
            if at in (3, 9):
                brokers.lose(0, at // 4)
        assert found == [(i, b"%d" % i) for i in range(1_000)]
        brokers.lose(0, next(iter(brokers.groups[0].alive)))
        with pytest.raises(Unavailable, match="no replica"):
            rows_of(reader_of(brokers, "t", 0, 1_000, timeout_s=1.0))
    finally:
        brokers.close()


class Moved(ClientCalls):
    """The replicas that the reader was told of are gone; others, with higher numbers, have come."""

    def call(self, gid, rid, method, args, done):
        if rid == SUPERVISOR_RID:
            done(MembersReport(version=9, voters=[3, 4, 5], highest=5), None)
        elif rid < 3:
            done(None, ValueError("no actor of that name"))
        else:
            super().call(gid, rid - 3, method, args, done)


def test_replicas_that_came_since_the_groups_beginning_are_read(brokers, topic):
    reader = PartitionReader(brokers.info, topic, 0, 0, 5_000, calls=Moved(brokers), timeout_s=20.0)
    found, _ = rows_of(reader)
    assert found == [(i, b"%d" % i) for i in range(5_000)]


def test_a_change_of_members_that_may_be_cut_off_is_not_taken_for_the_newest():
    known = _KnownMembers(3)
    known.told(MembersReport(version=2, voters=[0, 1], applied=False), None)
    known.told(MembersReport(version=2, voters=[1, 2]), None)
    assert known.ids == (1, 2)
