"""Batches of transactions through real broker services."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from escrowmq.actors.producer.bulk import bulk
from escrowmq.actors.producer.transactions.local_transaction import PreparedTransaction, TransactionRequest
from escrowmq.actors.producer.transactions.results import TransactionResult
from escrowmq.replication.errors import (
    InvalidMessage,
    MessageTooLarge,
    OutcomeUnknown,
    TooManyOpenTransactions,
    TransactionConflict,
    UnknownTopic,
)
from escrowmq.replication.model import Message, TransactionState
from tests.support.brokers import Brokers
from tests.support.producing import (
    COMMITTED,
    ROLLBACK,
    UNKNOWN,
    ProducerOf,
    Unique,
    open_transactions,
    rows,
    values,
)

PARTITIONS = 4


def test_a_batch_is_committed_and_answers_in_its_order(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    producer = producer_of(brokers)
    results = producer.send_transactions(
        ([Message(topic, b"%d" % i, b"%d" % i), Message(topic, b"%d" % i)], str(i)) for i in range(5_000)
    )
    assert len({result.tx_id for result in results}) == 5_000
    assert {result.state for result in results} == {COMMITTED}
    by_tx = {row[3]: row[1] for _, _, row in rows(brokers, topic, 4)}
    assert [by_tx[result.tx_id] for result in results] == [b"%d" % i for i in range(5_000)]
    assert len(values(brokers, topic, 4)) == 10_000
    assert not open_transactions(brokers, topic)


def test_every_way_to_write_an_item(brokers: Brokers, topic: str, producer_of: ProducerOf) -> None:
    message = Message(topic, b"a")
    results = producer_of(brokers).send_transactions(
        [message, [message], (message,), (message, "q"), ([message, message], "q", "mine"),
         TransactionRequest([message], tx_id="mine too")]
    )  # fmt: skip
    assert {result.state for result in results} == {COMMITTED}
    assert [result.tx_id for result in results[-2:]] == ["mine", "mine too"]
    assert len(values(brokers, topic, 4)) == 7


def test_an_empty_batch_is_nothing(brokers: Brokers, producer_of: ProducerOf) -> None:
    assert producer_of(brokers).send_transactions([]) == []


def test_what_is_wrong_with_one_is_told_for_that_one(
    brokers: Brokers, topic: str, unique: Unique, producer_of: ProducerOf
) -> None:
    good = Message(topic, b"a")
    results = producer_of(brokers).send_transactions(
        [good, Message(unique("nowhere"), b"a"), Message(topic, b"x" * (1 << 20)), [], "text",
         (good, 42), (good, "q", ""), (good, "q", "t", "more"), good]
    )  # fmt: skip
    errors = [type(result.error) for result in results]
    assert errors == [
        type(None), UnknownTopic, MessageTooLarge, InvalidMessage, InvalidMessage,
        InvalidMessage, InvalidMessage, InvalidMessage, type(None),
    ]  # fmt: skip
    assert [result.state for result in results[1:-1]] == [ROLLBACK] * 7
    assert values(brokers, topic, 4) == [b"a", b"a"]


def test_one_database_transaction_for_all(brokers: Brokers, topic: str, producer_of: ProducerOf) -> None:
    orders = [f"order {i}" for i in range(700)]
    stored: list[str] = []

    def store(prepared: list[PreparedTransaction]) -> None:
        assert values(brokers, topic, 4) == []
        assert len(open_transactions(brokers, topic)) == 700
        stored.extend(orders[tx.index] for tx in prepared)
        assert [tx.query_id for tx in prepared] == orders

    results = producer_of(brokers).send_transactions(((Message(topic, b"a"), o) for o in orders), store)
    assert stored == orders and {result.state for result in results} == {COMMITTED}
    assert len(values(brokers, topic, 4)) == 700


def test_each_can_be_decided_by_itself(brokers: Brokers, topic: str, producer_of: ProducerOf) -> None:
    choices = [COMMITTED, ROLLBACK, UNKNOWN, True, False, None]
    expected = [COMMITTED, ROLLBACK, UNKNOWN, COMMITTED, ROLLBACK, COMMITTED]
    results = producer_of(brokers).send_transactions(
        [(Message(topic, b"%d" % i), str(i)) for i in range(6)], lambda prepared: choices
    )
    assert [result.state for result in results] == expected
    assert sorted(values(brokers, topic, 4)) == [b"0", b"3", b"5"]
    assert [o.query_id for o in open_transactions(brokers, topic)] == ["2"]


@pytest.mark.parametrize(("returned", "state"), [(False, ROLLBACK), (ROLLBACK, ROLLBACK), (UNKNOWN, UNKNOWN)])
def test_one_decision_for_all(
    brokers: Brokers, topic: str, producer_of: ProducerOf, returned: object, state: TransactionState
) -> None:
    results = producer_of(brokers).send_transactions([Message(topic, b"a")] * 3, lambda prepared: returned)
    assert [result.state for result in results] == [state] * 3
    assert len(open_transactions(brokers, topic)) == (3 if state is UNKNOWN else 0)


def test_an_exception_rolls_all_of_them_back(brokers: Brokers, topic: str, producer_of: ProducerOf) -> None:
    def fail(prepared: list[PreparedTransaction]) -> None:
        raise KeyError("constraint violated")

    with pytest.raises(KeyError):
        producer_of(brokers).send_transactions([Message(topic, b"a")] * 3, fail)
    assert not open_transactions(brokers, topic) and not values(brokers, topic, 4)


@pytest.mark.parametrize("wrong", ["fine", [True], [True, True, "x"], OutcomeUnknown("connection lost")])
def test_what_says_nothing_leaves_all_of_them_to_the_check(
    brokers: Brokers, topic: str, producer_of: ProducerOf, wrong: object
) -> None:
    def local(prepared: list[PreparedTransaction]) -> object:
        if isinstance(wrong, Exception):
            raise wrong
        return wrong

    producer = producer_of(brokers)
    with pytest.raises((InvalidMessage, OutcomeUnknown)):
        producer.send_transactions([Message(topic, b"a")] * 3, local)
    assert len(open_transactions(brokers, topic)) == 3
    assert not producer.core.running


def test_an_iterable_that_breaks_off_rolls_back_what_was_prepared(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    def batch() -> Iterator[Message]:
        for i in range(1000):
            yield Message(topic, b"x" * 500, b"%d" % i)
        raise OSError("cursor lost")

    with pytest.raises(OSError, match="cursor lost"):
        producer_of(brokers).send_transactions(batch(), lambda prepared: None)
    assert not open_transactions(brokers, topic) and not values(brokers, topic, 4)


def test_repeated_ids_have_one_effect_also_within_a_batch(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    producer = producer_of(brokers)
    batch = [(Message(topic, b"a"), "q", "one"), (Message(topic, b"b"), "q", "two")]
    twice = producer.send_transactions([*batch, batch[0]])
    assert twice == [TransactionResult(i, COMMITTED) for i in ("one", "two", "one")]
    again = producer.send_transactions(batch)
    assert again == twice[:2]
    ((conflict),) = producer.send_transactions([(Message(topic, b"other"), "q", "one")])
    assert isinstance(conflict.error, TransactionConflict) and conflict.state is ROLLBACK
    assert sorted(values(brokers, topic, 4)) == [b"a", b"b"]


def test_settled_ones_are_not_given_to_the_callback(
    brokers: Brokers, topic: str, producer_of: ProducerOf
) -> None:
    producer = producer_of(brokers)
    done = (Message(topic, b"a"), "q", "done")
    producer.send_transactions([done])
    seen: list[str] = []
    results = producer.send_transactions(
        [(Message(topic, b"b"), "q", "fresh"), done], lambda prepared: seen.extend(t.tx_id for t in prepared)
    )
    assert seen == ["fresh"] and [r.state for r in results] == [COMMITTED, COMMITTED]


def test_large_transactions_take_the_long_way(brokers: Brokers, topic: str, producer_of: ProducerOf) -> None:
    producer = producer_of(brokers, part_bytes=1_000)
    large = [Message(topic, b"%d" % i + b"x" * 400) for i in range(10)]
    results = producer.send_transactions([(large, "large"), (Message(topic, b"small"), "small")] * 3)
    assert {r.state for r in results} == {COMMITTED}
    assert len(values(brokers, topic, 4)) == 33


def test_a_block_that_finds_no_slot_to_be_sent_gives_its_room_back(
    brokers: Brokers, topic: str, producer_of: ProducerOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Formerly it was never given back: after enough such blocks the producer was full, and sent nothing
    more."""
    producer = producer_of(brokers, bulk_calls_in_flight=1)
    core = producer.core
    kept: list[object] = []
    monkeypatch.setattr(core, "enqueue", lambda gid, block: kept.append(block))
    monkeypatch.setattr(bulk.BulkRun, "_guard_s", lambda run: 0.05)
    with pytest.raises(OutcomeUnknown):
        producer.send_transactions([Message(topic, b"x" * 300_000, b"%d" % i) for i in range(8)])
    (block,) = kept
    assert core.buffered == block.size, "what is under way, and nothing else"  # type: ignore[attr-defined]
    core.release(core.buffered)


