"""Kill trials of fence, inbox and outbox: what is killed when, from a seed; then all sides are compared.

Services, brokers and database go on through all trials of one kind of database, and old rows of fence and
inbox are purged all the time. Handlers bill every readable order, with an inbox in the same database. A trial
strikes some of them, brings back what does not come back by itself, and waits until orders are taken again.
Then, without stopping anybody: what is readable must be in the database, and what was in the database must be
readable once all that was open by then is settled. Nothing may be there twice, and each order must have one
bill. Parcels go through an outbox, by two relays for each shard, and each must come once and in order.
"""

from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from pathlib import Path

import sqlalchemy as sa

from escrowmq import Cluster, Consumer
from escrowmq.integrations import Fence
from tests.fence_trials.billing import Billing
from tests.fence_trials.parcels import Parcels
from tests.fence_trials.purging import CLOCKS_DIFFER_S, Purging
from tests.fence_trials.relaying import STEPS
from tests.fence_trials.service import SETTINGS, Service
from tests.fence_trials.shopping import ORDERS_OF_A_TRIAL, SHOP, Shopping, shop_plan
from tests.support.database_servers import Server, running
from tests.support.faults.dealing import deal
from tests.support.waiting import wait_until

#: Killed; ``SLOW``: the database is killed and takes long to come back; ``STOPPED``: a service stands still.
SERVICE, LEADER, DATABASE, SLOW, STOPPED = "service", "leader", "database", "slow database", "stopped service"
#: A handler kills itself before a drawn step, or stands still until it is no member of its group any more.
BILLER, STOPPED_BILLER = "biller", "stopped biller"
#: Relays kill themselves before a drawn step, or one stands still for longer than its lease; a sender is
#: killed.
RELAY, STOPPED_RELAY, SENDER = "relay", "stopped relay", "sender"
#: What is struck together, and the weight of such trials.
DECK = {
    (SERVICE,): 2,
    (LEADER,): 1,
    (DATABASE,): 1,
    (SLOW,): 1,
    (STOPPED,): 2,
    (SERVICE, DATABASE): 2,
    (SERVICE, SLOW): 1,
    (SERVICE, STOPPED): 1,
    (SERVICE, LEADER): 1,
    (LEADER, DATABASE): 1,
    (STOPPED, LEADER): 1,
    (STOPPED, DATABASE): 1,
    (STOPPED, SLOW): 1,
    (SERVICE, LEADER, DATABASE): 2,
    (SERVICE, STOPPED, LEADER, SLOW): 1,
    (BILLER,): 2,
    (STOPPED_BILLER,): 1,
    (BILLER, LEADER): 1,
    (BILLER, DATABASE): 1,
    (BILLER, SERVICE, STOPPED_BILLER): 1,
    (STOPPED_BILLER, SLOW): 1,
    (BILLER, STOPPED_BILLER, LEADER, DATABASE): 1,
    (RELAY,): 2,
    (STOPPED_RELAY,): 2,
    (SENDER, RELAY): 1,
    (RELAY, LEADER): 1,
    (RELAY, DATABASE): 1,
    (RELAY, SLOW): 1,
    (STOPPED_RELAY, LEADER, DATABASE): 1,
    (SENDER, RELAY, STOPPED_RELAY, LEADER): 1,
    (RELAY, BILLER, SERVICE, LEADER, DATABASE): 1,
    (SHOP,): 1,
}
#: Of the trials, by kind of database; "shop": a whole shop with a PostgreSQL of its own, see ``shopping``.
SHARES = {"postgresql": 0.39, "mariadb": 0.39, "sqlite": 0.2, SHOP: 0.02}
SERVICES = 2
PATIENCE_S = 120.0
BEFORE_S, BETWEEN_S = 0.5, 0.2
#: How long the database is away; a check waits 2 s for a row, and its producer 5 s for the check.
AWAY_S = {DATABASE: (0.0, 1.0), SLOW: (5.0, 9.0)}
#: Up to longer than a check waits, and than the 4 s after which another service is asked.
STOPPED_S = (1.0, 8.0)
#: Longer than a relay's lease (``relaying.LEASE_S``).
STOPPED_RELAY_S = (2.5, 8.0)
#: Clocks of services: hours ahead, or behind by less than clocks may differ.
AHEAD_S = (0.0, 7200.0, -CLOCKS_DIFFER_S / 2)


