"""Named producers at a cluster in memory: who claims a name last is the only one, and numbers are committed
once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from escrowmq import (
    InvalidMessage,
    Message,
    OutcomeUnknown,
    OutOfStep,
    Producer,
    ProducerFenced,
    TransactionSettled,
    TxStatusQuerier,
    Unavailable,
)
from escrowmq.actors.producer.transactions.numbered import Numbered
from escrowmq.replication.format import ops
from escrowmq.replication.format.ops import claim_group
from escrowmq.replication.model import ResultCode, TransactionState
from escrowmq.testing import InMemoryCluster

NAME = "shard-7"
PARTITIONS = 6


class ThreeGroups(InMemoryCluster):
    """Three broker groups in place of one."""

    _GROUPS: ClassVar[int] = 3


@pytest.fixture(params=[InMemoryCluster, ThreeGroups])
def cluster(request: pytest.FixtureRequest) -> Iterator[InMemoryCluster]:
    with request.param() as made:
        made.admin.create_topic("orders", partitions=PARTITIONS)
        yield made


def named(cluster: InMemoryCluster, name: str = NAME, **options: Any) -> Producer:
    return cluster.producer("shop", transactional_id=name, **options)


def texts(cluster: InMemoryCluster) -> list[str]:
    """What is readable, in no order."""
    with cluster.consumer("readers", ["orders"], auto_offset_reset="earliest") as consumer:
        records = consumer.poll(timeout_s=1.0)
        found = []
        while records:
            found += [record.value.decode() for record in records]
            records = consumer.poll(timeout_s=0.1)
    return sorted(found)


def everywhere(text: str) -> list[Message]:
    """A message for each partition, so for each group."""
    return [Message("orders", f"{text}{n}".encode(), partition=n) for n in range(PARTITIONS)]


def read(text: str) -> list[str]:
    return [f"{text}{n}" for n in range(PARTITIONS)]


def test_the_last_one_that_claims_a_name_is_the_only_one(cluster: InMemoryCluster) -> None:
    first = named(cluster)
    assert (first.transactional_id, first.epoch, first.last_number) == (NAME, 1, 0)
    for message in everywhere("a"):
        first.send(message).result(5)
    left = first.transaction()
    left.send(*everywhere("left"))
    left.prepare()
    second = named(cluster)
    assert second.epoch == 2
    for message in everywhere("zombie"):
        with pytest.raises(ProducerFenced, match="another producer has claimed"):
            first.send(message).result(5)
        with pytest.raises(ProducerFenced), first.transaction() as tx:
            tx.send(message)
        many = first.send_transactions([[message]])
        assert type(many[0].error) is ProducerFenced
        sent = first.send_many("orders", [b"zombie"], partition=message.partition)
        assert type(sent.errors[0]) is ProducerFenced
        with pytest.raises(ProducerFenced):
            first.send(Message("orders", b"zombie", partition=message.partition, delay_s=1.0)).result(5)
    with pytest.raises(ProducerFenced), first.transaction() as tx:
        tx.send(*everywhere("zombie"))
    with pytest.raises(ProducerFenced):
        first.send_numbered(1, everywhere("zombie"))
    for message in everywhere("b"):
        second.send(message).result(5)
    with second.transaction() as tx:
        tx.send(*everywhere("c"))
    left.commit()  # its local transaction may have taken place: its own decision counts
    cluster.clock.advance(5)
    assert texts(cluster) == sorted(read("a") + read("b") + read("c") + read("left"))
    assert cluster.admin.list_transactions() == []


@pytest.mark.parametrize("partition", range(PARTITIONS))
def test_what_is_open_without_a_local_transaction_is_rolled_back_by_the_next_claim(
    cluster: InMemoryCluster, partition: int
) -> None:
    first, began = named(cluster), cluster.clock.time()
    left, local = (first.transaction(local=flag, transaction_timeout_s=3600) for flag in (False, True))
    for tx, text in ((left, b"left"), (local, b"local")):
        tx.send(Message("orders", text, partition=partition))
        tx.prepare()
    named(cluster, "shard-8")
    assert len(cluster.admin.list_transactions()) == 2, "another name"
    second = named(cluster)
    with second.transaction(local=False) as tx:
        tx.send(Message("orders", b"next", partition=partition))
    assert [found.tx_id for found in cluster.admin.list_transactions()] == [local.tx_id]
    assert cluster.admin.show_transaction(left.tx_id).decided_by == "claim"
    with pytest.raises(TransactionSettled) as caught:
        left.commit()
    assert caught.value.recorded_state == "ROLLBACK"
    local.commit()
    assert texts(cluster) == ["local", "next"]
    assert cluster.clock.time() - began < 60


def test_other_names_and_producers_without_one_are_left_alone(cluster: InMemoryCluster) -> None:
    plain, other = cluster.producer("shop"), named(cluster, "shard-8")
    assert (plain.transactional_id, plain.epoch, plain.last_number) == (None, 0, 0)
    named(cluster), named(cluster)
    for producer in (plain, other):
        with producer.transaction() as tx:
            tx.send(*everywhere("a"))


def test_delayed_messages_of_two_claimants_have_ids_of_their_own(cluster: InMemoryCluster) -> None:
    message = Message("orders", b"later", partition=0, deliver_at=int(cluster.clock.time() * 1000) + 5_000)
    first = named(cluster).send(message).result(5)
    second = named(cluster).send(message).result(5)
    assert first.schedule_id is not None and first.schedule_id != second.schedule_id
    assert cluster.producer("shop").cancel(first.schedule_id)
    cluster.clock.advance(6)
    assert texts(cluster) == ["later"]


def test_a_number_is_stored_once_whoever_sends_it_again(cluster: InMemoryCluster) -> None:
    first = named(cluster)
    assert first.send_numbered(1, everywhere("a")) and not first.send_numbered(1, everywhere("a"))
    second = named(cluster)
    assert second.last_number == 1
    assert not second.send_numbered(1, everywhere("a"))
    assert second.send_numbered(4, everywhere("b")), "numbers may be left out"
    assert second.last_number == 4
    for number, text in ((4, "other"), (3, "b"), (1, "a")):
        with pytest.raises(OutOfStep) as caught:
            second.send_numbered(number, everywhere(text))
        assert (caught.value.number, caught.value.last) == (number, 4)
    assert texts(cluster) == sorted(read("a") + read("b"))
    assert cluster.admin.list_transactions() == []


@pytest.mark.parametrize("partition", range(PARTITIONS))
def test_a_number_whose_messages_are_all_elsewhere(cluster: InMemoryCluster, partition: int) -> None:
    producer, message = named(cluster), Message("orders", b"a", partition=partition)
    assert producer.send_numbered(1, message) and not producer.send_numbered(1, message)
    assert texts(cluster) == ["a"]


@pytest.mark.parametrize(("what", "carried_out"), [("prepare", True), ("commit", False), ("commit", True)])
def test_what_is_not_answered_is_sent_again(what: str, carried_out: bool) -> None:
    """In one group: a cluster in memory has nobody who tells branches what home has decided."""
    with InMemoryCluster() as cluster:
        cluster.admin.create_topic("orders", partitions=PARTITIONS)
        not_answered(cluster, what, carried_out)


def not_answered(cluster: InMemoryCluster, what: str, carried_out: bool) -> None:
    first = named(cluster)
    cluster.fail_next(what, OutcomeUnknown, carried_out=carried_out)
    with pytest.raises((OutcomeUnknown, Unavailable)):
        first.send_numbered(1, everywhere("a"))
    stored = named(cluster).send_numbered(1, everywhere("a"))
    assert stored is not (carried_out and what == "commit")
    with pytest.raises(ProducerFenced):
        first.send_numbered(1, everywhere("a"))
    cluster.clock.advance(60)
    assert texts(cluster) == read("a")
    assert cluster.admin.list_transactions() == []


def test_a_number_that_was_rolled_back_between_two_prepares_is_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer to a PREPARE is lost, the transaction is rolled back as one that was left open, and the
    PREPARE is sent again."""
    after, rolled_back = Numbered._after_prepare, []

    def late(self: Numbered, plan: Any, outcome: Any) -> TransactionState | None:
        if not rolled_back:
            rolled_back.append(self.tx_id)
            ((code, *_),) = self._core.router.submit(0, ops.rollback("shop", [self.tx_id]), 5.0).result(5)
            assert (outcome, code) == ({}, ResultCode.OK)
            outcome = {0: (ResultCode.DUPLICATE, "ROLLBACK")}
        return after(self, plan, outcome)

    monkeypatch.setattr(Numbered, "_after_prepare", late)
    with InMemoryCluster() as cluster:
        cluster.admin.create_topic("orders", partitions=PARTITIONS)
        producer = named(cluster)
        assert producer.send_numbered(1, everywhere("a")), "nobody had committed it before"
        assert len(rolled_back) == 1 and texts(cluster) == read("a")
        assert not producer.send_numbered(1, everywhere("a"))
        assert cluster.admin.list_transactions() == []


