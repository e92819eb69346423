"""What the database has done decides, and not the exception that reaches the producer's block: rows and
messages agree after time-outs, cancelled siblings, groups of exceptions, wrapped ones, hooks that raise after
the commit, and blocks that end the database's transaction themselves."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from escrowmq import Message, OutcomeUnknown, TransactionState
from escrowmq.actors.producer.transactions.local_transaction import comes_of_open
from escrowmq.actors.producer.transactions.transaction_base import TransactionBase
from escrowmq.feedback.database import sqlalchemy_links
from escrowmq.integrations import AlreadyDone, AsyncFence, DatabaseMisused, Fence, NoDatabaseTransaction
from escrowmq.replication.errors import TransactionSettled
from escrowmq.testing import InMemoryCluster
from tests.support.database_servers import Server
from tests.support.shops import DRIVERS, Shop, Tx, closing_shops

COMMITTED, ROLLBACK = TransactionState.COMMITTED, TransactionState.ROLLBACK
LATER_S = 90.0  # until after the check


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    with InMemoryCluster() as found:
        found.admin.create_topic("orders")
        yield found


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """On SQLite, reached by its driver."""
    with closing_shops(None, tmp_path, True) as make:
        yield make()


def readable(cluster: InMemoryCluster) -> set[str]:
    """The values that a new group can read."""
    with cluster.consumer("g" + os.urandom(4).hex(), ["orders"], auto_offset_reset="earliest") as reader:
        found: set[str] = set()
        empty = 0
        while empty < 2:  # the first poll may only join the group
            records = reader.poll(timeout_s=1.0)
            empty = 0 if records else empty + 1
            found |= {record.value.decode() for record in records}
        return found


def agree(cluster: InMemoryCluster, shop: Shop, expected: set[str]) -> None:
    """Rows and messages are these, once the check has been answered."""
    cluster.clock.advance(LATER_S)
    assert shop.stored() == expected
    assert readable(cluster) == expected


# ------------------------------------------------------------ an answer to COMMIT that is lost


class Losing(sqlite3.Connection):
    """Commits, and loses the answer if told so."""

    lose = False

    def commit(self) -> None:
        super().commit()
        if Losing.lose and self.total_changes > 1:
            Losing.lose = False
            raise sqlite3.OperationalError("disk I/O error")


@pytest.fixture
def losing(shop: Shop) -> Fence:
    Losing.lose = False
    return Fence(lambda: sqlite3.connect(shop.path, factory=Losing), app="shop", table=shop.table)


def wrapped(error: Exception) -> None:
    raise RuntimeError("could not be stored") from error


def replaced(error: Exception) -> None:
    raise RuntimeError("could not be stored") from None


def grouped(error: Exception) -> None:
    raise ExceptionGroup("several", [ValueError(), ExceptionGroup("inner", [error])])


def refused(error: Exception) -> bool:
    return False


@pytest.mark.parametrize("ends", [wrapped, replaced, grouped, refused])
@pytest.mark.parametrize("bulk", [False, True])
def test_a_lost_answer_in_another_shape(
    cluster: InMemoryCluster, shop: Shop, losing: Fence, ends: Callable[[Exception], Any], bulk: bool
) -> None:
    producer = cluster.producer(app="shop", tx_status_querier=losing)

    def store(given: Any) -> Any:
        tx = given[0] if bulk else given
        try:
            with losing.local(tx) as db:
                db.execute(f"insert into {shop.orders} values ('1')")
                Losing.lose = True
        except OutcomeUnknown as error:
            return ends(error)
        raise AssertionError("the answer was not lost")

    with contextlib.suppress(RuntimeError, ExceptionGroup, TransactionSettled):
        if bulk:
            producer.send_transactions([Message("orders", b"1")], store)
        else:
            producer.send_message_in_transaction(Message("orders", b"1"), store)
    agree(cluster, shop, {"1"})


def test_an_exception_that_the_database_contradicts_is_the_cause(
    cluster: InMemoryCluster, shop: Shop
) -> None:
    fence = shop.make_fence()
    producer = cluster.producer(app="shop", tx_status_querier=fence)
    with pytest.raises(TransactionSettled) as settled, producer.transaction() as tx:
        tx.send(Message("orders", b"1"))
        tx.prepare()
        with fence.local(tx) as db:
            db.execute(f"insert into {shop.orders} values ('1')")
        raise ValueError("after the database's commit")
    assert settled.value.recorded_state == "COMMITTED"
    assert isinstance(settled.value.__cause__, ValueError)
    assert tx.state is COMMITTED
    assert readable(cluster) == shop.stored() == {"1"}


def test_a_failure_of_the_business_is_rolled_back_at_once(cluster: InMemoryCluster, shop: Shop) -> None:
    fence = shop.make_fence()
    producer = cluster.producer(app="shop", tx_status_querier=fence)
    for tx_id in (None, "mine"):
        with pytest.raises(ZeroDivisionError), producer.transaction(tx_id=tx_id) as tx:
            tx.send(Message("orders", b"1"))
            tx.prepare()
            with fence.local(tx) as db:
                db.execute(f"insert into {shop.orders} values ('1')")
                _ = 1 / 0
        assert tx.state is ROLLBACK
    agree(cluster, shop, set())


def test_a_database_that_cannot_be_asked_leaves_it_to_the_check(
    cluster: InMemoryCluster, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence = shop.make_fence()
    producer = cluster.producer(app="shop", tx_status_querier=fence)

    def away(_: Any) -> Any:
        raise sqlite3.OperationalError("unable to open database file")

    with pytest.raises(ValueError, match="late") as raised, producer.transaction() as tx:
        tx.send(Message("orders", b"1"))
        tx.prepare()
        fence.ask = away
        with fence.local(tx) as db:
            db.execute(f"insert into {shop.orders} values ('1')")
            raise ValueError("late")
    assert "the check will decide" in raised.value.__notes__[0]
    assert tx.state is TransactionState.UNKNOWN
    agree(cluster, shop, set())


# ------------------------------------------------------------ threads and tasks


def test_a_thread_that_commits_after_the_time_out(cluster: InMemoryCluster, shop: Shop) -> None:
    fence = shop.make_fence(lock_timeout_s=0.05)
    producer = cluster.producer(app="shop", tx_status_querier=fence)
    entered, go_on = threading.Event(), threading.Event()

    def store(tx: Any) -> None:
        with fence.local(tx) as db:
            db.execute(f"insert into {shop.orders} values ('1')")
            entered.set()
            assert go_on.wait(10)

    async def story() -> None:
        work: Any = None
        with pytest.raises(TimeoutError):
            async with producer.aio.transaction() as tx:
                await tx.send(Message("orders", b"1"))
                await tx.prepare()
                work = asyncio.get_running_loop().run_in_executor(None, store, tx)
                await asyncio.to_thread(entered.wait, 10)
                await asyncio.wait_for(asyncio.shield(work), 0.01)
        assert tx.state is TransactionState.UNKNOWN
        go_on.set()
        await work

    asyncio.run(story())
    agree(cluster, shop, {"1"})


def test_a_thread_that_begins_after_the_time_out(cluster: InMemoryCluster, shop: Shop) -> None:
    """Also between the look at the transaction and the row: it enters when the producer has sealed it."""
    fence = shop.make_fence()
    producer = cluster.producer(app="shop", tx_status_querier=fence)
    with pytest.raises(ValueError, match="time-out"), producer.transaction() as tx:
        tx.send(Message("orders", b"1"))
        tx.prepare()
        raise ValueError("time-out")

    class Before:
        """As the thread saw it, a moment before."""

        prepared, given_id, tx_id, _guarded_by = True, False, tx.tx_id, tx._guarded_by

    for late, said in ((tx, "has ended for its producer"), (Before(), "has ended for its producer")):
        with pytest.raises(DatabaseMisused, match=said), fence.local(late) as db:
            db.execute(f"insert into {shop.orders} values ('1')")
    agree(cluster, shop, set())


async def cancelled_by_a_time_out(work: Any) -> None:
    async with asyncio.timeout(0.3):
        await work


async def waited_for(work: Any) -> None:
    await asyncio.wait_for(work, 0.3)


async def beside_a_sibling_that_fails(work: Any) -> None:
    async def sibling() -> None:
        await asyncio.sleep(0.3)
        raise ValueError("the sibling's")

    async with asyncio.TaskGroup() as group:
        group.create_task(work)
        group.create_task(sibling())


@pytest.mark.parametrize("ends", [cancelled_by_a_time_out, waited_for, beside_a_sibling_that_fails])
def test_a_task_that_is_cancelled_in_the_commit(
    cluster: InMemoryCluster, shop: Shop, monkeypatch: pytest.MonkeyPatch, ends: Callable[[Any], Any]
) -> None:
    commit, slow = aiosqlite.Connection.commit, [False]

    async def slowly(self: aiosqlite.Connection) -> None:
        await commit(self)
        if slow[0]:
            await asyncio.sleep(60)

    async def story() -> None:
        engine = create_async_engine(shop.url("aiosqlite"))
        fence = AsyncFence(engine, app="shop", table=shop.table)
        producer = cluster.producer(app="shop", tx_status_querier=fence).aio
        await fence.create_table()

        async def store(tx: Any) -> None:
            async with fence.local(tx) as db:
                await db.execute(sa.text(f"insert into {shop.orders} values ('1')"))
                slow[0] = True

        with pytest.raises((TimeoutError, ExceptionGroup, TransactionSettled)):
            async with producer.transaction() as tx:
                await tx.send(Message("orders", b"1"))
                await tx.prepare()
                try:
                    await ends(store(tx))
                finally:
                    slow[0] = False
        await engine.dispose()

    monkeypatch.setattr(aiosqlite.Connection, "commit", slowly)
    asyncio.run(story())
    agree(cluster, shop, {"1"})


def test_without_a_fence_the_exceptions_are_all_that_is_known(cluster: InMemoryCluster) -> None:
    producer = cluster.producer(app="shop")
    unknown = OutcomeUnknown("1")
    wrapped = RuntimeError()
    wrapped.__cause__ = ExceptionGroup("", [ValueError(), unknown])
    late = TimeoutError()
    late.__cause__ = asyncio.CancelledError()
    circle = ValueError()
    circle.__cause__ = circle
    for error, open_ in (
        (wrapped, True),
        (late, True),
        (circle, False),
        (ExceptionGroup("", [circle]), False),
    ):
        assert comes_of_open(error) is open_
        with pytest.raises(type(error)), producer.transaction() as tx:
            tx.send(Message("orders", b"1"))
            tx.prepare()
            raise error
        assert tx.state is (TransactionState.UNKNOWN if open_ else ROLLBACK)


# ------------------------------------------------------------ SQLAlchemy: errors after the commit


def misuse() -> None:
    raise sa.exc.InvalidRequestError("the hook uses the session")


def integrity() -> None:
    raise sa.exc.IntegrityError("insert", {}, sqlite3.IntegrityError("UNIQUE constraint failed"))


def deadlock() -> None:
    class Deadlock(Exception):
        sqlstate = "40P01"

    raise sa.exc.OperationalError("commit", {}, Deadlock())


def ours() -> None:
    raise NoDatabaseTransaction("the hook calls an inbox")


@pytest.mark.parametrize("fails", [misuse, integrity, deadlock, ours])
def test_a_hook_that_raises_after_the_commit(
    cluster: InMemoryCluster, shop: Shop, fails: Callable[[], None]
) -> None:
    make = sessionmaker(shop.engine)
    fence = Fence(make, app="shop", table=shop.table)
    producer = cluster.producer(app="shop", tx_status_querier=fence)
    sa.event.listen(make, "after_commit", lambda session: fails())
    with (
        pytest.raises(AlreadyDone) as done,
        fence.transaction(producer, Message("orders", b"1")) as (_, db),
    ):
        db.execute(sa.text(f"insert into {shop.orders} values ('1')"))
    assert done.value.__cause__ is not None
    assert readable(cluster) == shop.stored() == {"1"}, "at once: it is known"


def test_a_hook_that_raises_before_the_commit(cluster: InMemoryCluster, shop: Shop) -> None:
    make = sessionmaker(shop.engine)
    fence = Fence(make, app="shop", table=shop.table)
    producer = cluster.producer(app="shop", tx_status_querier=fence)
    sa.event.listen(make, "before_commit", lambda session: integrity())
    with (
        pytest.raises(sa.exc.IntegrityError),
        fence.transaction(producer, Message("orders", b"1")) as (tx, db),
    ):
        db.execute(sa.text(f"insert into {shop.orders} values ('1')"))
    assert tx.state is ROLLBACK
    assert readable(cluster) == shop.stored() == set()


def test_a_session_of_two_databases_whose_second_refuses(
    cluster: InMemoryCluster, shop: Shop, tmp_path: Path
) -> None:
    """Whichever comes first: the order of their commits is a set's."""
    other = sa.create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    with other.begin() as db:
        db.execute(sa.text("create table parents (id int primary key)"))
        db.execute(sa.text("create table rows (id int references parents deferrable initially deferred)"))
    sa.event.listen(other, "connect", lambda driver, _: driver.execute("pragma foreign_keys = on"))
    other.dispose()
    seen, wanted = set[bool](), set[str]()
    for number in range(12):

        class Routed(Session):
            def get_bind(self, *_: Any, **options: Any) -> Any:
                return options.get("bind") or shop.engine

        fence = Fence(sessionmaker(class_=Routed, bind=shop.engine), app="shop", table=shop.table)
        producer = cluster.producer(app="shop", tx_status_querier=fence)
        try:
            with fence.transaction(producer, Message("orders", b"%d" % number)) as (tx, db):
                db.execute(sa.text(f"insert into {shop.orders} values ('{number}')"))
                db.execute(sa.text("insert into rows values (1)"), bind_arguments={"bind": other})
        except AlreadyDone:
            wanted.add(str(number))
            seen.add(True)
        except sa.exc.IntegrityError:
            seen.add(False)
            assert tx.state is ROLLBACK
        producer.close()
    assert seen
    agree(cluster, shop, wanted)
    other.dispose()


