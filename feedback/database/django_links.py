"""Django's connections, as links, and its ``atomic`` blocks. Imported only if an application asks for it.

Checks come in threads of the producer's, and also while a block of the same thread is running. So each call
for checks opens a connection of its own, from the settings that Django has for the alias.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.connection import ConnectionProxy

from escrowmq.feedback.database.errors import DatabaseMisused, NoDatabaseTransaction
from escrowmq.feedback.database.links import Link, failed_before, file_of, has_failed
from escrowmq.feedback.database.statements import dialect_of, in_pyformat

log = logging.getLogger(__name__)


class DjangoLink:
    """A connection of Django's, inside an ``atomic`` block of the application's."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self.connection = connection
        self.dialect = dialect_of(connection.vendor).name

    def run(self, sql: str, values: Mapping[str, Any] | None = None) -> None:
        with self._executed(sql, values):
            pass

    def rows(self, sql: str, values: Mapping[str, Any] | None = None) -> Sequence[Sequence[Any]]:
        with self._executed(sql, values) as cursor:
            return [tuple(row) for row in cursor.fetchall()]

    def changed(self, sql: str, values: Mapping[str, Any]) -> int:
        with self._executed(sql, values) as cursor:
            return int(cursor.rowcount)

    @contextmanager
    def _executed(self, sql: str, values: Mapping[str, Any] | None) -> Iterator[Any]:
        with self.connection.cursor() as cursor:
            if values:
                cursor.execute(in_pyformat(sql), dict(values))
            else:
                cursor.execute(sql)
            yield cursor

    def target(self) -> str | None:
        if self.dialect == "sqlite":
            return file_of(self) or None
        told = self.connection.settings_dict
        return f"{told['HOST']}:{told['PORT']}/{told['NAME']}?{told['USER']}"

    def refuse_autocommit(self, row: str) -> None:
        if self.connection.get_autocommit():
            raise NoDatabaseTransaction(
                f"the connection is in autocommit, so {row} would be committed without the business's rows; "
                "use `with transaction.atomic():`"
            )
        if self.connection.needs_rollback:
            raise NoDatabaseTransaction(
                "the atomic block can only be rolled back: a statement in it failed, or set_rollback(True) "
                f"was called, so {row} could not be committed; begin the business again in another block"
            )

    def refuse_savepoint(self) -> None:
        if any(name is not None for name in self.connection.savepoint_ids):
            raise DatabaseMisused(
                "enter the fence in the outermost atomic block: rolling back an inner one would also remove "
                "the fence's row, but keep the rest of the transaction (a TestCase is such a block: use "
                "TransactionTestCase)"
            )

    def refuse_failed(self) -> None:
        if self.connection.needs_rollback:
            raise NoDatabaseTransaction(
                "the atomic block can only be rolled back, and its end does so without an error: put "
                "statements that may fail into an inner atomic block"
            )
        if self.dialect == "postgresql" and has_failed(self.connection.connection):
            raise failed_before()

    def after_commit(self, call: Callable[[], None]) -> None:
        self.connection.on_commit(call, robust=True)

    def mark(self) -> object:
        blocks = self.connection.atomic_blocks
        return blocks[0] if blocks else (not self.connection.get_autocommit() or None)

    def commit(self, last: Callable[[], None] = lambda: None) -> None:
        raise DatabaseMisused(
            "an atomic block commits at its end: use fence.transaction or fence.local, which can tell a lost "
            "answer from a refusal"
        )

    def has_committed(self) -> bool | None:
        return None  # hooks are called apart from it, see _BlockLink

    def rollback(self) -> None:
        if self.connection.in_atomic_block:
            self.connection.set_rollback(True)
        else:
            self.connection.rollback()


class _OwnLink(DjangoLink):
    """A connection that was opened for checks."""

    def commit(self, last: Callable[[], None] = lambda: None) -> None:
        last()
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()


