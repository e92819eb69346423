"""The answers from the database: DuckDB over the shop's SQLite tables."""

from __future__ import annotations

from escrowmq.cluster.demo.database import ShopDatabase
from escrowmq.cluster.demo.queries import QUESTIONS, TABLES, QueryAnswer, cell, typed_view


def answers(shop: ShopDatabase) -> dict[str, QueryAnswer]:
    """The answer to every question, by its title.

    The tables are passed as Arrow tables, since DuckDB's SQLite extension would have to be downloaded.
    """
    import duckdb
    import pyarrow as pa

    found: dict[str, QueryAnswer] = {}
    with duckdb.connect() as connection:
        for table, (columns, source) in TABLES.items():
            connection.register(source, pa.table(shop.table(table, columns)))
            connection.execute(typed_view(table))
        for title, (_, query) in QUESTIONS.items():
            result = connection.execute(query)
            names = [str(column[0]) for column in result.description or ()]
            found[title] = names, [[cell(value) for value in row] for row in result.fetchall()]
    return found
