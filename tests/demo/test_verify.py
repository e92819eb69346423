"""The demo's verification finds every kind of breach: a checker that cannot fail would prove nothing."""

from __future__ import annotations

from typing import Any

from escrowmq.cluster.demo.options import LINEITEMS, ORDERS
from escrowmq.cluster.demo.story import find_problems
from escrowmq.cluster.demo.tpch import LINEITEM_COLUMNS, ORDER_COLUMNS, encode
from escrowmq.replication.model import ConsumerRecord


def order_row(key: int, price: str = "1.00") -> tuple[Any, ...]:
    return (key, 1, "O", price, "1996-01-02", "5-LOW", "Clerk#1", 0, "comment")


def line_row(key: int, number: int) -> tuple[Any, ...]:
    text = [
        "1",
        "2.00",
        "0.01",
        "0.02",
        "N",
        "O",
        "1996-01-02",
        "1996-01-02",
        "1996-01-02",
        "NONE",
        "MAIL",
        "c",
    ]
    return (key, 1, 1, number, *text)


def record(topic: str, offset: int, row: tuple[Any, ...], tx_id: str | None) -> ConsumerRecord:
    columns = ORDER_COLUMNS if topic == ORDERS else LINEITEM_COLUMNS
    return ConsumerRecord(topic, 0, offset, 0, None, encode(columns, row), {}, tx_id)


RECORDS = [
    record(ORDERS, 0, order_row(1), "t1"),
    record(LINEITEMS, 0, line_row(1, 1), "t1"),
    record(LINEITEMS, 1, line_row(1, 2), "t1"),
    record(ORDERS, 1, order_row(2), "t2"),
    record(LINEITEMS, 2, line_row(2, 1), "t2"),
]
TABLES = {
    ORDERS: [order_row(1), order_row(2)],
    LINEITEMS: [line_row(1, 1), line_row(1, 2), line_row(2, 1)],
}
ENDS = {(ORDERS, 0): 2, (LINEITEMS, 0): 3}


def test_all_of_it_exactly_once_is_no_problem() -> None:
    assert find_problems(RECORDS, TABLES, ENDS) == []


def test_a_message_without_its_row_is_found() -> None:
    tables = {**TABLES, LINEITEMS: TABLES[LINEITEMS][:-1]}
    assert any("not in the database" in p for p in find_problems(RECORDS, tables, ENDS))


def test_a_row_without_its_message_is_found() -> None:
    problems = find_problems(RECORDS[:-1], TABLES, ENDS)
    assert any("not readable" in p for p in problems) and any("read up to 2 of 3" in p for p in problems)


def test_a_message_that_comes_twice_is_found() -> None:
    again = [*RECORDS, record(ORDERS, 2, order_row(1), "t1")]
    assert any("is a duplicate" in p for p in find_problems(again, TABLES, {**ENDS, (ORDERS, 0): 3}))


def test_other_content_is_found() -> None:
    other = [record(ORDERS, 0, order_row(1, "9.99"), "t1"), *RECORDS[1:]]
    assert any("differs" in p for p in find_problems(other, TABLES, ENDS))


def test_a_gap_in_offsets_is_found() -> None:
    gap = [*RECORDS[:-1], record(LINEITEMS, 3, line_row(2, 1), "t2")]
    assert any("expected next" in p for p in find_problems(gap, TABLES, {**ENDS, (LINEITEMS, 0): 4}))


def test_messages_of_two_transactions_for_one_order_are_found() -> None:
    mixed = [*RECORDS[:-1], record(LINEITEMS, 2, line_row(2, 1), "t3")]
    assert any("several transactions" in p for p in find_problems(mixed, TABLES, ENDS))
