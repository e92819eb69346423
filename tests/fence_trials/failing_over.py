"""A shop over a PostgreSQL with a synchronous standby, which takes over while commits wait for it.

The standby is killed, so that commits wait; then the primary, which comes back with rows that no standby has,
while checks and handlers ask for them. It goes for good, the standby takes over without these rows, and a new
one is made in the other's place. All clients know both addresses. In the end each readable order must be
stored in the new primary and have one bill there, and each stored one must be readable.
"""

from __future__ import annotations

import os
import random
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from escrowmq import Cluster
from escrowmq.integrations import Fence
from tests.fence_trials.billing import Billing
from tests.fence_trials.orders import Orders
from tests.fence_trials.service import SETTINGS, Service
from tests.fence_trials.staff import Staff, kill_leader
from tests.support.database_servers import Server
from tests.support.waiting import wait_until

#: The kind of trial, and what is struck in it.
STANDBY = "standby"
FAIL_OVER, SERVICE, LEADER = "fail-over", "service", "leader"
DECK = {
    (FAIL_OVER, LEADER): 2,
    (FAIL_OVER,): 2,
    (FAIL_OVER, SERVICE): 1,
    (FAIL_OVER, SERVICE, LEADER): 1,
}
#: Of services, in turn.
MODULES = ("service", "aio_service")
WAITING = 3  # commits, when the primary is killed
#: Until the primary is killed, and goes for good. A check comes 0.5 s after its PREPARE, and again.
BEFORE_S, WAITS_S, IS_BACK_S = (0.0, 1.0), (0.0, 0.5), (2.0, 5.0)
PATIENCE_S = 120.0


class FailingOver:
    """Trials over two addresses. ``counted``: for the end of a run."""

    def __init__(self, cluster: Cluster, folder: Path, seed: int) -> None:
        self._cluster = cluster
        name = f"standby-{seed}-{os.getpid()}"
        self._app, self._staff = f"{name}-shop", Staff(folder / "log")
        self._primary, self._standby = Server("postgresql"), Server("postgresql")
        self._primary.start()
        hosts = "&".join(f"host=127.0.0.1:{server.port}" for server in (self._primary, self._standby))
        self._url = (
            f"postgresql+psycopg://escrow:{self._primary.password}@/postgres?{hosts}"
            "&target_session_attrs=read-write&connect_timeout=5"
        )
        self._engine = sa.create_engine(self._url, poolclass=sa.NullPool)
        with self._engine.begin() as db:
            db.execute(sa.text("create table orders (id text primary key)"))
        Fence(self._engine, app=self._app).create_table()
        self._orders = Orders(cluster, f"{name}-orders")
        self._billing = Billing(cluster, self._engine, self._url, self._orders.topic, folder / "log")
        # Before the copy, which has it when it is a primary. Not "*": that is also the copying itself.
        with self._primary.connect(autocommit=True) as db:
            db.execute("alter system set synchronous_standby_names = 'walreceiver'")
            self._follow()
            db.execute("select pg_reload_conf()")
        self._services: list[subprocess.Popen[bytes]] = []
        self._started = 0
        for _ in MODULES:
            self._hire()
        self.counted: Counter[str] = Counter()

    def end(self) -> None:
        self._staff.end()
        self._billing.end()
        self._orders.close()
        self._engine.dispose()
        self._primary.close()
        self._standby.close()

    def said(self) -> str:
        """By services and handlers."""
        return self._staff.said()

    def _hire(self) -> None:
        told = Service(
            self._cluster.address, self._cluster.info.namespace, self._url, self._app, self._orders.topic,
            f"s{self._started}",
        )  # fmt: skip
        module = MODULES[self._started % len(MODULES)]
        self._started += 1
        self._services.append(self._staff.hire(module, told.encode(), settings=SETTINGS))

    def _stored(self) -> set[str]:
        with self._engine.connect() as db:
            return {order for (order,) in db.execute(sa.text("select id from orders"))}

    def _follow(self) -> None:
        """The standby begins."""
        self._standby.copy(self._primary)
        self._standby.start()

    # ------------------------------------------------------------ a trial

    def strike(self, victims: tuple[str, ...], rng: random.Random) -> list[str]:
        """One trial; returns its problems."""
        self._await_orders()
        time.sleep(rng.uniform(*BEFORE_S))
        self._standby.kill()
        wait_until(lambda: self._primary.commits_waiting() >= WAITING, PATIENCE_S, "waiting commits", 0.02)
        time.sleep(rng.uniform(*WAITS_S))
        if SERVICE in victims:
            self._staff.fire(self._services.pop(0))
        self._primary.kill()
        self._primary.start()
        until = time.monotonic() + rng.uniform(*IS_BACK_S)
        if SERVICE in victims:
            self._hire()
        if LEADER in victims:
            time.sleep(rng.random())
            kill_leader(self._cluster)
        time.sleep(max(until - time.monotonic(), 0.0))
        self._fail_over()
        self._await_orders()
        problems = self._staff.ended() + self._orders.compare(self._stored)
        self.counted["orders over a standby"] = len(self._stored())
        return problems + self._billing.problems(self._orders.readable, self._orders.ends)

    def _fail_over(self) -> None:
        with self._primary.connect() as db:
            back = {order for (order,) in db.execute("select id from orders")}
        gone = self._primary
        gone.close()
        self._standby.start()
        with self._standby.connect(autocommit=True) as db:
            assert db.execute("select pg_promote(true, 60)").fetchone() == (True,)
            kept = {order for (order,) in db.execute("select id from orders")}
        self.counted["rows that no standby had"] += len(back - kept)
        self._primary, self._standby = self._standby, Server("postgresql")
        self._standby.port = gone.port
        self._follow()

    def _await_orders(self) -> None:
        before = len(self._stored())
        wait_until(lambda: len(self._stored()) > before + 3, PATIENCE_S, "orders", 0.1)


@contextmanager
def failing_over(cluster: Cluster, seed: int) -> Iterator[FailingOver]:
    """For as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="emq-standby-") as folder:
        shape = FailingOver(cluster, Path(folder), seed)
        try:
            yield shape
        finally:
            shape.end()
