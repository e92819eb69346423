"""The fence for asynchronous engines of SQLAlchemy: the same rules, with ``await`` instead of blocking.

``Fence`` does all the work on the engine's synchronous core, in the greenlet that SQLAlchemy
provides for that (``run_sync``). Checks are called in threads without an event loop, and connections of an
asynchronous driver belong to one loop. So each call for checks runs in its own loop and with its own
connection.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session

from escrowmq.feedback.database import statements
from escrowmq.feedback.database.errors import AlreadyDone, DatabaseMisused, FenceLost
from escrowmq.feedback.database.fence import LOCK_TIMEOUT_S, TABLE, Fence
from escrowmq.feedback.database.producing import (
    ProducedTransaction,
    Producing,
    may_repeat,
    named_by,
    note_known,
    refuse_unprepared,
)
from escrowmq.feedback.database.purging import Audited, OpenTransactions, Purged, TransactionStates
from escrowmq.feedback.states import TransactionState, TxStatusQuerier
from escrowmq.replication.errors import OutcomeUnknown
from escrowmq.replication.model import Message

# ------------------------------------------------------------------------------------------------------------
# Asynchronous engines of SQLAlchemy, for ``async_fence`` and ``async_inbox``.
#
# Both do their work on the engine's synchronous core, in the greenlet that SQLAlchemy provides for that
# (``run_sync``).

Given = AsyncConnection | AsyncSession


def engine_of(database: Any, blocking: str) -> AsyncEngine:
    """The engine of an AsyncEngine or an async_sessionmaker; raises DatabaseMisused for anything else.
    ``blocking``: the name of the class for those."""
    engine: Any = database
    if isinstance(database, async_sessionmaker):
        engine = database.kw.get("bind")
    if not isinstance(engine, AsyncEngine):
        raise DatabaseMisused(
            f"pass an AsyncEngine, or an async_sessionmaker that is bound to one, not "
            f"{type(engine).__name__}; for others use escrowmq.integrations.{blocking}"
        )
    return engine


def asynchronous(given: Any, blocking: str) -> Given:
    """The connection or session that was given; raises DatabaseMisused for anything else."""
    if isinstance(given, async_scoped_session):
        given = given()
    if not isinstance(given, AsyncConnection | AsyncSession):
        raise DatabaseMisused(
            f"pass an AsyncConnection or an AsyncSession, not {type(given).__name__}; for others use "
            f"escrowmq.integrations.{blocking}"
        )
    return given


def another_engine(engine: AsyncEngine) -> AsyncEngine:
    """An engine that leads where this one does, with a pool of its own: its connections are made in the same
    way (``connect_args``, ``creator``, listeners of "connect"), which the URL alone does not tell."""
    return create_async_engine(engine.url, pool=engine.sync_engine.pool.recreate())


async def with_core_of(make: Callable[[], AsyncEngine], work: Callable[[Engine], Any]) -> Any:
    """Runs ``work`` with the synchronous core of an engine that is made for this call alone.

    Connections of an asynchronous driver belong to one event loop. So what is called from a thread makes
    an engine in a loop of its own."""
    engine = make()
    try:
        # Not connected: ``work`` opens the one connection that it needs, inside the greenlet.
        async with AsyncSession(engine) as session:
            return await session.run_sync(lambda _: work(engine.sync_engine))
    finally:
        await engine.dispose()


class AsyncFence(TxStatusQuerier):
    """As :class:`escrowmq.integrations.Fence`, for an AsyncEngine or an async_sessionmaker.

    ::

        fence = AsyncFence(create_async_engine(url), app="shop")
        await fence.create_table()
        producer = cluster.producer(app="shop", tx_status_querier=fence)
        async with fence.transaction(producer.aio, [Message("orders", b"...")]) as (tx, db):
            await db.execute(text("insert into orders ..."))

    The errors are those of ``Fence``. A cancelled task leaves the transaction to the check.
    """

    def __init__(
        self,
        database: AsyncEngine | async_sessionmaker[Any],
        *,
        app: str,
        table: str = TABLE,
        lock_timeout_s: float = LOCK_TIMEOUT_S,
        clock: Callable[[], float] = time.time,
        checks: Callable[[], AsyncEngine] | None = None,
    ) -> None:
        """``checks`` makes an engine for one call of checks, by default one that connects as ``database``
        does. It must lead to the same table. The rest: see ``Fence``."""
        self._sessions = database if isinstance(database, async_sessionmaker) else None
        engine = engine_of(database, "Fence")
        self.app, self._engine = app, engine
        self._checks = checks or (lambda: another_engine(engine))
        options: dict[str, Any] = {"table": table, "lock_timeout_s": lock_timeout_s, "clock": clock}
        self._options = options
        self._fence = Fence(engine.sync_engine, app=app, **options)
        self._fence.ask = self.query_statuses

    def schema(self) -> str:
        """The statement that creates the table, for a migration."""
        return self._fence.schema()

    async def create_table(self) -> None:
        """Create the table, if it does not exist."""
        async with self._engine.connect() as connection:
            await connection.run_sync(lambda _: self._fence.create_table())

    # ------------------------------------------------------------ local transactions

    @asynccontextmanager
    async def transaction(
        self,
        producer: Producing,
        messages: Message | Sequence[Message],
        *,
        query_id: str | None = None,
        tx_id: str | None = None,
        transaction_timeout_s: float | None = None,
    ) -> AsyncIterator[tuple[Any, Any]]:
        """See ``Fence.transaction``. ``producer``: the asyncio face, ``producer.aio``."""
        if producer.app != self.app:
            raise DatabaseMisused(f"the fence is for app {self.app!r}, the producer for {producer.app!r}")
        block = producer.transaction(query_id, tx_id, transaction_timeout_s=transaction_timeout_s)
        if not hasattr(block, "__aenter__"):
            raise DatabaseMisused("the producer is the blocking one: pass producer.aio")
        begun = False
        async with block as tx:
            await tx.send(*([messages] if isinstance(messages, Message) else messages))
            await tx.prepare()
            begun = True
            try:
                async with self.local(tx) as db:
                    yield tx, db
            except AlreadyDone as done:
                if done.tx_id == tx.tx_id:
                    await tx.commit()
                raise
        if not begun:
            raise AlreadyDone(block.tx_id)

    @asynccontextmanager
    async def local(self, tx: ProducedTransaction) -> AsyncIterator[Any]:
        """See ``Fence.local``."""
        refuse_unprepared(tx)
        self._fence.guard_early(tx)
        try:
            if not self._fence.knows_identity:
                # Not connected: learning opens the one connection that it needs, inside the greenlet.
                async with AsyncSession(self._engine) as session:
                    await session.run_sync(lambda _: self._fence.learn_identity())
            async with self._opening() as db:
                entered_ms: int = await asynchronous(db, "Fence").run_sync(self._fence.entered, tx)
                async with self._ending(db, tx, entered_ms):
                    yield db
        except (FenceLost, OutcomeUnknown):
            raise
        except Exception as error:
            failed = error
            if may_repeat(tx):
                await asyncio.to_thread(
                    asyncio.run,
                    self._in_a_loop_of_its_own(
                        lambda fence: fence.raise_unless_rolled_back(tx.tx_id, failed, named_by(tx))
                    ),
                )
                note_known(tx, TransactionState.ROLLBACK)
            raise

    async def enter(self, db: Any, *transactions: ProducedTransaction) -> None:
        """See ``Fence.enter``; ``db``: an AsyncConnection or an AsyncSession."""
        await asynchronous(db, "Fence").run_sync(self._fence.enter, *transactions)

    async def commit(self, db: Any, tx: ProducedTransaction) -> None:
        """See ``Fence.commit``."""
        await asynchronous(db, "Fence").run_sync(self._fence.commit, tx)

    def _opening(self) -> Any:
        return self._engine.connect() if self._sessions is None else self._sessions()

    @asynccontextmanager
    async def _ending(self, db: Given, tx: ProducedTransaction, entered_ms: int) -> AsyncIterator[None]:
        """As in ``Fence``: commit at the end, roll back after an exception; neither if the block did so
        itself."""
        mark = await db.run_sync(_mark)
        try:
            yield
        except BaseException as error:
            if isinstance(error, Exception) and await db.run_sync(_mark) != mark:
                raise self._fence.ended_inside(tx) from error
            try:
                await db.rollback()
            except Exception as broken:  # the connection is gone, and so is the transaction
                error.add_note(f"(escrowmq: the database's rollback failed: {broken})")
            raise
        if await db.run_sync(_mark) != mark:
            raise self._fence.ended_inside(tx)
        await db.run_sync(self._fence.commit_entered, tx, entered_ms)

    # ------------------------------------------------------------ checks and old rows

    def learn_fence(self) -> bytes:
        """See ``TxStatusQuerier``. Blocking, in a thread without an event loop."""
        self.fence = statements.short_name(self._identity())
        return self.fence

    def _identity(self) -> bytes:
        """Learned once, and not with each check: a later one may come upon another table."""
        if self._fence.learned is None:
            asyncio.run(self._in_a_loop_of_its_own(self._learn))
        learned = self._fence.learned
        assert learned is not None
        return learned

    def _learn(self, fence: Fence) -> None:
        fence.learn_identity()
        self._fence.adopt(fence)

    def query_status(self, tx_id: str, query_id: str) -> TransactionState:
        """See ``Fence.query_status``. Blocking: the producer calls it in its own threads."""
        return self.query_statuses([(tx_id, query_id)])[0]

    def query_statuses(self, checks: list[tuple[str, str]]) -> Sequence[TransactionState]:
        """See ``Fence.query_statuses``."""
        self._identity()
        found: Sequence[TransactionState] = asyncio.run(
            self._in_a_loop_of_its_own(lambda fence: fence.query_statuses(checks))
        )
        return found

    async def purge(self, admin: OpenTransactions, *, keep_s: float = statements.KEEP_S) -> Purged:
        """See ``Fence.purge``; runs in a helper thread."""
        purged: Purged = await asyncio.to_thread(
            asyncio.run, self._in_a_loop_of_its_own(lambda fence: fence.purge(admin, keep_s=keep_s))
        )
        return purged

    async def audit(self, admin: TransactionStates, since: float) -> Audited:
        """See ``Fence.audit``; runs in a helper thread."""
        audited: Audited = await asyncio.to_thread(
            asyncio.run, self._in_a_loop_of_its_own(lambda fence: fence.audit(admin, since))
        )
        return audited

    async def _in_a_loop_of_its_own(self, work: Callable[[Fence], Any]) -> Any:
        return await with_core_of(self._checks, lambda core: work(self._fence.over(core)))


def _mark(given: Connection | Session) -> object:
    """As a link's. No link is made for it: a session whose flush has failed has no connection to give."""
    return given.get_transaction()
