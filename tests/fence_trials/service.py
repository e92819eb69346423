"""A service that takes orders until its standard input ends: ``python -m tests.fence_trials.service JSON``.

Some local transactions are slow, some fail. Some orders have an id of the service's own and are tried again
under it whatever became of them, as a client does that repeats its request. Some have blocks of a producer
that hide what the fence raises, fail after the local transaction, give up while a thread goes on with it, or
wrap what is raised into a group; some have a session with a hook that fails after the database's commit.
Several JSON: one process over several databases, a producer each, as for tenants.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial

import sqlalchemy as sa
from sqlalchemy.orm import Session, sessionmaker

import escrowmq
from escrowmq import Message
from escrowmq.actors.producer.producer import Producer
from escrowmq.actors.producer.transactions.transaction import Transaction
from escrowmq.integrations import Fence

THREADS = 3
PAUSE_S, HOLD_S = 0.05, 0.3
GIVEN, SLOW, FAILS = 0.3, 0.2, 0.15
#: Shares of orders whose producer's block behaves so.
HIDES, FAILS_LATE, GIVES_UP, GROUPS, HOOKS = 0.1, 0.1, 0.15, 0.1, 0.1
TRIES = 3
TIMEOUT_S = 0.5  # to the first check
#: A killed owner is gone after this, and not after 20 s. A stopped service may stand still for longer.
SETTINGS = {"ESCROWMQ_FEEDBACK__OWNER_GONE_S": "4", "ESCROWMQ_FEEDBACK__POLL_WAIT_MAX_S": "5"}


#: For asyncio.
DRIVERS = {"mysql+pymysql": "mysql+asyncmy", "sqlite": "sqlite+aiosqlite"}


class Refused(Exception):
    """The business says no."""


@dataclass(frozen=True, slots=True)
class Service:
    """The settings of a service."""

    address: str
    namespace: str
    url: str
    app: str
    topic: str
    name: str
    ahead_s: float = 0.0  # its clock is so far ahead of the others'

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def decode(told: str) -> Service:
        return Service(**json.loads(told))


class Fences:
    """Of one database: one fence that gives connections and answers checks, one that gives sessions."""

    def __init__(self, told: Service) -> None:
        options = {} if told.url.startswith("sqlite") else {"pool_size": 8, "max_overflow": 4}
        engine = sa.create_engine(told.url, **options)

        def clock() -> float:
            return time.time() + told.ahead_s

        self.plain = Fence(engine, app=told.app, clock=clock)
        self.of_sessions = Fence(sessionmaker(engine), app=told.app, clock=clock)


def main() -> None:
    services = [Service.decode(told) for told in sys.argv[1:]]
    with ExitStack() as stack:
        cluster = stack.enter_context(escrowmq.connect(services[0].address, services[0].namespace))
        for told in services:
            fences = Fences(told)
            producer = stack.enter_context(cluster.producer(app=told.app, tx_status_querier=fences.plain))
            for number in range(THREADS):
                threading.Thread(
                    target=_take_orders, args=(told, fences, producer, number), daemon=True
                ).start()
        sys.stdin.read()
        os._exit(0)  # as hard as a kill: what is open is left to the checks of the other service


def _take_orders(told: Service, fences: Fences, producer: Producer, thread: int) -> None:
    rng = random.Random(f"{told.name}/{thread}")
    for number in range(1_000_000):
        order = f"{told.name}-{thread}-{number}"
        given = rng.random() < GIVEN
        for _ in range(TRIES if given else 1):
            try:
                _order(told, fences, producer, order, given, rng)
            except (escrowmq.EscrowMQError, sa.exc.SQLAlchemyError, Refused, TimeoutError, ExceptionGroup):
                # Whatever it was: the fence knows, and the check finds out.
                time.sleep(PAUSE_S * rng.random())
        time.sleep(PAUSE_S * rng.random())


def _order(
    told: Service, fences: Fences, producer: Producer, order: str, given: bool, rng: random.Random
) -> None:
    message, shape = Message(told.topic, order.encode(), key=order.encode()), rng.random()
    hold_s = HOLD_S * rng.random() if rng.random() < SLOW else 0.0
    business = partial(store, order, hold_s, rng.random() < FAILS)
    tx_id, fence = order if given else None, fences.plain
    if shape >= HIDES + FAILS_LATE + GIVES_UP + GROUPS + HOOKS:
        with fence.transaction(
            producer, message, query_id=order, tx_id=tx_id, transaction_timeout_s=TIMEOUT_S
        ) as (_, db):
            business(db)
        return
    with producer.transaction(order, tx_id, transaction_timeout_s=TIMEOUT_S) as tx:
        tx.send(message)
        tx.prepare()
        if shape < GIVES_UP:
            _in_time(fence, tx, business, HOLD_S * rng.random())
        elif shape < GIVES_UP + GROUPS:
            _in_a_group(fence, tx, business)
        elif shape < GIVES_UP + GROUPS + HOOKS:
            with fences.of_sessions.local(tx) as session:
                sa.event.listen(session, "after_commit", _fail_after_commit)
                business(session)
        elif _fails(fence, tx, business) or shape < GIVES_UP + GROUPS + HOOKS + FAILS_LATE:
            raise Refused(order)


def store(order: str, hold_s: float, fails: bool, db: sa.Connection | Session) -> None:
    """The business of an order."""
    db.execute(sa.text("insert into orders values (:id)"), {"id": order})
    time.sleep(hold_s)
    if fails:
        raise Refused(order)


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Those of a group, or itself."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from leaves(each)
    else:
        yield error


def _fail_after_commit(session: Session) -> None:
    """As a database refuses a commit; this one has been carried out."""
    raise sa.exc.IntegrityError("a hook", None, Refused())


def _in_a_group(fence: Fence, tx: Transaction, business: Callable[[sa.Connection], None]) -> None:
    """A sibling always fails."""
    errors: list[Exception] = [Refused()]
    try:
        with fence.local(tx) as db:
            business(db)
    except Exception as error:
        errors.append(error)
    raise ExceptionGroup("of an order", errors)


def _fails(fence: Fence, tx: Transaction, business: Callable[[sa.Connection], None]) -> bool:
    """Runs the local transaction; whatever is raised says only that something was."""
    try:
        with fence.local(tx) as db:
            business(db)
    except Exception:
        return True
    return False


def _in_time(
    fence: Fence, tx: Transaction, business: Callable[[sa.Connection], None], limit_s: float
) -> None:
    """Waits for so long; the thread goes on."""
    told: list[bool] = []
    thread = threading.Thread(target=lambda: told.append(_fails(fence, tx, business)), daemon=True)
    thread.start()
    thread.join(limit_s)
    if not told:
        raise TimeoutError
    if told[0]:
        raise Refused


if __name__ == "__main__":
    main()