class Tidy(Session):
    """As applications write it: whatever fails, the session can be used again."""

    def commit(self) -> None:
        try:
            super().commit()
        except BaseException:
            self.rollback()
            self.note_failure()
            raise

    def note_failure(self) -> None: ...


class Noting(Tidy):
    def note_failure(self) -> None:
        """In a transaction that follows, on the same connection if the pool says so."""
        self.execute(sa.text("create table failures (id int)"))
        Session.commit(self)


def refuse_at_commit(shop: Shop) -> str:
    """Lets COMMIT fail: the statement that a transaction has to run for it."""
    if shop.kind == "sqlite":
        sa.event.listen(
            shop.engine, "connect", lambda driver, _: driver.execute("pragma foreign_keys = on").close()
        )
        shop.engine.dispose()
    parents = f"parents_{shop.orders}"
    with shop.engine.begin() as db:
        db.execute(sa.text(f"create table {parents} (id int primary key)"))
        db.execute(
            sa.text(
                f"alter table {shop.orders} add column parent int references {parents} deferrable "
                "initially deferred"
            )
        )
    return f"insert into {shop.orders} values ('1', 99)"


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
@pytest.mark.parametrize("session", [Session, Tidy, Noting])
@pytest.mark.parametrize("blocking", [True, False])
def test_a_refused_commit_of_a_session_that_tidies_up(
    cluster: InMemoryCluster,
    server_of: Callable[[str], Server | None],
    tmp_path: Path,
    kind: str,
    session: type[Session],
    blocking: bool,
) -> None:
    """SQLAlchemy's transaction is over then, as after a commit."""

    async def story(fence: AsyncFence, producer: Any, order: str) -> None:
        async with fence.transaction(producer, Message("orders", b"1")) as (_, db):
            await db.execute(sa.text(order))

    with closing_shops(server_of(kind), tmp_path, False) as make:
        shop = make()
        order = refuse_at_commit(shop)
        if blocking:
            fence = Fence(sessionmaker(shop.engine, class_=session), app="shop", table=shop.table)
            producer = cluster.producer(app="shop", tx_status_querier=fence)
            with (
                pytest.raises(sa.exc.IntegrityError),
                fence.transaction(producer, Message("orders", b"1")) as (_, db),
            ):
                db.execute(sa.text(order))
        else:
            engine = create_async_engine(shop.url(DRIVERS[kind]))
            if kind == "sqlite":
                sa.event.listen(
                    engine.sync_engine,
                    "connect",
                    lambda driver, _: driver.cursor().execute("pragma foreign_keys = on"),
                )
            sessions = async_sessionmaker(engine, sync_session_class=session)
            patient = AsyncFence(sessions, app="shop", table=shop.table)
            producer = cluster.producer(app="shop", tx_status_querier=patient)
            with pytest.raises(sa.exc.IntegrityError):
                asyncio.run(story(patient, producer.aio, order))
        agree(cluster, shop, set())
        with shop.engine.begin() as db:
            db.execute(sa.text("drop table if exists failures"))


