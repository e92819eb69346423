"""Administration against real broker services: topics, transactions by hand, groups."""

from __future__ import annotations

import threading
import time

import pytest

from escrowmq.actors.admin import group_offsets
from escrowmq.actors.producer.encoding.block_answers import opened_at
from escrowmq.replication.errors import (
    Closed,
    ConfigError,
    TopicExists,
    TransactionConflict,
    TransactionSettled,
    UnknownTopic,
    UnknownTransaction,
)
from escrowmq.replication.format import codec, ops
from escrowmq.replication.format.settings import alter_problem
from escrowmq.replication.model import ResultCode, TransactionState
from tests.support.brokers import Brokers, taking
from tests.support.polling import read, settle
from tests.support.waiting import wait_until

COMMITTED, ROLLBACK = TransactionState.COMMITTED, TransactionState.ROLLBACK


@pytest.fixture
def admin(brokers, admin_of):
    return admin_of(brokers)


def prepare(brokers, app, tx_id, topic, partitions=(0,), home=None):
    """Opens a transaction with one message per partition, in its groups, as a producer does."""
    by_group = {}
    for partition in partitions:
        by_group.setdefault(brokers.group_number(topic, partition), []).append(partition)
    home = next(iter(by_group)) if home is None else home
    row = codec.encode_row(None, b"value", None, tx_id)
    home_index = []
    for gid in sorted(by_group, key=lambda gid: gid != home):
        if len(by_group) == 1:
            extra = ops.NO_EXTRA
        elif gid == home:
            extra = ops.PrepareExtra(participants=sorted(set(by_group) - {home}), parts=1)
        else:
            extra = ops.PrepareExtra(home_index=home_index)
        at_home = -1 if gid == home else home
        query_ids, digests = ["q-" + tx_id], [7]
        frames = [
            ops.prepare(
                app, topic, [tx_id], query_ids, 60_000, 0, digests, at_home, len(by_group[gid]), extra
            )
        ]
        frames += [ops.pre_message(topic, p, [0], [len(row)], [row]) for p in by_group[gid]]
        ((code, *info),) = brokers.groups[gid].submit(*frames)
        assert code == ResultCode.OK
        if gid == home and extra is not None:
            home_index, _ = opened_at([code, *info], 1)


def test_a_topic_of_a_name_that_is_refused_now_stays(brokers, admin, unique):
    name = unique("größe")
    with pytest.raises(ConfigError, match="not allowed for a new topic"):
        admin.create_topic(name)
    brokers.topic(name)  # no client creates it
    assert admin.create_topic(name, retention_ms=-1).name == name
    assert admin.describe_topic(name).info.name == name
    assert alter_problem(name, {"check_max": 3}) is None
    admin.delete_topic(name)
    with pytest.raises(ConfigError, match="not allowed for a new topic"):
        admin.create_topic(name)


def test_who_belongs_to_each_group(brokers, admin):
    (group,) = admin.members()
    assert (group.group, group.voters, group.learners) == (0, (0, 1, 2), ())
    assert (group.version, group.next_replica, group.change_id, group.applied) == (1, 3, "", True)
    assert group.leader in group.voters


