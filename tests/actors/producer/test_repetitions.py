"""A run of an id that was open before knows of its own local transaction only, and the run before it may have
committed its one. So whatever a repetition says, it commits, or leaves the decision to the querier."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from escrowmq import Message, OutcomeUnknown, TransactionState, TxStatusQuerier
from escrowmq.actors.client.failures import Failure
from escrowmq.actors.producer.producer import Producer
from escrowmq.actors.producer.transactions import across_groups
from escrowmq.testing import InMemoryCluster
from tests.support.several_groups import Client, SeveralGroups

COMMITTED, ROLLBACK, UNKNOWN = TransactionState.COMMITTED, TransactionState.ROLLBACK, TransactionState.UNKNOWN


class Shop(TxStatusQuerier):
    """An application with a unique key on its orders."""

    def __init__(self, path: Path, cluster: InMemoryCluster) -> None:
        self.path, self.cluster = path, cluster
        with self.database() as db:
            db.execute("create table orders (id text primary key)")

    def database(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path)

    def insert(self, *orders: str) -> None:
        """Commits. Raises IntegrityError if one is there already, and has then stored none."""
        db = self.database()
        with db:
            db.executemany("insert into orders values (?)", [(order,) for order in orders])
        db.close()

    def rows(self) -> list[str]:
        return [row for (row,) in self.database().execute("select id from orders order by id")]

    def query_status(self, tx_id: str, query_id: str) -> TransactionState:
        return COMMITTED if query_id in self.rows() else ROLLBACK

    def producer(self) -> Producer:
        return self.cluster.producer("shop", tx_status_querier=self)

    def dies_before_commit(self, *orders: str) -> None:
        """A process stores these and dies before it has sent COMMIT."""
        producer = self.producer()
        for order in orders:
            tx = producer.transaction(tx_id=order)
            tx.send(Message("orders", order.encode()))
            tx.prepare()
        self.insert(*orders)
        producer.close()

    def left(self) -> list[str]:
        """The ids that are open."""
        return [each.tx_id for each in self.cluster.admin.list_transactions()]

    def messages(self) -> list[str]:
        """After all checks."""
        self.cluster.clock.advance(40)
        assert self.left() == []
        with self.cluster.consumer("audit", ["orders"], auto_offset_reset="earliest") as consumer:
            return sorted(record.value.decode() for record in consumer.poll(timeout_s=1))


@pytest.fixture
def shop(cluster: InMemoryCluster, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path / "shop.db", cluster)
    yield made
    assert made.messages() == made.rows(), "a row for each message, a message for each row"


def callback(producer: Producer, order: str, run: Callable[[], object]) -> object:
    return producer.send_message_in_transaction(
        Message("orders", order.encode()), lambda: run(), tx_id=order
    ).state


def block(producer: Producer, order: str, run: Callable[[], object]) -> object:
    with producer.transaction(tx_id=order) as tx:
        tx.send(Message("orders", order.encode()))
        tx.prepare()
        if run() is False:
            tx.rollback()
    return tx.state


def async_callback(producer: Producer, order: str, run: Callable[[], object]) -> object:
    async def main() -> object:
        message = Message("orders", order.encode())
        return (await producer.aio.send_message_in_transaction(message, lambda: run(), tx_id=order)).state

    return asyncio.run(main())


def async_block(producer: Producer, order: str, run: Callable[[], object]) -> object:
    async def main() -> object:
        async with producer.aio.transaction(tx_id=order) as tx:
            await tx.send(Message("orders", order.encode()))
            await tx.prepare()
            if run() is False:
                await tx.rollback()
        return tx.state

    return asyncio.run(main())


def bulk(producer: Producer, order: str, run: Callable[[], object]) -> object:
    batch = [(Message("orders", order.encode()), order, order)]
    (result,) = producer.send_transactions(batch, lambda prepared: run())
    assert (result.state is UNKNOWN) == isinstance(result.error, OutcomeUnknown)
    return result.state


def large(producer: Producer, order: str, run: Callable[[], object]) -> object:
    """In two parts, so that it is not in a block with others."""
    bodies = [
        Message("orders", order.encode()),
        Message("other", b"x" * 900_000),
        Message("other", b"y" * 900_000),
    ]
    (result,) = producer.send_transactions([(bodies, order, order)], lambda prepared: run())
    return result.state


def table(producer: Producer, order: str, run: Callable[[], object]) -> object:
    rows = pa.table({"value": [order.encode()], "id": [order]})
    results = producer.send_transactions_table(
        "orders", rows, lambda prepared: run(), tx_id="id", query_id="id"
    )
    return results[0].state


FACES = [callback, block, async_callback, async_block, bulk, table]


@pytest.mark.parametrize("face", FACES)
def test_the_unique_key_refuses_the_repetition_of_an_order_that_is_stored(
    shop: Shop, face: Callable[..., object]
) -> None:
    shop.dies_before_commit("42")
    with pytest.raises(sqlite3.IntegrityError) as raised:
        face(shop.producer(), "42", lambda: shop.insert("42"))
    if face not in (bulk, table):
        assert "was prepared before" in raised.value.__notes__[0]


@pytest.mark.parametrize("face", FACES)
def test_a_repetition_that_says_no_is_left_to_the_check(shop: Shop, face: Callable[..., object]) -> None:
    """As one does whose ``insert ... on conflict do nothing`` inserted nothing."""
    shop.dies_before_commit("42")
    if face in (block, async_block):
        with pytest.raises(OutcomeUnknown):
            face(shop.producer(), "42", lambda: False)
    else:
        assert face(shop.producer(), "42", lambda: False) is UNKNOWN
    assert shop.messages() == ["42"]


@pytest.mark.parametrize("face", FACES)
def test_a_repetition_that_stores_the_order_commits_at_once(shop: Shop, face: Callable[..., object]) -> None:
    producer = shop.producer()
    with producer.transaction(tx_id="42") as tx:
        tx.send(Message("orders", b"42"))
        tx.prepare()
        assert not tx.repeated
        tx.unknown()
    assert face(shop.producer(), "42", lambda: shop.insert("42")) is COMMITTED


@pytest.mark.parametrize("face", FACES)
def test_a_first_run_rolls_back_at_once(shop: Shop, face: Callable[..., object]) -> None:
    def refused() -> None:
        raise KeyError("no such article")

    with pytest.raises(KeyError):
        face(shop.producer(), "42", refused)
    assert shop.left() == []
    assert face(shop.producer(), "43", lambda: False) is ROLLBACK


@pytest.mark.parametrize("face", FACES)
def test_a_first_run_rolls_nothing_back_once_another_instance_has_stored_the_order(
    shop: Shop, face: Callable[..., object]
) -> None:
    """The other one prepares the id and commits its row, before this one's key is refused."""

    def overtaken() -> None:
        shop.dies_before_commit("42")
        shop.insert("42")

    with pytest.raises(sqlite3.IntegrityError):
        face(shop.producer(), "42", overtaken)