@pytest.mark.parametrize("session", [Session, Tidy])
@pytest.mark.parametrize("first", [True, False])
def test_a_listener_that_raises_before_the_driver_s_commit(
    cluster: InMemoryCluster, shop: Shop, session: type[Session], first: bool
) -> None:
    fence = Fence(sessionmaker(shop.engine, class_=session), app="shop", table=shop.table)
    producer = cluster.producer(app="shop", tx_status_querier=fence)
    if not first:
        with fence.transaction(producer, Message("orders", b"0")) as (_, db):
            db.execute(sa.text(f"insert into {shop.orders} values ('0')"))

    def refuse(_: sa.Connection) -> None:
        misuse()

    with (
        pytest.raises(sa.exc.InvalidRequestError),
        fence.transaction(producer, Message("orders", b"1")) as (_, db),
    ):
        db.execute(sa.text(f"insert into {shop.orders} values ('1')"))
        sa.event.listen(shop.engine, "commit", refuse)
    sa.event.remove(shop.engine, "commit", refuse)
    agree(cluster, shop, set() if first else {"0"})


class Quiet(Session):
    """It commits nothing, and says nothing."""

    def commit(self) -> None:
        self.rollback()


def test_a_session_s_commit_that_rolls_back_in_silence(cluster: InMemoryCluster, shop: Shop) -> None:
    fence = Fence(sessionmaker(shop.engine, class_=Quiet), app="shop", table=shop.table)
    producer = cluster.producer(app="shop", tx_status_querier=fence)
    with (
        pytest.raises(OutcomeUnknown) as unknown,
        fence.transaction(producer, Message("orders", b"1")) as (_, db),
    ):
        db.execute(sa.text(f"insert into {shop.orders} values ('1')"))
    assert "the driver has not been seen to commit" in str(unknown.value.__cause__)
    agree(cluster, shop, set())


