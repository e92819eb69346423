"""A handler that bills every readable order, with an inbox: ``python -m tests.fence_trials.biller JSON``.

It ends with its standard input. A line there names the step before which it kills itself, at
the next record that is not the first of its poll.
A database that is away, or a lock that another handler holds, makes it try the record again.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass

import sqlalchemy as sa

import escrowmq
from escrowmq import ConsumerRecord
from escrowmq.integrations import Inbox
from tests.fence_trials.service import PAUSE_S

#: In order: before the inbox is asked, before the bill is written, before the database's commit, and before
#: the offsets are committed.
STEPS = ("enter", "work", "commit", "offsets")
#: A killed member is gone after this. A stopped one may stand still for longer, and is a member no more then.
SESSION_S = 3.0
RECORDS = 20
#: Before each poll: so that it finds several records, and those before the one at which it dies come again.
GATHER_S = 0.2


@dataclass(frozen=True, slots=True)
class Biller:
    """The settings of a handler. ``group``: of consumers, and the inbox's; ``bills``: its table."""

    address: str
    namespace: str
    url: str
    group: str
    topic: str
    bills: str

    def encode(self) -> str:
        return json.dumps(asdict(self))


class Doom:
    """The step before which this process kills itself."""

    def __init__(self) -> None:
        self._step = ""
        #: Whether a record has been handled whose offset is not committed: it must come again.
        self.near = False
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin:
            self._step = line.strip()
        os._exit(0)

    def before(self, step: str) -> None:
        if self.near and step == self._step:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    told, doom = Biller(**json.loads(sys.argv[1])), Doom()
    engine = sa.create_engine(told.url)
    inbox = Inbox(engine, group=told.group)
    with (
        escrowmq.connect(told.address, told.namespace) as cluster,
        cluster.consumer(
            told.group, [told.topic], auto_offset_reset="earliest", session_timeout_s=SESSION_S
        ) as consumer,
    ):
        while True:
            try:
                time.sleep(GATHER_S)
                records = consumer.poll(max_records=RECORDS, timeout_s=1.0)
                for number, record in enumerate(records):
                    doom.near = number > 0
                    while not _bill(told, engine, inbox, record, doom):
                        time.sleep(PAUSE_S)
                if records:
                    doom.near = True
                    doom.before("offsets")
                    consumer.commit()
            except (
                escrowmq.EscrowMQError
            ):  # no leader just now, or no member any more: the records come again
                time.sleep(PAUSE_S)


def _bill(told: Biller, engine: sa.Engine, inbox: Inbox, record: ConsumerRecord, doom: Doom) -> bool:
    """Whether the record is handled: now, or before."""
    doom.before("enter")
    try:
        with engine.connect() as db:
            with inbox.once(db, record) as first:
                doom.before("work")
                if first:
                    db.execute(
                        sa.text(f"insert into {told.bills} values (:id)"), {"id": record.value.decode()}
                    )
            doom.before("commit")
            db.commit()
    except sa.exc.SQLAlchemyError:  # also of a commit without an answer: the inbox knows
        return False
    return True


if __name__ == "__main__":
    main()
