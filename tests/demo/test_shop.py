"""The demo's business side: data, database and fence, mishaps, and the database's own answers."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console

from escrowmq.cluster.demo import queries, tpch
from escrowmq.cluster.demo.database import LocalTransactionFailed, ShopDatabase
from escrowmq.cluster.demo.options import DemoOptions, Mishap, plan_mishaps
from escrowmq.cluster.demo.story import run_demo
from escrowmq.feedback.database.errors import FenceLost
from escrowmq.feedback.states import TransactionState
from escrowmq.replication.errors import ConfigError
from tests.support.shops import Tx


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tpch")
    tpch.generate(0.001, directory)
    return directory


@pytest.fixture
def shop(tmp_path: Path) -> ShopDatabase:
    database = ShopDatabase(tmp_path / "shop.db")
    database.create()
    return database


def test_orders_come_with_their_lines(data: Path) -> None:
    orders = list(tpch.read_orders(data))
    assert len(orders) == 1500 and [order.key for order in orders] == tpch.order_keys(data)
    assert all(line[0] == order.key for order in orders for line in order.lines)
    assert all([line[3] for line in o.lines] == list(range(1, len(o.lines) + 1)) for o in orders)
    some = frozenset({orders[3].key, orders[9].key})
    assert [order.key for order in tpch.read_orders(data, some)] == sorted(some)


def test_a_row_survives_its_message(data: Path) -> None:
    order = next(tpch.read_orders(data))
    assert tpch.decode(tpch.ORDER_COLUMNS, tpch.encode(tpch.ORDER_COLUMNS, order.row)) == order.row


def test_a_check_that_comes_first_forbids_the_commit(shop: ShopDatabase, data: Path) -> None:
    order = next(tpch.read_orders(data))
    assert shop.fence.query_status("t1", "") is TransactionState.ROLLBACK
    with pytest.raises(FenceLost):
        shop.place_order(Tx("t1"), order)
    assert shop.order_keys() == set()
    shop.place_order(Tx("t2"), order)  # the same order in another transaction is free
    assert shop.order_keys() == {order.key}
    assert shop.fence.query_status("t2", "") is TransactionState.COMMITTED


def test_a_failed_local_transaction_keeps_nothing(shop: ShopDatabase, data: Path) -> None:
    order = next(tpch.read_orders(data))
    with pytest.raises(LocalTransactionFailed):
        shop.place_order(Tx("t1"), order, fails=True)
    assert shop.order_keys() == set()
    assert shop.table("lineitem", {"l_orderkey": "BIGINT"}) == {"l_orderkey": []}
    assert shop.fence.query_status("t1", "") is TransactionState.ROLLBACK


def test_the_first_question_is_recognised_in_every_process(shop: ShopDatabase, tmp_path: Path) -> None:
    other = ShopDatabase(tmp_path / "shop.db")
    assert shop.first_time_asked("t") and not other.first_time_asked("t") and not shop.first_time_asked("t")


def test_the_same_seed_goes_wrong_in_the_same_places() -> None:
    keys = list(range(1, 6001, 4))
    assert plan_mishaps(7, keys) == plan_mishaps(7, keys) != plan_mishaps(8, keys)
    for seed in range(20):
        kinds = Counter(plan_mishaps(seed, keys).orders.values())
        assert set(kinds) == set(Mishap) and kinds.total() < len(keys) / 10


def test_duckdb_answers_q1_as_published(shop: ShopDatabase, tmp_path: Path) -> None:
    tpch.generate(0.01, tmp_path)
    for order in tpch.read_orders(tmp_path):
        shop.place_order(Tx(str(order.key)), order)
    columns, rows = queries.answers(shop)["TPC-H Q1: pricing summary"]
    assert columns[:4] == ["l_returnflag", "l_linestatus", "sum_qty", "sum_base_price"]
    assert [row[:6] + row[-1:] for row in rows] == [
        ["A", "F", "380456.00", "532348211.65", "505822441.4861", "526165934.000839", "14876"],
        ["N", "F", "8971.00", "12384801.37", "11798257.2080", "12282485.056933", "348"],
        ["N", "O", "742802.00", "1041502841.45", "989737518.6346", "1029418531.523350", "29181"],
        ["R", "F", "381449.00", "534594445.35", "507996454.4067", "528524219.358903", "14902"],
    ]


@pytest.mark.parametrize(
    ("named", "options"),
    [
        ("scale", {"scale": 0}),
        ("scale", {"scale": 100.0}),
        ("seed", {"seed": -1}),
        ("replicas", {"replicas": 4}),
        ("replicas", {"replicas": 1}),
        ("producers", {"producers": 1}),
        ("threads", {"threads": 0}),
    ],
)
def test_bad_options_are_named(named: str, options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=named):
        DemoOptions(**options)  # type: ignore[arg-type]


def test_a_directory_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    DemoOptions(directory=tmp_path / "new")
    (tmp_path / "precious").touch()
    with pytest.raises(ConfigError, match="directory"):
        DemoOptions(directory=tmp_path)


def test_a_missing_generator_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpch, "GENERATOR", "no-such-generator")
    with pytest.raises(ConfigError, match=r"escrowmq\[demo\]"):
        tpch.generate(0.001, tmp_path)
    console = Console(file=io.StringIO(), width=200)
    assert run_demo(DemoOptions(spark=False, directory=tmp_path / "run"), console) == 1
    assert "no-such-generator is not installed" in console.file.getvalue()  # type: ignore[attr-defined]
