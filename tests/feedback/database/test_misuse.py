"""What a fence refuses because it would protect nothing: each mistake has an error that says what to
change."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import StaticPool

from escrowmq import EscrowMQError, OutcomeUnknown, TransactionState
from escrowmq.integrations import (
    AsyncFence,
    DatabaseMisused,
    Fence,
    NoDatabaseTransaction,
    NotPrimary,
    TableMissing,
    WrongDatabase,
)
from tests.support.database_servers import Server
from tests.support.shops import Shop, ShopMaker, Tx, closing_shops


def test_a_missing_table_is_named_with_what_makes_it(shop: Shop) -> None:
    fence = shop.make_fence(table="not_there")
    local = shop.begin()
    with pytest.raises(TableMissing, match=r"not_there.*create_table\(\)"):
        fence.enter(local.connection, Tx("1"))
    local.rollback()
    with pytest.raises(TableMissing, match="not_there"):
        fence.query_status("1", "1")
    assert fence.schema().startswith("CREATE TABLE IF NOT EXISTS not_there")


def test_a_connection_in_autocommit_is_refused_before_anything_is_written(shop: Shop, kind: str) -> None:
    local = shop.begin(None if shop.plain else "AUTOCOMMIT")
    if shop.plain and kind == "sqlite":
        local.connection.isolation_level = None
    elif shop.plain and kind == "postgresql":
        local.connection.autocommit = True
    elif shop.plain:
        local.connection.autocommit(True)
    with pytest.raises(NoDatabaseTransaction, match=r"(?i)autocommit"):
        local.enter("1")
    local.rollback()
    assert shop.count() == 0


def test_autocommit_is_refused_where_the_driver_does_not_tell_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(self: object, connection: object) -> bool:
        raise NotImplementedError

    url = f"sqlite:///{tmp_path / 'shop.db'}"
    plain, committing = sa.create_engine(url), sa.create_engine(url, isolation_level="AUTOCOMMIT")
    fence = Fence(plain, app="shop")
    fence.create_table()
    monkeypatch.setattr(type(plain.dialect), "detect_autocommit_setting", silent)
    for engine, options in ((plain, {"isolation_level": "AUTOCOMMIT"}), (committing, {})):
        with engine.connect().execution_options(**options) as db, pytest.raises(NoDatabaseTransaction):
            fence.enter(db, Tx("1"))
    with plain.connect() as db:
        fence.enter(db, Tx("1"))
    plain.dispose()
    committing.dispose()


def test_a_transaction_begun_by_hand_on_such_a_connection_is_welcome(shop: Shop, kind: str) -> None:
    if shop.plain:
        connection = shop.connect()
        if kind == "sqlite":
            connection.isolation_level = None
            connection.execute("begin immediate")
        elif kind == "postgresql":
            connection.autocommit = True
            connection.execute("begin")
        else:
            connection.autocommit(True)
            connection.begin()
        shop.fence.enter(connection, Tx("1"))
        connection.commit()
        connection.close()
        assert shop.fence.query_status("1", "1") is TransactionState.COMMITTED


def test_sqlite_with_a_listener_that_begins_is_in_a_transaction(tmp_path: Path) -> None:
    """The way that SQLAlchemy's documentation describes for SQLite's own BEGIN."""
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'shop.db'}")

    @sa.event.listens_for(engine, "connect")
    def _quiet(dbapi: sqlite3.Connection, _: object) -> None:
        dbapi.isolation_level = None

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    fence = Fence(engine, app="shop")
    fence.create_table()
    with engine.connect() as db:
        fence.enter(db, Tx("1"))
        db.rollback()
    assert fence.query_status("1", "1") is TransactionState.ROLLBACK
    engine.dispose()


def test_a_connection_to_another_database_is_refused(make_shop: ShopMaker, kind: str, tmp_path: Path) -> None:
    shop = make_shop()
    if kind == "sqlite":
        elsewhere = sa.create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    else:
        with shop.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
            db.execute(sa.text(f"create database {shop.table}"))
        elsewhere = sa.create_engine(shop.engine.url.set(database=shop.table))
    other = Fence(elsewhere, app="shop", table=shop.table)
    other.create_table()
    with elsewhere.connect() as db:
        given = db if not shop.plain else db.connection.driver_connection
        if kind == "mariadb":  # databases of one server share a transaction: the row goes where checks look
            shop.fence.enter(given, Tx("1"))
            shop.fence.commit(given, Tx("1"))
            assert shop.fence.query_status("1", "1") is TransactionState.COMMITTED
        else:
            with pytest.raises(WrongDatabase, match="another database"):
                shop.fence.enter(given, Tx("1"))
    assert other.query_status("1", "1") is TransactionState.ROLLBACK, "nothing was left there"
    elsewhere.dispose()
    if kind != "sqlite":
        with shop.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
            db.execute(sa.text(f"drop database {shop.table}"))


def test_a_database_that_takes_no_writes_is_not_the_primary(shop: Shop, kind: str) -> None:
    if kind != "sqlite":
        local = shop.begin()
        local.execute("rollback")
        local.execute("start transaction read only")
        with pytest.raises(NotPrimary, match="primary"):
            local.enter("1")
        local.rollback()


def test_entering_twice_or_too_early_or_in_a_savepoint(shop: Shop) -> None:
    local = shop.begin().enter("1")
    with pytest.raises(DatabaseMisused, match="entered before in this same database transaction"):
        local.enter("1")
    local.rollback()
    local = shop.begin()
    with pytest.raises(DatabaseMisused, match=r"call tx\.prepare\(\) first"):
        shop.fence.enter(local.connection, Tx("1", prepared=False))
    if not shop.plain:
        local.connection.begin_nested()
        with pytest.raises(DatabaseMisused, match="savepoint"):
            local.enter("1")
    local.rollback()


def test_databases_that_a_check_would_not_find(tmp_path: Path) -> None:
    with pytest.raises(DatabaseMisused, match="in-memory"):
        Fence(sa.create_engine("sqlite://"), app="shop")
    with pytest.raises(DatabaseMisused, match="in-memory"):
        Fence(lambda: sqlite3.connect(":memory:"), app="shop")
    with pytest.raises(DatabaseMisused, match="StaticPool"):
        Fence(sa.create_engine(f"sqlite:///{tmp_path / 'a.db'}", poolclass=StaticPool), app="shop")


def test_what_is_no_database(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'a.db'}")
    for wrong, text in (
        (engine.connect(), "pass an Engine"),
        (sqlite3.connect(tmp_path / "a.db"), "function that opens"),
        (lambda: 3, "not a connection of sqlite3"),
        ("sqlite:///a.db", "not str"),
        (create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'a.db'}"), "AsyncFence"),
    ):
        with pytest.raises(DatabaseMisused, match=text):
            Fence(wrong, app="shop")
        if hasattr(wrong, "close"):
            wrong.close()
    for app, table in (("", "fence"), (None, "fence"), ("shop", "fence; drop table x"), ("shop", "Fence")):
        with pytest.raises(DatabaseMisused):
            Fence(engine, app=app, table=table)  # type: ignore[arg-type]
    fence = Fence(engine, app="shop")
    for wrong in (engine, "x", None):
        with pytest.raises(DatabaseMisused, match="Connection or a Session"):
            fence.enter(wrong, Tx("1"))
    assert issubclass(DatabaseMisused, EscrowMQError)


def test_sessions_and_registries_of_them(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'a.db'}")
    sessions = sessionmaker(engine)
    fence = Fence(sessions, app="shop")
    fence.create_table()
    with sessions() as session:
        fence.enter(session, Tx("1"))
        fence.commit(session, Tx("1"))
    registry = scoped_session(sessions)
    fence.enter(registry, Tx("2"))
    registry.rollback()
    with fence.local(Tx("3")) as db:
        assert isinstance(db, Session)
    said = fence.query_statuses([("1", ""), ("2", ""), ("3", "")])
    assert [state.value for state in said] == ["COMMITTED", "ROLLBACK", "COMMITTED"]
    registry.remove()
    engine.dispose()


def test_a_block_that_ends_its_transaction_itself_leaves_it_to_the_check(shop: Shop) -> None:
    with pytest.raises(OutcomeUnknown) as committed, shop.fence.local(Tx("1")) as db:
        db.commit()
    (note,) = committed.value.__notes__
    assert "inside the fence's block" in note and "inside the block: leaving it does" in note
    with pytest.raises(OutcomeUnknown), shop.fence.local(Tx("2")) as db:
        db.commit()
        raise ValueError("behind the commit: the messages must not be rolled back")
    with pytest.raises(OutcomeUnknown), shop.fence.local(Tx("3")) as db:
        db.rollback()
    said = shop.fence.query_statuses([("1", ""), ("2", ""), ("3", "")])
    assert [state.value for state in said] == ["COMMITTED", "COMMITTED", "ROLLBACK"]


def test_an_exception_rolls_back_and_comes_out_as_it_is(shop: Shop) -> None:
    with pytest.raises(ZeroDivisionError), shop.fence.local(Tx("1")):
        _ = 1 / 0
    assert shop.count() == 0
    with pytest.raises(ZeroDivisionError), shop.fence.local(Tx("2", given_id=True)):
        _ = 1 / 0
    assert shop.count() == 1, "another try of this id is kept out"


def test_names_of_any_kind_are_kept_apart(shop: Shop) -> None:
    """Case, trailing blanks, accents, NUL and characters beyond the table's character set: bytes decide."""
    names = ["a", "A", "a ", "\u00e1", "a\u0301", "ß", "ss", "\x00", "🦄" * 500, "a" * 512]
    for name in names:
        shop.begin().enter(name).commit()
    assert set(shop.fence.query_statuses([(name, "") for name in names])) == {TransactionState.COMMITTED}
    other = shop.make_fence(app="Shop")
    assert set(other.query_statuses([(name, "") for name in names])) == {TransactionState.ROLLBACK}