class TestTopics:
    def test_create_list_describe_delete(self, brokers, admin, unique):
        name = unique("orders")
        made = admin.create_topic(name, partitions=3, retention_ms=60_000, on_check_exhausted="rollback")
        assert made in admin.topics()
        brokers.produce(name, 1, [b"x"] * 5)
        described = admin.describe_topic(name)
        assert described.info.retention_ms == 60_000
        assert [(p.partition, p.group, p.start, p.end) for p in described.partitions] == [
            (0, 0, 0, 0),
            (1, 0, 0, 5),
            (2, 0, 0, 0),
        ]
        assert described.messages == 5
        assert described.partitions[0].leader == brokers.leader()
        admin.delete_topic(name)
        assert name not in [topic.name for topic in admin.topics()]

    def test_creating_it_again(self, admin, unique):
        name = unique("orders")
        admin.create_topic(name, partitions=3)
        admin.create_topic(name, partitions=3)
        with pytest.raises(TopicExists, match="other settings: partitions is 3, not 4"):
            admin.create_topic(name, partitions=4)

    def test_creating_a_topic_again_of_which_little_was_stated(self, brokers, admin, unique):
        name = unique("orders")
        ((code, _),) = brokers.groups[0].submit(ops.create_topic(name, {"partitions": 3}))
        assert code == ResultCode.OK
        assert admin.create_topic(name, partitions=3).retention_ms == 604_800_000
        assert admin.describe_topic(name).kept == "deleted after 7 days"
        with pytest.raises(TopicExists, match="retention_ms is 604800000, not -1"):
            admin.create_topic(name, partitions=3, retention_ms=-1)

    def test_messages_are_kept_for_ever_unless_something_else_is_said(self, admin, unique):
        name = unique("orders")
        assert admin.create_topic(name).retention_ms == -1
        assert admin.describe_topic(name).kept == "for ever"

    def test_deleting_is_done_though_the_first_answer_was_lost(self, brokers, admin, unique):
        name, lost = unique("orders"), []
        admin.create_topic(name)

        def lossy(gid, rid, method, args, done):
            if method != "submit" or lost:
                return False
            lost.append(method)
            brokers.carry(gid, rid, method, args, lambda answer, error: done(None, ConnectionError("lost")))
            return True

        with taking(brokers, lossy):
            admin.delete_topic(name)
        assert lost
        assert name not in [topic.name for topic in admin.topics()]
        with pytest.raises(UnknownTopic):
            admin.delete_topic(name)

    def test_what_does_not_exist(self, admin, unique):
        for call in (admin.describe_topic, admin.delete_topic):
            with pytest.raises(UnknownTopic, match="create it"):
                call(unique("nowhere"))

    @pytest.mark.parametrize(
        ("args", "options", "says"),
        [
            (("",), {}, "name"),
            (("a/b",), {}, "name"),
            ((b"x",), {}, "name"),
            (("t", 0), {}, "partitions"),
            (("t", "3"), {}, "partitions"),
            (("t", 10**9), {}, "partitions"),
            (("t",), {"retention": 5}, "retention_bytes"),
            (("t",), {"retention_ms": "5"}, "retention_ms"),
            (("t",), {"check_max": 0}, "check_max"),
            (("t",), {"on_check_exhausted": "drop"}, "hold"),
        ],
    )
    def test_bad_settings_are_named(self, admin, args, options, says):
        with pytest.raises(ConfigError, match=says):
            admin.create_topic(*args, **options)


