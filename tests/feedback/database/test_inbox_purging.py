"""Old rows of an inbox are deleted in slices, unless their record may be delivered again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from escrowmq import RetryPolicy, TopicInfo
from escrowmq.feedback.database import inbox as purging
from escrowmq.testing import InMemoryCluster
from tests.support.inboxes import Accounts, record
from tests.support.shops import ShopMaker

DAY_S = 86_400.0


class Admin:
    """``cluster.admin``, as far as a purge uses it: the group has committed offset 30 of partition 0."""

    def topics(self) -> list[TopicInfo]:
        return [TopicInfo(name, 2, "hold", 15, 1000, -1, -1) for name in ("orders", "late")]

    def dead_letters(self, group: str, limit: int = 100) -> list[object]:
        raise AssertionError("the group has none")

    def message(self, topic: str, partition: int, offset: int) -> object:
        raise AssertionError("the group has no retries")

    def describe_group(self, group: str) -> SimpleNamespace:
        assert group == "billing"
        offsets = [(0, 30), (1, None)]
        return SimpleNamespace(
            share=None,
            partitions=tuple(
                SimpleNamespace(topic="orders", partition=number, committed=committed)
                for number, committed in offsets
            ),
        )


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purging, "LOOK_S", 0.0)


def test_what_is_old_and_not_delivered_again_goes(make_shop: ShopMaker) -> None:
    accounts, now = Accounts(make_shop()), [100 * DAY_S]
    inbox = accounts.make("billing", clock=lambda: now[0])
    other = accounts.make("audit", clock=lambda: now[0])
    with accounts.open() as local:

        def handled(by=inbox, **where: object) -> None:  # type: ignore[no-untyped-def]
            with by.once(local.connection, record(**where)) as first:
                assert first

        for number in range(40):
            handled(number=number)
        handled(number=5, partition=1)  # nothing is committed there
        handled(number=5, topic="late")  # nor there
        handled(number=5, topic="deleted")
        handled(other, number=5)
        now[0] += 6 * DAY_S
        handled(number=0, timestamp=9)  # young
        local.connection.commit()
    now[0] = 107.5 * DAY_S
    progress: list[int] = []
    purged = inbox.purge(
        Admin(), slice_rows=16, pause_s=0.0, told=lambda so_far: progress.append(so_far.read)
    )
    assert (purged.removed, purged.read) == (31, 45) and progress == [16, 32]
    assert inbox.purge(Admin(), pause_s=0.0).removed == 0
    assert inbox.purge(None, pause_s=0.0).removed == 12, "the time alone"
    assert accounts.rows() == 2
    accounts.close()


def test_rows_of_a_share_group_go_when_the_group_is_done_with_their_records(make_shop: ShopMaker) -> None:
    accounts, now = Accounts(make_shop()), [100 * DAY_S]
    inbox = accounts.make("billing", clock=lambda: now[0])
    with InMemoryCluster() as cluster, accounts.open() as local:
        cluster.admin.create_topic("orders")
        queue = cluster.share_consumer("billing", ["orders"], auto_offset_reset="earliest")
        with cluster.producer("shop") as producer:
            producer.send_many("orders", [b"%d" % number for number in range(5)]).result()
        for one in queue.poll():
            with inbox.once(local.connection, one) as first:
                assert first
            if one.offset != 3:
                queue.ack(one)
        local.connection.commit()
        queue.flush()
        assert inbox.purge(cluster.admin, pause_s=0.0).removed == 0, "they are young"
        now[0] += 8 * DAY_S
        assert inbox.purge(cluster.admin, pause_s=0.0).removed == 3, "the fourth may come again"
    accounts.close()


@pytest.mark.parametrize("reads", ["concurrent", "share"])
def test_rows_stay_while_copies_of_their_records_may_come_again(make_shop: ShopMaker, reads: str) -> None:
    """The group is past the record itself; what comes again is a retry that it is not past, a dead letter
    that was handled, and its redriven copy."""
    accounts, now = Accounts(make_shop()), [100 * DAY_S]
    inbox = accounts.make("billing", clock=lambda: now[0])

    def left() -> int:
        now[0] += 8 * DAY_S
        inbox.purge(cluster.admin, pause_s=0.0)
        return accounts.rows()

    with InMemoryCluster() as cluster, accounts.open() as local:
        cluster.admin.create_topic("orders")
        with cluster.producer("shop") as producer:
            producer.send_many("orders", [b"retried", b"dead"]).result()

        def come() -> Any:
            if reads == "share":
                return cluster.share_consumer("billing", ["orders"], auto_offset_reset="earliest", lease_s=5)
            policy = RetryPolicy(order="concurrent")
            return cluster.consumer("billing", ["orders"], auto_offset_reset="earliest", retry=policy)

        def settle(consumer: Any, *records: Any) -> None:
            if reads == "share":
                for one in records:
                    consumer.ack(one)
                consumer.flush()
            else:
                consumer.commit()

        with come() as first:
            retried, dead = first.poll()
            first.nack(retried, delay_s=1)
            first.reject(dead)
            settle(first)
            (again,) = first.poll(timeout_s=3.0)
            for one in (again, dead):
                with inbox.once(local.connection, one) as begins:
                    assert begins
            local.connection.commit()
        # It dies before it settles the retry.
        assert left() == 2
        cluster.clock.advance(20)
        with come() as other:
            (again,) = other.poll(timeout_s=3.0)
            with inbox.once(local.connection, again) as begins:
                assert not begins
            local.connection.commit()
            settle(other, again)
            assert left() == 1, "the dead letter's"
            cluster.admin.redrive("billing")
            assert left() == 1
            (again,) = other.poll(timeout_s=3.0)
            with inbox.once(local.connection, again) as begins:
                assert not begins
            local.connection.commit()
            settle(other, again)
            assert left() == 0
    accounts.close()


def test_a_row_stays_for_as_long_as_a_copy_may_wait_for_its_time(make_shop: ShopMaker) -> None:
    accounts, now = Accounts(make_shop()), [100 * DAY_S]
    inbox = accounts.make("billing", clock=lambda: now[0])
    with InMemoryCluster() as cluster, accounts.open() as local:
        cluster.admin.create_topic("orders")
        cluster.admin.set_group("billing", delays_s=[1, 30 * DAY_S])
        queue = cluster.share_consumer("billing", ["orders"], auto_offset_reset="earliest")
        with cluster.producer("shop") as producer:
            producer.send_many("orders", [b"one"]).result()
        (one,) = queue.poll()
        with inbox.once(local.connection, one) as first:
            assert first
        local.connection.commit()
        queue.ack(one)
        queue.flush()
        for days, removed in ((30, 0), (2.9, 0), (0.2, 1)):
            now[0] += days * DAY_S
            assert inbox.purge(cluster.admin, pause_s=0.0).removed == removed
    accounts.close()


def test_with_too_many_copies_nothing_goes(make_shop: ShopMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    accounts, now = Accounts(make_shop()), [100 * DAY_S]
    inbox = accounts.make("billing", clock=lambda: now[0])
    with InMemoryCluster() as cluster, accounts.open() as local:
        cluster.admin.create_topic("orders")
        policy = RetryPolicy(order="concurrent")
        queue = cluster.consumer("billing", ["orders"], auto_offset_reset="earliest", retry=policy)
        with cluster.producer("shop") as producer:
            producer.send_many("orders", [b"one", b"two", b"three"]).result()
        one, two, three = queue.poll()
        with inbox.once(local.connection, one) as first:
            assert first
        local.connection.commit()
        queue.nack(two, delay_s=0)
        queue.reject(three)
        queue.commit()
        now[0] += 8 * DAY_S
        for limit, too_few in (
            ("RETRIES_MAX", 0),
            ("LETTERS_MAX", 1),
        ):  # there may be more letters than asked
            monkeypatch.setattr(purging, limit, too_few)
            assert inbox.purge(cluster.admin, pause_s=0.0) == purging.InboxPurged(0, 0)
            monkeypatch.setattr(purging, limit, too_few + 1)
        assert inbox.purge(cluster.admin, pause_s=0.0).removed == 1
    accounts.close()
