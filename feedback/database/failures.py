"""What an error of a database driver means to a fence or an inbox. Pure. It reads numbers where there are
any, never texts.

Drivers agree on little more than the names of their classes. SQLAlchemy provides the driver's own error as
``orig``, Django as the cause; PostgreSQL has SQLSTATE, MariaDB a number, SQLite the name of its result code.
"""

from __future__ import annotations

import enum
import sqlite3
import traceback

from escrowmq.feedback.database.errors import NoDatabaseTransaction, NotPrimary, TableMissing
from escrowmq.feedback.states import AnotherTable


class StatementFailure(enum.Enum):
    """Why a statement failed."""

    DUPLICATE = "the key exists"
    NO_TABLE = "there is no table"
    LOCKED = "another transaction holds the row, or was preferred"
    READ_ONLY = "the database accepts no writes"
    FAILED_BEFORE = "an earlier statement failed, so the transaction can only be rolled back"
    ROLLED_BACK = "the transaction is rolled back already, and its block has not ended"
    OTHER = "anything else"


_SQLSTATES = {
    "23505": StatementFailure.DUPLICATE,
    "42P01": StatementFailure.NO_TABLE,
    "3F000": StatementFailure.NO_TABLE,
    "55P03": StatementFailure.LOCKED,  # lock_timeout
    "40P01": StatementFailure.LOCKED,  # deadlock
    "40001": StatementFailure.LOCKED,  # serialization failure
    "57014": StatementFailure.LOCKED,  # statement_timeout of the server or the role
    "25006": StatementFailure.READ_ONLY,
    "25P02": StatementFailure.FAILED_BEFORE,
}
_NUMBERS = {
    1062: StatementFailure.DUPLICATE,
    1146: StatementFailure.NO_TABLE,
    1205: StatementFailure.LOCKED,  # innodb_lock_wait_timeout
    1213: StatementFailure.LOCKED,  # deadlock
    1020: StatementFailure.LOCKED,  # innodb_snapshot_isolation
    1290: StatementFailure.READ_ONLY,
    1792: StatementFailure.READ_ONLY,
    1836: StatementFailure.READ_ONLY,
}
_SQLITE_NAMES = {
    "SQLITE_CONSTRAINT_PRIMARYKEY": StatementFailure.DUPLICATE,
    "SQLITE_CONSTRAINT_UNIQUE": StatementFailure.DUPLICATE,
    "SQLITE_BUSY": StatementFailure.LOCKED,
    "SQLITE_LOCKED": StatementFailure.LOCKED,
    "SQLITE_READONLY": StatementFailure.READ_ONLY,
}


def failure_of(error: BaseException) -> StatementFailure:
    """The meaning of an error of SQLAlchemy or of a driver."""
    kinds = {(kind.__module__, kind.__name__) for kind in type(error).__mro__}
    if ("sqlalchemy.exc", "InvalidRequestError") in kinds:  # it did not get as far as the driver
        return StatementFailure.ROLLED_BACK
    error = _driver_error(error)
    if isinstance(error, sqlite3.Error):
        name = getattr(error, "sqlite_errorname", "")
        if name == "SQLITE_ERROR" and "no such table" in str(error):  # SQLite has no code for it
            return StatementFailure.NO_TABLE
        return _SQLITE_NAMES.get(name) or _SQLITE_NAMES.get(
            "_".join(name.split("_")[:2]), StatementFailure.OTHER
        )
    if number := _number_of(error):  # first: drivers of MariaDB have an SQLSTATE too, which is less precise
        return _NUMBERS.get(number, StatementFailure.OTHER)
    return _SQLSTATES.get(sqlstate_of(error) or "", StatementFailure.OTHER)


def explained(error: Exception, owner: str, table: str, database: str) -> Exception:
    """The error itself, or a typed one that says what to do. ``owner``: "fence" or "inbox"; ``database``: the
    one that must have the table."""
    match failure_of(error):
        case StatementFailure.NO_TABLE:
            return TableMissing(
                f"there is no table {table} where this connection leads: run {owner}.create_table(), or put "
                f"{owner}.schema() into a migration of {database}"
            )
        case StatementFailure.READ_ONLY:
            return NotPrimary(
                f"the database accepts no writes: the {owner} needs the primary, since a standby lags behind "
                "what has been committed"
            )
        case StatementFailure.FAILED_BEFORE:
            return NoDatabaseTransaction(
                "an earlier statement of this transaction failed, so nothing of it can be committed, and "
                f"the {owner} has written nothing: roll it back and begin the business again"
            )
        case StatementFailure.ROLLED_BACK:
            return NoDatabaseTransaction(rolled_back_already("connection", error))
    return error


def rolled_back_already(what: str, error: Exception) -> str:
    """For a connection or session that takes no statement any more; ``error``: SQLAlchemy's own."""
    return (
        f"the {what}'s transaction is rolled back already, so nothing of it can be committed: end it "
        f"(rollback(), or the end of its block) and begin the business again; SQLAlchemy says: {error}"
    )


