"""One app and one topic over two databases, one for each tenant, a PostgreSQL and a MariaDB.

Some services know one tenant, others both, each with a producer for each database. Services, a tenant's last
ones, databases and the leader are killed: whoever is left of the app is asked about what is open, and only
those who have the database may answer. In the end each readable order must be stored in the database of its
tenant, and each stored one must be readable.
"""

from __future__ import annotations

import os
import random
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import sqlalchemy as sa

from escrowmq import Cluster
from escrowmq.integrations import Fence
from tests.fence_trials.orders import Orders
from tests.fence_trials.service import SETTINGS, Service
from tests.fence_trials.staff import Staff, kill_leader
from tests.support.database_servers import Server, running
from tests.support.waiting import wait_until

#: The kind of trial, and what is struck in it: a service, all services that know a tenant, its database.
TENANTS = "tenants"
SERVICE, TENANT, DATABASE, LEADER = "service", "services of a tenant", "database of a tenant", "leader"
DECK = {
    (LEADER, TENANT): 2,
    (TENANT,): 1,
    (LEADER, TENANT, DATABASE): 1,
    (LEADER, SERVICE, DATABASE): 1,
    (SERVICE,): 1,
    (DATABASE,): 1,
}
#: By tenant, its kind of database.
KINDS = {"ann": "postgresql", "bob": "mariadb"}
#: The services, and whom they know.
ROLES = (("service", ("ann",)), ("service", ("bob",)), ("aio_service", ("ann", "bob")))
#: How long a tenant has no service: others are asked after 4 s; and how long its database is away.
AWAY_S = {TENANT: (5.0, 9.0), DATABASE: (0.0, 6.0)}
#: After the leader's death: rows are committed whose messages wait for the next one.
ALONE_S = (0.1, 0.5)
PAUSE_S, PATIENCE_S = 0.3, 120.0


class Tenants:
    """Trials over the same two databases. ``counted``: for the end of a run."""

    def __init__(self, cluster: Cluster, servers: dict[str, Server], folder: Path, seed: int) -> None:
        self._cluster, self._servers = cluster, servers
        name = f"tenants-{seed}-{os.getpid()}"
        self._app, self._staff = f"{name}-shop", Staff(folder / "log")
        self._engines = {t: sa.create_engine(s.url(), poolclass=sa.NullPool) for t, s in servers.items()}
        for engine in self._engines.values():
            with engine.begin() as db:
                db.execute(sa.text("create table orders (id varchar(100) primary key)"))
            Fence(engine, app=self._app).create_table()
        self._orders = Orders(cluster, f"{name}-orders")
        self._started = 0
        self._services: dict[int, subprocess.Popen[bytes]] = {}
        for role in range(len(ROLES)):
            self._hire(role)
        self.counted: Counter[str] = Counter()

    def end(self) -> None:
        self._staff.end()
        self._orders.close()
        for engine in self._engines.values():
            engine.dispose()

    def said(self) -> str:
        """By the services."""
        return self._staff.said()

    def _hire(self, role: int) -> None:
        module, tenants = ROLES[role]
        self._started += 1
        told = [
            Service(
                self._cluster.address, self._cluster.info.namespace, self._servers[tenant].url(), self._app,
                self._orders.topic, f"{tenant}-s{self._started}",
            ).encode()
            for tenant in tenants
        ]  # fmt: skip
        self._services[role] = self._staff.hire(module, *told, settings=SETTINGS)

    def _stored(self, tenant: str) -> set[str]:
        with self._engines[tenant].connect() as db:
            return {order for (order,) in db.execute(sa.text("select id from orders"))}

    def _stored_anywhere(self) -> set[str]:
        return set[str]().union(*map(self._stored, KINDS))

    # ------------------------------------------------------------ a trial

    def strike(self, victims: tuple[str, ...], rng: random.Random) -> list[str]:
        """One trial; returns its problems."""
        self._await_orders()
        tenant, now = rng.choice([*KINDS]), time.monotonic()
        hired, database_back = dict[int, float](), 0.0
        if LEADER in victims:
            kill_leader(self._cluster)
            time.sleep(rng.uniform(*ALONE_S))
        victims = tuple(victim for victim in victims if victim != LEADER)
        for victim in rng.sample(victims, len(victims)):
            if victim in (SERVICE, TENANT):
                knowing = [role for role, (_, known) in enumerate(ROLES) if tenant in known]
                back = now + (rng.uniform(*AWAY_S[TENANT]) if victim == TENANT else 0.0)
                for role in knowing if victim == TENANT else [rng.choice(knowing)]:
                    self._staff.fire(self._services.pop(role))
                    hired[role] = back
            else:
                self._servers[tenant].kill()
                database_back = now + rng.uniform(*AWAY_S[DATABASE])
            time.sleep(PAUSE_S * rng.random())
        while hired or database_back:
            if database_back and time.monotonic() >= database_back:
                self._servers[tenant].start()
                database_back = 0.0
            for role in [role for role, back in hired.items() if time.monotonic() >= back]:
                del hired[role]
                self._hire(role)
            time.sleep(0.05)
        self._await_orders()
        problems = self._staff.ended() + self._orders.compare(self._stored_anywhere)
        for tenant in KINDS:
            strangers = [order for order in self._stored(tenant) if not order.startswith(f"{tenant}-")]
            problems += [f"{order} is in the database of {tenant}" for order in strangers]
        self.counted["orders of tenants"] = len(self._stored_anywhere())
        return problems

    def _await_orders(self) -> None:
        """Of both."""
        for tenant in KINDS:
            before = len(self._stored(tenant))
            wait_until(
                lambda t=tenant, n=before: len(self._stored(t)) > n + 3,  # type: ignore[misc]
                PATIENCE_S,
                f"orders of {tenant}",
                0.1,
            )


@contextmanager
def tenants(cluster: Cluster, seed: int) -> Iterator[Tenants]:
    """For as long as the block lasts."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="emq-tenants-")))
        servers = {tenant: stack.enter_context(running(kind)) for tenant, kind in KINDS.items()}
        shape = Tenants(cluster, servers, folder, seed)
        stack.callback(shape.end)
        yield shape
