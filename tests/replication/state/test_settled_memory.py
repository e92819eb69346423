"""The memory of settled transactions is bounded over all apps, and all replicas forget alike."""

from __future__ import annotations

import sys

from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import encode_row
from escrowmq.replication.format.ops import PrepareExtra
from escrowmq.replication.model import ResultCode
from escrowmq.replication.state import transactions
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.snapshot import capture, encode, release, restore
from tests.support.fed_state import FedState


def fed_with(**values: int) -> FedState:
    """A state with these replicated settings."""
    log = FedState()
    log.add(ops.settings(values))
    return log


def settle(log: FedState, app: str, tx_ids: list[str]) -> None:
    rows = [encode_row(None, b"v", None, tx) for tx in tx_ids]
    extra = PrepareExtra(heard_ms=log.now_ms)
    log.add(
        ops.prepare(app, "t", tx_ids, None, 0, 0, [1] * len(tx_ids), -1, 1, extra),
        ops.pre_message("t", 0, list(range(len(tx_ids))), [len(r) for r in rows], rows),
    )
    assert log.add(ops.rollback(app, tx_ids)) == [[0]]


def remembered(state: StateMachine) -> int:
    return sum(len(table.settled) for table in state.transactions.apps.values())


def test_many_apps_remember_no_more_than_twice_the_bound() -> None:
    log = fed_with(settled_generation=14 * (7 + transactions.APP_AS_IDS))
    for n in range(120):
        ids = [f"{n}-{i}" for i in range(7)]
        settle(log, f"app-{n % 25}", ids)
        assert remembered(log.state) <= 2 * 14 * 7
        for recent in range(max(0, n - 13), n + 1):
            table = log.state.transactions.app(f"app-{recent % 25}")
            assert table.outcome(f"{recent}-0") == transactions.ROLLED_BACK, "the last hundred are known"


def test_a_replica_restored_from_a_snapshot_forgets_at_the_same_entry() -> None:
    generation = 5 * transactions.APP_AS_IDS + 70
    log, other = fed_with(settled_generation=generation), fed_with(settled_generation=generation)
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


def test_apps_that_come_and_go_leave_nothing_for_good() -> None:
    """Each batch write of Spark is a separate app, and every scan over all apps visits what is kept."""
    log = fed_with(settled_generation=9 * transactions.APP_AS_IDS)
    log.prepare(["stays"])
    for n in range(300):
        settle(log, f"batch-{n}", ["x"])
        apps = log.state.transactions.apps
        assert len(apps) <= 1 + 2 * 9
        assert all(log.state.transactions.look(f"batch-{m}").outcome("x") for m in range(max(0, n - 8), n))
    assert log.commit(["stays"]) == [[0]]


def test_an_app_that_somebody_reads_stays_until_it_is_read() -> None:
    log = fed_with(settled_generation=2 + transactions.APP_AS_IDS)
    log.add(ops.prepare("read", "t", ["x"], None, 0, 0, [1], -1, 0))
    snapshot = capture(log.state, 1, [])  # it holds the open ones of an app that has any
    log.add(ops.rollback("read", ["x"]))
    for n in range(9):
        settle(log, f"{n}", ["x"])
    assert "read" in log.state.transactions.apps
    release(log.state, snapshot)
    for n in range(9):
        settle(log, f"{n}", ["y"])
    assert "read" not in log.state.transactions.apps


def test_asking_for_an_app_that_does_not_exist_does_not_make_it() -> None:
    log = FedState()
    assert log.add(ops.rollback("nobody", ["x"]))[0][0] == ResultCode.PARTIAL
    assert log.add(ops.checked("nobody", ["x"])) == [[0]]
    assert "nobody" not in log.state.transactions.apps


def test_the_groups_that_committed_last_keep_their_places() -> None:
    log = fed_with(groups_kept=5)
    for n in range(5):
        log.add(ops.group_offsets(f"g{n}", "t", {0: n}))
    log.add(ops.group_offsets("g0", "t", {1: 7}))
    state = StateMachine(0, 1)
    restore(state, "x.snap", b"".join(encode(capture(log.state, 1, []))))
    for each in (log.state, state):  # also when restored from a snapshot: replicas forget alike
        log.state = each
        log.add(ops.group_offsets("new", "t", {0: 1}))
        assert list(each.group_offsets) == ["g2", "g3", "g4", "g0", "new"]
        assert each.group_offsets["g0"] == {"t": {0: 0, 1: 7}}
        log.index -= 1
    log.index += 1
    log.add(ops.delete_topic("t"))
    assert log.state.group_offsets == {}


def test_its_tables_keep_the_hashes_of_their_keys_also_in_a_restored_state() -> None:
    """Without them every probe that meets another key reads that string: it costs 0.1 us more."""
    ids = [f"tx-{n}" for n in range(5_000)]
    plain = dict.fromkeys(ids, 0)
    log, again = fed_with(settled_generation=5_000), StateMachine(0, 1)
    settle(log, "app", ids)
    settle(log, "app", [f"other-{n}" for n in range(4_000)])
    taken = capture(log.state, 1, ())
    restore(again, "x.snap", b"".join(encode(taken)))
    release(log.state, taken)
    for state in (log.state, again):
        memory = state.transactions.apps["app"].settled
        assert memory.old.keys() == plain.keys() and len(memory.young) == 4_000
        for table in (memory.old, memory.young):
            assert sys.getsizeof(table) > sys.getsizeof(dict.fromkeys(map(str, table), 0))
