"""What is remembered of settled transactions is bounded over all apps, and forgotten alike everywhere."""

from __future__ import annotations

import pytest

from escrowmq.replication import ops
from escrowmq.replication.codec import encode_row
from escrowmq.replication.state import transactions
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.snapshot import capture, encode, restore
from tests.replication.test_state import Log


def settle(log: Log, app: str, tx_ids: list[str]) -> None:
    rows = [encode_row(None, b"v", None, tx) for tx in tx_ids]
    log.add(
        ops.prepare(app, "t", tx_ids, None, 0, 0, [1] * len(tx_ids), -1, 1),
        ops.pre_message("t", 0, list(range(len(tx_ids))), [len(r) for r in rows], rows),
    )
    assert log.add(ops.rollback(app, tx_ids)) == [[0]]


def remembered(state: StateMachine) -> int:
    return sum(len(table.settled) for table in state.transactions.apps.values())


def test_many_apps_remember_no_more_than_twice_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "SETTLED_GENERATION", 100)
    log = Log()
    for n in range(120):
        ids = [f"{n}-{i}" for i in range(7)]
        settle(log, f"app-{n % 25}", ids)
        assert remembered(log.state) <= 2 * (100 + 7)
        for recent in range(max(0, n - 13), n + 1):
            table = log.state.transactions.app(f"app-{recent % 25}")
            assert table.outcome(f"{recent}-0") == transactions.ROLLED_BACK, "the last hundred are known"


def test_a_replica_restored_from_a_snapshot_forgets_at_the_same_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transactions, "SETTLED_GENERATION", 100)
    log, other = Log(), Log()
    for n in range(60):
        for each in (log, other):
            settle(each, f"app-{n % 5}", [f"{n}-{i}" for i in range(1 + n % 9)])
        if n % 4 == 0:
            state = StateMachine(0, 1)
            restore(state, "x.snap", b"".join(encode(capture(other.state, 1, []))))
            other.state = state
        assert {a: t.settled.copy() for a, t in log.state.transactions.apps.items()} == {
            a: t.settled.copy() for a, t in other.state.transactions.apps.items()
        }, n
