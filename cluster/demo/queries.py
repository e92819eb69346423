"""The demo's questions, in SQL that both Spark and DuckDB accept, and the exact text of their answers.

Averages are computed as quotients of exact sums. Spark's average of decimals is a rounded decimal and
DuckDB's a double, whereas dividing the same two numbers gives the same double everywhere.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from escrowmq.cluster.demo.database import ShopDatabase
from escrowmq.cluster.demo.tpch import LINEITEM_COLUMNS, ORDER_COLUMNS

#: TPC-H query 1, the pricing summary report (clause 2.4.1, DELTA = 90).
PRICING_SUMMARY = """
SELECT l_returnflag, l_linestatus,
       CAST(sum(l_quantity) AS DECIMAL(38, 2)) AS sum_qty,
       CAST(sum(l_extendedprice) AS DECIMAL(38, 2)) AS sum_base_price,
       CAST(sum(l_extendedprice * (1 - l_discount)) AS DECIMAL(38, 4)) AS sum_disc_price,
       CAST(sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) AS DECIMAL(38, 6)) AS sum_charge,
       CAST(sum(l_quantity) AS DOUBLE) / count(*) AS avg_qty,
       CAST(sum(l_extendedprice) AS DOUBLE) / count(*) AS avg_price,
       CAST(sum(l_discount) AS DOUBLE) / count(*) AS avg_disc,
       count(*) AS count_order
FROM lineitem
WHERE l_shipdate <= DATE '1998-12-01' - INTERVAL '90' DAY
GROUP BY l_returnflag, l_linestatus
ORDER BY l_returnflag, l_linestatus
"""

#: Revenue by priority over both topics.
REVENUE_BY_PRIORITY = """
SELECT o_orderpriority,
       count(DISTINCT o_orderkey) AS orders,
       CAST(sum(l_extendedprice * (1 - l_discount)) AS DECIMAL(38, 4)) AS revenue
FROM orders JOIN lineitem ON l_orderkey = o_orderkey
GROUP BY o_orderpriority
ORDER BY o_orderpriority
"""

#: Title -> (number of leading columns that identify a row, query).
QUESTIONS = {
    "TPC-H Q1: pricing summary": (2, PRICING_SUMMARY),
    "Revenue by order priority": (1, REVENUE_BY_PRIORITY),
}
#: Table -> (its columns, the name of the view with all columns as text, before casting).
TABLES = {"orders": (ORDER_COLUMNS, "orders_text"), "lineitem": (LINEITEM_COLUMNS, "lineitem_text")}

#: An answer: names of the columns, and rows as exact text.
QueryAnswer = tuple[list[str], list[list[str]]]


def typed_view(table: str) -> str:
    """SQL for a view that casts the text columns of a table to their types; valid in both engines."""
    columns, source = TABLES[table]
    casts = ", ".join(f"CAST({name} AS {kind}) AS {name}" for name, kind in columns.items())
    return f"CREATE OR REPLACE TEMPORARY VIEW {table} AS SELECT {casts} FROM {source}"


def cell(value: Any) -> str:
    """Exact text of one value: all digits of a decimal; a double so that it reads back as the same double."""
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, float):
        return repr(value)
    return str(value)


# ------------------------------------------------------------------------------------------------------------
# The answers from the database: DuckDB over the shop's SQLite tables.


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
