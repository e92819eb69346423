"""Asynchronous engines of SQLAlchemy, for ``async_fence`` and ``async_inbox``.

Both do their work on the engine's synchronous core, in the greenlet that SQLAlchemy provides for that
(``run_sync``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)

from escrowmq.feedback.database.errors import DatabaseMisused

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
