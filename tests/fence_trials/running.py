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
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Protocol

import sqlalchemy as sa

from escrowmq import Cluster
from escrowmq.integrations import Fence
from tests.fence_trials.billing import Billing
from tests.fence_trials.failing_over import DECK as OF_STANDBYS
from tests.fence_trials.failing_over import MODULES, STANDBY, failing_over
from tests.fence_trials.orders import Orders
from tests.fence_trials.parcels import Parcels
from tests.fence_trials.purging import CLOCKS_DIFFER_S, Purging
from tests.fence_trials.redriving import DECK as OF_REDRIVES
from tests.fence_trials.redriving import REDRIVES, redriving
from tests.fence_trials.relaying import STEPS
from tests.fence_trials.service import SETTINGS, Service
from tests.fence_trials.shopping import ORDERS_OF_A_TRIAL, SHOP, Shopping, shop_plan
from tests.fence_trials.staff import kill_leader
from tests.fence_trials.tenants import DECK as OF_TENANTS
from tests.fence_trials.tenants import TENANTS, tenants
from tests.support.database_servers import Server, running
from tests.support.faults.dealing import deal
from tests.support.waiting import wait_until


class Shape(Protocol):
    """Trials that share services and servers of their own. ``counted``: what is said of them in the end."""

    counted: Counter[str]

    def strike(self, victims: tuple[str, ...], rng: random.Random) -> list[str]:
        """One trial; returns its problems."""

    def said(self) -> str:
        """By its processes, at last."""


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
}
#: Shapes that are no place with everything: how one begins, and what is struck in it.
SHAPES: dict[str, Callable[[Cluster, int], AbstractContextManager[Shape]]] = {
    STANDBY: failing_over,
    REDRIVES: redriving,
    TENANTS: tenants,
}
DECKS: dict[str, dict[tuple[str, ...], int]] = {
    SHOP: {(SHOP,): 1},
    STANDBY: OF_STANDBYS,
    REDRIVES: OF_REDRIVES,
    TENANTS: OF_TENANTS,
}
#: Of the trials, by kind of database, or shape; "shop": a whole shop with a PostgreSQL of its own.
SHARES = {
    "postgresql": 0.31,
    "mariadb": 0.31,
    "sqlite": 0.15,
    STANDBY: 0.07,
    REDRIVES: 0.07,
    TENANTS: 0.07,
    SHOP: 0.02,
}
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
    """One of a run. ``kind``: of the database, or the shape."""

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
    of_shapes: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0


def deck_of(kind: str) -> dict[tuple[str, ...], int]:
    """What trials of a kind strike. SQLite has no server to be killed."""
    if kind in DECKS:
        return DECKS[kind]
    return {v: n for v, n in DECK.items() if kind != "sqlite" or not AWAY_S.keys() & {*v}}


def plan(seed: int, count: int) -> list[Trial]:
    """The trials of a run, by kind of database."""
    trials: list[Trial] = []
    for kind, share in SHARES.items():
        rng = random.Random(f"fence-{seed}-{kind}")
        deck = deal(rng, deck_of(kind))
        for _ in range(max(round(share * count), 1)):
            trials.append(Trial(seed, len(trials), kind, next(deck)))
    return trials