def test_a_connection_of_the_pool_is_given_back_as_it_was(shop: Shop, kind: str) -> None:
    if shop.plain:
        return  # connections of checks are not the application's
    shown = {
        "sqlite": "pragma busy_timeout",
        "postgresql": "show lock_timeout",
        "mariadb": "select @@session.innodb_lock_wait_timeout",
    }[kind]
    with shop.engine.connect() as db:
        before = db.execute(sa.text(shown)).scalar()
    running = shop.begin().enter("1")
    assert shop.fence.query_status("1", "") is TransactionState.UNKNOWN
    for _ in range(3):
        with shop.engine.connect() as db:
            assert db.execute(sa.text(shown)).scalar() == before
    running.rollback()


def test_a_table_of_another_name_answers_no_check(shop: Shop) -> None:
    """On whatever connection; the application's own run of the id is left to the check as well."""
    with shop.fence.local(Tx("1")):
        pass
    with shop.engine.begin() as db:
        db.execute(sa.text(f"update {shop.table} set tx_id = :name where outcome = 3"), {"name": b"f" * 32})
    for asked in ([("1", "")], [("1", ""), ("2", "")]):
        with pytest.raises(WrongDatabase, match="f" * 32):
            shop.fence.query_statuses(asked)
    with pytest.raises(OutcomeUnknown):
        shop.fence.raise_unless_rolled_back("2", ValueError())
    assert shop.count() == 1


