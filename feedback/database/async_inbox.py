"""The inbox for asynchronous engines of SQLAlchemy: the same statements, with ``await``."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session

from escrowmq.feedback.database.async_fence import another_engine, asynchronous, engine_of, with_core_of
from escrowmq.feedback.database.failures import is_away
from escrowmq.feedback.database.inbox import (
    INBOX_TABLE,
    Entered,
    GroupOffsets,
    Inbox,
    InboxPurged,
    StoredRecord,
)
from escrowmq.feedback.database.sqlalchemy_links import link_of
from escrowmq.feedback.database.statements import KEEP_S


class AsyncInbox:
    """As :class:`escrowmq.integrations.Inbox`, for an AsyncEngine or an async_sessionmaker.

    ::

        inbox = AsyncInbox(engine, group="billing")
        await inbox.create_table()
        async with engine.begin() as db, inbox.once(db, record) as first:
            if first:
                await db.execute(text("update accounts ..."))
    """

    def __init__(
        self,
        database: Any,
        *,
        group: str,
        table: str = INBOX_TABLE,
        clock: Callable[[], float] = time.time,
        purging: Callable[[], AsyncEngine] | None = None,
    ) -> None:
        """``purging`` makes an engine for one purge, by default one that connects as ``database`` does. The
        rest: see ``Inbox``."""
        engine = engine_of(database, "Inbox")
        self.group, self._engine = group, engine
        sessions = database if isinstance(database, async_sessionmaker) else None
        self._opening: Callable[[], Any] = sessions or engine.connect
        self._purging = purging or (lambda: another_engine(engine))
        self._options: dict[str, Any] = {"group": group, "table": table, "clock": clock}
        self._inbox = Inbox(engine.sync_engine, **self._options)

    def schema(self) -> str:
        """The statement that creates the table, for a migration."""
        return self._inbox.schema()

    async def create_table(self) -> None:
        """Create the table, if it does not exist."""
        # Not connected: the table's maker opens the one connection that it needs, inside the greenlet.
        async with AsyncSession(self._engine) as session:
            await session.run_sync(lambda _: self._inbox.create_table())

    @asynccontextmanager
    async def once(self, db: Any, record: StoredRecord) -> AsyncIterator[bool]:
        """See ``Inbox.once``; ``db``: an AsyncConnection or an AsyncSession."""
        given = asynchronous(db, "Inbox")

        def enter(core: Connection | Session) -> tuple[Entered | None, object]:
            link = link_of(core)
            return self._inbox.enter(link, record), link.mark()

        entered, mark = await given.run_sync(enter)
        if entered is None:
            yield False
            return
        written: Entered = entered

        def refuse_lost(core: Connection | Session) -> None:
            self._inbox.refuse_lost(core, written, mark, core.get_transaction())

        try:
            yield True
        except Exception:  # not a cancelled task: its connection may be in the middle of an answer
            with contextlib.suppress(Exception):
                await given.run_sync(lambda core: self._inbox.forget(link_of(core), written, mark))
            raise
        await given.run_sync(refuse_lost)

    def handler(self, work: Callable[[Any, Any], Awaitable[object]]) -> Callable[[Any], Awaitable[None]]:
        """See ``Inbox.handler``; for ``await queue.aio.run(work, inbox=inbox)``."""

        async def handle(record: Any) -> None:
            async with self._opening() as db:
                async with self.once(db, record) as first:
                    if first:
                        await work(record, db)
                await db.commit()  # also of one that was handled before: see Inbox._wait_as_a_commit

        return handle

    @staticmethod
    def is_away(error: BaseException) -> bool:
        """See ``Inbox.is_away``."""
        return is_away(error)

    async def purge(self, admin: GroupOffsets | None, *, keep_s: float = KEEP_S) -> InboxPurged:
        """See ``Inbox.purge``; runs in a helper thread."""
        purged: InboxPurged = await asyncio.to_thread(
            asyncio.run,
            with_core_of(
                self._purging, lambda core: Inbox(core, **self._options).purge(admin, keep_s=keep_s)
            ),
        )
        return purged