class Place:
    """One database with its orders and its fence, the services on it, and what is readable of theirs."""

    def __init__(self, cluster: Cluster, kind: str, server: Server | None, folder: Path, name: str) -> None:
        self.cluster, self.kind, self.server = cluster, kind, server
        url = f"sqlite:///{folder / 'shop.db'}" if server is None else server.url()
        self.app, self._url = f"{name}-shop", url
        self.engine = sa.create_engine(url, poolclass=sa.NullPool)
        with self.engine.begin() as db:
            key = "varchar(100)" if kind != "sqlite" else "text"
            db.execute(
                sa.text(f"create table orders (id {key} primary key){' engine=innodb' * (kind == 'mariadb')}")
            )
        self.fence = Fence(self.engine, app=self.app)
        self.fence.create_table()
        self.orders = Orders(cluster, f"{name}-orders")
        self.services: list[subprocess.Popen[bytes]] = []
        self._log_file = folder / "services.log"
        self.billing = Billing(cluster, self.engine, url, self.orders.topic, self._log_file)
        self.parcels = Parcels(cluster, self.engine, url, f"{name}-shop", self._log_file)
        self._log = self._log_file.open("ab")
        self._started = 0
        self._checks_first: set[bytes] = set()

    def hire(self) -> None:
        """A service more."""
        self._started += 1
        address, namespace = self.cluster.address, self.cluster.info.namespace
        ahead_s = AHEAD_S[self._started % len(AHEAD_S)]
        told = Service(
            address, namespace, self._url, self.app, self.orders.topic, f"s{self._started}", ahead_s
        )
        module = MODULES[self._started % len(MODULES)]
        command = [sys.executable, "-m", f"tests.fence_trials.{module}", told.encode()]
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
        self.orders.close()
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
            mine = [trial for trial in self._trials if trial.kind == kind]
            if mine and kind in SHAPES:
                self._in_shape(kind, mine)
            elif mine and kind != SHOP:
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
        pid_file = "" if plan.pid_file else ", no pid file"
        where = f"trial {trial.number} (seed {trial.seed}, {SHOP}, {plan.kind}{pid_file})"
        self.outcome.trials += 1
        self.outcome.strikes.update(found.kills)
        self.outcome.orders += found.stored
        self.outcome.problems += [f"{where}: {text}" for text in (*found.problems, *found.lost)]
        wrong = len(found.problems) + len(found.lost)
        self._say(f"{where}: {wrong or 'no'} problems, {time.monotonic() - at:.1f} s")
        for text in (*found.problems, *found.lost):  # at once: a run that is killed has said what it knows
            self._say(f"    {text}")

    def _in_shape(self, kind: str, trials: Sequence[Trial]) -> None:
        with SHAPES[kind](self._cluster, trials[0].seed) as shape:
            for trial in trials:
                rng = random.Random(f"fence-trial-{trial.seed}-{trial.number}")
                self._one(trial, partial(shape.strike, trial.victims, rng), shape.said)
            self.outcome.of_shapes += shape.counted

    def _one(self, trial: Trial, strike: Callable[[], list[str]], said: Callable[[], str]) -> None:
        at = time.monotonic()
        where = f"trial {trial.number} (seed {trial.seed}, {trial.kind}, {'+'.join(trial.victims)})"
        wait_until(lambda: self._cluster.status().healthy, PATIENCE_S, "the brokers", 0.2)
        try:
            found = strike()
        except Exception as error:
            error.add_note(f"{where}; the processes said last:\n{said()}")
            raise
        self.outcome.trials += 1
        self.outcome.strikes.update(trial.victims)
        self.outcome.problems += [f"{where}: {text}" for text in found]
        self._say(f"{where}: {len(found) or 'no'} problems, {time.monotonic() - at:.1f} s")
        for text in found:
            self._say(f"    {text}")

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
        for trial in trials:
            self._one(trial, partial(self._strike_and_compare, place, trial), place.said)
        self.outcome.orders += len(place.stored())
        self.outcome.checks_first += place.checks_first()
        self.outcome.died_before += place.billing.died
        self.outcome.relays_died += place.parcels.died
        self.outcome.parcels += len(place.parcels.stored())

    def _strike_and_compare(self, place: Place, trial: Trial) -> list[str]:
        self._strike(place, trial)
        found = self._compare(place)
        place.checks_first()
        return found

    def _strike(self, place: Place, trial: Trial) -> None:
        rng = random.Random(f"fence-trial-{trial.seed}-{trial.number}")
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
                kill_leader(self._cluster)
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

    @staticmethod
    def _compare(place: Place) -> list[str]:
        codes = [service.poll() for service in place.services]
        return [
            *(f"a service has ended by itself, with {code}" for code in codes if code is not None),
            *place.orders.compare(place.stored),
            *place.billing.problems(place.orders.readable, place.orders.ends),
            *place.parcels.problems(),
        ]
