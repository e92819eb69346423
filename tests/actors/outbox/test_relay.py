"""``OutboxRelay`` on real databases: its threads, waking, taking over, stopping. The broker is in memory."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from escrowmq import ConfigError, InvalidMessage, Message, Unavailable
from escrowmq.integrations import DatabaseMisused, Outbox, OutboxBehind, OutboxRelay, OutboxRowBusy
from escrowmq.replication.errors import Closed
from tests.support.database_servers import Server, running
from tests.support.outboxes import drop, outbox_in
from tests.support.relay_clusters import ClusterBroker
from tests.support.shops import Shop, closing_shops
from tests.support.waiting import wait_until


@pytest.fixture(scope="module", params=["sqlite", "postgresql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Iterator[Server | None]:
    opened: Any = contextlib.nullcontext() if request.param == "sqlite" else running(request.param)
    with opened as found:
        yield found


@pytest.fixture
def shop(server: Server | None, tmp_path: Path) -> Iterator[Shop]:
    with closing_shops(server, tmp_path, False) as make:
        found = make()
        yield found
        drop(found)


@pytest.fixture
def broker() -> Iterator[ClusterBroker]:
    found = ClusterBroker()
    yield found
    found.close()


def send(shop: Shop, outbox: Outbox, *values: bytes) -> None:
    with shop.engine.begin() as db:
        outbox.send(db, *(Message("t", value, key=b"k") for value in values))


def has_sent(relay: OutboxRelay, rows: int) -> bool:
    return relay.rows_sent == rows


def values(broker: ClusterBroker) -> list[bytes]:
    return [message.value for message in broker.log]


def test_rows_are_sent_as_soon_as_they_are_committed(shop: Shop, broker: ClusterBroker) -> None:
    outbox = outbox_in(shop)
    send(shop, outbox, b"0")
    with OutboxRelay(outbox, broker.cluster, app="shop", poll_s=60) as relay:
        for number in range(1, 5):  # the first row was there before the relay; then a commit wakes it
            wait_until(partial(has_sent, relay, number), what=f"row {number}")
            if number < 4:
                send(shop, outbox, b"%d" % number)
        assert relay.start() is relay, "starting twice is harmless"
    assert values(broker) == [b"0", b"1", b"2", b"3"] and outbox.rows() == []
    (shard,) = relay.status()
    assert shard.last_batch == 4 and shard.until_ms == 0, "it has given the shard up"


def test_a_relay_that_is_given_an_engine_looks_by_itself_and_at_all_shards(
    shop: Shop, broker: ClusterBroker
) -> None:
    outbox = outbox_in(shop, shards=3)
    with shop.engine.begin() as db:
        for number in range(12):
            outbox.send(db, Message("t", b"%d" % number, key=b"%d" % number))
    own = Outbox(shop.engine, table=outbox.statements.table)
    with OutboxRelay(own, broker.cluster, app="shop") as relay:
        wait_until(lambda: relay.rows_sent == 12, what="all shards")
        with shop.engine.begin() as db:
            outbox.send(db, Message("t", b"later", key=b"0"))
        wait_until(lambda: relay.rows_sent == 13, what="it looks again")
    assert len(values(broker)) == 13


def test_of_two_relays_one_sends_and_the_other_takes_over(shop: Shop, broker: ClusterBroker) -> None:
    outbox = outbox_in(shop)
    first = OutboxRelay(outbox, broker.cluster, app="shop").start()
    send(shop, outbox, b"1")
    wait_until(lambda: first.rows_sent == 1, what="sent")
    second = OutboxRelay(outbox, broker.cluster, app="shop").start()
    send(shop, outbox, b"2")
    wait_until(lambda: first.rows_sent == 2, what="sent")
    assert second.rows_sent == 0
    with pytest.raises(Unavailable, match="another relay has shard 0"):
        OutboxRelay(outbox, broker.cluster, app="shop").send_waiting()
    first.close()
    first.close()
    send(shop, outbox, b"3")
    wait_until(lambda: second.rows_sent == 1, what="taken over")
    second.close()
    assert values(broker) == [b"1", b"2", b"3"]
    with pytest.raises(Closed, match="create a new one"):
        first.start()


def test_a_shard_that_is_behind_ends_the_process_and_a_person_releases_it(
    shop: Shop, broker: ClusterBroker
) -> None:
    outbox = outbox_in(shop)
    send(shop, outbox, b"1")
    relay = OutboxRelay(outbox, broker.cluster, app="shop")
    assert relay.send_waiting() == 1
    with pytest.raises(OutboxRowBusy, match="shard 0 has not stopped"):
        relay.adopt(0, hold=True)
    with shop.engine.begin() as db:  # the database of yesterday
        db.exec_driver_sql(f"update {outbox.statements.shards} set last_batch = 0, until_ms = 0")
    relay.close()
    send(shop, outbox, b"2")
    behind = OutboxRelay(outbox, broker.cluster, app="shop")
    with pytest.raises(OutboxBehind, match="shard 0 of the outbox has stopped"):
        behind.run(threading.Event())
    behind.close()
    last = OutboxRelay(outbox, broker.cluster, app="shop")
    with pytest.raises(OutboxBehind):
        last.send_waiting()
    assert last.adopt(0, hold=False) == 1
    assert last.send_waiting() == 1 and values(broker) == [b"1", b"2"]
    last.close()


def test_a_broker_that_is_away_counts_for_nothing(shop: Shop, broker: ClusterBroker) -> None:
    outbox = outbox_in(shop)
    send(shop, outbox, b"1")
    relay = OutboxRelay(outbox, broker.cluster, app="shop")
    broker.away = True
    with pytest.raises(Unavailable, match="shard 0 of the outbox"):
        relay.send_waiting()
    send(shop, outbox, b"2")
    broker.away = False
    assert relay.send_waiting() == 2 and values(broker) == [b"1", b"2"]
    relay.close()


def test_what_cannot_work_is_refused(shop: Shop, broker: ClusterBroker) -> None:
    outbox = outbox_in(shop)
    for wrong in ({"poll_s": 0.0}, {"poll_s": 100.0}, {"lease_s": 0.1}):
        with pytest.raises(ConfigError, match="must be from"):
            OutboxRelay(outbox, broker.cluster, app="shop", **wrong)
    with pytest.raises(DatabaseMisused):
        OutboxRelay("sqlite:///x", broker.cluster, app="shop")
    with (
        OutboxRelay(outbox, broker.cluster, app="shop") as relay,
        pytest.raises(ConfigError, match="started"),
    ):
        relay.send_waiting()


@pytest.mark.parametrize("app", ["a" * 500, "two\nlines"])
def test_an_app_whose_producers_could_not_be_named_is_refused(app: str, tmp_path: Path) -> None:
    """Nothing would ever be sent, in silence but for the log."""
    with pytest.raises(InvalidMessage, match="transactional_id"):
        OutboxRelay(lambda: sqlite3.connect(tmp_path / "shop.db"), cast(Any, None), app=app)
