"""``txn`` and ``db`` against a real cluster: what operators see and decide, audits and purges."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from escrowmq import Cluster, Message, TransactionState, TxStatusQuerier
from escrowmq.integrations import Fence, Inbox
from tests.support.command_line import as_json, good, left_open, lines_of, run
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("healthy_again")]

Unique = Callable[[str], str]


def test_a_fence_is_audited_and_purged(cluster: Cluster, topic: str, unique: Unique, tmp_path: Path) -> None:
    app_name, url = unique("shop"), f"sqlite:///{tmp_path / 'shop.db'}"
    now = [time.time() - 30 * 86_400]
    fence = Fence(create_engine(url), app=app_name, clock=lambda: now[0])
    fence.create_table()
    with cluster.producer(app=app_name, tx_status_querier=fence) as producer:
        with fence.transaction(producer, Message(topic, b"old")):
            pass
        now[0] = time.time()
        with fence.transaction(producer, Message(topic, b"new")) as (tx, _):
            pass
    assert as_json("db", "audit", url, "--app", app_name, "--days", "90") == []
    left_open(cluster, topic, by_hand := unique("tx"), app_name)
    good("txn", "commit", by_hand)
    assert fence.query_status(by_hand, "q-7") is TransactionState.ROLLBACK  # the query came too late
    audited = run("db", "audit", url, "--app", app_name, "--format", "json")
    assert audited.exit_code == 1 and "2 rows read" in audited.stderr
    assert json.loads(audited.stdout) == [{"tx_id": by_hand, "database": "ROLLBACK", "broker": "COMMITTED"}]
    assert "1 rows removed of 3 read" in run("db", "purge", url, "--app", app_name).stderr
    assert fence.query_status(tx.tx_id, "") is TransactionState.COMMITTED
    assert run("db", "purge", "nosuch://x", "--app", app_name).exit_code == 2


def test_an_inbox_is_purged(cluster: Cluster, topic: str, unique: Unique, tmp_path: Path) -> None:
    group, url = unique("billing"), f"sqlite:///{tmp_path / 'accounts.db'}"
    engine = create_engine(url)
    inbox = Inbox(engine, group=group, clock=lambda: time.time() - 30 * 86_400)
    inbox.create_table()
    with cluster.producer(app=unique("shop")) as producer:
        for number in range(2):
            producer.send(Message(topic, b"%d" % number, partition=0)).result(20)
    consuming = cluster.consumer(group=group, topics=[topic], auto_offset_reset="earliest")
    with consuming as consumer, engine.begin() as db:
        seen = 0
        while seen < 2:
            for record in consumer.poll(max_records=1, timeout_s=10):
                with inbox.once(db, record) as first:
                    assert first
                seen += 1
                if seen == 1:
                    consumer.commit()  # the second one may be delivered again
    purged = run("db", "purge", url, "--group", group)
    assert "1 rows removed of 2 read" in purged.stderr, purged.output
    assert run("db", "purge", url, "--group", group, "--app", "x").exit_code == 2
    assert run("db", "purge", url, "--app", "x", "--by-age").exit_code == 2
    assert "1 rows removed of 1 read" in run("db", "purge", url, "--group", group, "--by-age").stderr
    assert run("db", "purge", url).exit_code == 2


def test_an_open_transaction_is_listed_shown_and_committed_by_hand(
    cluster: Cluster, topic: str, unique: Unique
) -> None:
    tx_id, app_name = unique("tx"), unique("app")
    left_open(cluster, topic, tx_id, app_name)
    (entry,) = as_json("txn", "list", "--app", app_name)
    assert (entry["tx_id"], entry["query_id"], entry["parked"]) == (tx_id, "q-7", False)
    assert tx_id in good("txn", "list", "--topic", topic)
    assert as_json("txn", "list", "--app", app_name, "--state", "parked") == []
    assert as_json("txn", "show", tx_id)["state"] == "PREPARE"
    assert tx_id in good("txn", "show", tx_id)
    assert lines_of("consume", topic) == []

    assert as_json("txn", "commit", tx_id, "--by", "ops")["state"] == "COMMITTED"
    assert as_json("txn", "show", tx_id)["decided_by"] == "operator:ops"
    assert "operator:ops" in good("txn", "show", tx_id)
    assert [record["value"] for record in lines_of("consume", topic)] == ["held back"]
    assert as_json("txn", "commit", tx_id)["state"] == "COMMITTED"  # repeating it is harmless

    refused = run("txn", "rollback", tx_id)
    assert refused.exit_code == 5 and "already recorded as COMMITTED" in refused.stderr


def test_a_transaction_rolled_back_by_hand_is_never_read(
    cluster: Cluster, topic: str, unique: Unique
) -> None:
    tx_id, app_name = unique("tx"), unique("app")
    left_open(cluster, topic, tx_id, app_name)
    assert as_json("txn", "rollback", tx_id, "--app", app_name)["state"] == "ROLLBACK"
    assert lines_of("consume", topic) == []
    assert as_json("txn", "list", "--app", app_name) == []


def test_a_parked_transaction_is_checked_once_more(cluster: Cluster, unique: Unique) -> None:
    class Database(TxStatusQuerier):
        knows = TransactionState.UNKNOWN

        def query_status(self, tx_id: str, query_id: str) -> TransactionState:
            return self.knows

    name, app_name, tx_id, database = unique("cli"), unique("app"), unique("tx"), Database()
    cluster.admin.create_topic(name, check_max=1, transaction_timeout_ms=100)

    def state() -> tuple[str, bool]:
        shown = as_json("txn", "show", tx_id)
        return shown["state"], any(entry["parked"] for entry in shown["open"].values())

    with cluster.producer(app_name, tx_status_querier=database) as producer:
        with producer.transaction(tx_id=tx_id) as tx:
            tx.send(Message(name, b"held back"))
            tx.prepare()
            tx.unknown()
        wait_until(lambda: state() == ("PREPARE", True), 20.0, "the transaction is parked")
        database.knows = TransactionState.COMMITTED
        assert as_json("txn", "recheck", tx_id)["state"] == "PREPARE"
        wait_until(lambda: state() == ("COMMITTED", False), 20.0, "its check is answered")
    settled = run("txn", "recheck", tx_id)
    assert settled.exit_code == 5 and "already recorded as COMMITTED" in settled.stderr
    left_open(cluster, name, f"{tx_id}-2", app_name)
    assert "is not parked" in run("txn", "recheck", f"{tx_id}-2").stderr
    good("txn", "rollback", f"{tx_id}-2")
