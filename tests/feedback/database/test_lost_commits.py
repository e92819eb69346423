"""The answer to the database's commit is lost, or the database refuses the commit: two errors that must not
be mixed up."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from escrowmq import OutcomeUnknown, TransactionState
from tests.support.shops import Local, Shop, ShopMaker, Tx


def test_a_connection_that_dies_in_the_commit_leaves_the_outcome_open(shop: Shop, kind: str) -> None:
    if kind == "sqlite":
        return  # no answer of it can be lost
    local = shop.begin().enter("1").order("1")
    own = "select pg_backend_pid()" if kind == "postgresql" else "select connection_id()"
    number = local.execute(own).fetchall()[0][0]
    with shop.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
        end = f"select pg_terminate_backend({number})" if kind == "postgresql" else f"kill {number}"
        db.execute(sa.text(end))
    with pytest.raises(OutcomeUnknown) as lost:
        shop.fence.commit(local.connection, Tx("1"))
    assert lost.value.__cause__ is not None and lost.value.tx_id == "1"
    with contextlib.suppress(Exception):
        local.connection.close()
    assert shop.fence.query_status("1", "") is TransactionState.ROLLBACK, "the check finds out"


def test_a_commit_that_the_database_refuses_is_no_secret(shop: Shop, kind: str) -> None:
    if kind == "mariadb":
        return  # it checks everything before the commit
    with shop.engine.begin() as db:
        if kind == "postgresql":
            db.execute(sa.text(f"alter table {shop.orders} add unique (id) deferrable initially deferred"))
            db.execute(sa.text(f"alter table {shop.orders} drop constraint {shop.orders}_pkey"))
    if kind == "postgresql":
        local = shop.begin().enter("1").order("same").order("same")
        with pytest.raises(Exception, match="duplicate key") as refused:
            shop.fence.commit(local.connection, Tx("1"))
    else:
        local, reader = shop.begin().enter("1").order("1"), shop.begin()
        reader.execute("begin")
        reader.execute(f"select * from {shop.orders}").fetchall()  # holds its lock until the transaction ends
        driver = local.connection if shop.plain else local.connection.connection.driver_connection
        driver.execute("pragma busy_timeout = 20")
        with pytest.raises(Exception, match="locked") as refused:
            shop.fence.commit(local.connection, Tx("1"))
        reader.rollback()
    assert not isinstance(refused.value, OutcomeUnknown)
    local.rollback()
    assert shop.fence.query_status("1", "") is TransactionState.ROLLBACK and shop.stored() == set()


def test_a_commit_goes_through(shop: Shop) -> None:
    local: Any = shop.begin()
    assert isinstance(local, Local)
    local.enter("1").order("1")
    shop.fence.commit(local.connection, Tx("1"))
    assert shop.stored() == {"1"}


def test_a_session_that_has_joined_a_transaction_commits_nothing(make_shop: ShopMaker) -> None:
    """Its commit returns, and whoever began the transaction on its connection decides later."""
    shop = make_shop()
    if shop.plain:
        return
    fence = shop.make_fence()
    with shop.engine.connect() as connection:
        outer = connection.begin()
        session = Session(bind=connection)
        fence.enter(session, Tx("1"))
        with pytest.raises(OutcomeUnknown) as left:
            fence.commit(session, Tx("1"))
        assert "joined a transaction" in str(left.value.__cause__)
        if shop.kind != "sqlite":
            assert fence.query_status("1", "") is TransactionState.UNKNOWN, "it is open"
        outer.rollback()
        with Session(bind=connection) as session:  # nobody else's transaction: it is its own
            fence.enter(session, Tx("2"))
            fence.commit(session, Tx("2"))
    assert fence.query_status("1", "") is TransactionState.ROLLBACK
    assert fence.query_status("2", "") is TransactionState.COMMITTED
