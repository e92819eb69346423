"""The SQL of each dialect: SQLite, PostgreSQL, MariaDB (and MySQL). Text with named values (``:key``); pure.

Insert, insert or ignore, read, remove: these four, and the table. The rest of each dialect ensures that a
check waits no longer than its limit for a local transaction that is still running.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from escrowmq.feedback.database.errors import DatabaseMisused
from escrowmq.replication.model import TransactionState

# ------------------------------------------------------------------------------------------------------------
# The rows of a fence, as values: keys, outcomes, and which rows may be removed. Pure.
#
# A row says which came first, for good: the local transaction (COMMITTED, written inside it) or a check
# (ROLLED_BACK). The one that inserted the row has won, and the other learns so from the primary key.

#: Values of the column ``outcome``. Databases keep them for years: no number is ever reused.
COMMITTED, ROLLED_BACK, IDENTITY = 1, 2, 3
#: The row that says which database this is; ``tx_id`` holds a random name. No digest is all zeros.
IDENTITY_KEY = bytes(32)

#: A row is kept for as long as an instance could be paused and then continue (SEMANTICS 5.1).
KEEP_S = 7 * 86_400.0
#: Maximum difference between the clocks of a service and of a broker; far more than machines with NTP differ
#: by.
CLOCKS_DIFFER_MS = 3_600_000


def key_of(app: str, tx_id: str) -> bytes:
    """The primary key: 32 bytes. The length precedes the app, so that no two pairs have the same text.

    Binary, so that equality does not depend on a database's collation, length or case.
    """
    name = app.encode()
    return hashlib.sha256(b"%d:%b%b" % (len(name), name, tx_id.encode())).digest()


def short_name(identity: bytes) -> bytes:
    """The 16 bytes by which a broker knows the table of this name."""
    try:
        name = bytes.fromhex(identity.decode())
    except ValueError:
        name = b""
    return name if len(name) == 16 else hashlib.sha256(identity).digest()[:16]


def state_of(outcome: int | None) -> TransactionState:
    """What a row means to a check; None (there is no row, or it cannot be read) is not an answer."""
    if outcome == COMMITTED:
        return TransactionState.COMMITTED
    return TransactionState.ROLLBACK if outcome == ROLLED_BACK else TransactionState.UNKNOWN


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table. ``created_ms``: since the epoch, by the clock of the service that wrote it."""

    key: bytes
    app: str
    created_ms: int


def before_ms(now_ms: int, keep_s: float, oldest_open_ms: int | None) -> int:
    """Rows written earlier than this may be removed: ``keep_s`` old, and older than the app's oldest open
    transaction.

    A row is written after its transaction was prepared. So what was written before the oldest open one was
    prepared belongs to a transaction that is settled, and is not asked for again, or to one that was prepared
    again since (``disposable``).
    """
    aged = now_ms - int(keep_s * 1000)
    return aged if oldest_open_ms is None else min(aged, oldest_open_ms - CLOCKS_DIFFER_MS)


def disposable(rows: Iterable[Row], app: str, before: int, needed: Collection[bytes]) -> list[bytes]:
    """Keys of the rows of one app that were written before ``before`` (ms since the epoch), but for those
    that are ``needed``: of what is open, however old it is."""
    old = [row.key for row in rows if row.app == app and row.created_ms < before]
    return [key for key in old if key not in needed]


def halves(keys: Sequence[bytes]) -> list[Sequence[bytes]]:
    """Two halves of at least two keys: one of them may not contain the locked one."""
    middle = len(keys) // 2
    return [keys[:middle], keys[middle:]]


#: One name, or a schema and a name, that needs no quotes in any dialect.
TABLE = re.compile(r"[a-z_][a-z0-9_]{0,62}(\.[a-z_][a-z0-9_]{0,62})?")
#: Keys in one statement: SQLite accepts 32,766 values, PostgreSQL 65,535; a row has two of its own.
KEYS_MAX = 1000
_VALUE = re.compile(r":(\w+)")
#: In a schema's name: would end the quotes, or look like a value's placeholder to some driver.
UNQUOTABLE = '"`:%?\\\0'


