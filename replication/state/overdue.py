"""Which open transactions were due for a check long ago, and were not checked.

It looks into the table of open transactions, and not into the queues of due checks, so that it also finds a
transaction that a defect has lost from the queues, or that nobody takes out of them. It reads what the
applying thread changes meanwhile, so the answer is approximate; it must never change anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from escrowmq.replication.calling.answers import OverdueReport
from escrowmq.replication.state.due_queue import CHECK_BACKOFF_MAX_MS
from escrowmq.replication.state.transactions import AppTransactions, TransactionTable

#: Two of the longest intervals between checks. Leases (``feedback.lock_lease_s``, 4 s) and waits for an owner
#: (``feedback.owner_gone_s``, 20 s) are shorter.
OVERDUE_MS = 2 * CHECK_BACKOFF_MAX_MS
#: Open transactions that one look reads: those of each app that were opened first. What is overdue is among
#: them, unless as many older ones are parked. A few milliseconds, in the caller's thread.
LOOK_MAX = 20_000
#: Of each app so many are read, even if other apps have used that number up.
APP_LOOK_MIN = 8
APPS_MAX = 10_000


def overdue(
    table: TransactionTable,
    now_ms: int,
    politely: Callable[[Iterable[tuple[str, AppTransactions]]], Iterable[tuple[str, AppTransactions]]] = iter,
    *,
    late_ms: int = 0,
) -> OverdueReport:
    """How many are overdue by more than ``late_ms`` (0: ``OVERDUE_MS``), and the one that has waited longest.

    Branches do not count: their home's transaction is checked, and home is asked about them. Parked ones do
    not count either: they wait for a person. ``politely`` wraps the iteration over apps, to let other threads
    run. For any thread.
    """
    limit_ms = now_ms - (late_ms or OVERDUE_MS)
    count, left, limited = 0, LOOK_MAX, False
    first_ms, whose = limit_ms, ("", "", "")
    # The list is made in one step of the interpreter: the applying thread changes the map meanwhile.
    apps = list(islice(table.apps.items(), APPS_MAX))
    for app, transactions in politely(apps):
        opened = transactions.open
        records = opened.first(max(left, APP_LOOK_MIN))
        left -= len(records)
        limited = limited or len(records) < len(opened)
        for tx_id, record in records:
            if 0 <= record.due_ms < limit_ms and record.home_group < 0:
                count += 1
                if record.due_ms < first_ms:
                    first_ms, whose = record.due_ms, (app, record.topic, tx_id)
    if not count:
        return OverdueReport()
    name, topic, tx_id = whose
    return OverdueReport(
        count=count, oldest_ms=now_ms - first_ms, app=name, topic=topic, tx_id=tx_id, limited=limited
    )
