"""Consumer groups over real broker services: sharing, hand-over, deaths, zombies, fail-over."""

from __future__ import annotations

import time

import pytest

from escrowmq.actors.client.background import Threads
from escrowmq.replication.errors import ConfigError, OffsetOutOfRange, StaleMember
from tests.support.polling import numbered, read, settle, values

PARTITIONS = 4


def vanish(consumer):
    """Stop a consumer as if its process were killed: it does not leave; heartbeats and fetches end."""
    consumer.core.membership_thread._closing = True
    consumer.core.membership_thread.wake()
    consumer.core.membership_thread.join_thread()
    consumer.core.fetch.close()


def test_members_share_the_partitions(brokers, topic, unique, consumer_of):
    group = unique("g")
    a = consumer_of(brokers, group=group, topics=[topic])
    settle([a], lambda: len(a.assignment()) == 4)
    b = consumer_of(brokers, group=group, topics=[topic])
    settle([a, b], lambda: len(a.assignment()) == len(b.assignment()) == 2)
    assert sorted(a.assignment() + b.assignment()) == [(topic, p) for p in range(4)]


def test_nothing_is_read_twice_when_everybody_commits_before_polling_again(
    brokers, topic, unique, consumer_of
):
    group = unique("g")
    for partition in range(4):
        brokers.produce(topic, partition, numbered(0, 200))
    seen = []
    members = []
    deadline = time.monotonic() + 20
    while len(seen) < 800 and time.monotonic() < deadline:
        if len(members) < 3 and len(seen) >= len(members) * 100:
            members.append(consumer_of(brokers, group=group, topics=[topic]))
        for member in members:
            records = member.poll(max_records=20, timeout_s=0.05)
            seen += [(r.partition, r.offset) for r in records]
            member.commit()
    assert sorted(seen) == [(p, o) for p in range(4) for o in range(200)]


def test_a_member_that_leaves_hands_over_at_once(brokers, topic, unique, consumer_of):
    group = unique("g")
    a = consumer_of(brokers, group=group, topics=[topic])
    b = consumer_of(brokers, group=group, topics=[topic])
    settle([a, b], lambda: len(a.assignment()) == len(b.assignment()) == 2)
    a.close()
    started = time.monotonic()
    settle([b], lambda: len(b.assignment()) == 4)
    assert time.monotonic() - started < 8.0, "before its session of 10 s ends"


def test_a_dead_members_partitions_move_on_and_what_it_had_not_committed_comes_again(
    brokers, topic, unique, consumer_of
):
    group = unique("g")
    brokers.produce(topic, 0, numbered(0, 10))
    quick = {"session_timeout_s": 1.0}
    a = consumer_of(brokers, group=group, topics=[topic], config=quick)
    read(a, 6)
    a.commit()
    read(a, 4)
    vanish(a)
    b = consumer_of(brokers, group=group, topics=[topic], config=quick)
    assert values(read(b, 4)) == numbered(6, 10)


def test_a_zombies_commit_is_refused(brokers, topic, unique, consumer_of):
    group = unique("g")
    brokers.produce(topic, 0, numbered(0, 10))
    a = consumer_of(brokers, group=group, topics=[topic], config={"session_timeout_s": 0.5})
    read(a, 3)
    a.core.membership_thread._closing = True  # hangs: it sends no heartbeats
    a.core.membership_thread.wake()
    b = consumer_of(brokers, group=group, topics=[topic])
    assert len(read(b, 10)) == 10
    b.commit()
    with pytest.raises(StaleMember, match="again"):
        # It joins again, as it is alive after all, but b was given its partitions meanwhile.
        a.core.membership_thread._closing = False
        _restart(a.core.membership_thread)
        a.commit()
    assert b.committed(topic, 0) == 10


def _restart(keeper):
    keeper._worker = Threads().worker(keeper._step, "restarted")
    keeper._worker.start()


def test_a_member_that_stops_polling_leaves_and_comes_back(brokers, topic, unique, consumer_of):
    group = unique("g")
    brokers.produce(topic, 0, numbered(0, 10))
    a = consumer_of(brokers, group=group, topics=[topic], config={"poll_interval_max_s": 0.5})
    read(a, 5)
    b = consumer_of(brokers, group=group, topics=[topic])
    settle([b], lambda: len(b.assignment()) == 4)
    with pytest.raises(StaleMember):
        a.commit()
    settle([a, b], lambda: len(a.assignment()) == len(b.assignment()) == 2)


def test_subscribing_to_other_topics(brokers, topic, unique, consumer_of):
    other = unique("other")
    brokers.topic(other)
    brokers.produce(other, 0, [b"x"])
    brokers.produce(topic, 0, [b"a", b"b"])
    consumer = consumer_of(brokers, group=unique("g"), topics=[topic])
    read(consumer, 1)
    consumer.subscribe([topic, other])
    assert values(read(consumer, 2)) in ([b"b", b"x"], [b"x", b"b"])
    consumer.subscribe([other])
    settle([consumer], lambda: consumer.assignment() == [(other, 0)])
    consumer.commit()


def test_a_deleted_topic_leaves_the_assignment(brokers, topic, unique, consumer_of, admin_of):
    other = unique("other")
    brokers.topic(other)
    consumer = consumer_of(brokers, group=unique("g"), topics=[topic, other])
    settle([consumer], lambda: len(consumer.assignment()) == 5)
    admin_of(brokers).delete_topic(other)
    settle([consumer], lambda: len(consumer.assignment()) == 4)


def test_an_offset_beyond_the_end_is_not_committed(brokers, topic, unique, consumer_of):
    """Nor is a position that was sought: the group would silently skip what comes next."""
    brokers.produce(topic, 0, numbered(0, 3))
    consumer = consumer_of(brokers, group=unique("g"), topics=[topic])
    settle([consumer], lambda: len(consumer.assignment()) == 4)
    with pytest.raises(OffsetOutOfRange, match=r"offset 4 of .* is outside \[0, 3\]"):
        consumer.commit({(topic, 0): 4})
    consumer.seek(topic, 0, 1_000_000)
    with pytest.raises(OffsetOutOfRange):
        consumer.commit()
    assert consumer.committed(topic, 0) is None
    consumer.commit({(topic, 0): 3, (topic, 1): 0})
    assert consumer.committed(topic, 0) == 3


def test_who_commits_what_was_read_asks_for_no_end(brokers, topic, unique, consumer_of):
    brokers.produce(topic, 0, numbered(0, 3))
    consumer = consumer_of(brokers, group=unique("g"), topics=[topic])
    read(consumer, 3)
    settle([consumer], lambda: all(consumer.position(topic, p) is not None for p in range(4)))
    brokers.asked.clear()
    consumer.commit({(topic, 0): 3})
    assert "offsets" not in [method for _, _, method in brokers.asked]


def test_a_group_has_no_control_characters_in_its_name(brokers, topic, unique, consumer_of):
    name = unique("g") + "\n"
    with pytest.raises(ConfigError, match="choose a name without them"):
        consumer_of(brokers, group=name, topics=[topic])
