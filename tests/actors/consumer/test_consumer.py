"""The consumer against three real broker services: reading, positions, commits, bad input."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime

import pytest

from escrowmq.replication.errors import (
    Closed,
    ConfigError,
    InvalidMessage,
    OffsetOutOfRange,
    StaleMember,
    UnknownTopic,
)
from tests.support.polling import numbered, read, settle, values

PARTITIONS = 2


def test_a_member_of_a_group_reads_everything_in_order(brokers, topic, unique, consumer_of):
    for part in range(10):
        brokers.produce(topic, 0, numbered(part * 100, part * 100 + 100))
    brokers.produce(topic, 1, [b"other"])
    consumer = consumer_of(brokers, group=unique("g"), topics=[topic])
    records = read(consumer, 1001)
    assert consumer.assignment() == [(topic, 0), (topic, 1)]
    first = [r for r in records if r.partition == 0]
    assert values(first) == numbered(0, 1000)
    assert [r.offset for r in first] == list(range(1000))
    assert all(abs(r.timestamp / 1000 - time.time()) < 60 and r.headers == {} for r in records)


def test_the_next_member_goes_on_where_the_group_committed(brokers, topic, unique, consumer_of):
    group = unique("g")
    brokers.produce(topic, 0, numbered(0, 100))
    with consumer_of(brokers, group=group, topics=[topic]) as consumer:
        read(consumer, 60)
        assert consumer.committed(topic, 0) is None
        consumer.commit()
        read(consumer, 20)
        assert consumer.committed(topic, 0) == 60
    assert read(consumer_of(brokers, group=group, topics=[topic]), 1)[0].offset == 60


def test_offsets_can_be_committed_as_given(brokers, topic, unique, consumer_of):
    group = unique("g")
    brokers.produce(topic, 0, numbered(0, 100))
    consumer = consumer_of(brokers, group=group, topics=[topic])
    read(consumer, 50)
    consumer.commit({(topic, 0): 7})
    assert consumer.committed(topic, 0) == 7


def test_records_arrive_while_polling(brokers, topic, unique, consumer_of):
    consumer = consumer_of(brokers, group=unique("g"), topics=[topic])
    settle([consumer], lambda: len(consumer.assignment()) == 2)
    timer = threading.Timer(0.3, brokers.produce, (topic, 0, [b"late"]))
    timer.start()
    started = time.monotonic()
    assert values(consumer.poll(timeout_s=20.0)) == [b"late"]
    assert time.monotonic() - started < 10.0, "it does not wait for its time to end"
    timer.join()


def test_latest_starts_at_the_end(brokers, topic, unique, consumer_of):
    brokers.produce(topic, 0, [b"old"])
    consumer = consumer_of(brokers, group=unique("g"), topics=[topic], auto_offset_reset="latest")
    settle([consumer], lambda: len(consumer.assignment()) == 2)
    assert consumer.position(topic, 0) == 1
    brokers.produce(topic, 0, [b"new"])
    assert values(read(consumer, 1)) == [b"new"]


def test_none_raises_without_a_committed_offset_until_the_application_seeks(
    brokers, topic, unique, consumer_of
):
    brokers.produce(topic, 0, [b"x"])
    consumer = consumer_of(brokers, group=unique("g"), topics=[topic], auto_offset_reset="none")
    with pytest.raises(OffsetOutOfRange, match=r"no committed offset of .*; seek to an offset in \[0, 1\]"):
        settle([consumer], lambda: False)
    consumer.seek_to_beginning()
    assert values(read(consumer, 1)) == [b"x"]


def test_seek_back_and_forth(brokers, topic, consumer_of):
    brokers.produce(topic, 0, numbered(0, 10))
    consumer = consumer_of(brokers)
    consumer.assign([(topic, 0)])
    read(consumer, 10)
    consumer.seek(topic, 0, 3)
    assert consumer.position(topic, 0) == 3
    assert values(read(consumer, 2)) == [b"3", b"4"]
    consumer.seek_to_end((topic, 0))
    assert consumer.position(topic, 0) == 10
    consumer.seek_to_beginning((topic, 0))
    assert values(read(consumer, 1)) == [b"0"]


def test_seek_to_time(brokers, topic, consumer_of):
    brokers.produce(topic, 0, [b"before"])
    time.sleep(0.02)
    moment = time.time()
    time.sleep(0.02)
    brokers.produce(topic, 0, [b"after"])
    consumer = consumer_of(brokers)
    consumer.assign([(topic, 0)])
    assert consumer.seek_to_time(topic, 0, int(moment * 1000)) == 1
    assert values(read(consumer, 1)) == [b"after"]
    assert consumer.seek_to_time(topic, 0, datetime.fromtimestamp(moment, UTC)) == 1
    assert consumer.seek_to_time(topic, 0, 0) == 0
    assert consumer.seek_to_time(topic, 0, int(moment * 1000) + 3_600_000) == 2, "none: the end"


def test_seek_behind_the_end_resets_or_raises(brokers, topic, consumer_of):
    brokers.produce(topic, 0, numbered(0, 5))
    lenient, strict = consumer_of(brokers), consumer_of(brokers, auto_offset_reset="none")
    for consumer in (lenient, strict):
        consumer.assign([(topic, 0)])
        consumer.seek(topic, 0, 1000)
    assert read(lenient, 1)[0].offset == 0
    with pytest.raises(OffsetOutOfRange) as caught:
        settle([strict], lambda: False)
    assert (caught.value.offset, caught.value.start, caught.value.end) == (1000, 0, 5)


def test_what_retention_removed_resets_or_raises(brokers, topic, unique, consumer_of):
    group = unique("g")
    brokers.produce(topic, 0, numbered(0, 10))
    with consumer_of(brokers, group=group, topics=[topic]) as consumer:
        read(consumer, 2)
        consumer.commit()
    brokers.trim(topic, {0: 5})
    with consumer_of(brokers, group=group, topics=[topic], auto_offset_reset="none") as strict:
        with pytest.raises(OffsetOutOfRange) as caught:
            settle([strict], lambda: False)
        assert (caught.value.offset, caught.value.start) == (2, 5)
    assert values(read(consumer_of(brokers, group=group, topics=[topic]), 5)) == numbered(5, 10)


def test_a_paused_partition_waits(brokers, topic, consumer_of):
    brokers.produce(topic, 0, [b"a"])
    brokers.produce(topic, 1, [b"b"])
    consumer = consumer_of(brokers)
    consumer.assign([(topic, 0), (topic, 1)])
    consumer.pause((topic, 0))
    assert values(read(consumer, 1)) == [b"b"]
    assert consumer.poll(timeout_s=0.3) == []
    consumer.resume((topic, 0))
    assert values(read(consumer, 1)) == [b"a"]


def test_nacked_records_come_back_and_hold_up_the_commit(brokers, topic, unique, consumer_of):
    group = unique("g")
    brokers.produce(topic, 0, numbered(0, 10))
    consumer = consumer_of(brokers, group=group, topics=[topic])
    records = read(consumer, 10)
    consumer.nack(records[4], delay_s=0.3)
    consumer.commit()
    assert consumer.committed(topic, 0) == 4
    assert consumer.poll(timeout_s=0.0) == []
    assert read(consumer, 1) == [records[4]]
    consumer.commit()
    assert consumer.committed(topic, 0) == 10


def test_iteration_goes_record_by_record(brokers, topic, unique, consumer_of):
    brokers.produce(topic, 0, numbered(0, 5))
    consumer = consumer_of(brokers, group=unique("g"), topics=[topic])
    for record in consumer:
        if record.offset == 2:
            break
    assert consumer.position(topic, 0) == 3


def test_a_slow_application_bounds_what_is_fetched_ahead(brokers, topic, consumer_of):
    for _ in range(20):
        brokers.produce(topic, 0, [b"x" * 10_000] * 10)
    consumer = consumer_of(brokers, config={"fetch_bytes": 50_000, "buffer_bytes": 300_000})
    consumer.assign([(topic, 0)])
    read(consumer, 1)
    time.sleep(0.5)
    (state,) = consumer.core.positions.states()
    assert state.buffered <= 300_000
    assert len(read(consumer, 199)) == 199


def test_reads_are_spread_over_the_replicas(brokers, unique, consumer_of):
    topic = unique("wide")
    brokers.topic(topic, partitions=6)
    for partition in range(6):
        brokers.produce(topic, partition, [b"x"])
    brokers.asked.clear()
    consumer = consumer_of(brokers)
    consumer.assign([(topic, p) for p in range(6)])
    read(consumer, 6)
    assert {rid for _, rid, method in brokers.asked if method == "fetch"} == {0, 1, 2}


def test_records_of_a_large_topic_arrive_dense(brokers, topic, consumer_of):
    for _ in range(10):
        brokers.produce(topic, 0, [b"v" * 100] * 2_000)
    consumer = consumer_of(brokers, config={"fetch_bytes": 100_000})
    consumer.assign([(topic, 0)])
    assert [r.offset for r in read(consumer, 20_000)] == list(range(20_000))


class TestBadInput:
    def test_unknown_topic(self, brokers, unique, consumer_of):
        with pytest.raises(UnknownTopic, match="create_topic"):
            consumer_of(brokers, group=unique("g"), topics=[unique("nowhere")])
        with pytest.raises(UnknownTopic):
            consumer_of(brokers).assign([(unique("nowhere"), 0)])

    def test_partition_out_of_range(self, brokers, topic, consumer_of):
        with pytest.raises(UnknownTopic, match="has no partition 2"):
            consumer_of(brokers).assign([(topic, 2)])

    def test_a_bare_string_is_not_a_list_of_topics(self, brokers, topic, unique, consumer_of):
        with pytest.raises(InvalidMessage, match="list of str"):
            consumer_of(brokers, group=unique("g"), topics=topic)

    def test_topics_without_a_group_and_the_reverse(self, brokers, topic, unique, consumer_of):
        with pytest.raises(ConfigError, match="group"):
            consumer_of(brokers, topics=[topic])
        with pytest.raises(ConfigError, match="group"):
            consumer_of(brokers).subscribe([topic])
        with pytest.raises(ConfigError, match="group"):
            consumer_of(brokers, group=unique("g")).assign([(topic, 0)])
        with pytest.raises(ConfigError, match="group"):
            consumer_of(brokers).commit()
        with pytest.raises(ConfigError, match="group"):
            consumer_of(brokers).committed(topic, 0)
        with pytest.raises(ConfigError, match="group"):
            consumer_of(brokers, group="")

    def test_auto_offset_reset(self, brokers, consumer_of):
        with pytest.raises(ConfigError, match="earliest"):
            consumer_of(brokers, auto_offset_reset="sometimes")

    def test_a_partition_that_is_not_assigned(self, brokers, topic, unique, consumer_of):
        consumer = consumer_of(brokers, group=unique("g"), topics=[topic])
        read_nothing = consumer.poll(timeout_s=0.0)
        assert read_nothing == []
        for call in (
            lambda: consumer.seek(unique("other"), 0, 0),
            lambda: consumer.position(unique("other"), 0),
            lambda: consumer.commit({(unique("other"), 0): 1}),
            lambda: consumer.pause((unique("other"), 0)),
        ):
            with pytest.raises(StaleMember, match="not assigned"):
                call()

    @pytest.mark.parametrize(
        "call",
        [
            lambda c, t: c.poll(max_records=0),
            lambda c, t: c.poll(timeout_s=-1),
            lambda c, t: c.poll(timeout_s="1"),
            lambda c, t: c.seek(t, 0, -1),
            lambda c, t: c.seek(t, 0, 1.5),
            lambda c, t: c.seek(t, "0", 1),
            lambda c, t: c.seek_to_time(t, 0, 1.5),
            lambda c, t: c.seek_to_time(t, 0, datetime(2024, 1, 1)),
            lambda c, t: c.pause(t),
            lambda c, t: c.assign([t]),
        ],
    )
    def test_wrong_types_and_values(self, brokers, topic, consumer_of, call):
        consumer = consumer_of(brokers)
        consumer.assign([(topic, 0)])
        with pytest.raises(InvalidMessage):
            call(consumer, topic)

    def test_nack_of_what_was_not_returned(self, brokers, topic, consumer_of):
        brokers.produce(topic, 0, numbered(0, 2))
        consumer = consumer_of(brokers)
        consumer.assign([(topic, 0)])
        record = read(consumer, 2)[1]
        with pytest.raises(InvalidMessage, match="delay_s"):
            consumer.nack(record, delay_s=-1)
        consumer.seek(topic, 0, 0)
        with pytest.raises(InvalidMessage, match="not returned"):
            consumer.nack(record)

    def test_a_closed_consumer(self, brokers, topic, unique, consumer_of):
        consumer = consumer_of(brokers, group=unique("g"), topics=[topic])
        consumer.close()
        consumer.close()
        for call in (
            consumer.poll,
            consumer.commit,
            consumer.assignment,
            lambda: consumer.subscribe([topic]),
            lambda: consumer.committed(topic, 0),
            lambda: consumer.position(topic, 0),
            lambda: consumer.seek(topic, 0, 0),
            lambda: consumer.seek_to_beginning(),
            lambda: consumer.pause(),
        ):
            with pytest.raises(Closed, match="create a new one"):
                call()
        assert list(consumer) == []

    def test_closing_ends_a_poll_of_another_thread(self, brokers, topic, unique, consumer_of):
        consumer = consumer_of(brokers, group=unique("g"), topics=[topic])
        caught = []

        def poll():
            try:
                consumer.poll(timeout_s=30.0)
            except Closed as error:
                caught.append(error)

        thread = threading.Thread(target=poll)
        thread.start()
        time.sleep(0.2)
        consumer.close()
        thread.join(5.0)
        assert len(caught) == 1
