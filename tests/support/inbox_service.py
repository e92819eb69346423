"""A handler of records that can be killed: ``python -m tests.support.inbox_service JSON``.

It handles records from the offset in a file on, with an inbox, and writes the offset after each database
transaction, as a consumer commits its offsets. It kills itself where it is told to.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import sqlalchemy as sa

from escrowmq.integrations import Inbox
from tests.support.inboxes import record


@dataclass(frozen=True, slots=True)
class Service:
    """What it is told. ``dies_at``: number of the record; ``step``: before which step, in order: ``enter``,
    ``work``, ``commit``, ``offset``. ``committed``: the file with the offset."""

    url: str
    table: str
    work: str
    committed: str
    records: int
    dies_at: int
    step: str

    def encode(self) -> str:
        return json.dumps(asdict(self))


def main() -> None:
    told = Service(**json.loads(sys.argv[1]))
    engine, committed = sa.create_engine(told.url), Path(told.committed)
    inbox = Inbox(engine, group="billing", table=told.table)

    def before(number: int, step: str) -> None:
        if (number, step) == (told.dies_at, told.step):
            os.kill(os.getpid(), signal.SIGKILL)

    for number in range(int(committed.read_text()), told.records):
        before(number, "enter")
        with engine.connect() as db:
            with inbox.once(db, record(number)) as first:
                before(number, "work")
                if first:
                    db.execute(sa.text(f"insert into {told.work} values (:number)"), {"number": number})
            before(number, "commit")
            db.commit()
        before(number, "offset")
        committed.write_text(str(number + 1))


if __name__ == "__main__":
    main()