def test_a_table_that_a_migration_made_needs_nothing_else(shop: Shop) -> None:
    with shop.engine.begin() as db:
        db.execute(sa.text(f"drop table {shop.table}"))
        db.execute(sa.text(shop.fence.schema()))
    fence = shop.make_fence()
    local = shop.begin()
    fence.enter(local.connection, Tx("1"))
    local.order("1").commit()
    assert fence.query_status("1", "") is TransactionState.COMMITTED and shop.stored() == {"1"}


@pytest.fixture
def unnamed(tmp_path: Path) -> Callable[[], sqlite3.Connection]:
    """Opens connections to a database whose fence table a migration has made: nobody has used it yet."""

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(tmp_path / "shop.db", timeout=0.05)

    with closing(connect()) as db:
        db.execute("create table orders (id text primary key)")
        db.execute(Fence(connect, app="shop").schema())
    return connect


@pytest.mark.parametrize("begin", ["begin", "begin immediate"])
def test_sqlite_names_such_a_table_in_a_transaction_that_has_the_lock(
    unnamed: Callable[[], sqlite3.Connection], begin: str
) -> None:
    fence = Fence(unnamed, app="shop")
    with closing(unnamed()) as db:
        db.execute(begin)
        db.execute("select * from orders").fetchall()  # with "begin", this lock would be in the way too
        fence.enter(db, Tx("1"))
        db.rollback()  # and the name is gone
        for tx_id in ("2", "3"):
            db.execute(begin)
            db.execute("select * from orders").fetchall()
            fence.enter(db, Tx(tx_id))
            fence.commit(db, Tx(tx_id))
    again = Fence(unnamed, app="shop")
    for made in (fence, again):
        with made.local(Tx(f"4-{id(made)}")):
            pass
        said = made.query_statuses([("1", ""), ("2", ""), ("3", "")])
        assert [state.value for state in said] == ["ROLLBACK", "COMMITTED", "COMMITTED"]
    with closing(unnamed()) as db:
        assert db.execute("select count(*) from escrowmq_fence where outcome = 3").fetchone() == (1,)


