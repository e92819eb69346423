"""Two processes of one service, a database that makes them wait, and a querier without a fence: no
transaction is torn."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from escrowmq import Cluster

pytestmark = [pytest.mark.ray, pytest.mark.slow]
ORDERS = 10
LOCAL_S = 10.0  # the default timeout is 6 s


def test_a_lock_wait_of_ten_seconds_tears_no_transaction(
    cluster: Cluster, unique: Callable[[str], str], ray_local: str, tmp_path: Path
) -> None:
    """Regression: five of ten transactions ended as a row in the database without their message."""
    database, app, topic = tmp_path / "shop.db", unique("shop"), unique("orders")
    cluster.admin.create_topic(topic, partitions=2)
    with closing(sqlite3.connect(database)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE orders (id TEXT PRIMARY KEY)")

    def instance(orders: int) -> subprocess.Popen[str]:
        settings = [ray_local, str(database), app, topic, str(orders), str(LOCAL_S)]
        program = [sys.executable, "-m", "tests.integration.waiting_producer", *settings]
        return subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    started = [other := instance(0)]
    try:
        assert other.stdout is not None and other.stdout.readline() == "ready\n"
        began = time.monotonic()  # before the one whose local transactions wait for a lock
        started.append(busy := instance(ORDERS))
        said, _ = busy.communicate(timeout=90)
        assert time.monotonic() - began > LOCAL_S
        assert json.loads(said.splitlines()[-1]) == ["COMMITTED"] * ORDERS
        asked, _ = other.communicate(timeout=60)
        assert json.loads(asked.splitlines()[-1]) == [], "the owner was there all the time"
    finally:
        for process in started:
            process.kill()
            process.communicate()
    with closing(sqlite3.connect(database)) as db:
        rows = sorted(order for (order,) in db.execute("SELECT id FROM orders"))
    with cluster.consumer(group=app, topics=[topic], auto_offset_reset="earliest") as consumer:
        read: list[str] = []
        until = time.monotonic() + 20
        while len(read) < ORDERS and time.monotonic() < until:
            read += [record.value.decode() for record in consumer.poll(timeout_s=0.5)]
    assert sorted(read) == rows and len(rows) == ORDERS
