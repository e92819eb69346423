"""Old rows of an inbox are deleted in slices, unless their record may be delivered again."""

from __future__ import annotations

from types import SimpleNamespace

from escrowmq import TopicInfo
from escrowmq.testing import InMemoryCluster
from tests.support.inboxes import Accounts, record
from tests.support.shops import ShopMaker

DAY_S = 86_400.0


class Admin:
    """``cluster.admin``, as far as a purge uses it: the group has committed offset 30 of partition 0."""

    def topics(self) -> list[TopicInfo]:
        return [TopicInfo(name, 2, "hold", 15, 1000, -1, -1) for name in ("orders", "late")]

    def describe_group(self, group: str) -> SimpleNamespace:
        assert group == "billing"
        places = [(0, 30), (1, None)]
        return SimpleNamespace(
            share=None,
            partitions=tuple(
                SimpleNamespace(topic="orders", partition=number, committed=committed)
                for number, committed in places
            ),
        )


def test_what_is_old_and_not_delivered_again_goes(make_shop: ShopMaker) -> None:
    accounts, now = Accounts(make_shop()), [100 * DAY_S]
    inbox = accounts.make("billing", clock=lambda: now[0])
    other = accounts.make("audit", clock=lambda: now[0])
    with accounts.open() as local:

        def handled(by=inbox, **place: object) -> None:  # type: ignore[no-untyped-def]
            with by.once(local.connection, record(**place)) as first:
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
