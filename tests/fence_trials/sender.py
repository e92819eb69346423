"""A service that puts parcels into an outbox until its standard input ends:
``python -m tests.fence_trials.sender JSON``.

Parcels of a sender's name are numbered by a row that each transaction changes first, so their order is that
of the commits. Some transactions take a while, some fail.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from dataclasses import asdict, dataclass

import sqlalchemy as sa

from escrowmq import Message
from escrowmq.integrations import Outbox

THREADS = 2
PAUSE_S, HOLD_S = 0.1, 0.2
SLOW, FAILS, MANY_MAX = 0.2, 0.15, 4
KEYS = ("north", "south", "east", "west", "up", "down", "left", "right")


class Refused(Exception):
    """The business says no."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """Where parcels go: the settings of senders and of relays. ``name``: of the process."""

    address: str
    namespace: str
    url: str
    app: str
    topic: str
    table: str
    shards: int
    name: str = ""

    def encode(self) -> str:
        return json.dumps(asdict(self))


def main() -> None:
    told = Outgoing(**json.loads(sys.argv[1]))
    engine = sa.create_engine(told.url)
    outbox = Outbox(engine, table=told.table, shards=told.shards)
    for number in range(THREADS):
        threading.Thread(target=_send, args=(told, engine, outbox, number), daemon=True).start()
    sys.stdin.read()
    os._exit(0)


def _send(told: Outgoing, engine: sa.Engine, outbox: Outbox, thread: int) -> None:
    rng = random.Random(f"{told.name}/{thread}")
    while True:
        try:
            with engine.begin() as db:
                # In one order, or two transactions would wait for each other.
                for key in sorted(rng.sample(KEYS, rng.randrange(1, 3))):
                    _parcels(told, db, outbox, key, rng.randrange(1, MANY_MAX))
                if rng.random() < SLOW:
                    time.sleep(HOLD_S * rng.random())
                if rng.random() < FAILS:
                    raise Refused
        except (sa.exc.SQLAlchemyError, Refused):  # also a commit without an answer: the table knows
            time.sleep(PAUSE_S)
        time.sleep(PAUSE_S * rng.random())


def _parcels(told: Outgoing, db: sa.Connection, outbox: Outbox, key: str, count: int) -> None:
    db.execute(sa.text("update counters set n = n + :count where name = :key"), {"count": count, "key": key})
    last = db.execute(sa.text("select n from counters where name = :key"), {"key": key}).scalar_one()
    numbers = range(last - count + 1, last + 1)
    for number in numbers:
        db.execute(sa.text("insert into parcels values (:key, :number)"), {"key": key, "number": number})
    outbox.send(db, *(Message(told.topic, f"{key}-{number}".encode(), key.encode()) for number in numbers))


if __name__ == "__main__":
    main()