@dataclass(frozen=True, slots=True)
class Dialect:
    """What differs between dialects. ``locks_rows``: a check waits for a row, not for the whole database."""

    name: str
    binary_key: str
    binary: str
    after_table: str
    insert: str
    ignoring: str
    locks_rows: bool
    begin_check: tuple[str, ...]
    limit_of: str | None = None
    restore_limit: str | None = None
    #: Around a name that needs it, and the question for where an unqualified table is found. Only PostgreSQL
    #: looks in several places.
    quote: str = '"'
    schema_of: str | None = None
    without_snapshot: str = ""

    @property
    def has_standbys(self) -> bool:
        """Whether what is committed here may be on another server only later."""
        return self.locks_rows

    @property
    def commits_at_ddl(self) -> bool:
        """Whether some statements (CREATE, TRUNCATE) commit the transaction in which they run."""
        return self.name == "mysql"


SQLITE = Dialect(
    "sqlite", "BLOB", "BLOB", " WITHOUT ROWID", "INSERT OR IGNORE INTO", "", False,
    ("PRAGMA busy_timeout = {limit_ms}",), "PRAGMA busy_timeout", "PRAGMA busy_timeout = {limit}",
)  # fmt: skip
#: READ COMMITTED: a row that was waited for is visible, whatever the server's default is. synchronous_commit:
#: what a check has answered must not be lost if the server crashes.
POSTGRESQL = Dialect(
    "postgresql", "BYTEA", "BYTEA", "", "INSERT INTO", " ON CONFLICT DO NOTHING", True,
    ("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", "SET LOCAL lock_timeout = {limit_ms}",
     "SET LOCAL synchronous_commit = on"),
    schema_of="SELECT nspname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace "
    "WHERE pg_class.oid = to_regclass(:name)",
)  # fmt: skip
#: InnoDB is named, since an engine without transactions would keep the row of a transaction that is rolled
#: back. Its limit is in whole seconds.
MARIADB = Dialect(
    "mysql", "BINARY(32)", "VARBINARY(2048)", " ENGINE=InnoDB", "INSERT IGNORE INTO", "", True,
    ("SET SESSION innodb_lock_wait_timeout = {limit_s}",),
    "SELECT @@SESSION.innodb_lock_wait_timeout", "SET SESSION innodb_lock_wait_timeout = {limit}",
    "`", "SELECT table_schema FROM information_schema.tables WHERE table_schema = DATABASE() "
    "AND table_name = :name", " LOCK IN SHARE MODE",
)  # fmt: skip
DIALECTS = {"sqlite": SQLITE, "postgresql": POSTGRESQL, "mysql": MARIADB, "mariadb": MARIADB}


def dialect_of(name: str) -> Dialect:
    """By its name in SQLAlchemy; raises DatabaseMisused for a database that has not been tested."""
    if name not in DIALECTS:
        raise DatabaseMisused(f"{name!r} is not supported: use SQLite, PostgreSQL, MariaDB or MySQL")
    return DIALECTS[name]