def test_a_session_of_a_sqlalchemy_that_commits_in_another_way_is_not_believed(
    cluster: InMemoryCluster, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its dialect is called for tells of the commit: a version that does not call it. Checks, which use
    no sessions, go on."""
    monkeypatch.setattr(sqlalchemy_links, "_note_answers", lambda dialect: None)
    engine = sa.create_engine(shop.url())
    fence = Fence(sessionmaker(engine), app="shop", table=shop.table)
    producer = cluster.producer(app="shop", tx_status_querier=fence)
    with (
        pytest.raises(OutcomeUnknown),
        fence.transaction(producer, Message("orders", b"1")) as (_, db),
    ):
        db.execute(sa.text(f"insert into {shop.orders} values ('1')"))
    agree(cluster, shop, {"1"})
    engine.dispose()


@pytest.mark.parametrize("session", [Session, Tidy])
def test_an_answer_to_a_session_s_commit_that_is_lost(
    cluster: InMemoryCluster, shop: Shop, session: type[Session]
) -> None:
    engine = sa.create_engine(shop.url(), connect_args={"factory": Losing})
    Losing.lose = False
    fence = Fence(sessionmaker(engine, class_=session), app="shop", table=shop.table)
    producer = cluster.producer(app="shop", tx_status_querier=fence)
    with (
        pytest.raises(OutcomeUnknown) as unknown,
        fence.transaction(producer, Message("orders", b"1")) as (_, db),
    ):
        db.execute(sa.text(f"insert into {shop.orders} values ('1')"))
        Losing.lose = True
    assert not isinstance(unknown.value, AlreadyDone)
    agree(cluster, shop, {"1"})
    engine.dispose()


# ------------------------------------------------------------ what ends the database's transaction inside


def test_a_block_that_calls_rollback_and_tries_again(
    cluster: InMemoryCluster, server_of: Callable[[str], Server | None], tmp_path: Path
) -> None:
    """psycopg does not tell one transaction from the next: the row is looked for."""
    with closing_shops(server_of("postgresql"), tmp_path, True) as make:
        shop = make()
        producer = cluster.producer(app="shop", tx_status_querier=shop.fence)
        with (
            pytest.raises(NoDatabaseTransaction, match="has called rollback"),
            shop.fence.transaction(producer, Message("orders", b"1")) as (tx, db),
        ):
            for attempt in range(2):
                db.execute(f"insert into {shop.orders} values ('1')")
                if not attempt:
                    db.rollback()
        assert tx.state is ROLLBACK
        agree(cluster, shop, set())


@pytest.mark.parametrize(
    ("plain", "ends", "goes_on", "fails", "raised", "stored"),
    [
        (True, "commit", False, False, OutcomeUnknown, {"1"}),
        (True, "commit", True, False, None, {"1", "2"}),
        (True, "commit", True, True, TransactionSettled, {"1"}),
        (True, "rollback", False, True, OutcomeUnknown, set()),
        (True, "rollback", True, False, NoDatabaseTransaction, set()),
        (True, "rollback", True, True, ValueError, set()),
        (False, "commit", True, False, OutcomeUnknown, {"1"}),
        (False, "commit", True, True, OutcomeUnknown, {"1"}),
        (False, "rollback", True, True, OutcomeUnknown, set()),
    ],
)
def test_a_block_that_ends_its_transaction_itself(
    cluster: InMemoryCluster,
    tmp_path: Path,
    plain: bool,
    ends: str,
    goes_on: bool,
    fails: bool,
    raised: type[Exception] | None,
    stored: set[str],
) -> None:
    """The table in the guide. A driver only tells that none is open: the next statement hides it."""
    with closing_shops(None, tmp_path, plain) as make:
        shop = make()
        producer = cluster.producer(app="shop", tx_status_querier=shop.fence)
        with (
            contextlib.nullcontext() if raised is None else pytest.raises(raised) as ended,
            shop.fence.transaction(producer, Message("orders", b"1")) as (_, db),
        ):
            for order in ("1", "2") if goes_on else ("1",):
                sql = f"insert into {shop.orders} values ('{order}')"
                db.execute(sql if plain else sa.text(sql))
                if order == "1":
                    getattr(db, ends)()
            if fails:
                raise ValueError("too late")
        if raised is OutcomeUnknown:
            assert "inside the block: leaving it does" in ended.value.__notes__[0]
        cluster.clock.advance(LATER_S)
        assert shop.stored() == stored and readable(cluster) == stored & {"1"}


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_block_that_commits_inside_and_then_fails(
    cluster: InMemoryCluster, server_of: Callable[[str], Server | None], tmp_path: Path, kind: str
) -> None:
    """In MariaDB by a statement that commits without being asked to."""
    with closing_shops(server_of(kind), tmp_path, True) as make:
        shop = make()
        producer = cluster.producer(app="shop", tx_status_querier=shop.fence)
        with (
            pytest.raises((TransactionSettled, OutcomeUnknown)),
            shop.fence.transaction(producer, Message("orders", b"1")) as (_, db),
        ):
            cursor = db.cursor()
            cursor.execute(f"insert into {shop.orders} values ('1')")
            if kind == "mariadb":
                cursor.execute(f"create table {shop.orders}_more (id int)")
                cursor.execute(f"drop table {shop.orders}_more")
            else:
                db.commit()
            cursor.execute(f"insert into {shop.orders} values ('2')")
            raise ValueError("too late")
        agree(cluster, shop, {"1"})


@pytest.mark.parametrize("fails", [False, True])
def test_a_database_transaction_around_the_producer_s_block(
    cluster: InMemoryCluster, shop: Shop, fails: bool
) -> None:
    """As a framework's ``yield`` does, which commits last: the messages wait for it."""
    fence = Fence(shop.engine, app="shop", table=shop.table, lock_timeout_s=0.05)
    producer = cluster.producer(app="shop", tx_status_querier=fence)
    db = shop.engine.connect()
    with pytest.raises(OutcomeUnknown) as left, producer.transaction() as tx:
        tx.send(Message("orders", b"1"))
        tx.prepare()
        fence.enter(db, tx)
        db.execute(sa.text(f"insert into {shop.orders} values ('1')"))
    assert "has not ended" in left.value.__notes__[0]
    if not fails:
        db.commit()
    db.close()
    agree(cluster, shop, set() if fails else {"1"})


def test_what_is_entered_by_hand_and_committed_by_the_driver(cluster: InMemoryCluster, shop: Shop) -> None:
    fence = shop.make_fence()
    producer = cluster.producer(app="shop", tx_status_querier=fence)
    for value, end in (("1", "commit"), ("2", "rollback")):
        with contextlib.suppress(TransactionSettled), producer.transaction() as tx:
            tx.send(Message("orders", value.encode()))
            tx.prepare()
            local = shop.begin()
            fence.enter(local.connection, tx)
            local.order(value)
            getattr(local, end)()
        assert tx.state is (COMMITTED if end == "commit" else ROLLBACK)
    assert readable(cluster) == shop.stored() == {"1"}


def test_many_in_one_database_transaction_are_asked_about_together(
    cluster: InMemoryCluster, shop: Shop
) -> None:
    fence, asked = shop.make_fence(), list[int]()
    ask = fence.ask

    def counted(checks: list[tuple[str, str]]) -> Any:
        asked.append(len(checks))
        return ask(checks)

    fence.ask = counted
    producer = cluster.producer(app="shop", tx_status_querier=fence)

    def store(prepared: Any) -> None:
        local = shop.begin()
        fence.enter(local.connection, *prepared)
        for tx in prepared:
            local.order(str(tx.index))
        fence.commit(local.connection, prepared[0])

    def by_hand(prepared: Any) -> None:
        local = shop.begin()
        for tx in prepared:
            fence.enter(local.connection, tx)
            local.order(str(tx.index + 3))
        local.commit()
        raise ValueError("after the commit")

    import pyarrow as pa

    first = producer.send_transactions([Message("orders", b"%d" % n) for n in range(3)], store)
    assert [result.state for result in first] == [COMMITTED] * 3 and asked == [], "it is known"
    with pytest.raises(ValueError, match="after"):
        producer.send_transactions_table("orders", pa.table({"value": [b"3", b"4", b"5"]}), by_hand)
    assert asked == [3]
    assert readable(cluster) == shop.stored() == {str(n) for n in range(6)}


def test_a_fence_takes_a_transaction_that_knows_nothing_of_guards(shop: Shop) -> None:
    assert not hasattr(Tx("1"), "_guarded_by") and TransactionBase._guarded_by.__doc__
    with shop.fence.local(Tx("1")) as db:
        db.execute(f"insert into {shop.orders} values ('1')")
    assert shop.stored() == {"1"}