class TestTransactions:
    def test_listing_by_app_topic_and_limit(self, brokers, admin, unique):
        topic, app, other = unique("t"), unique("app"), unique("app")
        admin.create_topic(topic)
        for i in range(5):
            prepare(brokers, app, f"x{i}", topic)
        prepare(brokers, other, "y", topic)
        listed = admin.list_transactions(app=app)
        assert [t.tx_id for t in listed] == [f"x{i}" for i in range(5)]
        assert {(t.query_id, t.messages, t.checks, t.parked) for t in listed[:1]} == {("q-x0", 1, 0, False)}
        assert abs(listed[0].prepared_ms / 1000 - time.time()) < 60
        assert len(admin.list_transactions(topic=topic)) == 6
        assert len(admin.list_transactions(app=app, limit=2)) == 2
        assert admin.list_transactions(app=app, state="PARKED") == []
        assert len(admin.list_transactions(app=app, state=TransactionState.PREPARE)) == 5

    def test_settled_ones_are_not_listed(self, admin):
        with pytest.raises(ConfigError, match="PARKED"):
            admin.list_transactions(state=COMMITTED)
        with pytest.raises(ConfigError, match="limit"):
            admin.list_transactions(limit=0)

    def test_deciding_by_hand_is_final_and_audited(self, brokers, admin, unique):
        topic, app = unique("t"), unique("app")
        admin.create_topic(topic)
        for tx_id in ("keep", "drop"):
            prepare(brokers, app, tx_id, topic)
        assert admin.show_transaction("keep", app).state is TransactionState.PREPARE
        assert admin.resolve_transaction("keep", COMMITTED, app=app, by="ann").state is COMMITTED
        assert admin.resolve_transaction("drop", ROLLBACK, app=app, by="ann").state is ROLLBACK
        assert admin.describe_topic(topic).messages == 1
        for tx_id in ("keep", "drop"):
            shown = admin.show_transaction(tx_id, app)
            assert shown.decided_by == "operator:ann" and shown.decided_ms is not None
            assert abs(shown.decided_ms / 1000 - time.time()) < 60
        assert admin.resolve_transaction("keep", COMMITTED, app=app, by="bob").decided_by == "operator:ann"
        with pytest.raises(TransactionConflict, match="COMMITTED"):
            admin.resolve_transaction("keep", ROLLBACK, app=app)
        audit = brokers.groups[0].leader().parts.inspection.audit()[1]
        decided = [(entry.by, entry.tx_id, entry.outcome) for entry in audit if entry.app == app]
        assert decided == [("operator:ann", "keep", "COMMITTED"), ("operator:ann", "drop", "ROLLBACK")]

    def test_a_parked_transaction_is_due_again_when_it_is_asked_for(self, brokers, admin, unique):
        topic, app = unique("t"), unique("app")
        admin.create_topic(topic, check_max=1)
        prepare(brokers, app, "x", topic)
        due = brokers.groups[0].leader().parts.due_checks
        assert not admin.recheck_transaction("x", app).open[0].parked
        brokers.groups[0].submit(ops.checked(app, ["x"]))
        assert admin.list_transactions("PARKED", app)
        assert admin.recheck_transaction("x", app).open[0].parked
        wait_until(
            lambda: due.lock_pairs([(app, topic, 1)], 5.0, "me")[1][0].tx_ids,
            5.0,
            "it is handed out",
        )
        admin.resolve_transaction("x", ROLLBACK, app)
        with pytest.raises(TransactionSettled, match="ROLLBACK"):
            admin.recheck_transaction("x", app)
        with pytest.raises(UnknownTransaction):
            admin.recheck_transaction(unique("never"), app)

    def test_what_no_operator_decided_names_none(self, brokers, admin, unique):
        topic, app = unique("t"), unique("app")
        admin.create_topic(topic)
        prepare(brokers, app, "x", topic)
        assert admin.show_transaction("x", app).decided_by is None
        brokers.groups[0].submit(ops.rollback(app, ["x"]))
        shown = admin.show_transaction("x", app)
        assert (shown.state, shown.decided_by) in ((ROLLBACK, None), (ROLLBACK, "producer"))

    def test_a_settled_transaction_tells_its_life(self, brokers, admin, unique):
        """Its content, its checks, who decided it and when. Formerly only the outcome was kept."""
        topic, app = unique("t"), unique("app")
        admin.create_topic(topic)
        prepare(brokers, app, "x", topic)
        before = admin.show_transaction("x", app)
        assert before.checked_ms is None and not before.settled
        brokers.groups[0].submit(ops.checked(app, ["x"]))
        assert admin.show_transaction("x", app).checked_ms >= before.open[0].prepared_ms
        brokers.groups[0].submit(ops.commit(app, ["x"], by="feedback"))
        shown = admin.show_transaction("x", app)
        (life,) = shown.settled.values()
        opened = before.open[0]
        assert (life.query_id, life.topic, life.messages) == (opened.query_id, topic, opened.messages)
        assert (life.prepared_ms, life.checks) == (opened.prepared_ms, 1)
        assert (shown.state, shown.decided_by) == (COMMITTED, "feedback")
        assert opened.prepared_ms <= shown.checked_ms <= shown.decided_ms == life.decided_ms

    def test_an_id_that_two_apps_use_needs_the_app(self, brokers, admin, unique):
        topic, app, other, tx_id = unique("t"), unique("app"), unique("app"), unique("x")
        admin.create_topic(topic)
        prepare(brokers, app, tx_id, topic)
        assert admin.show_transaction(tx_id).app == app
        prepare(brokers, other, tx_id, topic)
        with pytest.raises(ConfigError, match="app="):
            admin.resolve_transaction(tx_id, COMMITTED)
        assert admin.resolve_transaction(tx_id, COMMITTED, app=other).app == other

    def test_bad_input(self, brokers, admin, unique):
        with pytest.raises(UnknownTransaction):
            admin.show_transaction(unique("x"))
        with pytest.raises(UnknownTransaction):
            admin.resolve_transaction(unique("x"), COMMITTED)
        with pytest.raises(ConfigError, match="COMMITTED or ROLLBACK"):
            admin.resolve_transaction("x", TransactionState.UNKNOWN)
        with pytest.raises(ConfigError, match="who does it"):
            admin.resolve_transaction("x", COMMITTED, by="")