def test_what_is_left_open_under_a_number_is_rolled_back_and_nobody_is_asked() -> None:
    """Its outcome is no local transaction's: a querier of the same app knows nothing of it."""
    asked: list[str] = []

    class Querier(TxStatusQuerier):
        def query_status(self, tx_id: str, query_id: str) -> TransactionState:
            asked.append(query_id)
            return TransactionState.UNKNOWN

    with InMemoryCluster() as cluster:
        cluster.admin.create_topic("orders", partitions=PARTITIONS)
        cluster.producer("shop", tx_status_querier=Querier())
        cluster.fail_next("commit", OutcomeUnknown)
        with pytest.raises(OutcomeUnknown):
            named(cluster).send_numbered(1, everywhere("a"))
        cluster.clock.advance(60)
        assert (cluster.admin.list_transactions(), asked, texts(cluster)) == ([], [], [])


def test_messages_without_key_or_digest_are_known_again(cluster: InMemoryCluster) -> None:
    messages = [Message("orders", b"a"), Message("orders", b"b", key=b"k", headers={"x": b"1", "w": b"2"})]
    same = [Message("orders", b"a"), Message("orders", b"b", key=b"k", headers={"w": b"2", "x": b"1"})]
    producer = named(cluster)
    assert producer.send_numbered(1, messages) and not producer.send_numbered(1, same)
    digest = hashlib.sha256(b"rows 3 to 7").digest()[:16]
    assert producer.send_numbered(2, messages, digest=digest)
    assert not producer.send_numbered(2, Message("orders", b"whatever"), digest=digest)