def test_an_exception_of_a_first_run_that_was_overtaken_says_that_the_check_decides(shop: Shop) -> None:
    def overtaken() -> None:
        shop.dies_before_commit("42")
        raise ValueError("it breaks")

    with pytest.raises(ValueError, match="it breaks") as raised:
        callback(shop.producer(), "42", overtaken)
    assert "the check will decide" in raised.value.__notes__[0]


def test_the_second_instance_that_is_refused_leaves_the_first_one_its_transaction(shop: Shop) -> None:
    first, second = shop.producer(), shop.producer()

    def run() -> None:
        shop.insert("42")
        shop.cluster.clock.advance(1)
        with pytest.raises(sqlite3.IntegrityError):
            callback(second, "42", lambda: shop.insert("42"))

    assert callback(first, "42", run) is COMMITTED


def test_in_a_batch_only_repetitions_are_left(shop: Shop) -> None:
    shop.dies_before_commit("1", "3")
    batch = [(Message("orders", name.encode()), name, name) for name in "1234"]
    results = shop.producer().send_transactions(batch, lambda prepared: [False, False, True, True])
    assert [result.state for result in results] == [UNKNOWN, ROLLBACK, COMMITTED, COMMITTED]
    assert isinstance(results[0].error, OutcomeUnknown) and results[1].error is None
    shop.insert("4")