@dataclass(frozen=True, slots=True)
class Trial:
    """One of a run. ``kind``: of the database."""

    seed: int
    number: int
    kind: str
    victims: tuple[str, ...]


@dataclass(slots=True)
class Outcome:
    """The result of a run."""

    trials: int = 0
    strikes: Counter[str] = field(default_factory=Counter)
    orders: int = 0
    checks_first: int = 0  # rows of checks that kept a local transaction out
    purged: int = 0  # rows of fence and inbox that were removed meanwhile
    died_before: Counter[str] = field(default_factory=Counter)  # handlers, by step
    relays_died: Counter[str] = field(default_factory=Counter)  # by step
    parcels: int = 0
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0


def possible(kind: str, victims: tuple[str, ...]) -> bool:
    """Whether a trial on this kind of database can strike these: SQLite has no server to be killed, and of a
    shop everybody is struck."""
    if SHOP in (kind, *victims):
        return victims == (SHOP,) == (kind,)
    return kind != "sqlite" or not AWAY_S.keys() & {*victims}


def plan(seed: int, count: int) -> list[Trial]:
    """The trials of a run, by kind of database."""
    trials: list[Trial] = []
    for kind, share in SHARES.items():
        rng = random.Random(f"fence-{seed}-{kind}")
        deck = deal(rng, {victims: n for victims, n in DECK.items() if possible(kind, victims)})
        for _ in range(max(round(share * count), 1)):
            trials.append(Trial(seed, len(trials), kind, next(deck)))
    return trials


class Place:
    """One database with its orders and its fence, the services on it, and what is readable of theirs."""

    def __init__(self, cluster: Cluster, kind: str, server: Server | None, folder: Path, name: str) -> None:
        self.cluster, self.kind, self.server = cluster, kind, server
        url = f"sqlite:///{folder / 'shop.db'}" if server is None else server.url()
        self.app, self.topic, self._url = f"{name}-shop", f"{name}-orders", url
        self.engine = sa.create_engine(url, poolclass=sa.NullPool)
        with self.engine.begin() as db:
            key = "varchar(100)" if kind != "sqlite" else "text"
            db.execute(
                sa.text(f"create table orders (id {key} primary key){' engine=innodb' * (kind == 'mariadb')}")
            )
        self.fence = Fence(self.engine, app=self.app)
        self.fence.create_table()
        cluster.admin.create_topic(self.topic, partitions=2)
        self.services: list[subprocess.Popen[bytes]] = []
        self._log_file = folder / "services.log"
        self.billing = Billing(cluster, self.engine, url, self.topic, self._log_file)
        self.parcels = Parcels(cluster, self.engine, url, f"{name}-shop", self._log_file)
        self._log = self._log_file.open("ab")
        self._started = 0
        self._checks_first: set[bytes] = set()
        self._read: dict[tuple[int, int], str] = {}
        self._next: Counter[int] = Counter()

    def hire(self) -> None:
        """A service more."""
        self._started += 1
        address, namespace = self.cluster.address, self.cluster.info.namespace
        ahead_s = AHEAD_S[self._started % len(AHEAD_S)]
        told = Service(address, namespace, self._url, self.app, self.topic, f"s{self._started}", ahead_s)
        command = [sys.executable, "-m", "tests.fence_trials.service", told.encode()]
        self.services.append(
            subprocess.Popen(
                command, env=os.environ | SETTINGS, stdin=subprocess.PIPE, stdout=self._log, stderr=self._log
            )
        )

    def end(self) -> None:
        for service in self.services:
            service.kill()
            service.communicate()
        self.billing.end()
        self.parcels.end()
        self._log.close()
        self.engine.dispose()

    def said(self) -> str:
        """The end of the services' log, and which of them are alive."""
        processes = *self.services, *self.billing.billers, *self.parcels.relays, self.parcels.sender
        alive = [process.poll() for process in processes]
        return f"exit codes {alive}\n{self._log_file.read_text(errors='replace')[-4000:]}"

    def stored(self) -> set[str]:
        with self.engine.connect() as db:
            return {order for (order,) in db.execute(sa.text("select id from orders"))}

    def checks_first(self) -> int:
        """The rows so far; read often, since rows are purged."""
        with self.engine.connect() as db:
            found = db.execute(sa.text(f"select tx_key from {self.fence.statements.table} where outcome = 2"))
            self._checks_first |= {bytes(key) for (key,) in found}
        return len(self._checks_first)

    def oldest_open_ms(self) -> int:
        opened = self.cluster.admin.list_transactions(topic=self.topic)
        return min((tx.prepared_ms for tx in opened), default=1 << 62)

    @property
    def ends(self) -> dict[int, int]:
        """Up to where each partition has been read."""
        return dict(self._next)

    def read(self, consumer: Consumer) -> list[str]:
        """All that is readable now: up to the ends of this moment, as services go on meanwhile."""
        ends = {p.partition: p.end for p in self.cluster.admin.describe_topic(self.topic).partitions}
        until = time.monotonic() + PATIENCE_S
        while any(self._next[partition] < end for partition, end in ends.items()):
            if time.monotonic() > until:
                raise TimeoutError(f"read up to {dict(self._next)} of {ends} in {PATIENCE_S:g} s")
            for record in consumer.poll(timeout_s=0.3):
                self._read[record.partition, record.offset] = record.value.decode()
                self._next[record.partition] = max(self._next[record.partition], record.offset + 1)
        return list(self._read.values())


