"""``OutboxRelay`` on real databases: its threads, waking, taking over, stopping. The broker is in memory."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import sqlalchemy as sa

from escrowmq import ConfigError, InvalidMessage, Message, Unavailable
from escrowmq.feedback.database import outbox_shards
from escrowmq.feedback.database.relaying import Relay, Step
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


def test_an_idle_relay_looks_ever_more_rarely_and_at_all_shards_at_once(
    shop: Shop, broker: ClusterBroker
) -> None:
    """With 8 shards, and 20 looks a second at each, it was 179 transactions a second."""
    outbox, statements = outbox_in(shop, shards=8), list[str]()
    if shop.kind == "mariadb":
        return  # as the others, and it takes its time
    sa.event.listen(shop.engine, "after_cursor_execute", lambda *told: statements.append(told[2]))
    with OutboxRelay(outbox, broker.cluster, app="shop") as relay:
        wait_until(lambda: len([one for one in relay.status() if one.owner]) == 8, what="all shards taken")
        time.sleep(1.0)  # the looks of its first second follow each other quickly
        statements.clear()
        time.sleep(1.0)
        looks = len(statements)
    assert looks < 40, statements  # two looks, and each lease is extended once in five seconds


def test_rows_that_are_held_back_are_not_looked_at_without_a_pause(
    shop: Shop, broker: ClusterBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row of the same key waits for its next attempt, so they are ready and cannot be sent."""
    outbox, steps = outbox_in(shop), list[Step]()
    if shop.kind != "sqlite":
        return  # what it does is the same
    step = Relay.step

    def counted(self: Relay) -> Step:
        steps.append(found := step(self))
        return found

    monkeypatch.setattr(Relay, "step", counted)
    send(shop, outbox, b"1")
    send(shop, outbox, b"2")
    later = int(time.time() * 1000) + 3_600_000
    with shop.engine.begin() as db:
        table = outbox.statements.table
        db.exec_driver_sql(f"update {table} set next_ms = {later}, attempts = 1 where id = 1")
    with OutboxRelay(outbox, broker.cluster, app="shop"):
        time.sleep(1.0)
        assert len(steps) < 20, steps
    assert len(outbox.rows()) == 2


def listening(relay: OutboxRelay) -> bool:
    return relay._notices is not None and relay._notices.works


def test_a_commit_of_another_process_wakes_a_relay_on_postgresql(shop: Shop, broker: ClusterBroker) -> None:
    """Only while its shards sleep: a notification costs all commits of the server, one after the other."""
    outbox = outbox_in(shop, shards=2)
    if shop.kind != "postgresql":
        return
    beats = f"select beat from {outbox.statements.shards}"
    with OutboxRelay(outbox, broker.cluster, app="shop", poll_s=60) as relay:

        def asleep() -> bool:
            with shop.engine.connect() as db:
                return all(beat < 0 for (beat,) in db.exec_driver_sql(beats)) and listening(relay)

        for number, database in enumerate((shop.engine, shop.connect)):
            wait_until(asleep, what="the shards sleep")
            other = Outbox(database, table=outbox.statements.table, shards=2)
            with other.database.opening() as (db, link):
                other.send(db, Message("t", b"%d" % number, key=b"%d" % number))
                link.commit()
            wait_until(partial(has_sent, relay, number + 1), what="it is told")
        for shard in relay._shards.values():  # what extends a lease lets a shard sleep
            if (lease := shard.relay.lease) is not None:
                wait_until(asleep, what="the shards sleep again")
                with relay._database._holding(lease, outbox.statements.extend):
                    pass
                assert asleep()


def test_who_inserts_rows_notifies_sleeping_shards_alone(shop: Shop) -> None:
    outbox = outbox_in(shop)
    if shop.kind != "postgresql":
        return
    listener = shop.connect()
    listener.autocommit = True
    listener.execute(f"listen {outbox.statements.channel}")

    def told(level: str, beat: int) -> int:
        with shop.engine.begin() as db:
            table = outbox.statements.shards
            row = f"insert into {table} values (0, '', 0, 0, {beat}, 0, null)"
            db.exec_driver_sql(f"{row} on conflict (shard) do update set beat = {beat}")
        with shop.engine.connect().execution_options(isolation_level=level) as db:
            outbox.send(db, *(Message("t", b"1") for _ in range(150)))
            db.commit()
        return len(list(listener.notifies(timeout=0.2)))

    assert told("READ COMMITTED", -5) == 1 and told("READ COMMITTED", 5) == 0
    assert told("SERIALIZABLE", -5) == 0, "what it reads could end it with a serialization failure"
    with shop.engine.begin() as db:  # a role that may do no more than insert
        role, table = f"role_{shop.table}", outbox.statements.table
        db.exec_driver_sql(f"create role {role}")
        db.exec_driver_sql(f"grant insert on {table} to {role}")
        db.exec_driver_sql(f"set local role {role}")
        Outbox(shop.engine, table=table).send(db, Message("t", b"1"))
    with shop.engine.begin() as db:
        db.exec_driver_sql(f"drop owned by {role}")
        db.exec_driver_sql(f"drop role {role}")
    listener.close()


def test_a_relay_that_listens_in_vain_looks_by_itself(
    shop: Shop, broker: ClusterBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pooler gives each transaction another connection of the server."""
    outbox = outbox_in(shop)
    if shop.kind != "postgresql":
        return
    monkeypatch.setattr(outbox_shards, "TRIAL_S", 0.1)
    outbox.statements.notify = "SELECT 1"
    with OutboxRelay(outbox, broker.cluster, app="shop", poll_s=0.2) as relay:
        time.sleep(0.5)
        other = Outbox(shop.engine, table=outbox.statements.table)
        send(shop, other, b"1")
        wait_until(lambda: relay.rows_sent == 1, what="found")
        assert not listening(relay)


@pytest.mark.parametrize("app", ["a" * 500, "two\nlines"])
def test_an_app_whose_producers_could_not_be_named_is_refused(app: str, tmp_path: Path) -> None:
    """Nothing would ever be sent, in silence but for the log."""
    with pytest.raises(InvalidMessage, match="transactional_id"):
        OutboxRelay(lambda: sqlite3.connect(tmp_path / "shop.db"), cast(Any, None), app=app)