def test_a_batch_that_is_given_up_half_way_rolls_back_no_repetition(shop: Shop) -> None:
    shop.dies_before_commit("1")

    def breaks() -> Iterator[tuple[Message, str, str]]:
        yield Message("orders", b"1"), "1", "1"
        yield Message("orders", b"2"), "2", "2"
        raise LookupError("the file ends here")

    with pytest.raises(LookupError):
        shop.producer().send_transactions(breaks(), lambda prepared: True)
    assert shop.left() == ["1"]


def test_a_large_transaction_is_left_too(shop: Shop) -> None:
    shop.cluster.admin.create_topic("other")
    first = shop.producer()
    assert large(first, "42", lambda: UNKNOWN) is UNKNOWN
    shop.insert("42")
    assert large(shop.producer(), "42", lambda: False) is UNKNOWN
    assert large(shop.producer(), "43", lambda: False) is ROLLBACK


def test_a_prepare_that_was_sent_twice_counts_as_a_repetition(shop: Shop) -> None:
    """Its first answer was lost: the broker cannot tell it from another run, so its failure costs a check."""

    def refused() -> None:
        raise KeyError("no such article")

    producer = shop.producer()
    shop.cluster.fail_next("prepare", OutcomeUnknown, carried_out=True)
    with pytest.raises(OutcomeUnknown):
        callback(producer, "42", refused)
    with pytest.raises(KeyError):
        callback(producer, "42", refused)
    assert len(shop.left()) == 1
    before = shop.cluster.clock.time()
    while shop.left():
        shop.cluster.clock.advance(1)
    assert shop.cluster.clock.time() - before <= 8, "the topic's time-out, and the check"


@pytest.mark.parametrize("returned", [True, False])
def test_without_a_local_transaction_a_repetition_may_roll_back(shop: Shop, returned: bool) -> None:
    """Nothing else can have been committed."""
    first = shop.producer().transaction(tx_id="42", local=False)
    first.send(Message("orders", b"42"))
    first.prepare()
    first.unknown()
    with shop.producer().transaction(tx_id="42", local=False) as tx:
        tx.send(Message("orders", b"42"))
        tx.prepare()
        assert tx.repeated
        tx.rollback()
    assert shop.left() == []


# ------------------------------------------------------------ several groups


def prepared_by(world: SeveralGroups, instance: str) -> tuple[Client, across_groups.TxPlan]:
    client = Client(world, instance=instance)
    plan = client.plan("order-42", given=True)
    assert client.prepare(plan) == {}
    return client, plan


def test_over_several_groups_the_client_is_told_as_well() -> None:
    world = SeveralGroups()
    first, plan = prepared_by(world, "first")
    assert not plan.repeated and plan.newest_index >= 0
    _, again = prepared_by(world, "second")
    assert again.repeated and again.newest_index > plan.newest_index
    told: list[object] = []
    newest = (plan.newest_index,)
    across_groups.settle(first, "order-42", plan.groups, False, told.append, plan.home_index, newest)
    first.run()
    assert told and not isinstance(told[0], Failure) and world.outcomes("order-42") == ["PREPARE"] * 2


# ------------------------------------------------------------ without a local transaction


def test_a_cancelled_task_without_a_local_transaction_rolls_back_at_once(cluster: InMemoryCluster) -> None:
    producer = cluster.producer("shop")

    async def work(prepared: asyncio.Event) -> None:
        async with producer.aio.transaction(local=False) as tx:
            await tx.send(Message("orders", b"42"))
            await tx.prepare()
            prepared.set()
            await asyncio.Event().wait()

    async def main() -> None:
        prepared = asyncio.Event()
        task = asyncio.ensure_future(work(prepared))
        await prepared.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert cluster.admin.list_transactions() == []


def test_so_does_an_interrupt_which_leaves_a_local_transaction_to_the_check(cluster: InMemoryCluster) -> None:
    producer = cluster.producer("shop")
    for local in (False, True):
        with pytest.raises(KeyboardInterrupt), producer.transaction(local=local) as tx:
            tx.send(Message("orders", b"42"))
            tx.prepare()
            raise KeyboardInterrupt
        assert tx.state is (UNKNOWN if local else ROLLBACK)
        assert len(cluster.admin.list_transactions()) == local