class Run:
    """Trials on one cluster. ``orders``: that each shop takes."""

    def __init__(
        self,
        cluster: Cluster,
        trials: Sequence[Trial],
        say: Callable[[str], None] = print,
        orders: int = ORDERS_OF_A_TRIAL,
    ) -> None:
        self._cluster, self._trials, self._say, self._orders = cluster, trials, say, orders
        self.outcome = Outcome()

    def run(self) -> Outcome:
        """Everything; problems are in the outcome."""
        began = time.monotonic()
        for trial in self._trials:
            if trial.kind == SHOP:
                self._open_a_shop(trial)
        for kind in SHARES:
            if mine := [trial for trial in self._trials if trial.kind == kind != SHOP]:
                with self._place(kind, f"{kind}-{mine[0].seed}-{os.getpid()}") as place:
                    purging = Purging(self._cluster, place.engine, place.app, place.billing.group)
                    with purging.running():
                        self._on(place, mine)
                    self.outcome.purged += purging.removed
        self.outcome.seconds = time.monotonic() - began
        return self.outcome

    def _open_a_shop(self, trial: Trial) -> None:
        """A trial that is a run of its own, over a database of its own."""
        at, plan = time.monotonic(), shop_plan(trial.seed, trial.number, self._orders)
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="emq-shop-")))
            found = Shopping(self._cluster, stack.enter_context(running("postgresql")), folder, plan).run()
        where = f"trial {trial.number} (seed {trial.seed}, {SHOP}, {plan.kind})"
        self.outcome.trials += 1
        self.outcome.strikes.update(found.kills)
        self.outcome.orders += found.stored
        self.outcome.problems += [f"{where}: {text}" for text in (*found.problems, *found.lost)]
        wrong = len(found.problems) + len(found.lost)
        self._say(f"{where}: {wrong or 'no'} problems, {time.monotonic() - at:.1f} s")

    @contextmanager
    def _place(self, kind: str, name: str) -> Iterator[Place]:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="emq-fence-")))
            server = None if kind == "sqlite" else stack.enter_context(running(kind))
            place = Place(self._cluster, kind, server, folder, name)
            stack.callback(place.end)
            for _ in range(SERVICES):
                place.hire()
            wait_until(lambda: len(place.stored()) > SERVICES, PATIENCE_S, "the first orders", 0.1)
            yield place

    def _on(self, place: Place, trials: Sequence[Trial]) -> None:
        with self._cluster.consumer(
            group=f"{place.app}-audit", topics=[place.topic], auto_offset_reset="earliest"
        ) as consumer:
            for trial in trials:
                at = time.monotonic()
                where = f"trial {trial.number} (seed {trial.seed}, {trial.kind}, {'+'.join(trial.victims)})"
                try:
                    self._strike(place, trial)
                    found = self._compare(place, consumer)
                    place.checks_first()
                except Exception as error:
                    error.add_note(f"{where}; the services said last:\n{place.said()}")
                    raise
                self.outcome.trials += 1
                self.outcome.strikes.update(trial.victims)
                self.outcome.problems += [f"{where}: {text}" for text in found]
                self._say(f"{where}: {len(found) or 'no'} problems, {time.monotonic() - at:.1f} s")
        self.outcome.orders += len(place.stored())
        self.outcome.checks_first += place.checks_first()
        self.outcome.died_before += place.billing.died
        self.outcome.relays_died += place.parcels.died
        self.outcome.parcels += len(place.parcels.stored())

    def _strike(self, place: Place, trial: Trial) -> None:
        rng = random.Random(f"fence-trial-{trial.seed}-{trial.number}")
        wait_until(lambda: self._cluster.status().healthy, PATIENCE_S, "the brokers", 0.2)
        time.sleep(BEFORE_S * rng.random())
        victims = list(trial.victims)
        rng.shuffle(victims)
        later: list[tuple[float, Callable[[], None]]] = []
        for victim in victims:
            if victim == SERVICE:
                service = place.services.pop(0)
                service.kill()
                service.communicate()
                place.hire()
            elif victim in (STOPPED, STOPPED_BILLER, STOPPED_RELAY):
                later.append(self._stop(place, victim, rng))
            elif victim == BILLER:
                # It dies at its next record, and there are none while the database is away.
                later.append((math.inf, place.billing.replace(rng)))
            elif victim == RELAY:
                later.append((math.inf, place.parcels.replace_relays(rng.choice(STEPS))))
            elif victim == SENDER:
                place.parcels.replace_sender()
            elif victim == LEADER:
                self._kill_leader()
            else:
                assert place.server is not None
                place.server.kill()
                # In this thread: the server dies with the thread that has started it.
                later.append((time.monotonic() + rng.uniform(*AWAY_S[victim]), place.server.start))
            time.sleep(BETWEEN_S * rng.random())
        for at, undo in sorted(later, key=itemgetter(0)):
            if at < math.inf:
                time.sleep(max(at - time.monotonic(), 0.0))
            undo()
        before = len(place.stored())
        wait_until(lambda: len(place.stored()) > before + 3, PATIENCE_S, "orders after the strike", 0.1)

    @staticmethod
    def _stop(place: Place, victim: str, rng: random.Random) -> tuple[float, Callable[[], None]]:
        """One of them stands still. Returns until when, and what lets it go on."""
        those = {
            STOPPED: place.services,
            STOPPED_BILLER: place.billing.billers,
            STOPPED_RELAY: place.parcels.relays,
        }[victim]
        stopped = rng.choice(those)
        stopped.send_signal(signal.SIGSTOP)
        seconds = rng.uniform(*(STOPPED_RELAY_S if victim == STOPPED_RELAY else STOPPED_S))
        return time.monotonic() + seconds, partial(stopped.send_signal, signal.SIGCONT)

    def _kill_leader(self) -> None:
        group = self._cluster.status().groups[0]
        leader = next((replica for replica in group.replicas if replica.role == "leader"), None)
        if leader is not None:
            os.kill(leader.details["pid"], signal.SIGKILL)

    @staticmethod
    def _compare(place: Place, consumer: Consumer) -> list[str]:
        readable = place.read(consumer)
        stored, now_ms = place.stored(), int(time.time() * 1000)
        problems = [
            f"fence-split: {order} is readable, and not in the database" for order in {*readable} - stored
        ]
        wait_until(lambda: place.oldest_open_ms() > now_ms, PATIENCE_S, "decisions of what was open", 0.1)
        readable = place.read(consumer)
        problems += [
            f"fence-split: {order} is in the database, and not readable" for order in stored - {*readable}
        ]
        problems += [f"{order} is there {n} times" for order, n in Counter(readable).items() if n > 1]
        return problems + place.billing.problems(readable, place.ends) + place.parcels.problems()
