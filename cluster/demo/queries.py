"""The questions of the demo, in the SQL that Spark and DuckDB have in common, and exact text of answers.

Averages are quotients of exact sums: Spark's average of decimals is a rounded decimal and DuckDB's a
double, while one division of the same two numbers is the same double everywhere.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

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

#: Title -> (number of columns that name a row, query).
QUESTIONS = {
    "TPC-H Q1: pricing summary": (2, PRICING_SUMMARY),
    "Revenue by order priority": (1, REVENUE_BY_PRIORITY),
}
#: Table -> (its columns, its text as the engines see it before casting).
TABLES = {"orders": (ORDER_COLUMNS, "orders_text"), "lineitem": (LINEITEM_COLUMNS, "lineitem_text")}

#: An answer: names of the columns, and rows as exact text.
QueryAnswer = tuple[list[str], list[list[str]]]


def typed_view(table: str) -> str:
    """SQL that casts a table of text to its types; both engines take it."""
    columns, source = TABLES[table]
    casts = ", ".join(f"CAST({name} AS {kind}) AS {name}" for name, kind in columns.items())
    return f"CREATE OR REPLACE TEMPORARY VIEW {table} AS SELECT {casts} FROM {source}"


def cell(value: Any) -> str:
    """Exact text of one value: decimals in full, doubles so that they read back as the same double."""
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, float):
        return repr(value)
    return str(value)
