"""Which kind of database an application has given: SQLAlchemy's or a function that opens connections."""

from __future__ import annotations

from typing import Any

from escrowmq.feedback.database.errors import DatabaseMisused
from escrowmq.feedback.database.links import Database, DriverDatabase, driver_of


def database_of(given: Any) -> Database:
    """The database that a fence or an inbox was given; raises DatabaseMisused for anything it cannot use."""
    if isinstance(given, Database):
        return given
    if any(kind.__module__.partition(".")[0] == "sqlalchemy" for kind in type(given).__mro__):
        from escrowmq.feedback.database.sqlalchemy_links import database_of as of_sqlalchemy

        return of_sqlalchemy(given)
    if driver_of(given) is not None or not callable(given):
        raise DatabaseMisused(
            f"pass an Engine or a sessionmaker of SQLAlchemy, or a function that opens a connection, not "
            f"{type(given).__name__}: it opens connections of its own"
        )
    return DriverDatabase(given)