class _BlockLink(DjangoLink):
    """An ``atomic`` block of the fence's own, which ends when the fence says so."""

    def __init__(self, connection: BaseDatabaseWrapper, block: transaction.Atomic) -> None:
        super().__init__(connection)
        self._block, self._ended = block, False

    def commit(self, last: Callable[[], None] = lambda: None) -> None:
        connection = self.connection
        if connection.needs_rollback:
            # Leaving the block would roll back without an error, and the messages would be committed.
            raise DatabaseMisused(
                "the block's transaction can only be rolled back: a statement in it failed, or "
                "set_rollback(True) was called. Put statements that may fail into an inner atomic block"
            )
        self.refuse_failed()  # Django does not notice each statement that has failed
        last()
        # They run when it is committed: an error of theirs must not look like one of the commit.
        hooks, connection.run_on_commit = connection.run_on_commit, []
        self._leave()
        for _, call, _ in hooks:
            try:
                call()
            except Exception:
                log.exception("a function given to on_commit() failed; the transaction is committed")

    def rollback(self) -> None:
        if not self._ended:
            self.connection.set_rollback(True)
            self._leave()

    def _leave(self) -> None:
        self._ended = True
        self._block.__exit__(None, None, None)


class DjangoDatabase:
    """A database of Django's settings, for ``Fence``, ``Inbox`` and ``Outbox``.

    ::

        fence = Fence(DjangoDatabase("default"), app="shop")
        with fence.transaction(producer, [Message("orders", b"...")]):     # an outermost atomic block
            Order.objects.create(...)

        inbox = Inbox(DjangoDatabase(), group="billing")
        with transaction.atomic(), inbox.once(connection, record) as first:
            if first:
                Account.objects.filter(...).update(...)

    Raises DatabaseMisused for a database other than SQLite, PostgreSQL, MariaDB or MySQL, and for one in
    memory. Functions given to ``on_commit`` run after the database's commit; their errors are logged, as with
    ``robust=True``. A request that ATOMIC_REQUESTS has wrapped is a transaction already: mark its view with
    ``transaction.non_atomic_requests``.
    """

    def __init__(self, alias: str = DEFAULT_DB_ALIAS) -> None:
        """``alias``: as in Django's setting DATABASES."""
        self.alias = alias
        connection = connections[alias]
        self.dialect = dialect_of(connection.vendor).name
        if self.dialect == "sqlite" and connection.is_in_memory_db():
            raise DatabaseMisused(
                "an in-memory database: a check has its own connection, and would find another one; use a "
                "file (in tests: DATABASES['default']['TEST']['NAME'])"
            )

    @contextmanager
    def checking(self) -> Iterator[Link]:
        """See ``Database``."""
        connection = connections.create_connection(self.alias)
        try:
            connection.set_autocommit(False)
            yield _OwnLink(connection)
        finally:
            with suppress(Exception):  # it is no longer needed, whatever close() says
                connection.close()

    @contextmanager
    def opening(self) -> Iterator[tuple[Any, Link]]:
        """See ``Database``. The application's object is Django's connection."""
        connection = connections[self.alias]
        if connection.in_atomic_block:
            raise DatabaseMisused(
                "this is in an atomic block already, which would decide instead of the fence: begin outside "
                "(ATOMIC_REQUESTS: mark the view with transaction.non_atomic_requests), or enter by hand: "
                "fence.enter"
            )
        if connection.errors_occurred:  # a thread of ours has no requests, before which Django does this
            connection.close_if_unusable_or_obsolete()
        block = transaction.atomic(using=self.alias)
        block.__enter__()
        link = _BlockLink(connection, block)
        try:
            yield connection, link
        finally:
            link.rollback()

    def link(self, given: Any) -> Link:
        """See ``Database``."""
        if isinstance(given, ConnectionProxy):
            given = connections[given._alias]
        if not isinstance(given, BaseDatabaseWrapper):
            raise DatabaseMisused(f"pass django.db.connection, or one of connections[...], not {given!r:.80}")
        if given.vendor != connections[self.alias].vendor:
            raise DatabaseMisused(
                f"a connection of {given.vendor}, but the table is on {connections[self.alias].vendor}"
            )
        return DjangoLink(given)
