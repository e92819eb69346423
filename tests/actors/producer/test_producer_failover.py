"""Producers while leaders die, fall silent and come back: nothing lost, nothing twice, nothing guessed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from escrowmq.actors.producer.transactions.transaction import Transaction
from escrowmq.replication.errors import EscrowMQError, OutcomeUnknown, Unavailable
from escrowmq.replication.model import Message, TransactionState
from tests.support.brokers import Brokers, ClientCalls
from tests.support.producing import COMMITTED, ROLLBACK, UNKNOWN, ProducerOf, open_transactions, rows, values

EVERYBODY = {(0, rid) for rid in range(3)}


@pytest.fixture
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """A group of three that the test may damage."""
    running = Brokers(tmp_path_factory.mktemp("own"))
    running.topic("t", 2)
    yield running
    running.close()


class LosesAnswers(ClientCalls):
    """Lets submits through, and loses their answers while ``losing``."""

    def __init__(self, brokers: Brokers) -> None:
        super().__init__(brokers)
        self.losing = False

    def call(self, gid: int, rid: int, method: str, args: tuple[Any, ...], done: Any) -> None:
        if method == "submit" and self.losing:
            super().call(gid, rid, method, args, lambda answer, error: None)
        else:
            super().call(gid, rid, method, args, done)


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def test_a_leader_dies_under_load_and_everything_arrives_once_and_in_order(
    own: Brokers, producer_of: ProducerOf
) -> None:
    producer = producer_of(own, delivery_timeout_s=30.0)
    stop = threading.Event()
    acked: list[int] = []
    settled: dict[str, TransactionState] = {}
    slowest = 0.0

    def plain() -> None:
        futures = []
        for i in range(100_000):
            if stop.is_set():
                break
            futures.append(producer.send(Message("t", b"%d" % i, partition=0)))
            time.sleep(0.0005)
        acked.extend(future.result(30.0).offset for future in futures)

    def transactions(thread: int) -> None:
        nonlocal slowest
        i = 0
        while not stop.is_set():
            i += 1
            name = f"{thread}.{i}"
            start = time.monotonic()
            result = producer.send_message_in_transaction(
                Message("t", name.encode(), partition=1), lambda n=i: n % 3 != 0, tx_id=name
            )
            slowest = max(slowest, time.monotonic() - start)
            settled[name] = result.state

    threads = [threading.Thread(target=plain)]
    threads += [threading.Thread(target=transactions, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    time.sleep(1.0)
    own.lose(0, own.leader())
    time.sleep(3.0)
    stop.set()
    for thread in threads:
        thread.join(40.0)
        assert not thread.is_alive()
    print(f"slowest transaction: {slowest:.2f} s")
    assert slowest < 10.0
    assert acked == list(range(len(acked))) and len(acked) > 100
    found = rows(own, "t", 2)
    assert [row[1] for p, _, row in found if p == 0] == [b"%d" % i for i in range(len(acked))]
    committed = sorted(name for name, state in settled.items() if state is COMMITTED)
    assert sorted(row[1].decode() for p, _, row in found if p == 1) == committed
    declined = {n: settled[n] for n in settled if int(n.split(".")[1]) % 3 == 0}
    # A PREPARE that was sent twice, to both leaders, counts as a repetition: its "no" is left to the querier.
    left = {name for name, state in declined.items() if state is UNKNOWN}
    assert set(declined.values()) <= {ROLLBACK, UNKNOWN} and len(left) <= 8
    assert {row.tx_id for row in open_transactions(own)} == left


def test_a_commit_without_an_answer_is_an_unknown_outcome_and_repeating_it_tells(
    own: Brokers, producer_of: ProducerOf
) -> None:
    calls = LosesAnswers(own)
    producer = producer_of(own, calls=calls, delivery_timeout_s=1.0)

    def local(tx: Transaction) -> None:
        calls.losing = True

    with pytest.raises(OutcomeUnknown) as raised:
        producer.send_message_in_transaction(Message("t", b"a", partition=0), local, tx_id="mine")
    assert raised.value.tx_id == "mine"
    calls.losing = False
    again = producer.send_message_in_transaction(Message("t", b"a", partition=0), lambda: 1 / 0, tx_id="mine")
    assert again.state is COMMITTED and values(own, "t", 2) == [b"a"]


def test_a_prepare_without_an_answer_runs_no_local_transaction(own: Brokers, producer_of: ProducerOf) -> None:
    calls = LosesAnswers(own)
    producer = producer_of(own, calls=calls, delivery_timeout_s=1.0)
    calls.losing = True
    message = Message("t", b"a", partition=0)
    with pytest.raises(OutcomeUnknown):  # the caller's own id: the caller can come back with it
        producer.send_message_in_transaction(message, lambda: 1 / 0, tx_id="mine")
    with pytest.raises(Unavailable, match="was not run") as raised:  # it will not be used again: rolled back
        producer.send_message_in_transaction(message, lambda: 1 / 0)
    assert raised.value.retry_after_s > 0
    calls.losing = False
    until(lambda: [o.tx_id for o in open_transactions(own)] == ["mine"])
    result = producer.send_message_in_transaction(message, lambda: None, tx_id="mine")
    assert result.state is COMMITTED and values(own, "t", 2) == [b"a"]


def test_the_applications_error_survives_a_rollback_that_cannot_be_confirmed(
    own: Brokers, producer_of: ProducerOf
) -> None:
    calls = LosesAnswers(own)
    producer = producer_of(own, calls=calls, delivery_timeout_s=0.5)

    def local() -> None:
        calls.losing = True
        raise KeyError("stock is empty")

    with pytest.raises(KeyError, match="stock is empty") as raised:
        producer.send_message_in_transaction(Message("t", b"a"), local)
    assert "could not be confirmed" in raised.value.__notes__[0]


def test_a_plain_message_of_unknown_fate_stops_nothing_after_it(
    own: Brokers, producer_of: ProducerOf
) -> None:
    calls = LosesAnswers(own)
    producer = producer_of(own, calls=calls, delivery_timeout_s=0.7)
    producer.send(Message("t", b"0", partition=0)).result(5.0)
    calls.losing = True
    with pytest.raises(OutcomeUnknown, match="send to t/0"):
        producer.send(Message("t", b"1", partition=0)).result(5.0)
    calls.losing = False
    assert producer.send(Message("t", b"2", partition=0)).result(5.0).offset == 2
    assert values(own, "t", 1) == [b"0", b"1", b"2"]


def test_answers_that_get_lost_now_and_then_change_nothing(own: Brokers, producer_of: ProducerOf) -> None:
    calls = LosesAnswers(own)
    producer = producer_of(own, calls=calls, delivery_timeout_s=20.0, probe_after_s=0.1)
    lossy = threading.Event()

    def lose_some() -> None:
        while not lossy.wait(0.03):
            calls.losing = not calls.losing
        calls.losing = False

    # A leader that does not answer and stays the leader is detected only by Ray's own error, so here the
    # calls' transport reports the loss, as Ray does after a second.
    def call(gid: int, rid: int, method: str, args: tuple[Any, ...], done: Any) -> None:
        if method == "submit" and calls.losing:
            own.call(gid, rid, method, args, lambda a, e: done(None, ConnectionError("actor unavailable")))
        else:
            own.call(gid, rid, method, args, done)

    calls.call = call  # type: ignore[method-assign]
    thread = threading.Thread(target=lose_some)
    thread.start()
    try:
        futures = [producer.send(Message("t", b"%d" % i, partition=0)) for i in range(300)]
        results = producer.send_transactions(
            [(Message("t", b"%d" % i, partition=1), None, f"id-{i}") for i in range(300)]
        )
        offsets = [future.result(20.0).offset for future in futures]
    finally:
        lossy.set()
        thread.join()
    assert offsets == list(range(300))
    assert [r.state for r in results] == [COMMITTED] * 300
    assert values(own, "t", 1) == [b"%d" % i for i in range(300)]
    assert len(values(own, "t", 2)) == 600


def test_without_a_majority_calls_end_in_time_and_work_goes_on_afterwards(
    own: Brokers, producer_of: ProducerOf
) -> None:
    producer = producer_of(own, delivery_timeout_s=1.0)
    producer.send(Message("t", b"warm", partition=0)).result(5.0)
    leader = own.leader()
    others = [rid for rid in range(3) if rid != leader]
    for rid in others:
        own.lose(0, rid)
    start = time.monotonic()
    ended: list[EscrowMQError] = []
    for attempt in (
        lambda: producer.send(Message("t", b"x", partition=0)).result(5.0),
        lambda: producer.send_message_in_transaction(Message("t", b"x"), lambda: 1 / 0),
        lambda: producer.send_transactions([Message("t", b"x")])[0],
    ):
        try:
            result = attempt()
            assert result.error is not None and result.state is ROLLBACK  # type: ignore[union-attr]
            ended.append(result.error)  # type: ignore[union-attr]
        except (OutcomeUnknown, Unavailable) as error:
            ended.append(error)
    assert len(ended) == 3 and time.monotonic() - start < 10.0
    own.silent -= EVERYBODY
    own.groups[0].start(*others)
    until(lambda: _works(producer_of(own), Message("t", b"after", partition=1)), 20.0)


def _works(producer: Any, message: Message) -> bool:
    try:
        producer.send(message).result(5.0)
    except EscrowMQError:
        return False
    return True
