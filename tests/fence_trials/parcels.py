"""The parcels of one database: who puts them into its outbox, who relays them, whether each comes once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import sqlalchemy as sa

from escrowmq import Cluster, Consumer
from escrowmq.integrations import Outbox
from tests.fence_trials.sender import KEYS, Outgoing
from tests.history.outbox import STOPPED, Row, Seen, anomalies
from tests.support.waiting import wait_until

RELAYS, SHARDS = 2, 2
PATIENCE_S = 120.0


class Parcels:
    """A sender and two relays of both shards, in processes of their own. ``died``: relays, by step."""

    def __init__(self, cluster: Cluster, engine: sa.Engine, url: str, app: str, log: Path) -> None:
        self._cluster, self._engine = cluster, engine
        info, topic = cluster.info, f"{app}-parcels"
        cluster.admin.create_topic(topic, partitions=2)
        self._told = Outgoing(cluster.address, info.namespace, url, app, topic, "parcels_outbox", SHARDS)
        self.outbox = Outbox(engine, table=self._told.table, shards=SHARDS)
        self.outbox.create_table()
        suffix = " engine=innodb" if engine.dialect.name in ("mysql", "mariadb") else ""
        with engine.begin() as db:
            columns = "name varchar(20) not null, n integer not null"
            db.execute(sa.text(f"create table counters ({columns}, primary key (name)){suffix}"))
            # Without a key: what is sent twice must not be refused, but found.
            db.execute(sa.text(f"create table parcels ({columns}){suffix}"))
            for key in KEYS:
                db.execute(sa.text("insert into counters values (:key, 0)"), {"key": key})
        self._consumer: Consumer = cluster.consumer(
            group=f"{app}-parcels-audit", topics=[topic], auto_offset_reset="earliest"
        )
        self._log = log.open("ab")
        self._seen: list[Seen] = []
        self._next: Counter[int] = Counter()
        self._started = 0
        self.died: Counter[str] = Counter()
        self.relays: list[subprocess.Popen[bytes]] = []
        self.sender = self._start("sender")
        for _ in range(RELAYS):
            self.hire()

    def _start(self, module: str) -> subprocess.Popen[bytes]:
        self._started += 1
        told = replace(self._told, name=f"{module}-{self._started}")
        command = [sys.executable, "-m", f"tests.fence_trials.{module}", told.encode()]
        return subprocess.Popen(
            command, env=os.environ, stdin=subprocess.PIPE, stdout=self._log, stderr=self._log
        )

    def hire(self) -> None:
        """A relay more."""
        self.relays.append(self._start("relaying"))

    def replace_relays(self, step: str) -> Callable[[], None]:
        """Every relay is told to die before the same step: which of them has the shards is not known. Returns
        what waits until one has died, kills the others wherever they are, and starts new ones."""
        doomed = list(self.relays)
        for relay in doomed:
            assert relay.stdin is not None
            relay.stdin.write(f"{step}\n".encode())
            relay.stdin.flush()

        def died() -> None:
            wait_until(
                lambda: any(relay.poll() is not None for relay in doomed), PATIENCE_S, f"death before {step}"
            )
            self.died[step] += sum(relay.poll() is not None for relay in doomed)
            for relay in doomed:
                relay.kill()
                relay.communicate()
            self.relays.clear()
            for _ in doomed:
                self.hire()

        return died

    def replace_sender(self) -> None:
        """It is killed, whatever it does."""
        self.sender.kill()
        self.sender.communicate()
        self.sender = self._start("sender")

    def stored(self) -> set[tuple[str, int]]:
        with self._engine.connect() as db:
            return {(key, number) for key, number in db.execute(sa.text("select name, n from parcels"))}

    def problems(self) -> list[str]:
        """What is wrong with what is in the database now, once that is sent."""
        stored = self.stored()
        last = max((entry.id for entry in self.outbox.rows(limit=100_000)), default=0)

        def sent() -> bool:
            return not any(entry.id <= last for entry in self.outbox.rows(limit=1))

        try:
            wait_until(sent, PATIENCE_S, "the relays to have sent the rows", 0.1)
        except AssertionError:
            stopped = [one for one in self.outbox.status() if one.stopped]
            if not stopped:
                raise
            return [f"{STOPPED}: shard {one.shard}: {one.stopped}" for one in stopped]
        self._read()
        rows = [
            Row(f"{key}-{number}", key, number, number + 0.5, may_miss=(key, number) not in stored)
            for key, number in self.stored()
        ]
        return anomalies(rows, self._seen)

    def _read(self) -> None:
        ends = {p.partition: p.end for p in self._cluster.admin.describe_topic(self._told.topic).partitions}
        until = time.monotonic() + PATIENCE_S
        while any(self._next[partition] < end for partition, end in ends.items()):
            if time.monotonic() > until:
                raise TimeoutError(f"read up to {dict(self._next)} of {ends} in {PATIENCE_S:g} s")
            for record in self._consumer.poll(timeout_s=0.3):
                self._seen.append(Seen(record.value.decode(), record.partition, record.offset))
                self._next[record.partition] = max(self._next[record.partition], record.offset + 1)

    def end(self) -> None:
        for process in (self.sender, *self.relays):
            process.kill()
            process.communicate()
        self._consumer.close()
        self._log.close()
