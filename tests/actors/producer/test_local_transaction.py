"""Transactions with a callback: when it runs, and what its end means."""

from __future__ import annotations

import sqlite3

import pytest

from escrowmq.actors.producer.transactions.results import TransactionResult
from escrowmq.actors.producer.transactions.transaction import Transaction
from escrowmq.replication.errors import InvalidDecision, OutcomeUnknown
from escrowmq.replication.model import Message, TransactionState
from tests.support.brokers import Brokers
from tests.support.producing import COMMITTED, ROLLBACK, UNKNOWN, ProducerOf, open_transactions, rows, values


def test_messages_are_invisible_while_the_local_transaction_runs_and_readable_after_it(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    seen: list[list[bytes]] = []
    result = producer_of(brokers).send_message_in_transaction(
        [Message(topic, b"a"), Message(topic, b"b")],
        lambda: seen.append(values(brokers, topic)),
        query_id="42",
    )
    assert result == TransactionResult(result.tx_id, COMMITTED)
    assert seen == [[]]
    assert [(offset, row[1], row[3]) for _, offset, row in rows(brokers, topic)] == [
        (0, b"a", result.tx_id),
        (1, b"b", result.tx_id),
    ]


def test_the_query_id_is_what_operators_and_checks_see(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    open_then: list[tuple[str, str]] = []
    producer_of(brokers).send_message_in_transaction(
        Message(topic, b"a"),
        lambda tx: open_then.extend((o.tx_id, o.query_id) for o in open_transactions(brokers, topic)),
        tx_id="tx-query-id",
        query_id="order 42",
    )
    assert open_then == [("tx-query-id", "order 42")]


@pytest.mark.parametrize(
    ("returned", "state"),
    [(None, COMMITTED), (True, COMMITTED), (COMMITTED, COMMITTED), (False, ROLLBACK), (ROLLBACK, ROLLBACK)],
)
def test_the_return_value_decides(
    brokers: Brokers, topic: str, producer_of: ProducerOf, returned: object, state: TransactionState
) -> None:
    result = producer_of(brokers).send_message_in_transaction(Message(topic, b"a"), lambda: returned)
    assert result.state is state
    assert values(brokers, topic) == ([b"a"] if state is COMMITTED else [])
    assert not open_transactions(brokers, topic)


def test_unknown_leaves_it_to_the_check(brokers: Brokers, topic: str, producer_of: ProducerOf) -> None:
    result = producer_of(brokers).send_message_in_transaction(Message(topic, b"a"), lambda: UNKNOWN)
    assert result.state is UNKNOWN
    assert [o.tx_id for o in open_transactions(brokers, topic)] == [result.tx_id]
    assert values(brokers, topic) == []


def test_a_return_value_that_means_nothing_leaves_it_to_the_check(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    with pytest.raises(InvalidDecision, match="not 'fine'"):
        producer_of(brokers).send_message_in_transaction(Message(topic, b"a"), lambda: "fine")
    assert len(open_transactions(brokers, topic)) == 1


def test_an_exception_rolls_back_and_goes_on(brokers: Brokers, topic: str, producer_of: ProducerOf) -> None:
    def local() -> None:
        raise KeyError("no such customer")

    with pytest.raises(KeyError, match="no such customer"):
        producer_of(brokers).send_message_in_transaction(Message(topic, b"a"), local)
    assert not open_transactions(brokers, topic) and values(brokers, topic) == []


@pytest.mark.parametrize("error", [OutcomeUnknown("connection lost during commit"), KeyboardInterrupt()])
def test_an_exception_that_says_nothing_about_the_outcome_leaves_it_to_the_check(
    brokers: Brokers, topic: str, producer_of: ProducerOf, error: BaseException
) -> None:
    def local() -> None:
        raise error

    with pytest.raises(type(error)):
        producer_of(brokers).send_message_in_transaction(Message(topic, b"a"), local)
    assert len(open_transactions(brokers, topic)) == 1


def test_the_callback_gets_what_it_asks_for(brokers: Brokers, topic: str, producer_of: ProducerOf) -> None:
    producer = producer_of(brokers)
    got: list[object] = []

    class Shop:
        def buy(self, tx: Transaction) -> None:
            got.append(tx.query_id)

    message = Message(topic, b"a")
    producer.send_message_in_transaction(message, lambda tx_id, query_id: got.append(query_id), query_id="1")
    producer.send_message_in_transaction(message, Shop().buy, query_id="2")
    producer.send_message_in_transaction(message, lambda order="3": got.append(order))
    with sqlite3.connect(":memory:") as database:
        producer.send_message_in_transaction(message, database.commit)
    assert got == ["1", "2", "3"]
