"""Consumers with an instance id, over real broker services."""

from __future__ import annotations

import time

import pytest

from escrowmq.replication.errors import ConfigError, MemberFenced
from tests.support.polling import numbered, read, settle, values

PARTITIONS = 4


def test_a_restart_moves_nothing(brokers, topic, unique, consumer_of):
    group, moved, held = unique("g"), [], set()

    def assigned(partitions):
        moved.append(partitions)
        held.update(partitions)

    def revoked(partitions):
        moved.append(partitions)
        held.difference_update(partitions)

    for partition in range(4):
        brokers.produce(topic, partition, numbered(0, 5))
    a = consumer_of(brokers, group=group, topics=[topic], instance_id="a")
    b = consumer_of(brokers, group=group)
    b.subscribe([topic], on_assign=assigned, on_revoke=revoked)
    # Whoever joins first has all four for a moment.
    settle([a, b], lambda: len(a.assignment()) == len(b.assignment()) == 2 and held == {*b.assignment()})
    mine, moves = a.assignment(), len(moved)
    a.commit()
    a.close()
    started = time.monotonic()
    again = consumer_of(brokers, group=group, topics=[topic], instance_id="a")
    settle([again, b], lambda: again.assignment() == mine)
    assert time.monotonic() - started < 8.0, "long before the session of the first ends"
    assert len(moved) == moves


def test_the_first_of_two_that_live_is_fenced(brokers, topic, unique, consumer_of):
    group, lost = unique("g"), []
    brokers.produce(topic, 0, numbered(0, 3))
    a = consumer_of(brokers, group=group, topics=[topic], instance_id="a", on_lost=lost.extend)
    assert values(read(a, 2)) == [b"0", b"1"]
    again = consumer_of(brokers, group=group, topics=[topic], instance_id="a")
    got = settle([again], lambda: len(again.assignment()) == 4)
    with pytest.raises(MemberFenced, match=f"group '{group}' began with instance_id 'a'"):
        a.commit()
    for _ in range(2):
        with pytest.raises(MemberFenced):
            settle([a], lambda: False)
    assert len(lost) == 4 and a.assignment() == []
    with pytest.raises(MemberFenced):
        a.subscribe([topic])
    assert values(got + read(again, 3 - len(got))) == numbered(0, 3)
    again.commit()
    assert again.committed(topic, 0) == 3


@pytest.mark.parametrize(
    ("group", "instance_id", "match"),
    [
        (None, "a", "give group="),
        ("g", "", "1 to 200 characters"),
        ("g", "a" * 201, "1 to 200 characters"),
        ("g", "a\nb", "control characters"),
        ("g", 7, "must be a str"),
    ],
)
def test_ids_that_are_refused(brokers, consumer_of, group, instance_id, match):
    with pytest.raises(ConfigError, match=match):
        consumer_of(brokers, group=group, instance_id=instance_id)