def test_a_caller_that_is_interrupted_while_it_waits_gives_its_room_back(
    brokers: Brokers, topic: str, producer_of: ProducerOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = producer_of(brokers)

    def interrupt(run: bulk.BulkRun) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr(bulk.BulkRun, "_guard_s", interrupt)
    with pytest.raises(KeyboardInterrupt):
        producer.send_transactions([Message(topic, b"a")])
    assert producer.core.buffered == 0
    assert not producer.core.running


# ---------------------------------------------------------------- the limit of open transactions


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """Ten open transactions per app and topic."""
    running = Brokers(tmp_path_factory.mktemp("narrow"), replicas=1, open_transactions_max=10)
    yield running
    running.close()


def test_the_limit_is_told_to_whom_it_concerns(narrow: Brokers, producer_of: ProducerOf) -> None:
    narrow.topic("limit", 1)
    producer = producer_of(narrow)
    results = producer.send_transactions(
        [(Message("limit", b"%d" % i), str(i)) for i in range(25)], lambda prepared: None
    )
    refused = [r for r in results if r.error is not None]
    assert len(refused) == 15 and len(values(narrow, "limit")) == 10
    assert all(isinstance(r.error, TooManyOpenTransactions) and r.error.retry_after_s > 0 for r in refused)
    with pytest.raises(TooManyOpenTransactions, match="limit of 10"):
        fill = [Message("limit", b"x")] * 10
        producer.send_transactions(fill, lambda prepared: UNKNOWN)
        producer.send_message_in_transaction(Message("limit", b"x"), lambda: None)


def test_without_a_callback_a_batch_makes_its_own_room(narrow: Brokers, producer_of: ProducerOf) -> None:
    narrow.topic("room", 1)
    producer = producer_of(narrow)
    results = producer.send_transactions([Message("room", b"%d" % i) for i in range(55)])
    assert {r.state for r in results} == {COMMITTED}
    assert sorted(int(v) for v in values(narrow, "room")) == list(range(55))


def test_a_producer_may_wait_for_room(narrow: Brokers, producer_of: ProducerOf) -> None:
    narrow.topic("wait", 1)
    patient = producer_of(narrow, open_limit_wait_s=10.0)
    other = producer_of(narrow)
    with other.transaction() as first:
        first.send(Message("wait", b"first"))
        first.prepare()
        other.send_transactions([Message("wait", b"x")] * 9, lambda prepared: UNKNOWN)
        threading.Timer(0.3, first.commit).start()
        result = patient.send_message_in_transaction(Message("wait", b"late"), lambda: None)
    assert result.state is COMMITTED


# ---------------------------------------------------------------- several broker groups


@pytest.fixture(scope="module")
def three_groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """Three groups of one replica: a transaction's messages lie in different logs."""
    running = Brokers(tmp_path_factory.mktemp("groups"), groups=3, replicas=1)
    running.topic("spread", 6)
    yield running
    running.close()


def spread(tag: bytes) -> list[Message]:
    return [Message("spread", tag, partition=p) for p in (4, 0, 1, 2)]


def test_a_transaction_over_groups_is_all_or_nothing(
    three_groups: Brokers, producer_of: ProducerOf, tmp_path: Path
) -> None:
    producer = producer_of(three_groups)
    seen: list[int] = []

    def local() -> bool:
        opened = open_transactions(three_groups)
        seen.append(len(opened))
        assert sorted(o.home_group for o in opened).count(-1) == 1, "one group decides"
        return True

    producer.send_message_in_transaction(spread(b"yes"), local)
    producer.send_message_in_transaction(spread(b"no"), lambda: False)
    assert seen == [3]
    assert values(three_groups, "spread", 6) == [b"yes"] * 4
    assert not open_transactions(three_groups)


def test_a_conflict_in_a_branch_stops_before_the_local_transaction(
    three_groups: Brokers, producer_of: ProducerOf
) -> None:
    producer = producer_of(three_groups)
    first, *others = spread(b"c")
    producer.send_message_in_transaction([first, *others], lambda: None, tx_id="branch")
    changed = [first, *others[:-1], Message("spread", b"other", partition=2)]
    before = values(three_groups, "spread", 6)
    again = producer.send_message_in_transaction([first, *others], lambda: 1 / 0, tx_id="branch")
    assert again.state is COMMITTED
    with pytest.raises(TransactionConflict, match="COMMITTED"):
        producer.send_message_in_transaction(changed, lambda: 1 / 0, tx_id="branch")
    assert values(three_groups, "spread", 6) == before


def test_batches_mix_groups(three_groups: Brokers, producer_of: ProducerOf) -> None:
    producer = producer_of(three_groups)
    before = len(values(three_groups, "spread", 6))
    batch = [(spread(b"m"), None) if i % 5 == 0 else (Message("spread", b"s", b"%d" % i), None)
             for i in range(100)]  # fmt: skip
    results = producer.send_transactions(batch)
    assert {r.state for r in results} == {COMMITTED}
    assert len(values(three_groups, "spread", 6)) - before == 80 + 20 * 4
    rolled = producer.send_transactions(batch, lambda prepared: False)
    assert {r.state for r in rolled} == {ROLLBACK} and not open_transactions(three_groups)