class TestGroups:
    def test_members_offsets_and_lag(self, brokers, admin, unique, consumer_of):
        topic, group = unique("t"), unique("g")
        admin.create_topic(topic, partitions=2)
        brokers.produce(topic, 0, [b"x"] * 10)
        consumer = consumer_of(brokers, group=group, topics=[topic])
        read(consumer, 4)
        consumer.commit()
        assert group in admin.groups()
        described = admin.describe_group(group)
        (member,) = described.members
        assert member.partitions == ((topic, 0), (topic, 1))
        assert member.topics == (topic,)
        assert [(p.partition, p.member, p.committed, p.end, p.lag) for p in described.partitions] == [
            (0, member.member, 4, 10, 6),
            (1, member.member, 0, 0, 0),
        ]
        assert described.lag == 6
        consumer.close()
        described = admin.describe_group(group)
        assert described.members == ()
        assert described.partitions[0].committed == 4
        assert group in admin.groups()

    def test_many_groups_are_asked_at_a_time(self, brokers, admin, unique):
        """They were asked one after the other: 10,000 groups took as long as 20,000 calls."""
        waiting, most = [], 0

        def late(*call):
            nonlocal most
            if call[2] == "group_describe":
                waiting.append(call)
                most = max(most, len(waiting))
                threading.Timer(0.1, lambda: brokers.carry(*waiting.pop())).start()
            return call[2] == "group_describe"

        names = [unique("g") for _ in range(8)]
        with taking(brokers, late):
            assert [d.group for d in admin.describe_groups(names)] == names
        assert most == 8

    def test_groups_are_described_in_the_order_asked_for_also_in_portions(self, brokers, admin, unique):
        count = group_offsets.AT_A_TIME + 3
        topic, names = unique("t"), [unique("g") for _ in range(count)]
        admin.create_topic(topic, partitions=2)
        brokers.produce(topic, 1, [b"x"] * count)
        for n, name in enumerate(names):
            assert brokers.groups[0].submit(ops.group_offsets(name, topic, {1: n})) == [[0]]
        described = admin.describe_groups(names)
        assert [(d.group, d.lag) for d in described] == [(name, count - n) for n, name in enumerate(names)]

    def test_a_group_that_nobody_knows(self, admin, unique):
        described = admin.describe_group(unique("g"))
        assert (described.members, described.partitions) == ((), ())


def test_a_closed_admin(brokers, admin):
    admin.close()
    admin.close()
    for call in (admin.topics, admin.status, admin.groups, lambda: admin.create_topic("t")):
        with pytest.raises(Closed, match="create a new one"):
            call()


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """Two broker groups of one replica each: enough for transactions that span groups."""
    running = Brokers(tmp_path_factory.mktemp("wide"), groups=2, replicas=1)
    yield running
    running.close()


class TestSeveralBrokerGroups:
    def test_a_topic_is_created_in_all_of_them_and_read_from_all(self, wide, admin_of, consumer_of, unique):
        admin, topic = admin_of(wide), unique("t")
        admin.create_topic(topic, partitions=4)
        for partition in range(4):
            wide.produce(topic, partition, [b"x"] * (partition + 1))
        described = admin.describe_topic(topic)
        assert {p.group for p in described.partitions} == {0, 1}
        assert [p.end for p in described.partitions] == [1, 2, 3, 4]
        for group in (unique("g"), unique("g") + "x", unique("g") + "xy"):
            consumer = consumer_of(wide, group=group, topics=[topic])
            read(consumer, 10)
            consumer.commit()
            settle([consumer], lambda: True)
            assert admin.describe_group(group).lag == 0
        assert len(admin.groups()) >= 3

    def test_a_transaction_over_both_is_decided_at_home_and_follows_elsewhere(self, wide, admin_of, unique):
        admin, topic, app = admin_of(wide), unique("t"), unique("app")
        admin.create_topic(topic, partitions=2)
        for home, decision in ((0, COMMITTED), (1, ROLLBACK)):
            tx_id = unique("x")
            prepare(wide, app, tx_id, topic, partitions=(0, 1), home=home)
            assert [t.tx_id for t in admin.list_transactions(app=app)] == [tx_id]
            assert set(admin.show_transaction(tx_id).open) == {0, 1}
            shown = admin.resolve_transaction(tx_id, decision)
            assert shown.state is decision
            assert shown.open == {}
        assert admin.describe_topic(topic).messages == 2

    def test_half_a_decision_is_completed_but_never_contradicted(self, wide, admin_of, unique):
        admin, topic, app, tx_id = admin_of(wide), unique("t"), unique("app"), unique("x")
        admin.create_topic(topic, partitions=2)
        prepare(wide, app, tx_id, topic, partitions=(0, 1), home=0)
        wide.groups[0].submit(ops.commit(app, [tx_id]))
        assert admin.show_transaction(tx_id).state is COMMITTED
        with pytest.raises(TransactionConflict, match="COMMITTED"):
            admin.resolve_transaction(tx_id, ROLLBACK)
        assert admin.resolve_transaction(tx_id, COMMITTED).open == {}
        assert admin.describe_topic(topic).messages == 2
