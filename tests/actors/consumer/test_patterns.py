"""Subscribing to a pattern: topics come and go while it is read."""

from __future__ import annotations

import re
import time

import pytest

from escrowmq.actors.client.consumer_groups import coordinator_group
from escrowmq.actors.consumer.subscribing import TopicPattern
from escrowmq.replication.calling.answers import TopicNames
from escrowmq.replication.errors import ConfigError, InvalidMessage
from tests.support.brokers import Brokers
from tests.support.polling import numbered, read, settle, values

QUICK = {"pattern_interval_s": 0.2}


def test_whole_names_match_and_internal_ones_never_do():
    pattern = TopicPattern("a.*|__.*")
    pattern.learn(TopicNames(1, 1, ["ab", "ba", "a", "__dead.a"]))
    assert pattern.topics == ("a", "ab")
    assert pattern.known == (1, 1)
    pattern.learn(TopicNames(1, 1, None))
    assert pattern.topics == ("a", "ab"), "nothing has changed"


@pytest.mark.parametrize("bad", ["(", 7, re.compile(b"a"), None, "a{99999999999999999999}", "(" * 5000])
def test_what_is_no_pattern(bad):
    with pytest.raises(InvalidMessage, match="regular expression"):
        TopicPattern(bad)


@pytest.mark.parametrize("reset", ["latest", "earliest"])
def test_topics_come_and_go(brokers, unique, consumer_of, admin_of, reset):
    """Also with "latest" a topic that is created later is read from its beginning."""
    kind, lost = unique("shop"), []
    brokers.topic(f"{kind}-a")
    brokers.topic(f"other-{kind}-a")
    brokers.produce(f"{kind}-a", 0, [b"old"])
    consumer = consumer_of(
        brokers, group=unique("g"), pattern=f"{kind}-.*", auto_offset_reset=reset, config=QUICK,
        on_revoke=lost.extend,
    )  # fmt: skip
    got = settle([consumer], lambda: consumer.assignment() == [(f"{kind}-a", 0)])
    brokers.topic(f"{kind}-b", 2)
    brokers.produce(f"{kind}-b", 1, [b"new"])
    expected = [b"new"] if reset == "latest" else [b"old", b"new"]
    got += settle([consumer], lambda: len(consumer.assignment()) == 3)
    assert sorted(values(got + read(consumer, len(expected) - len(got)))) == sorted(expected)
    admin_of(brokers).delete_topic(f"{kind}-a")
    settle([consumer], lambda: len(consumer.assignment()) == 2)
    assert lost == [(f"{kind}-a", 0)]
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        assert consumer.poll(timeout_s=0.2) == []
    consumer.commit()


def test_names_come_only_when_topics_have_changed(brokers, unique, consumer_of):
    kind = unique("shop")
    consumer = consumer_of(brokers, group=unique("g"), pattern=f"{kind}-.*", config=QUICK)
    thread = consumer.core.membership_thread
    told = []
    learn = thread.pattern.learn
    thread.pattern.learn = lambda answer, *late: (told.append(answer.names), learn(answer, *late))
    settle([consumer], lambda: len(told) >= 3)
    assert set(told) == {None}
    assert consumer.assignment() == [], "nothing matches yet, which is no error"
    brokers.topic(f"{kind}-a")
    settle([consumer], lambda: consumer.assignment() == [(f"{kind}-a", 0)])
    assert sum(names is not None for names in told) == 1


def test_several_members_and_several_groups_of_brokers(tmp_path, consumer_of):
    brokers = Brokers(tmp_path, groups=2)
    try:
        brokers.topic("a-1", 2)
        members = [consumer_of(brokers, group="g", pattern="a-.*", config=QUICK) for _ in range(2)]
        settle(members, lambda: all(len(member.assignment()) == 1 for member in members))
        brokers.topic("a-2", 2)
        brokers.produce("a-2", 0, numbered(0, 3))
        brokers.produce("a-2", 1, numbered(3, 6))
        got = settle(members, lambda: all(len(member.assignment()) == 2 for member in members))
        deadline = time.monotonic() + 10
        while len(got) < 6 and time.monotonic() < deadline:
            got += [record for member in members for record in member.poll(timeout_s=0.05)]
        assert sorted(values(got)) == numbered(0, 6)
    finally:
        brokers.close()


@pytest.fixture(scope="module")
def two_groups(tmp_path_factory):
    brokers = Brokers(tmp_path_factory.mktemp("groups"), groups=2)
    yield brokers
    brokers.close()


@pytest.mark.parametrize("early", [True, False], ids=["after subscribe", "before subscribe"])
@pytest.mark.parametrize("reset", ["latest", "earliest"])
@pytest.mark.parametrize("coordinator", [0, 1])
def test_a_topic_is_found_while_a_group_of_brokers_has_not_created_it_yet(
    two_groups, unique, consumer_of, coordinator, reset, early
):
    """Its offsets cannot all be looked up then, wherever offsets are kept. Other topics need not wait. Both
    for a new group and for one whose members look for topics."""
    brokers, kind = two_groups, unique("shop")
    name = next(f"{kind}{i}" for i in range(99) if coordinator_group(f"{kind}{i}", 2) == coordinator)

    def create():
        topic_id = brokers.groups[0].topic(f"{kind}-1", 2)
        brokers.topic(f"{kind}-2", 2)
        return topic_id

    topic_id = None if early else create()
    consumer = consumer_of(
        brokers, group=name, pattern=f"{kind}-.*", auto_offset_reset=reset, config=QUICK
    )  # fmt: skip
    topic_id = create() if early else topic_id
    settle([consumer], lambda: (f"{kind}-2", 1) in consumer.assignment())
    brokers.groups[1].topic(f"{kind}-1", 2, topic_id=topic_id)
    brokers.produce(f"{kind}-1", 0, numbered(0, 2))
    brokers.produce(f"{kind}-1", 1, numbered(2, 4))
    got = settle([consumer], lambda: len(consumer.assignment()) == 4)
    assert sorted(values(got + read(consumer, 4 - len(got)))) == numbered(0, 4)


def test_a_member_that_joins_before_the_others_have_found_a_topic_begins_at_its_start(
    brokers, unique, consumer_of
):
    """Otherwise it would set the group's offset behind what the others would have read. Only a new group has
    its first offsets at the ends."""
    kind, group = unique("shop"), unique("g")
    slow = {"pattern_interval_s": 3600.0}
    pattern = {"pattern": f"{kind}-.*", "auto_offset_reset": "latest", "config": slow}
    brokers.topic(f"{kind}-a")
    brokers.produce(f"{kind}-a", 0, [b"old"])
    members = [consumer_of(brokers, group=group, **pattern)]
    settle(members, lambda: members[0].assignment() == [(f"{kind}-a", 0)])
    brokers.topic(f"{kind}-b")
    brokers.produce(f"{kind}-b", 0, [b"new"])
    members.append(consumer_of(brokers, group=group, **pattern))
    assert members[1].committed(f"{kind}-b", 0) == 0
    assert consumer_of(brokers, group=unique("g"), **pattern).committed(f"{kind}-b", 0) == 1
    got = settle(members, lambda: (f"{kind}-b", 0) in members[1].assignment())
    assert values(got or read(members[1], 1)) == [b"new"]


def test_misuse(brokers, topic, unique, consumer_of):
    with pytest.raises(InvalidMessage, match="not to both"):
        consumer_of(brokers, group=unique("g"), topics=[topic], pattern="a")
    with pytest.raises(ConfigError, match="needs group"):
        consumer_of(brokers, pattern="a")