def certainly_rolled_back(error: BaseException) -> bool:
    """Whether an error of COMMIT is the server's word that the transaction is rolled back.

    These are: class 23 (a deferred constraint) and class 40 except 40003, "statement completion unknown";
    deadlock and lock wait of MariaDB (a cluster that certifies at COMMIT reports them). Every other error may
    be a lost answer, so the outcome is unknown.
    """
    error = _driver_error(error)
    if isinstance(error, sqlite3.Error):
        return False
    if number := _number_of(error):
        return number in (1205, 1213)
    state = sqlstate_of(error) or ""
    return state[:2] in ("23", "40") and state != "40003"


#: Of PostgreSQL: it shuts down, has crashed, starts; it has no connection or no room left; it is a standby.
_AWAY_STATES = frozenset(("57P01", "57P02", "57P03", "57P05", "53300", "53100", "25006"))
#: Of MariaDB: not to be reached, gone, shutting down, too many connections, no room; it accepts no writes.
_AWAY_NUMBERS = frozenset(
    (1021, 1040, 1053, 1203, 1290, 1792, 1836, 1927, 2002, 2003, 2005, 2006, 2013, 2055, 4031)
)
#: Drivers of MariaDB and MySQL, by the first part of their modules' names.
_MARIADB = frozenset(("pymysql", "asyncmy", "MySQLdb", "_mysql_exceptions", "mysql", "mariadb"))
#: Who connects, if a driver lets out the system's own error: SQLAlchemy's pool, and asyncpg without it.
_CONNECTING = ("sqlalchemy.pool.base", "asyncpg.connection", "asyncpg.connect_utils")
#: Drivers through which a lost connection can come as the system's own error.
_SOCKETS = frozenset(("asyncpg", "asyncmy", "aiomysql", "pymysql"))
_AWAY_NAMES = ("SQLITE_CANTOPEN", "SQLITE_IOERR", "SQLITE_FULL", "SQLITE_READONLY")


def is_away(error: BaseException) -> bool:
    """Whether an error says that the database cannot be reached or takes no work now, whatever it is asked;
    or that it has no table of the fence's or the inbox's, or is another one than theirs (``AnotherTable``):
    somebody has to set it up, and no message is to blame.

    Not a lock, a deadlock or a time-out of one statement: those may be the statement's own doing, and come
    again with it. A driver of PostgreSQL has no code for a server that is not there: a connection that cannot
    be opened, or was lost, is an operational error without one. asyncpg lets out the system's error, which
    says by its frames alone that a database was meant."""
    if isinstance(error, NotPrimary | AnotherTable):
        return True
    if getattr(error, "connection_invalidated", False):
        return True
    error = _driver_error(error)
    if isinstance(error, OSError):
        return _of_a_connection(error)
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorname", "").startswith(_AWAY_NAMES)
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(error).__mro__}
    if not _MARIADB.isdisjoint(module for module, _ in kinds):
        number = _number_of(error)
        closed = type(error).__name__ == "InterfaceError" and error.args[:1] == (0,)
        return number in _AWAY_NUMBERS or closed
    state = sqlstate_of(error)
    if state is not None:
        return state in _AWAY_STATES or state.startswith("08")
    return not kinds.isdisjoint({("psycopg", "OperationalError"), ("psycopg2", "OperationalError")})


def _of_a_connection(error: OSError) -> bool:
    """Whether the system's error (refused, unknown host, time-out, reset) is that of a connection to a
    database: raised while a driver connects, or of a socket that a driver had open."""
    modules = {
        str(frame.f_globals.get("__name__", "")) for frame, _ in traceback.walk_tb(error.__traceback__)
    }
    if not modules.isdisjoint(_CONNECTING):
        return True
    drivers = {module.partition(".")[0] for module in modules}
    return isinstance(error, ConnectionError) and not _SOCKETS.isdisjoint(drivers)


def sqlstate_of(error: BaseException) -> str | None:
    """PostgreSQL's code: psycopg and asyncpg call it ``sqlstate``, psycopg2 ``pgcode``."""
    for name in ("sqlstate", "pgcode"):
        state = getattr(error, name, None)
        if isinstance(state, str):
            return state
    return None


def _driver_error(error: BaseException) -> BaseException:
    original = getattr(error, "orig", None)
    if type(error).__module__ == "django.db.utils":
        original = error.__cause__
    return original if isinstance(original, BaseException) else error


def _number_of(error: BaseException) -> int:
    """MariaDB's: the first argument, or ``errno`` where that is a text (MariaDB Connector/Python)."""
    for number in (error.args[0] if error.args else 0, getattr(error, "errno", None)):
        if isinstance(number, int):
            return number
    return 0
