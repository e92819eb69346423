"""Settings of consumer groups, and what kind a group is, in a cluster in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from escrowmq import ConfigError, GroupKindMismatch, Message, UnknownGroup
from escrowmq.actors.client import share_groups
from escrowmq.actors.client.results import submitting
from escrowmq.replication.format.share_ops import share_ack, share_create
from escrowmq.replication.model import ResultCode
from escrowmq.testing import InMemoryCluster


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    with InMemoryCluster() as made:
        made.admin.create_topic("orders")
        yield made


def make_share_group(cluster: InMemoryCluster, group: str = "mail") -> None:
    share_groups.set_group(submitting(cluster.admin.router, 10.0), 1, group, {"kind": "share"})


def test_settings_not_named_stay_and_all_are_told(cluster: InMemoryCluster) -> None:
    before = cluster.admin.set_group("mail")
    assert (before.max_attempts, before.lease_s, before.max_age_s, before.kind) == (16, 30.0, None, "")
    assert before.delays_s[:4] == (1.0, 5.0, 10.0, 30.0) and before.dead_letters == "keep"
    assert "mail" not in cluster.admin.groups(), "asking creates nothing"
    changed = cluster.admin.set_group("mail", max_attempts=3, delays_s=[0.5, 60], max_age_s=86_400)
    assert (changed.max_attempts, changed.delays_s, changed.max_age_s) == (3, (0.5, 60.0), 86_400.0)
    again = cluster.admin.set_group("mail", max_age_s=None, dead_letters="drop", lease_s=2.5)
    assert (again.max_attempts, again.max_age_s) == (3, None)
    assert (again.dead_letters, again.lease_s) == ("drop", 2.5)
    described = cluster.admin.describe_group("mail")
    assert described.share is not None and described.share.settings == again
    assert "mail" in cluster.admin.groups()


@pytest.mark.parametrize(
    "settings",
    [
        {"max_attempts": 0}, {"max_attempts": 1.5}, {"max_attempts": "3"}, {"max_attempts": True},
        {"delays_s": []}, {"delays_s": 5}, {"delays_s": "5"}, {"delays_s": [-1]},
        {"delays_s": [11 * 366 * 86_400.0]}, {"delays_s": [1] * 101}, {"delays_s": [None]},
        {"delays_s": [float("nan")]},
        {"lease_s": 0.5}, {"lease_s": 0}, {"lease_s": None}, {"lease_s": "30"}, {"lease_s": True},
        {"max_age_s": 0}, {"max_age_s": -5}, {"max_age_s": float("inf")},
        {"dead_letters": "burn"}, {"dead_letters": None}, {"kind": "share"}, {"attempts": 3},
    ],
)  # fmt: skip
def test_a_bad_setting_is_refused_by_name(cluster: InMemoryCluster, settings: dict[str, Any]) -> None:
    (name,) = settings
    with pytest.raises(ConfigError, match=name.split("_s")[0]):
        cluster.admin.set_group("mail", **settings)
    assert cluster.admin.groups() == []


@pytest.mark.parametrize("by", ["", None, 5, "x" * 101])
def test_whoever_changes_a_group_has_a_name(cluster: InMemoryCluster, by: Any) -> None:
    cluster.admin.set_group("mail", max_attempts=3)
    for change in (
        lambda: cluster.admin.set_group("mail", max_attempts=4, by=by),
        lambda: cluster.admin.delete_group("mail", by=by),
    ):
        with pytest.raises(ConfigError, match="by must name who does it, in 1 to 100 characters"):
            change()
    assert cluster.admin.set_group("mail").max_attempts == 3


@pytest.mark.parametrize("group", [None, 7, b"mail", "\ud800", ""])
def test_what_is_no_name_of_a_group_is_refused_everywhere(cluster: InMemoryCluster, group: Any) -> None:
    admin = cluster.admin
    for call in (
        admin.describe_group,
        admin.delete_group,
        admin.dead_letters,
        admin.redrive,
        lambda name: admin.set_group(name, max_attempts=3),
        lambda name: admin.drop_dead_letters(name, None),
        lambda name: admin.dead_letter(name, "0-0"),
        lambda name: admin.plan_group_reset(name, "earliest", "orders"),
        lambda name: admin.reset_group(name, "earliest", "orders"),
    ):
        with pytest.raises((ConfigError, UnknownGroup), match="group"):
            call(group)


@pytest.mark.parametrize("group", ["", "__retry.mail", "__x", "a b", "x" * 181, "a/b"])
def test_a_group_needs_a_name_that_topics_can_bear(cluster: InMemoryCluster, group: str) -> None:
    with pytest.raises(ConfigError, match="group"):
        cluster.admin.set_group(group, max_attempts=3)


def test_a_share_group_is_not_read_by_offsets(cluster: InMemoryCluster) -> None:
    make_share_group(cluster)
    with pytest.raises(GroupKindMismatch) as caught:
        cluster.consumer("mail", ["orders"])  # it commits its first offsets
    assert (caught.value.group, caught.value.kind) == ("mail", "share")
    with (
        cluster.consumer("mail", ["orders"], auto_offset_reset="earliest") as consumer,
        pytest.raises(GroupKindMismatch, match="share_consumer"),
    ):
        consumer.poll(timeout_s=1)
    with pytest.raises(GroupKindMismatch):
        cluster.admin.reset_group("mail", "earliest", "orders")
    assert cluster.admin.describe_group("mail").kind == "share"


def test_a_group_with_offsets_does_not_become_a_share_group(cluster: InMemoryCluster) -> None:
    cluster.consumer("billing", ["orders"]).close()
    with pytest.raises(GroupKindMismatch) as caught:
        make_share_group(cluster, "billing")
    assert caught.value.kind == "stream"
    with cluster.consumer("billing", ["orders"]) as consumer:
        consumer.poll(timeout_s=0)
        consumer.commit()
    assert cluster.admin.describe_group("billing").kind == "stream"


def test_a_member_that_has_not_committed_finds_out_at_its_commit(cluster: InMemoryCluster) -> None:
    with cluster.producer("shop") as producer:
        producer.send(Message("orders", b"x")).result(0)
    with cluster.consumer("mail", ["orders"], auto_offset_reset="earliest") as consumer:
        assert len(consumer.poll()) == 1
        make_share_group(cluster)
        with pytest.raises(GroupKindMismatch):
            consumer.commit()


def test_a_share_group_is_described_by_what_is_not_final(cluster: InMemoryCluster) -> None:
    with cluster.producer("shop") as producer:
        for _ in range(10):
            producer.send(Message("orders", b"x")).result(0)
    make_share_group(cluster)
    topic_id = cluster.admin.describe_topic("orders").info.topic_id
    for request in (
        share_create("mail", "orders", 0, "earliest", topic_id),
        share_ack("mail", "orders", 0, [0, 2, 5, 6], topic_id),
    ):
        assert submitting(cluster.admin.router, 10.0)(0, request)[0] == ResultCode.OK
    share = cluster.admin.describe_group("mail").share
    assert share is not None
    (each,) = share.partitions
    assert (each.topic, each.start, each.end, each.lag, each.ranges) == ("orders", 3, 10, 5, 1)
    assert (share.lag, share.leased, share.retrying, share.dead) == (5, 0, 0, 0)
    assert cluster.admin.describe_group("mail").lag == 5