def test_sqlite_cannot_be_read_behind_an_exclusive_lock_of_the_transaction(
    unnamed: Callable[[], sqlite3.Connection],
) -> None:
    fence = Fence(unnamed, app="shop")
    with closing(unnamed()) as db:
        db.execute("begin exclusive")
        with pytest.raises(DatabaseMisused, match=r"create_table\(\) at the start of each process"):
            fence.enter(db, Tx("1"))
        db.rollback()
        fence.create_table()
        db.execute("begin exclusive")
        fence.enter(db, Tx("1"))
        fence.commit(db, Tx("1"))


def test_sqlite_with_a_listener_that_takes_the_lock_names_such_a_table(
    unnamed: Callable[[], sqlite3.Connection], tmp_path: Path
) -> None:
    """The way that SQLAlchemy's documentation describes, with a lock from the beginning of a transaction."""
    for at, kind in enumerate(("sqlite", "sqlite+aiosqlite")):
        url = f"{kind}:///{tmp_path / 'shop.db'}"
        asynchronous = create_async_engine(url) if at else None
        engine = asynchronous.sync_engine if asynchronous is not None else sa.create_engine(url)

        @sa.event.listens_for(engine, "connect")
        def _quiet(dbapi: Any, _: object) -> None:
            dbapi.isolation_level = None
            dbapi.execute("pragma busy_timeout = 50")

        @sa.event.listens_for(engine, "begin")
        def _begin(connection: sa.Connection) -> None:
            connection.exec_driver_sql("BEGIN IMMEDIATE")

        if asynchronous is None:
            fence = Fence(engine, app="shop")
            with engine.connect() as db, pytest.raises(DatabaseMisused, match=r"create_table\(\)"):
                fence.enter(db, Tx("1"))  # by hand: what the fence reads with begins with the lock too
            with fence.local(Tx("2")):
                pass
            with engine.connect() as db:
                fence.enter(db, Tx("1"))
                fence.commit(db, Tx("1"))
            engine.dispose()
        else:
            ours = AsyncFence(asynchronous, app="shop")

            async def main(ours: AsyncFence = ours, opened: AsyncEngine = asynchronous) -> None:
                async with ours.local(Tx("3")):
                    pass
                await opened.dispose()

            asyncio.run(main())
    said = Fence(unnamed, app="shop").query_statuses([("1", ""), ("2", ""), ("3", "")])
    assert set(said) == {TransactionState.COMMITTED}


