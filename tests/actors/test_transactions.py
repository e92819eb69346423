"""Transactions through real broker services: what is returned, raised, readable and left open."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from escrowmq.actors.results import TransactionResult
from escrowmq.actors.transaction import Transaction
from escrowmq.replication import ops
from escrowmq.replication.errors import (
    Closed,
    InvalidMessage,
    MessageTooLarge,
    OutcomeUnknown,
    TransactionConflict,
    UnknownTopic,
)
from escrowmq.replication.model import Message, TransactionState
from tests.actors.brokers import Brokers
from tests.actors.producing import ProducerOf, open_transactions, producer_of, rows, values

__all__ = ["producer_of"]
COMMITTED, ROLLBACK, UNKNOWN = TransactionState.COMMITTED, TransactionState.ROLLBACK, TransactionState.UNKNOWN
Unique = Callable[[str], str]


@pytest.fixture
def topic(brokers: Brokers, unique: Unique) -> str:
    name = unique("orders")
    brokers.topic(name, 1)
    return name


def never() -> None:
    raise AssertionError("the local transaction was run")


# ---------------------------------------------------------------- with a callback


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
    with pytest.raises(InvalidMessage, match="not 'fine'"):
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


# ---------------------------------------------------------------- refused before the local transaction


def test_an_unknown_topic_is_refused_before_anything_happens(
    brokers: Brokers, topic: str, unique: Unique, producer_of: ProducerOf
) -> None:
    with pytest.raises(UnknownTopic, match="create it: admin"):
        producer_of(brokers).send_message_in_transaction(
            [Message(topic, b"a"), Message(unique("nowhere"), b"a")], never
        )
    assert not open_transactions(brokers, topic)


def test_a_topic_deleted_meanwhile_fails_only_what_touches_it(
    brokers: Brokers, topic: str, unique: Unique, producer_of: ProducerOf
) -> None:
    gone = unique("gone")
    brokers.topic(gone)
    producer = producer_of(brokers, transaction_linger_ms=100.0)
    producer.send(Message(gone, b"x")).result(5.0)
    brokers.groups[0].submit(ops.delete_topic(gone))
    batch = [([Message(topic, b"1")], "1"), ([Message(topic, b"2"), Message(gone, b"2")], "2"),
             ([Message(topic, b"3")], "3")]  # fmt: skip
    results = producer.send_transactions(batch)
    assert [r.state for r in results] == [COMMITTED, ROLLBACK, COMMITTED]
    assert isinstance(results[1].error, UnknownTopic) and results[1].error.topic == gone
    assert values(brokers, topic) == [b"1", b"3"]


@pytest.mark.parametrize("partition", [1, 7])
def test_a_partition_out_of_range_is_refused(
    brokers: Brokers, topic: str, producer_of: ProducerOf, partition: int
) -> None:
    with pytest.raises(UnknownTopic, match=rf"no partition {partition} \(it has 1\)"):
        producer_of(brokers).send_message_in_transaction(Message(topic, b"a", partition=partition), never)


def test_messages_and_transactions_over_the_limit_are_refused(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    producer = producer_of(brokers, message_bytes_max=1000, transaction_bytes_max=3000)
    with pytest.raises(MessageTooLarge, match="limit of 1000"):
        producer.send_message_in_transaction(Message(topic, b"x" * 1001), never)
    with pytest.raises(MessageTooLarge, match="limit of 3000"):
        producer.send_message_in_transaction([Message(topic, b"x" * 900)] * 4, never)
    with producer.transaction() as tx:
        for _ in range(3):
            tx.send(Message(topic, b"x" * 900))
        with pytest.raises(MessageTooLarge):
            tx.send(Message(topic, b"x" * 900))
    assert len(values(brokers, topic)) == 3


@pytest.mark.parametrize("bad", ["", "x" * 513, 42, "\ud800"])
def test_ids_are_checked_where_they_are_given(
    brokers: Brokers, topic: str, producer_of: ProducerOf, bad: object
) -> None:
    producer = producer_of(brokers)
    for name in ("tx_id", "query_id"):
        with pytest.raises(InvalidMessage, match=name):
            producer.send_message_in_transaction(Message(topic, b"a"), never, **{name: bad})


def test_what_is_no_message_or_no_callback_is_refused(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    producer = producer_of(brokers)
    for nothing in ([], ()):
        with pytest.raises(InvalidMessage, match="at least one message"):
            producer.send_message_in_transaction(nothing, never)
    with pytest.raises(InvalidMessage, match="expected an escrowmq"):
        producer.send_message_in_transaction(["text"], never)  # type: ignore[list-item]
    with pytest.raises(InvalidMessage, match="callable"):
        producer.send_message_in_transaction(Message(topic), None)  # type: ignore[arg-type]
    with pytest.raises(InvalidMessage, match="cannot be encoded"):
        producer.send_message_in_transaction(Message(topic, headers={"\ud800": b""}), never)
    for timeout in (0, -1.0, True, "6"):
        with pytest.raises(InvalidMessage, match="transaction_timeout_s"):
            producer.transaction(transaction_timeout_s=timeout)  # type: ignore[arg-type]


# ---------------------------------------------------------------- ids again


def test_the_same_id_and_content_again_has_one_effect_and_the_same_answer(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    first = producer_of(brokers).send_message_in_transaction(
        Message(topic, b"a"), lambda: None, tx_id="again"
    )
    again = producer_of(brokers).send_message_in_transaction(Message(topic, b"a"), never, tx_id="again")
    assert first == again == TransactionResult("again", COMMITTED)
    producer_of(brokers).send_message_in_transaction(Message(topic, b"b"), lambda: False, tx_id="undone")
    undone = producer_of(brokers).send_message_in_transaction(Message(topic, b"b"), never, tx_id="undone")
    assert undone == TransactionResult("undone", ROLLBACK)
    assert values(brokers, topic) == [b"a"]


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
    with pytest.raises(TransactionConflict, match="PREPARE"):
        producer.send_message_in_transaction(Message(topic, b"other"), never, tx_id="taken")
    producer.send_message_in_transaction(Message(topic, b"a"), lambda: None, tx_id="taken")
    with pytest.raises(TransactionConflict, match="COMMITTED"):
        producer.send_message_in_transaction(Message(topic, b"other"), never, tx_id="taken")
    assert values(brokers, topic) == [b"a"]


def test_in_a_block_a_settled_id_stops_before_the_local_transaction(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    producer = producer_of(brokers)
    producer.send_message_in_transaction(Message(topic, b"a"), lambda: None, tx_id="block")
    with pytest.raises(TransactionConflict, match="COMMITTED"), producer.transaction(tx_id="block") as tx:
        tx.send(Message(topic, b"a"))
        tx.prepare()
        never()
    assert tx.state is COMMITTED


def test_two_producers_with_one_id_agree_on_one_outcome(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
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
        except TransactionConflict as conflict:
            return conflict

    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(run, (True, False)))
    conflicts = [o for o in outcomes if isinstance(o, TransactionConflict)]
    (winner,) = [o for o in outcomes if isinstance(o, TransactionState)]
    assert len(conflicts) == 1 and conflicts[0].recorded_state == winner.value
    assert values(brokers, topic) == ([b"a"] if winner is COMMITTED else [])


def test_a_decision_by_somebody_else_is_told_to_the_producer(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    def decided_by_hand(tx: Transaction) -> None:
        brokers.groups[0].submit(ops.rollback("shop", [tx.tx_id], by="operator:test"))

    with pytest.raises(TransactionConflict, match="ROLLBACK"):
        producer_of(brokers).send_message_in_transaction(Message(topic, b"a"), decided_by_hand)


# ---------------------------------------------------------------- the block


def test_a_block_commits_at_its_end(brokers: Brokers, topic: str, producer_of: ProducerOf) -> None:
    with producer_of(brokers).transaction(query_id="42") as tx:
        tx.send(Message(topic, b"a"))
        tx.send(Message(topic, b"b"), Message(topic, b"c"))
        tx.prepare()
        assert tx.state is TransactionState.PREPARE and values(brokers, topic) == []
    assert tx.result == TransactionResult(tx.tx_id, COMMITTED)
    assert values(brokers, topic) == [b"a", b"b", b"c"]


def test_a_block_without_prepare_prepares_and_commits(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    with producer_of(brokers).transaction() as tx:
        tx.send(Message(topic, b"a"))
    assert tx.state is COMMITTED and values(brokers, topic) == [b"a"]


def test_a_block_without_messages_is_nothing(brokers: Brokers, topic: str, producer_of: ProducerOf) -> None:
    with producer_of(brokers).transaction() as tx:
        tx.prepare()
    assert tx.state is COMMITTED and not open_transactions(brokers, topic)


def test_an_exception_in_a_block_rolls_back(brokers: Brokers, topic: str, producer_of: ProducerOf) -> None:
    producer = producer_of(brokers)
    for prepared in (False, True):
        with pytest.raises(KeyError), producer.transaction() as tx:
            tx.send(Message(topic, b"a"))
            if prepared:
                tx.prepare()
            raise KeyError("x")
        assert tx.state is ROLLBACK
    assert not open_transactions(brokers, topic) and values(brokers, topic) == []


def test_a_block_can_be_left_to_the_check(brokers: Brokers, topic: str, producer_of: ProducerOf) -> None:
    producer = producer_of(brokers)
    with producer.transaction() as said:
        said.send(Message(topic, b"a"))
        said.prepare()
        said.unknown()
    with pytest.raises(ConnectionError), producer.transaction() as said_and_raised:
        said_and_raised.send(Message(topic, b"a"))
        said_and_raised.prepare()
        said_and_raised.unknown()
        raise ConnectionError("lost during the database's commit")
    assert said.state is UNKNOWN and said_and_raised.state is UNKNOWN
    assert len(open_transactions(brokers, topic)) == 2


def test_decisions_can_be_made_in_the_block_and_stand(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    producer = producer_of(brokers)
    with producer.transaction() as tx:
        tx.send(Message(topic, b"a"))
        tx.prepare()
        tx.rollback()
        tx.rollback()
        with pytest.raises(TransactionConflict, match="ROLLBACK"):
            tx.commit()
    with producer.transaction() as tx:
        tx.send(Message(topic, b"b"))
        tx.commit()
        with pytest.raises(TransactionConflict, match="COMMITTED"):
            tx.rollback()
    assert values(brokers, topic) == [b"b"]


def test_nothing_can_be_added_once_it_is_prepared(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    with producer_of(brokers).transaction() as tx:
        tx.send(Message(topic, b"a"))
        tx.prepare()
        with pytest.raises(InvalidMessage, match="before prepare"):
            tx.send(Message(topic, b"late"))
    assert values(brokers, topic) == [b"a"]


def test_a_transaction_in_many_parts_is_one_transaction(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    producer = producer_of(brokers, part_bytes=1000)
    messages = [Message(topic, b"%03d" % i + b"x" * 300) for i in range(20)]
    for tx_id, decision in (("parts-a", True), ("parts-b", False)):
        result = producer.send_message_in_transaction(messages, lambda d=decision: d, tx_id=tx_id)
        again = producer.send_message_in_transaction(messages, never, tx_id=tx_id)
        assert result == again
    assert values(brokers, topic) == [message.value for message in messages]
    assert not open_transactions(brokers, topic)


def test_a_later_part_with_other_content_is_a_conflict_and_leaves_the_open_one_alone(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    producer = producer_of(brokers, part_bytes=500)
    messages = [Message(topic, b"%d" % i + b"x" * 300) for i in range(4)]
    producer.send_message_in_transaction(messages, lambda: UNKNOWN, tx_id="late-part")
    with pytest.raises(TransactionConflict):
        producer.send_message_in_transaction([*messages[:3], Message(topic, b"o")], never, tx_id="late-part")
    assert len(open_transactions(brokers, topic)) == 1


def test_the_time_to_the_first_check_is_the_callers(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    producer = producer_of(brokers)
    with producer.transaction(transaction_timeout_s=3600.5) as tx:
        tx.send(Message(topic, b"a"))
        tx.prepare()
        (entry,) = open_transactions(brokers, topic)
        assert entry.timeout_ms == 3_600_500


def test_a_one_way_commit_is_not_waited_for_and_still_arrives(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    producer = producer_of(brokers)
    result = producer.send_message_in_transaction(Message(topic, b"a"), lambda: None, one_way_commit=True)
    assert result.state is COMMITTED
    producer.flush()
    assert values(brokers, topic) == [b"a"]


def test_a_check_finds_a_transaction_running_until_it_is_decided(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    producer = producer_of(brokers)
    running = producer._core.running
    with producer.transaction() as tx:
        tx.send(Message(topic, b"a"))
        tx.prepare()
        assert tx.tx_id in running
    assert not running
    with pytest.raises(KeyError):
        producer.send_message_in_transaction(Message(topic, b"a"), lambda: {}["no such customer"])
    producer.send_message_in_transaction(Message(topic, b"a"), lambda: UNKNOWN)
    assert not running


def test_a_transaction_that_the_application_forgot_can_be_checked(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    producer = producer_of(brokers)
    tx = producer.transaction()
    tx.send(Message(topic, b"a"))
    tx.prepare()
    assert producer._core.running == {tx.tx_id}
    del tx
    assert not producer._core.running and len(open_transactions(brokers, topic)) == 1


def test_a_closed_producer_says_so(brokers: Brokers, topic: str, producer_of: ProducerOf) -> None:
    producer = producer_of(brokers)
    producer.send(Message(topic, b"a"))
    producer.close()
    producer.close()
    for call in (
        lambda: producer.send(Message(topic, b"a")),
        lambda: producer.transaction(),
        lambda: producer.send_message_in_transaction(Message(topic, b"a"), never),
        lambda: producer.send_transactions([]),
        lambda: producer.flush(),
    ):
        with pytest.raises(Closed):
            call()
    assert values(brokers, topic) == [b"a"], "close flushes"


def test_closing_under_an_open_transaction_leaves_it_to_the_check(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    producer = producer_of(brokers)
    with pytest.raises(OutcomeUnknown), producer.transaction() as tx:
        tx.send(Message(topic, b"a"))
        tx.prepare()
        producer.close()
    assert [o.tx_id for o in open_transactions(brokers, topic)] == [tx.tx_id]


def test_many_threads_share_calls(brokers: Brokers, topic: str, producer_of: ProducerOf) -> None:
    producer = producer_of(brokers)
    before = len(brokers.asked)
    with ThreadPoolExecutor(32) as pool:
        results = list(
            pool.map(
                lambda i: producer.send_message_in_transaction(Message(topic, b"%d" % i), lambda: None),
                range(320),
            )
        )
    assert {r.state for r in results} == {COMMITTED}
    assert sorted(int(v) for v in values(brokers, topic)) == list(range(320))
    calls = sum(1 for _, _, method in brokers.asked[before:] if method == "submit")
    assert calls < 320, f"{calls} calls for 640 operations"


def test_a_lone_transaction_does_not_wait_for_company(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    producer = producer_of(brokers, transaction_linger_ms=2000.0, linger_ms=2000.0)
    producer.send_message_in_transaction(Message(topic, b"warm"), lambda: None)
    start = time.monotonic()
    producer.send_message_in_transaction(Message(topic, b"a"), lambda: None)
    assert time.monotonic() - start < 1.5
