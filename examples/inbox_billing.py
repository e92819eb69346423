"""A billing service that is killed in the middle, and no invoice is billed twice.

Records are delivered at least once: after a crash, those whose offset was not committed come again. The
service changes its accounts and enters the record in its inbox in one database transaction, so a record that
comes again is recognised. Here the service kills itself between the database's commit and the consumer's,
which is the worst moment; a second process goes on.

Run it: ``python examples/inbox_billing.py``.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import escrowmq
from escrowmq import Cluster, Message
from escrowmq.integrations import Inbox

BILL = "insert into totals values (?, ?) on conflict do update set amount = amount + excluded.amount"


def open_inbox(path: Path, group: str) -> Inbox:
    """The inbox in the service's own database."""
    return Inbox(lambda: sqlite3.connect(path, timeout=10), group=group)


def serve(cluster: Cluster, topic: str, path: Path, invoices: int, dies_after: int) -> None:
    """Bills until so many invoices are billed and no more come. Kills itself after ``dies_after`` of them
    (-1: never)."""
    group = f"{topic}-billing"
    inbox = open_inbox(path, group)
    with (
        closing(sqlite3.connect(path, timeout=10)) as db,
        cluster.consumer(group=group, topics=[topic], auto_offset_reset="earliest") as consumer,
    ):
        billed, some = inbox_rows(db), True
        while billed < invoices or some:  # what comes again may come last
            polled = consumer.poll(max_records=10, timeout_s=3.0)
            some = bool(polled)
            for record in polled:
                with db, inbox.once(db, record) as first:  # the connection commits, or rolls back
                    if first:
                        db.execute(BILL, ((record.key or b"").decode(), int(record.value)))
                    else:
                        print(f"invoice {record.value.decode()} came again, and is not billed again")
                billed = inbox_rows(db)
                if billed == dies_after:
                    print(
                        f"killed: {billed} are billed, and their offsets are not committed",
                        flush=True,
                    )
                    os.kill(os.getpid(), signal.SIGKILL)
            consumer.commit()


def inbox_rows(db: sqlite3.Connection) -> int:
    """How many records have been handled."""
    (count,) = db.execute("select count(*) from escrowmq_inbox").fetchone()
    return int(count)


def run(cluster: Cluster, topic: str = "invoices", invoices: int = 40) -> dict[str, int]:
    """Sends invoices of four customers; returns what two processes, one of them killed, have billed."""
    cluster.admin.create_topic(topic, partitions=2)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "billing.db"
        with closing(sqlite3.connect(path)) as db:
            db.execute("create table totals (customer text primary key, amount int not null)")
        open_inbox(path, f"{topic}-billing").create_table()
        with cluster.producer(app=f"{topic}-shop") as producer:
            for number in range(invoices):
                producer.send(Message(topic, b"%d" % number, key=b"customer-%d" % (number % 4)))
        for dies_after in (invoices // 2, -1):
            arguments = [
                cluster.address,
                cluster.info.namespace,
                topic,
                str(path),
                str(invoices),
                str(dies_after),
            ]
            ended = subprocess.run([sys.executable, __file__, *arguments], timeout=120, check=False)
            assert ended.returncode == (-signal.SIGKILL if dies_after > 0 else 0)
        with closing(sqlite3.connect(path)) as db:
            totals = dict(db.execute("select customer, amount from totals order by customer"))
    print(totals)
    return totals


if __name__ == "__main__":
    if len(sys.argv) > 1:
        address, namespace, topic, path, invoices, dies_after = sys.argv[1:]
        with escrowmq.connect(address, namespace) as cluster:
            serve(cluster, topic, Path(path), int(invoices), int(dies_after))
    else:
        with escrowmq.start_local() as cluster:
            run(cluster)
