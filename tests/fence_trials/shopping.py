"""One run of a whole shop: web services with a fence take orders, clerks with retries and an inbox bill them,
and all of them, PostgreSQL's processes and its postmaster are killed meanwhile.

What is asked of each order in the end: it is stored and readable, or neither; and each one that is readable
is billed once, or is a dead letter once if no attempt can bill it. Nothing may be left that waits for another
attempt or is leased. What the clerks have seen tells a bill that PostgreSQL has confirmed and lost from one
that was never written.
"""

from __future__ import annotations

import http.client
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa

from escrowmq import Cluster
from escrowmq.integrations import Fence, Inbox
from tests.fence_trials.clerk import BILLED, CONCURRENT, ORDERED, SHARE, Clerk, is_poison
from tests.fence_trials.purging import Purging
from tests.fence_trials.shop import ORDERS, REFUSED, STORED, THERE, Shop
from tests.support.database_servers import Server, free_port
from tests.support.faults.dealing import deal
from tests.support.waiting import wait_until

SERVICE, CLERK, BACKEND, POSTMASTER = "web service", "clerk", "backend", "postmaster"
#: Of those that are killed in a run.
DECK = {SERVICE: 7, CLERK: 7, BACKEND: 5, POSTMASTER: 4}
KINDS = (CONCURRENT, ORDERED, SHARE)
#: The kind of trial.
SHOP = "shop"
BILLS = "bills"
SERVICES, CLERKS, CUSTOMERS, PARTITIONS = 2, 2, 6, 4
ORDERS_OF_A_TRIAL, KILLS_OF_A_TRIAL = 3_000, 23
ATTEMPTS, DELAYS_S = 3, (0.2, 0.5)
ANSWER_S, PAUSE_S, PATIENCE_S = 20.0, 0.05, 180.0
#: How long the database is away, so that attempts are used up, or are not.
AWAY_S = (0.0, 4.0)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done in a run. ``pid_file``: whether a killed postmaster's is kept."""

    seed: int
    kind: str
    orders: int
    kills: int
    pid_file: bool = True

    def victims(self) -> list[tuple[int, str]]:
        """Who is killed once so many orders were answered."""
        rng = random.Random(f"shopping-{self.seed}")
        cards = deal(rng, DECK)
        places = sorted(rng.sample(range(self.orders // 20, self.orders), self.kills))
        return [(place, next(cards)) for place in places]


def shop_plan(seed: int, number: int, orders: int) -> Plan:
    """Of one of many trials: kinds of groups in turn, every other one without its postmaster's pid file."""
    kills = KILLS_OF_A_TRIAL * orders // ORDERS_OF_A_TRIAL
    return Plan(seed * 1000 + number, KINDS[number % len(KINDS)], orders, kills, number % 2 == 0)


@dataclass(slots=True)
class Found:
    """The result of a run. ``lost``: what PostgreSQL has confirmed and does not have any more."""

    stored: int = 0
    billed: int = 0
    dead: int = 0
    poison: int = 0
    problems: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)


class Shopping:
    """One run, with a database of its own."""

    def __init__(self, cluster: Cluster, server: Server, folder: Path, plan: Plan) -> None:
        self._cluster, self._server, self._plan, self._folder = cluster, server, plan, folder
        name = f"shopping-{plan.seed}-{os.getpid()}"
        self.app, self.topic, self.group = f"{name}-shop", f"{name}-orders", f"{name}-billing"
        self._engine = sa.create_engine(server.url(), poolclass=sa.NullPool)
        self._rng = random.Random(f"shopping-{plan.seed}-kills")
        self._log = (folder / "log").open("ab")
        self._services: dict[int, subprocess.Popen[bytes]] = {}
        self._clerks: list[subprocess.Popen[bytes]] = []
        self._started = 0
        self._lock = threading.Lock()
        self._next, self._answered = 0, 0
        self._confirmed: set[str] = set()  # by a service, so by the database
        self._stop = threading.Event()
        self.found = Found()

    def run(self) -> Found:
        """Everything."""
        with self._engine.begin() as db:
            db.execute(sa.text(f"create table {ORDERS} (id text primary key)"))
            db.execute(sa.text(f"create table {BILLS} (id text not null)"))
        Fence(self._engine, app=self.app).create_table()
        Inbox(self._engine, group=self.group).create_table()
        admin = self._cluster.admin
        admin.create_topic(self.topic, partitions=PARTITIONS)
        admin.set_group(self.group, max_attempts=ATTEMPTS, delays_s=list(DELAYS_S))
        with self._staff(), Purging(self._cluster, self._engine, self.app, self.group).running():
            self._shop()
            self._settle()
            self._compare()
        return self.found

    @contextmanager
    def _staff(self) -> Iterator[None]:
        try:
            for _ in range(SERVICES):
                self._hire_service()
            for _ in range(CLERKS):
                self._hire_clerk()
            yield
        finally:
            self._stop.set()
            for process in (*self._services.values(), *self._clerks):
                process.kill()
                process.communicate()
            self._log.close()
            self._engine.dispose()

    # ------------------------------------------------------------ people

    def _hire_service(self) -> None:
        port, namespace, url = free_port(), self._cluster.info.namespace, self._server.url()
        told = Shop(self._cluster.address, namespace, url, self.app, self.topic, port, self._started)
        self._started += 1
        self._services[port] = self._spawn("shop", told.encode())

    def _hire_clerk(self) -> None:
        told = Clerk(
            self._cluster.address, self._cluster.info.namespace, self._server.url(), self.group, self.topic,
            BILLS, self._plan.kind, str(self._folder / "seen"),
        )  # fmt: skip
        self._clerks.append(self._spawn("clerk", told.encode()))

    def _spawn(self, module: str, told: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"tests.fence_trials.{module}", told]
        return subprocess.Popen(
            command, env=os.environ, stdin=subprocess.PIPE, stdout=self._log, stderr=self._log
        )

    def _replace_the_gone(self) -> None:
        """Whatever runs services starts those again that have ended."""
        for port in [port for port, service in self._services.items() if service.poll() is not None]:
            self._services.pop(port).communicate()
            self._hire_service()
        for clerk in [clerk for clerk in self._clerks if clerk.poll() is not None]:
            self._clerks.remove(clerk)
            clerk.communicate()
            self._hire_clerk()

    # ------------------------------------------------------------ orders

    def _shop(self) -> None:
        customers = [threading.Thread(target=self._buy, args=(n,), daemon=True) for n in range(CUSTOMERS)]
        for customer in customers:
            customer.start()
        victims = self._plan.victims()
        while any(customer.is_alive() for customer in customers):
            self._replace_the_gone()
            if victims and self._answered >= victims[0][0]:
                self._kill(victims.pop(0)[1])
            time.sleep(PAUSE_S)

    def _buy(self, customer: int) -> None:
        rng = random.Random(f"shopping-{self._plan.seed}-{customer}")
        while not self._stop.is_set():
            with self._lock:
                if self._next >= self._plan.orders:
                    return
                order, self._next = f"o{self._next}", self._next + 1
            while not self._stop.is_set():
                status = self._post(order, rng)
                if status in (STORED, THERE):
                    with self._lock:
                        self._confirmed.add(order)
                if status in (STORED, THERE, REFUSED):
                    break
                time.sleep(PAUSE_S * (1 + rng.random()))
            with self._lock:
                self._answered += 1

    def _post(self, order: str, rng: random.Random) -> int:
        ports = list(self._services)
        if not ports:
            return 0
        connection = http.client.HTTPConnection("127.0.0.1", rng.choice(ports), timeout=ANSWER_S)
        try:
            connection.request("POST", f"/{ORDERS}/{order}")
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()

    # ------------------------------------------------------------ kills

    def _kill(self, victim: str) -> None:
        self.found.kills[victim] += 1
        if victim == SERVICE:
            port = self._rng.choice(list(self._services))
            service = self._services.pop(port)
            service.kill()
            service.communicate()
            self._hire_service()
        elif victim == CLERK:
            clerk = self._clerks.pop(self._rng.randrange(len(self._clerks)))
            clerk.kill()
            clerk.communicate()
            self._hire_clerk()
        elif victim == BACKEND:
            with suppress(ProcessLookupError, IndexError):
                os.kill(self._rng.choice(self._server.processes()), signal.SIGKILL)
        else:
            self._server.kill_postmaster(keeps_pid_file=self._plan.pid_file)
            # At once in half of the cases: what still runs of it is then met by the next one.
            time.sleep(self._rng.choice((0.0, self._rng.uniform(*AWAY_S))))
            self._server.restart()

    # ------------------------------------------------------------ the end

    def _settle(self) -> None:
        """Until nothing is under way any more."""
        try:
            wait_until(self._is_calm, PATIENCE_S, "an end of what is under way", 0.2)
        except AssertionError as error:
            self.found.problems.append(f"stuck: {error}; {self._cluster.admin.describe_group(self.group)}")

    def _is_calm(self) -> bool:
        self._replace_the_gone()
        admin = self._cluster.admin
        if admin.list_transactions(topic=self.topic):
            return False
        described, ends = admin.describe_group(self.group), self._ends()
        share = described.share
        if share is None or share.retrying or share.leased or described.lag:
            return False
        read = {(p.topic, p.partition): p.committed or 0 for p in described.partitions}
        read |= {(p.topic, p.partition): p.start for p in share.partitions}
        return all(read.get((self.topic, partition), 0) >= end for partition, end in ends.items())

    def _ends(self) -> dict[int, int]:
        return {p.partition: p.end for p in self._cluster.admin.describe_topic(self.topic).partitions}

    def _compare(self) -> None:
        found = self.found
        readable = Counter(self._readable())
        stored, bills = set(self._column(ORDERS)), Counter(self._column(BILLS))
        letters = self._cluster.admin.dead_letters(self.group, limit=100_000)
        dead = Counter(letter.value.decode() for letter in letters)
        found.stored, found.billed, found.dead = len(stored), len(bills), len(dead)
        found.poison = sum(map(is_poison, readable))
        seen = self._seen()
        found.lost += [f"{order} was confirmed and is not stored" for order in self._confirmed - stored]
        found.problems += [
            f"fence-split: {order} is readable, and not stored" for order in {*readable} - stored
        ]
        found.problems += [
            f"fence-split: {order} is stored, and not readable" for order in stored - {*readable}
        ]
        found.problems += [f"{order} is readable {n} times" for order, n in readable.items() if n > 1]
        found.problems += [f"handled-twice: {n} bills for {order}" for order, n in bills.items() if n > 1]
        found.problems += [f"dead-twice: {order}, {n} times" for order, n in dead.items() if n > 1]
        for order in readable:
            if bills[order] or dead[order]:
                continue
            if any(what == BILLED for _, what, _ in seen.get(order, ())):
                found.lost.append(f"the bill for {order} was confirmed and is not there: {seen[order]}")
            else:
                found.problems.append(f"handled-never: {order}: {seen.get(order)}")
        for order in dead:
            if bills[order]:
                found.problems.append(f"dead-though-handled: {order}")
            elif not is_poison(order):
                reason = next(letter.reason for letter in letters if letter.value.decode() == order)
                found.problems.append(f"dead-early: {order}: {reason[:120]!r}")

    def _column(self, table: str) -> list[str]:
        with self._engine.connect() as db:
            # Not by an index: what two servers have written at a time may contradict itself.
            db.execute(sa.text("set enable_indexonlyscan = off"))
            return [order for (order,) in db.execute(sa.text(f"select id from {table}"))]

    def _readable(self) -> Iterator[str]:
        ends = self._ends()
        with self._cluster.consumer(auto_offset_reset="earliest") as consumer:
            consumer.assign([(self.topic, partition) for partition in ends])
            at, until = Counter[int](), time.monotonic() + PATIENCE_S
            while any(at[partition] < end for partition, end in ends.items()):
                assert time.monotonic() < until, f"read up to {dict(at)} of {ends}"
                for record in consumer.poll(timeout_s=0.3):
                    at[record.partition] = record.offset + 1
                    yield record.value.decode()

    def _seen(self) -> dict[str, list[tuple[str, str, str]]]:
        """By order: when, what, and where, as the clerks have written it."""
        found: dict[str, list[tuple[str, str, str]]] = {}
        for line in (self._folder / "seen").read_text().splitlines():
            when, pid, what, order, *rest = line.split(" ", 4)
            found.setdefault(order, []).append((f"{when} {pid}", what, " ".join(rest)))
        return found
