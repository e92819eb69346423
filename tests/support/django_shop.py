"""A Django application on any database: an orders model, with no project around it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import django
import pymysql
from django.conf import settings
from django.db import connections, models

from tests.support.database_servers import Server

# Django asks for mysqlclient, which needs a compiler; PyMySQL stands in for it under that one's name.
pymysql.version_info = (2, 2, 7, "final", 0)  # type: ignore[assignment]
pymysql.install_as_MySQLdb()
_UNUSED = Path(tempfile.gettempdir()) / "escrowmq-unused.db"
settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": _UNUSED}}, USE_TZ=True
)
django.setup()


class Order(models.Model):
    """The business's row."""

    id = models.CharField(primary_key=True, max_length=100)

    class Meta:
        app_label = "shop"
        db_table = "django_orders"


def _options(server: Server | None, folder: Path) -> dict[str, Any]:
    if server is None:
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": folder / "django.db"}
    address = {"HOST": "127.0.0.1", "PORT": str(server.port), "USER": "escrow"}
    if server.kind == "postgresql":
        name = {"NAME": "postgres", "PASSWORD": server.password}
        return {"ENGINE": "django.db.backends.postgresql"} | address | name
    return {"ENGINE": "django.db.backends.mysql", "NAME": "shop"} | address


@contextmanager
def django_database(server: Server | None, folder: Path, *tables: str) -> Iterator[str]:
    """The alias of a database with the orders table; ``tables`` are dropped at the end as well."""
    alias = "default" if server is None else server.kind
    options = _options(server, folder)
    connections.settings[alias] = connections.configure_settings({"default": options})["default"]
    if hasattr(connections._connections, alias):  # of an earlier test: it leads elsewhere
        connections[alias].close()
        del connections[alias]
    connection = connections[alias]
    with connection.schema_editor() as editor:
        editor.create_model(Order)
    try:
        yield alias
    finally:
        with suppress(Exception), connection.cursor() as cursor:
            for table in ("django_orders", *tables):
                cursor.execute(f"drop table if exists {table}")
        connection.close()
