"""A producer process that dies by SIGKILL between its local commit and COMMIT. Run by test_feedback.

    python -m tests.integration.vanishing_producer ADDRESS DATABASE APP TOPIC ORDER before|after

``before``: it dies before its local commit. It has no querier, so another producer of its app must answer.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from contextlib import closing

import escrowmq
from escrowmq import Message


def main(address: str, database: str, app: str, topic: str, order: str, when: str) -> None:
    """Ends with SIGKILL; never returns."""

    def local_transaction() -> None:
        with closing(sqlite3.connect(database)) as db:
            db.execute("INSERT INTO orders VALUES (?)", (order,))
            if when == "after":
                db.commit()
            os.kill(os.getpid(), signal.SIGKILL)

    with escrowmq.connect(address=address) as cluster, cluster.producer(app=app) as producer:
        producer.send_message_in_transaction(
            [Message(topic, f"{order} placed".encode()), Message(topic, f"{order} to be paid".encode())],
            local_transaction,
            query_id=order,
            transaction_timeout_s=0.5,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