@pytest.mark.parametrize("theirs", ["begin immediate", "begin exclusive", "begin"])
def test_a_lock_of_another_process_is_no_mistake_in_the_set_up(
    unnamed: Callable[[], sqlite3.Connection], theirs: str
) -> None:
    """With "begin" it only reads: then it is in the way of a commit."""
    fence = Fence(unnamed, app="shop")
    with closing(unnamed()) as other:
        other.execute(theirs)
        other.execute("select * from orders").fetchall()
        with pytest.raises(sqlite3.OperationalError, match="locked"), fence.local(Tx("1")) as db:
            db.execute("insert into orders values ('1')")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            fence.create_table()
        with closing(unnamed()) as db, pytest.raises(sqlite3.OperationalError, match="locked"):
            db.execute("begin")
            fence.enter(db, Tx("1"))
            fence.commit(db, Tx("1"))
        other.rollback()
        assert other.execute("select * from orders").fetchall() == []
    with fence.local(Tx("2")) as db:
        db.execute("insert into orders values ('2')")
    assert fence.query_status("2", "") is TransactionState.COMMITTED


@pytest.mark.parametrize("schema", ["", "own."])
def test_another_file_gets_no_name_from_a_transaction(
    unnamed: Callable[[], sqlite3.Connection], tmp_path: Path, schema: str
) -> None:
    """Also if the fence's table is in a file of its own, attached to the application's."""
    table = f"{schema}escrowmq_fence"

    def connect(name: str = "own.db") -> sqlite3.Connection:
        db = unnamed() if schema else sqlite3.connect(tmp_path / name, timeout=0.05)
        if schema:
            db.execute(f"attach '{tmp_path / name}' as own")
        return db

    fence = Fence(connect, app="shop", table=table)
    for name in ("own.db", "other.db"):
        with closing(connect(name)) as db:
            db.execute(fence.schema())
    with closing(connect("other.db")) as db:
        db.execute("begin")
        with pytest.raises(WrongDatabase):
            fence.enter(db, Tx("1"))
        db.rollback()
        assert db.execute(f"select count(*) from {table}").fetchone() == (0,)


def test_engines_with_the_same_url_may_lead_to_different_databases(tmp_path: Path) -> None:
    """``creator=`` and ``connect_args=`` are not in the URL."""
    url = f"sqlite:///{tmp_path}/a.db"
    engine = sa.create_engine(url)
    other = sa.create_engine(url, creator=lambda: sqlite3.connect(tmp_path / "b.db"))
    fence = Fence(engine, app="shop")
    for one in (engine, other):
        Fence(one, app="shop").create_table()
    for tx_id in ("1", "2"):
        with engine.begin() as db:
            fence.enter(db, Tx(tx_id))
    with pytest.raises(WrongDatabase), other.begin() as db:
        fence.enter(db, Tx("3"))


@pytest.mark.parametrize("plain", [False, True])
def test_a_search_path_does_not_lead_away_from_the_table(
    server_of: Callable[[str], Server | None], tmp_path: Path, plain: bool
) -> None:
    """As of an application that has a schema for each of its customers."""
    with closing_shops(server_of("postgresql"), tmp_path, plain) as make:
        shop = make()
        local = shop.begin().enter("1")
        local.execute(f"create schema tenant_{plain}")
        local.execute(f"set local search_path = tenant_{plain}")
        local.execute(shop.fence.schema())
        local.commit()
        local = shop.begin()
        local.execute(f"set local search_path = tenant_{plain}")
        local.enter("2")
        local.commit()
        for tx_id in ("1", "2"):
            assert shop.fence.query_status(tx_id, "") is TransactionState.COMMITTED
            assert shop.make_fence().query_status(tx_id, "") is TransactionState.COMMITTED