def test_a_group_that_does_not_answer_ends_the_claim(cluster: InMemoryCluster) -> None:
    with cluster.outage(), pytest.raises(Unavailable):
        named(cluster)
    assert named(cluster).send_numbered(1, everywhere("a"))


@pytest.mark.parametrize("name", ["", "x" * 501, "a\nb", "x/later", "\ud800", 7, b"x"])
def test_names_that_are_none(cluster: InMemoryCluster, name: Any) -> None:
    with pytest.raises(InvalidMessage, match="transactional_id"):
        named(cluster, name)


def test_numbers_and_digests_that_are_none(cluster: InMemoryCluster) -> None:
    producer = named(cluster)
    for number in (0, -1, 1.0, True, "1", 1 << 53):
        with pytest.raises(InvalidMessage, match="number must be"):
            producer.send_numbered(number, Message("orders", b""))  # type: ignore[arg-type]
    for digest in (b"", bytes(15), bytes(17), "x" * 16):
        with pytest.raises(InvalidMessage, match="digest must be"):
            producer.send_numbered(1, Message("orders", b""), digest=digest)  # type: ignore[arg-type]
    with pytest.raises(InvalidMessage, match="at least one message"):
        producer.send_numbered(1, [])
    with pytest.raises(InvalidMessage, match="transactional_id"):
        cluster.producer("shop").send_numbered(1, Message("orders", b""))


def test_a_name_that_home_has_forgotten_gets_an_epoch_above_that_of_the_others() -> None:
    with ThreeGroups() as cluster:
        cluster.admin.create_topic("orders", partitions=PARTITIONS)
        for epoch in (1, 2, 3):
            assert named(cluster).epoch == epoch
        home = claim_group(NAME, 3)
        brokers = cluster.network.brokers
        brokers[home]._running().running.replica.state.claims.by_name.clear()  # type: ignore[attr-defined]
        producer = named(cluster)
        assert producer.epoch == 4
        assert producer.send_numbered(1, everywhere("a"))
