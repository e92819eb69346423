"""The bills of one database: who writes them, with an inbox, and whether each order has exactly one."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import psutil
import sqlalchemy as sa

from escrowmq import Cluster
from escrowmq.integrations import Inbox
from tests.fence_trials.biller import STEPS, Biller
from tests.support.waiting import wait_until

BILLS = "bills"
BILLERS = 2
PATIENCE_S = 120.0


class Billing:
    """Handlers of one topic's orders, in processes of their own. ``died``: how many at which step."""

    def __init__(self, cluster: Cluster, engine: sa.Engine, url: str, topic: str, log: Path) -> None:
        self._cluster, self._engine, self._topic = cluster, engine, topic
        self.group = f"{topic}-billing"
        self.inbox = Inbox(engine, group=self.group)
        self.inbox.create_table()
        with engine.begin() as db:
            # Without a key: a second bill must not be refused, but found.
            db.execute(sa.text(f"create table {BILLS} (id varchar(100) not null){_suffix(engine)}"))
        info = cluster.info
        self._told = Biller(cluster.address, info.namespace, url, self.group, topic, BILLS)
        self._log = log.open("ab")
        self.billers: list[subprocess.Popen[bytes]] = []
        self.died: Counter[str] = Counter()
        for _ in range(BILLERS):
            self.hire()

    def hire(self) -> None:
        """A handler more."""
        command = [sys.executable, "-m", "tests.fence_trials.biller", self._told.encode()]
        self.billers.append(
            subprocess.Popen(
                command, env=os.environ, stdin=subprocess.PIPE, stdout=self._log, stderr=self._log
            )
        )

    def replace(self, rng: random.Random) -> Callable[[], None]:
        """The oldest handler dies before a drawn step of its next record; another one takes its place.
        Returns what waits for its death. One that stands still may have lost its partitions to the others
        when it goes on, and would wait for a record for ever."""
        biller = next(
            one for one in self.billers if psutil.Process(one.pid).status() != psutil.STATUS_STOPPED
        )
        self.billers.remove(biller)
        step = rng.choice(STEPS)
        assert biller.stdin is not None
        biller.stdin.write(f"{step}\n".encode())
        biller.stdin.flush()
        self.hire()
        self.died[step] += 1

        def died() -> None:
            wait_until(lambda: biller.poll() is not None, PATIENCE_S, f"death before {step}", 0.05)
            biller.communicate()

        return died

    def problems(self, orders: Collection[str], ends: Mapping[int, int]) -> list[str]:
        """What is wrong with the bills of these orders, which lie below these ends of the partitions."""

        def passed() -> bool:
            places = self._cluster.admin.describe_group(self.group).partitions
            committed = {p.partition: p.committed or 0 for p in places if p.topic == self._topic}
            return all(committed.get(partition, 0) >= end for partition, end in ends.items())

        wait_until(passed, PATIENCE_S, "the handlers to have passed by the orders", 0.1)
        with self._engine.connect() as db:
            bills = Counter(order for (order,) in db.execute(sa.text(f"select id from {BILLS}")))
        problems = [f"handled-never: no bill for {order}" for order in orders if not bills[order]]
        return problems + [f"handled-twice: {n} bills for {order}" for order, n in bills.items() if n > 1]

    def end(self) -> None:
        for biller in self.billers:
            biller.kill()
            biller.communicate()
        self._log.close()


def _suffix(engine: sa.Engine) -> str:
    return " engine=innodb" if engine.dialect.name in ("mysql", "mariadb") else ""
