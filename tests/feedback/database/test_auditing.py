"""Rows against the broker's record; the table as in SQLAlchemy's metadata; the table's commands."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from escrowmq import TransactionState
from escrowmq.cluster.cli.app import app
from escrowmq.integrations import DatabaseMisused, Difference, fence_table
from tests.support.shops import Shop, Tx

COMMITTED, ROLLBACK = TransactionState.COMMITTED, TransactionState.ROLLBACK
PREPARE, UNKNOWN = TransactionState.PREPARE, TransactionState.UNKNOWN


class Admin:
    """``cluster.admin``, as far as an audit uses it."""

    def __init__(self, **states: TransactionState) -> None:
        self.states, self.calls = states, 0

    def transaction_states(self, app: str, tx_ids: Sequence[str]) -> list[TransactionState]:
        assert app == "shop" and 0 < len(tx_ids) <= 2
        self.calls += 1
        return [self.states.get(tx_id, UNKNOWN) for tx_id in tx_ids]


def test_what_differs_for_good_is_listed_and_nothing_else(shop: Shop) -> None:
    now = [1_000.0]
    fence = shop.make_fence(clock=lambda: now[0])
    fence.query_status("too-old", "")
    now[0] = 2_000.0
    for name in ("same", "lost", "open", "forgotten"):
        local = shop.begin()
        fence.enter(local.connection, Tx(name))
        local.commit()
    for name in ("by_hand", "never"):
        fence.query_status(name, "")
    shop.make_fence(app="other").query_status("theirs", "")
    admin = Admin(same=COMMITTED, lost=ROLLBACK, open=PREPARE, by_hand=COMMITTED)
    found = fence.audit(admin, 1_500.0, slice_rows=2)
    assert set(found.differences) == {
        Difference("lost", COMMITTED, ROLLBACK),
        Difference("by_hand", ROLLBACK, COMMITTED),
    }
    assert (found.read, found.open, found.forgotten) == (6, 1, 1)
    with pytest.raises(DatabaseMisused, match="slice_rows"):
        fence.audit(admin, 0.0, slice_rows=0)
    wrong: list[Any] = [datetime.now(UTC), "yesterday", None, -1.0, float("nan"), time.time() * 1000]
    for since in wrong:
        with pytest.raises(DatabaseMisused, match="since must be seconds since the epoch"):
            fence.audit(admin, since)


def test_metadata_makes_the_table_that_the_fence_makes(shop: Shop) -> None:
    def described() -> list[tuple[Any, ...]]:
        found = sa.inspect(shop.engine)
        columns = [(c["name"], str(c["type"]), c["nullable"]) for c in found.get_columns(shop.table)]
        return [*columns, tuple(found.get_pk_constraint(shop.table)["constrained_columns"])]

    by_itself = described()
    metadata = sa.MetaData()
    table = fence_table(metadata, shop.table)
    metadata.drop_all(shop.engine)
    metadata.create_all(shop.engine)
    assert described() == by_itself and list(metadata.tables) == [shop.table]
    assert fence_table(sa.MetaData(), "own.fence").fullname == "own.fence"
    fence = shop.make_fence()
    local = shop.begin()
    fence.enter(local.connection, Tx("1"))
    local.order("1").commit()
    assert fence.query_status("1", "") is COMMITTED and table.name == shop.table


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql", "mariadb", "mysql"])
def test_the_command_prints_the_table_of_each_dialect(dialect: str) -> None:
    said = CliRunner().invoke(app, ["db", "schema", "--dialect", dialect, "--table", "own"])
    assert said.exit_code == 0 and said.stdout.startswith("CREATE TABLE IF NOT EXISTS own (tx_key B")
    assert said.stdout.endswith(";\n")


def test_the_command_prints_the_table_of_an_inbox() -> None:
    said = CliRunner().invoke(app, ["db", "schema", "--dialect", "postgresql", "--inbox"])
    assert said.stdout.startswith("CREATE TABLE IF NOT EXISTS escrowmq_inbox (record_key BYTEA")


def test_the_command_refuses_another_dialect() -> None:
    said = CliRunner().invoke(app, ["db", "schema", "--dialect", "oracle"])
    assert said.exit_code != 0
