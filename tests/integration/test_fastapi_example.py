"""examples/fastapi_orders.py under the real uvicorn: served, stopped in order, killed in the middle."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from escrowmq import Cluster

pytestmark = pytest.mark.ray
ROOT = Path(__file__).resolve().parents[2]
Unique = Callable[[str], str]


class Service:
    """One process of the example."""

    def __init__(self, address: str, topic: str, database: Path) -> None:
        self.database, self.said = database, ""
        told = {
            "RAY_ADDRESS": address,
            "ORDERS_TOPIC": topic,
            "ORDERS_APP": f"{topic}-shop",
            "ORDERS_DATABASE": f"sqlite+aiosqlite:///{database}",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "examples.fastapi_orders:app", "--port", "0"],
            cwd=ROOT, env=os.environ | told, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self._up = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._up.wait(60) or self.process.poll() is not None:
            self.end(signal.SIGKILL)
            raise AssertionError(f"it does not start:\n{self.said}")

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            if found := re.search(r"running on (\S+)", line):
                self.url = found[1]
                self._up.set()
        self._up.set()

    def ask(self, path: str, order: dict[str, str] | None = None) -> tuple[int, dict[str, str]]:
        """Status and answer."""
        data = None if order is None else json.dumps(order).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, json.load(refused)

    def end(self, number: signal.Signals) -> None:
        """End it with this signal; ``said`` is complete then."""
        self.process.send_signal(number)
        self.process.wait(30)
        self._reader.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def stored(self) -> set[str]:
        with contextlib.closing(sqlite3.connect(self.database)) as db:
            return {order for (order,) in db.execute("select id from orders")}


@contextlib.contextmanager
def serving(address: str, topic: str, database: Path) -> Iterator[Service]:
    service = Service(address, topic, database)
    try:
        yield service
    finally:
        if service.process.poll() is None:
            service.end(signal.SIGKILL)


def readable(cluster: Cluster, topic: str, count: int) -> list[str]:
    """Ids of the orders in the topic, and a look for more than that."""
    found: list[str] = []
    with cluster.consumer(group=f"{topic}-audit", topics=[topic], auto_offset_reset="earliest") as consumer:

        def look() -> bool:
            records = consumer.poll(timeout_s=0.5)
            found.extend(json.loads(record.value)["id"] for record in records)
            return len(found) >= count and not records

        wait_until(look, 30, f"{count} messages")
    return found


def test_orders_are_taken_and_a_container_stop_ends_in_order(
    ray_local: str, cluster: Cluster, unique: Unique, tmp_path: Path
) -> None:
    topic = unique("web-orders")
    with serving(ray_local, topic, tmp_path / "shop.db") as service:
        teapots = [{"id": f"{number}", "item": "teapot"} for number in range(20)]
        with ThreadPoolExecutor(5) as clients:
            answers = list(clients.map(lambda order: service.ask("/orders", order), teapots))
        assert answers == [(201, order) for order in teapots]
        assert service.ask("/orders", {"id": "7", "item": "unicorn"}) == (200, teapots[7]), "the first stays"
        assert service.ask("/orders/8") == (200, teapots[8])
        assert service.ask("/orders/unknown")[0] == 404
        assert service.ask("/orders", {"id": "", "item": "teapot"})[0] == 422
        service.end(signal.SIGTERM)
    assert service.process.returncode in (0, -signal.SIGTERM)  # uvicorn raises the signal again at its end
    assert "Finished server process" in service.said and "Traceback" not in service.said, service.said
    assert service.stored() == {order["id"] for order in teapots}
    assert sorted(readable(cluster, topic, 20)) == sorted(service.stored())


@pytest.mark.long
@pytest.mark.timeout(180)
def test_a_service_that_is_killed_leaves_no_order_without_its_message(
    ray_local: str, cluster: Cluster, unique: Unique, tmp_path: Path
) -> None:
    topic, database = unique("web-orders"), tmp_path / "shop.db"
    stop = threading.Event()

    def client(service: Service, name: int) -> None:
        """Posts until the service is gone."""
        for number in range(10_000):
            if stop.is_set():
                return
            with contextlib.suppress(OSError, ValueError):  # in the middle of a request, or of its answer
                service.ask("/orders", {"id": f"{name}-{number}", "item": "teapot"})

    with serving(ray_local, topic, database) as killed, ThreadPoolExecutor(8) as clients:
        cluster.admin.alter_topic(topic, transaction_timeout_ms=1000)
        posting = [clients.submit(client, killed, name) for name in range(8)]
        wait_until(lambda: len(killed.stored()) > 50, 60, "orders")
        killed.end(signal.SIGKILL)
        stop.set()
        for done in posting:
            done.result(timeout=60)
    with serving(ray_local, topic, database) as service:
        # Its owner is gone, so the other instance is asked about what the killed one left open.
        wait_until(lambda: not cluster.admin.list_transactions(topic=topic), 60, "decisions", 0.2)
        assert service.ask("/orders", {"id": "last", "item": "teapot"})[0] == 201
        stored = service.stored()
        assert sorted(readable(cluster, topic, len(stored))) == sorted(stored)
