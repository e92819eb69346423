"""Failures that a test asks the cluster in memory for: lost answers, refusals, outages."""

from __future__ import annotations

import pytest

from escrowmq import ConfigError, DiskFull, Message, OutcomeUnknown, Overloaded, Unavailable, UnknownTopic
from escrowmq.testing import InMemoryCluster
from tests.support.in_memory import COMMITTED, ROLLBACK, Calls, readable


@pytest.mark.parametrize("carried_out", [False, True])
def test_a_commit_whose_answer_is_lost(cluster: InMemoryCluster, carried_out: bool) -> None:
    querier = Calls(cluster, lambda query_id: COMMITTED)
    producer = cluster.producer("shop", tx_status_querier=querier)
    cluster.fail_next("commit", OutcomeUnknown, carried_out=carried_out)
    before = cluster.clock.time()
    with pytest.raises(OutcomeUnknown), producer.transaction(query_id="42") as tx:
        tx.send(Message("orders", b"42"))
        tx.prepare()
    assert cluster.clock.time() == pytest.approx(before + producer._config.delivery_timeout_s, abs=0.5)
    assert readable(cluster) == ([b"42"] if carried_out else [])
    cluster.clock.advance(20)
    assert readable(cluster) == [b"42"] and len(querier.asked) == (not carried_out)
    with producer.transaction() as tx:  # it alone failed
        tx.send(Message("orders", b"next"))
    assert readable(cluster) == [b"42", b"next"]


@pytest.mark.parametrize("error", [Unavailable, Overloaded, DiskFull])
@pytest.mark.parametrize("what", ["send", "prepare", "commit_offsets"])
def test_a_refusal_means_that_nothing_was_done(
    cluster: InMemoryCluster, what: str, error: type[Exception]
) -> None:
    producer = cluster.producer("shop")
    producer.send(Message("orders", b"first")).result(0)
    ran: list[int] = []
    with cluster.consumer("g", ["orders"], auto_offset_reset="earliest") as consumer:
        assert len(consumer.poll()) == 1
        cluster.fail_next(what, error)  # type: ignore[arg-type]
        with pytest.raises(error):
            if what == "send":
                producer.send(Message("orders", b"x")).result(0)
            elif what == "prepare":
                producer.send_message_in_transaction(Message("orders", b"x"), lambda: ran.append(1))
            else:
                consumer.commit()
        assert not ran and readable(cluster) == [b"first"] and consumer.committed("orders", 0) is None
        producer.send(Message("orders", b"again")).result(0)
        consumer.poll()
        consumer.commit()
        assert consumer.committed("orders", 0) == 2


def test_a_roll_back_that_is_lost_does_not_hide_the_applications_error(cluster: InMemoryCluster) -> None:
    producer = cluster.producer("shop", tx_status_querier=Calls(cluster, lambda query_id: ROLLBACK))
    cluster.fail_next("rollback", OutcomeUnknown)
    with pytest.raises(ZeroDivisionError) as caught:
        producer.send_message_in_transaction(Message("orders", b"x"), lambda: 1 / 0)
    assert "could not be confirmed" in caught.value.__notes__[0]
    cluster.clock.advance(20)
    assert cluster.admin.list_transactions() == [] and readable(cluster) == []


def test_an_outage(cluster: InMemoryCluster) -> None:
    producer = cluster.producer("shop")
    consumer = cluster.consumer("g", ["orders"], auto_offset_reset="earliest")
    producer.send(Message("orders", b"before")).result(0)
    consumer.poll()
    with cluster.outage():
        lost = producer.send(Message("orders", b"lost"))
        with pytest.raises((Unavailable, OutcomeUnknown)):
            lost.result(0)
        assert consumer.poll(timeout_s=1) == []
        with pytest.raises(Unavailable):
            for _ in range(20):
                consumer.poll(timeout_s=5)
        status = cluster.status()
        assert not status.healthy
    producer.send(Message("orders", b"back")).result(0)
    found = [record.value for _ in range(5) for record in consumer.poll(timeout_s=5)]
    assert found[-1:] == [b"back"]
    assert cluster.status().healthy


def test_an_outage_in_an_outage_does_not_end_it(cluster: InMemoryCluster) -> None:
    with cluster.outage():
        with cluster.outage():
            pass
        with pytest.raises(Unavailable):
            cluster.admin.topics()
    assert cluster.admin.topics() is not None


def test_a_failure_that_makes_no_sense_is_refused(cluster: InMemoryCluster) -> None:
    for what, error, carried_out in (
        ("comit", OutcomeUnknown, False),
        ("commit", UnknownTopic, False),
        ("commit", Unavailable, True),
    ):
        with pytest.raises(ConfigError):
            cluster.fail_next(what, error, carried_out=carried_out)
