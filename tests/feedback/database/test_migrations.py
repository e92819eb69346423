"""The tables of fence, inbox and outbox in a service's own migrations: real Alembic, which writes them from
the metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from escrowmq import Message, TransactionState
from escrowmq.integrations import Fence, Inbox, Outbox
from tests.support.database_servers import Server
from tests.support.inboxes import record
from tests.support.shops import Tx

#: What ``alembic init`` writes, without comments and logging, and with the two lines of the guide.
ENVIRONMENT = """
import sqlalchemy as sa
from alembic import context
from escrowmq.integrations import fence_table, inbox_table, outbox_tables

metadata = sa.MetaData()
sa.Table("wares", metadata, sa.Column("id", sa.Integer, primary_key=True))
fence_table(metadata, "service_fence")
inbox_table(metadata, "service_inbox")
outbox_tables(metadata, "service_outbox")

engine = sa.create_engine(context.config.get_main_option("sqlalchemy.url"))
with engine.connect() as connection:
    context.configure(
        connection=connection, target_metadata=metadata, version_table="service_version",
        include_name=lambda name, kind, parents: kind != "table" or name in metadata.tables,
    )
    with context.begin_transaction():
        context.run_migrations()
engine.dispose()
"""
SCRIPT = """
import sqlalchemy as sa
from alembic import op
${imports if imports else ""}
revision, down_revision = ${repr(up_revision)}, ${repr(down_revision)}
branch_labels = depends_on = None

def upgrade():
    ${upgrades}

def downgrade():
    ${downgrades}
"""
TABLES = ("service_fence", "service_inbox", "service_outbox", "service_outbox_shards", "wares")
KINDS = pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])


@pytest.fixture
def url(server_of: Callable[[str], Server | None], kind: str, tmp_path: Path) -> Iterator[str]:
    """A database without a table of the service's."""
    server = server_of(kind)
    found = f"sqlite:///{tmp_path / 'shop.db'}" if server is None else server.url()
    yield found
    engine = sa.create_engine(found)
    with engine.begin() as db:
        for table in (*TABLES, "service_version"):
            db.execute(sa.text(f"drop table if exists {table}"))
    engine.dispose()


@pytest.fixture
def environment(url: str, tmp_path: Path) -> Config:
    """Alembic's folder of a service."""
    folder = tmp_path / "migrations"
    (folder / "versions").mkdir(parents=True)
    (folder / "env.py").write_text(ENVIRONMENT)
    (folder / "script.py.mako").write_text(SCRIPT)
    config = Config()
    config.set_main_option("script_location", str(folder))
    config.set_main_option("path_separator", "os")
    config.set_main_option("sqlalchemy.url", url)
    return config


@KINDS
def test_a_migration_that_alembic_has_written_makes_a_table_that_fences(
    environment: Config, url: str
) -> None:
    written = command.revision(environment, "fence", autogenerate=True)
    assert not isinstance(written, list) and written is not None
    assert "service_fence" in Path(written.path).read_text()
    command.upgrade(environment, "head")
    command.check(environment)  # raises where a further migration would be written
    engine = sa.create_engine(url)
    fence = Fence(engine, app="shop", table="service_fence")
    with fence.local(Tx("1")) as db:
        db.execute(sa.text("insert into wares values (1)"))
    asked = [("1", ""), ("2", "")]
    assert list(fence.query_statuses(asked)) == [TransactionState.COMMITTED, TransactionState.ROLLBACK]
    inbox = Inbox(engine, group="billing", table="service_inbox")
    for expected in (True, False):
        with engine.begin() as db, inbox.once(db, record(1)) as first:
            assert first is expected
    outbox = Outbox(engine, table="service_outbox")
    with engine.begin() as db:
        outbox.send(db, Message("t", b"1"), Message("t", b"2"))
    assert [row.message.value for row in outbox.rows()] == [b"1", b"2"]
    command.downgrade(environment, "base")
    assert not {*TABLES} & {*sa.inspect(engine).get_table_names()}
    engine.dispose()


@KINDS
def test_alembic_finds_nothing_to_change_in_tables_that_their_owners_have_made(
    environment: Config, url: str
) -> None:
    engine = sa.create_engine(url)
    Fence(engine, app="shop", table="service_fence").create_table()
    Inbox(engine, group="billing", table="service_inbox").create_table()
    Outbox(engine, table="service_outbox").create_table()
    with engine.begin() as db:
        db.execute(sa.text("create table wares (id integer not null primary key)"))
    engine.dispose()
    command.check(environment)
