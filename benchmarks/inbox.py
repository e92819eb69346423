"""What an inbox costs a handler: ``python -m benchmarks.inbox``.

Handles records with an inbox and without one, in turns, on SQLite and on real PostgreSQL and MariaDB on this
machine, through SQLAlchemy and through the plain drivers. The work is one insert, and each record has a
database transaction of its own. The difference of the medians is the inbox: one statement on PostgreSQL, two
on the others, no further commit.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from escrowmq import ConsumerRecord
from escrowmq.integrations import Inbox
from tests.support.database_servers import Server, running
from tests.support.shops import closing_shops

WARM = 200


def handled(numbers: Iterator[int]) -> ConsumerRecord:
    """The next record."""
    return ConsumerRecord("orders", 0, next(numbers), 7, None, b"", {}, None)


def median_us(work: Callable[[], None], times: int) -> float:
    """The median of so many calls, in microseconds."""
    taken = []
    for _ in range(times):
        began = time.perf_counter_ns()
        work()
        taken.append(time.perf_counter_ns() - began)
    return statistics.median(taken) / 1000


def measure(kind: str, server: Server | None, plain: bool, folder: Path, records: int) -> str:
    """One line for one database and one way to reach it."""
    with closing_shops(server, folder, plain) as make:
        shop = make()
        table = f"inbox_{shop.table}"
        inbox = Inbox(shop.connect if plain else shop.engine, group="billing", table=table)
        inbox.create_table()
        numbers = iter(range(10**9))
        with contextlib.ExitStack() as stack:
            db: Any = shop.connect() if plain else stack.enter_context(shop.engine.connect())
            stack.callback(db.close)
            insert = f"insert into {shop.orders} values ('%s')"

            def work() -> None:
                sql = insert % next(numbers)
                if plain:
                    db.cursor().execute(sql)
                else:
                    db.execute(sa.text(sql))

            def without() -> None:
                work()
                db.commit()

            def with_inbox() -> None:
                with inbox.once(db, handled(numbers)):
                    work()
                db.commit()

            for warm in (without, with_inbox):
                median_us(warm, WARM)
            rounds = [(median_us(without, records), median_us(with_inbox, records)) for _ in range(5)]
        with shop.engine.begin() as connection:
            connection.execute(sa.text(f"drop table {table}"))
    before, after = (statistics.median(column) for column in zip(*rounds, strict=True))
    way = "driver" if plain else "SQLAlchemy"
    return f"{kind:>10} {way:>10}: {before:7.0f} us without, {after:7.0f} us with: {after - before:5.0f} us"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=400, help="per round; five rounds each")
    records: int = parser.parse_args().records
    for kind in ("sqlite", "postgresql", "mariadb"):
        opened: Any = contextlib.nullcontext() if kind == "sqlite" else running(kind)
        with opened as server, tempfile.TemporaryDirectory() as folder:
            for plain in (True, False):
                print(measure(kind, server, plain, Path(folder), records))


if __name__ == "__main__":
    main()
