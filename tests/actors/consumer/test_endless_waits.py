"""Times longer than a lock of Python's can wait (292 years), of someone who wants no time-out at all."""

from __future__ import annotations

import math
import threading

import pytest

from escrowmq import Message
from escrowmq.actors.client.wakeup import ObservableCondition
from escrowmq.actors.consumer.config import ConsumerConfig
from escrowmq.actors.share_consumer.config import ShareConsumerConfig
from escrowmq.testing import InMemoryCluster


@pytest.mark.parametrize("endless", [math.inf, 1e12])
def test_consumers_without_a_time_out_work(endless: float) -> None:
    """Every ``commit`` failed with OverflowError."""
    with InMemoryCluster() as cluster:
        cluster.admin.create_topic("orders")
        with cluster.producer("shop") as producer:
            producer.send(Message("orders", b"a")).result(0)
        config = ConsumerConfig(call_timeout_s=endless, auto_offset_reset="earliest")
        with cluster.consumer(group="g", topics=["orders"], config=config) as consumer:
            assert [record.value for record in consumer.poll(timeout_s=5)] == [b"a"]
            consumer.commit()
            assert consumer.committed("orders", 0) == consumer.position("orders", 0) == 1
        with cluster.consumer(config=config) as reader:
            reader.assign([("orders", 0)])
            assert reader.position("orders", 0) == 0
        shared = ShareConsumerConfig(call_timeout_s=endless, auto_offset_reset="earliest")
        with cluster.share_consumer(group="s", topics=["orders"], config=shared) as consumer:
            (held,) = consumer.poll(timeout_s=5)
            consumer.ack(held)
            consumer.flush()


@pytest.mark.parametrize("endless", [math.inf, 1e12])
def test_a_condition_can_be_waited_for_without_a_time_out(endless: float) -> None:
    """``position`` of a partition that is looked up, and ``poll``, wait so."""
    condition = ObservableCondition()

    def tell() -> None:
        with condition:
            condition.notify_all()

    with condition:
        threading.Thread(target=tell).start()  # it waits for the condition's lock
        assert condition.wait(endless)