class Statements:
    """The statements for one table. Values are named ``:key``, ``:app``, ``:tx_id`` and ``:created_ms``.

    ``schema``: where the table is, if its name alone does not say so; it must be ``quotable``."""

    def __init__(self, dialect: Dialect, table: str, schema: str = "") -> None:
        if not TABLE.fullmatch(table):
            raise DatabaseMisused(
                f"table {table!r}: use a name of a-z, 0-9 and _ (up to 63), or a schema, a dot and a name"
            )
        self.dialect = dialect
        #: As it is in all statements.
        self.table = table = f"{dialect.quote}{schema}{dialect.quote}.{table}" if schema else table
        self.create = (
            f"CREATE TABLE IF NOT EXISTS {table} (tx_key {dialect.binary_key} NOT NULL PRIMARY KEY, "
            f"app {dialect.binary} NOT NULL, tx_id {dialect.binary} NOT NULL, outcome SMALLINT NOT NULL, "
            f"created_ms BIGINT NOT NULL){dialect.after_table}"
        )
        #: Where the table is found, if nothing says so.
        self.schema_of: tuple[str, dict[str, Any]] | None = None
        if dialect.schema_of is not None and "." not in table:
            self.schema_of = dialect.schema_of, {"name": table}
        self.enter = f"INSERT INTO {table} VALUES (:key, :app, :tx_id, {COMMITTED}, :created_ms)"
        self.name = (
            f"{dialect.insert} {table} VALUES (:key, :app, :tx_id, {IDENTITY}, :created_ms){dialect.ignoring}"
        )
        self.identity = f"SELECT tx_id FROM {table} WHERE tx_key = :key"
        #: The same without a snapshot: what a check waits for and then reads is later than that.
        self.identity_now = self.identity + dialect.without_snapshot
        self.own = f"SELECT outcome, created_ms FROM {table} WHERE tx_key = :key"
        self.slice = (
            f"SELECT tx_key, app, created_ms FROM {table} WHERE tx_key > :after ORDER BY tx_key LIMIT :most"
        )
        self.since = (
            f"SELECT tx_key, tx_id, outcome FROM {table} WHERE tx_key > :after AND app = :app "
            "AND created_ms >= :since ORDER BY tx_key LIMIT :most"
        )

    def block(
        self, rows: Sequence[tuple[bytes, bytes]], app: bytes, now_ms: int
    ) -> tuple[str, dict[str, Any]]:
        """Insert (key, tx_id) as rolled back where there is no row yet."""
        values: dict[str, Any] = {"app": app, "created_ms": now_ms}
        parts = []
        for at, (key, tx_id) in enumerate(rows):
            values[f"k{at}"], values[f"t{at}"] = key, tx_id
            parts.append(f"(:k{at}, :app, :t{at}, {ROLLED_BACK}, :created_ms)")
        insert = f"{self.dialect.insert} {self.table} VALUES {', '.join(parts)}{self.dialect.ignoring}"
        return insert, values

    def read(self, keys: Sequence[bytes]) -> tuple[str, dict[str, Any]]:
        """Key and outcome of the existing rows."""
        names, values = listed(keys)
        return f"SELECT tx_key, outcome FROM {self.table} WHERE tx_key IN ({names})", values

    def remove(self, keys: Sequence[bytes]) -> tuple[str, dict[str, Any]]:
        """Delete by key alone: a condition on a range would lock its gaps, and so block new local
        transactions."""
        names, values = listed(keys)
        return f"DELETE FROM {self.table} WHERE tx_key IN ({names})", values

    def begin_check(self, limit_s: float) -> list[str]:
        """Statements before those of a check, so that none waits longer than about ``limit_s``."""
        limits = {"limit_ms": max(int(limit_s * 1000), 1), "limit_s": round(limit_s)}
        return [text.format(**limits) for text in self.dialect.begin_check]


def listed(keys: Sequence[bytes]) -> tuple[str, dict[str, Any]]:
    """Keys as named values: the names, and the values by name."""
    return ", ".join(f":k{at}" for at in range(len(keys))), {f"k{at}": key for at, key in enumerate(keys)}


def quotable(name: str) -> bool:
    """Whether a schema's name, in quotes, means the same to all drivers."""
    return bool(name) and not set(name) & set(UNQUOTABLE)


def in_pyformat(sql: str) -> str:
    """For drivers that use ``%(name)s`` (psycopg, PyMySQL); none of the statements contains another colon or
    %."""
    return _VALUE.sub(r"%(\1)s", sql)
