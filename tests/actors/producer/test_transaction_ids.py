"""The same transaction id again, by the same producer or another: one effect, one answer, or a conflict."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from escrowmq.actors.producer.transactions.results import TransactionResult
from escrowmq.actors.producer.transactions.transaction import Transaction
from escrowmq.replication.errors import (
    OutcomeUnknown,
    TransactionConflict,
    TransactionIdTaken,
    TransactionRunning,
    TransactionSettled,
)
from escrowmq.replication.format import ops
from escrowmq.replication.model import Message
from tests.support.brokers import Brokers
from tests.support.producing import COMMITTED, ROLLBACK, UNKNOWN, ProducerOf, never, values


def test_the_same_id_and_content_again_has_one_effect_and_the_same_answer(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    first = producer_of(brokers).send_message_in_transaction(
        Message(topic, b"a"), lambda: None, tx_id="again"
    )
    again = producer_of(brokers).send_message_in_transaction(Message(topic, b"a"), never, tx_id="again")
    assert first == again == TransactionResult("again", COMMITTED)
    assert values(brokers, topic) == [b"a"]


def test_an_id_that_was_rolled_back_raises_as_the_callback_is_not_run(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    """ROLLBACK as a result means that the callback said so: a caller would believe that the local transaction
    had its turn and declined."""
    message = Message(topic, b"b")
    first = producer_of(brokers).send_message_in_transaction(message, lambda: False, tx_id="undone")
    assert first.state is ROLLBACK, "this one was run"
    with pytest.raises(TransactionSettled, match=r"already recorded as ROLLBACK.* use another id"):
        producer_of(brokers).send_message_in_transaction(message, never, tx_id="undone")
    assert values(brokers, topic) == []


def test_the_same_id_while_it_is_open_goes_on_with_it(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    message = Message(topic, b"a")
    producer_of(brokers).send_message_in_transaction(message, lambda: UNKNOWN, tx_id="crashed")
    result = producer_of(brokers).send_message_in_transaction(message, lambda: None, tx_id="crashed")
    assert result.state is COMMITTED and values(brokers, topic) == [b"a"]


def test_an_id_with_other_content_is_a_conflict_open_or_settled(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    producer = producer_of(brokers)
    producer.send_message_in_transaction(Message(topic, b"a"), lambda: UNKNOWN, tx_id="taken")
    with pytest.raises(TransactionIdTaken, match="belongs to other content, recorded as PREPARE"):
        producer.send_message_in_transaction(Message(topic, b"other"), never, tx_id="taken")
    producer.send_message_in_transaction(Message(topic, b"a"), lambda: None, tx_id="taken")
    with pytest.raises(TransactionIdTaken, match="belongs to other content, recorded as COMMITTED"):
        producer.send_message_in_transaction(Message(topic, b"other"), never, tx_id="taken")
    assert values(brokers, topic) == [b"a"]


def test_a_block_takes_up_a_committed_id_without_its_local_transaction(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    """Like the callback API: the same id and content is already done, and that is no error."""
    producer = producer_of(brokers)
    producer.send_message_in_transaction(Message(topic, b"a"), lambda: None, tx_id="block")
    with producer.transaction(tx_id="block") as tx:
        tx.send(Message(topic, b"a"))
        tx.prepare()
        never()
    assert tx.state is COMMITTED
    with producer.transaction(tx_id="block") as tx:  # without a local transaction
        tx.send(Message(topic, b"a"))
    assert tx.state is COMMITTED
    with producer.transaction(tx_id="block") as tx:
        tx.send(Message(topic, b"a"))
        with pytest.raises(TransactionSettled, match="COMMITTED"):
            tx.prepare()
        with pytest.raises(TransactionSettled, match="COMMITTED"):
            tx.rollback()
    assert values(brokers, topic) == [b"a"]


def test_a_block_does_not_take_up_what_is_not_the_same_and_committed(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    producer = producer_of(brokers)
    producer.send_message_in_transaction(Message(topic, b"a"), lambda: False, tx_id="undone-block")
    for prepares in (True, False):
        with (
            pytest.raises(TransactionSettled, match="ROLLBACK"),
            producer.transaction(tx_id="undone-block") as tx,
        ):
            tx.send(Message(topic, b"a"))
            if prepares:
                tx.prepare()
                never()
    producer.send_message_in_transaction(Message(topic, b"a"), lambda: None, tx_id="done-block")
    with pytest.raises(TransactionIdTaken), producer.transaction(tx_id="done-block") as tx:
        tx.send(Message(topic, b"other"))
        tx.prepare()
        never()
    with pytest.raises(TransactionSettled), producer.transaction(tx_id="done-block") as tx:
        tx.send(Message(topic, b"a"))
        tx.rollback()
        raise TransactionSettled(tx.tx_id, "COMMITTED")  # another transaction's: it propagates


def test_one_producer_runs_an_id_once_at_a_time(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    producer, message = producer_of(brokers), Message(topic, b"a")

    def again() -> bool:
        for run in (never, None):
            (result,) = producer.send_transactions([(message, None, "one-at-a-time")], run)
            assert (type(result.error), result.state) == (TransactionRunning, UNKNOWN)
        with pytest.raises(TransactionRunning, match="wait for its result"):
            producer.send_message_in_transaction(message, never, tx_id="one-at-a-time")
        return True

    assert producer.send_message_in_transaction(message, again, tx_id="one-at-a-time").state is COMMITTED
    taken = producer.send_message_in_transaction(message, never, tx_id="one-at-a-time")
    assert taken.state is COMMITTED and values(brokers, topic) == [b"a"]


def test_a_batch_with_a_callback_runs_an_id_once(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    producer, seen = producer_of(brokers), []
    batch = [(Message(topic, b"a"), None, "in-batch"), (Message(topic, b"a"), None, "in-batch")]

    def local(prepared):
        seen.extend(tx.tx_id for tx in prepared)
        with pytest.raises(TransactionRunning):
            producer.send_message_in_transaction(Message(topic, b"a"), never, tx_id="in-batch")

    first, second = producer.send_transactions(batch, local)
    assert seen == ["in-batch"] and first == TransactionResult("in-batch", COMMITTED)
    assert isinstance(second.error, TransactionRunning) and second.state is UNKNOWN
    (again,) = producer.send_transactions(batch[:1], local)
    assert again == first and seen == ["in-batch"] and values(brokers, topic) == [b"a"]


def test_of_two_producers_with_one_id_the_one_that_has_done_it_decides(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    """The other one's "no" speaks of its own run. Now and then both PREPAREs are in one entry."""
    both = threading.Barrier(2)

    def run(returned: bool) -> object:
        def local() -> bool:
            both.wait(5.0)
            return returned

        try:
            return (
                producer_of(brokers)
                .send_message_in_transaction(Message(topic, b"a"), local, tx_id="twins")
                .state
            )
        except (TransactionConflict, OutcomeUnknown) as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        yes, no = pool.map(run, (True, False))
    # A commit that meets the other one's rollback in one entry is left out, and is sent again.
    assert yes is COMMITTED
    assert values(brokers, topic) == [b"a"]
    left = no is UNKNOWN or isinstance(no, OutcomeUnknown)
    assert left or (isinstance(no, TransactionSettled) and no.recorded_state == "COMMITTED")


def test_a_decision_by_somebody_else_is_told_to_the_producer(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    def decided_by_hand(tx: Transaction) -> None:
        brokers.groups[0].submit(ops.rollback("shop", [tx.tx_id], by="operator:test"))

    with pytest.raises(TransactionConflict, match="ROLLBACK"):
        producer_of(brokers).send_message_in_transaction(Message(topic, b"a"), decided_by_hand)
