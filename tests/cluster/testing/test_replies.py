"""Replies: what an app hears when a share group acknowledges with a result, rejects, or only acknowledges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from escrowmq import InvalidMessage, Message, MessageTooLarge
from escrowmq.replication.errors import RecordNotHeld
from escrowmq.testing import InMemoryCluster


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    with InMemoryCluster() as made:
        made.admin.create_topic("orders")
        yield made


def send(cluster: InMemoryCluster, *messages: Message) -> None:
    with cluster.producer("shop") as producer:
        for message in messages:
            producer.send(message).result(0)


def test_each_outcome_is_heard_once(cluster: InMemoryCluster) -> None:
    with (
        cluster.replies("shop") as replies,
        cluster.share_consumer("mail", ["orders"], auto_offset_reset="earliest") as queue,
    ):
        send(cluster, *[Message("orders", b"%d" % n, b"k%d" % n, reply_to="shop") for n in range(3)])
        send(cluster, Message("orders", b"nobody asks"))
        first, second, third, last = queue.poll()
        queue.ack(first, result=b"sent")
        queue.reject(second, "no such address")
        queue.ack(third)
        queue.ack(last, result=b"to nobody")
        queue.flush()
        done, failed = replies.poll()
    assert (done.outcome, done.result, done.group, done.key) == ("done", b"sent", "mail", b"k0")
    assert (failed.outcome, failed.reason, failed.key) == ("failed", "no such address", b"k1")
    share = cluster.admin.describe_group("mail").share
    assert share is not None and (share.lag, share.dead) == (0, 1)


def test_a_retry_answers_for_the_message_that_was_sent(cluster: InMemoryCluster) -> None:
    with (
        cluster.replies("shop") as replies,
        cluster.share_consumer("mail", ["orders"], auto_offset_reset="earliest") as queue,
    ):
        send(cluster, Message("orders", b"x", tag="paid", reply_to="shop"))
        queue.nack(*queue.poll(), delay_s=5)
        cluster.clock.advance(5)
        (again,) = queue.poll()
        assert (again.tag, again.reply_to) == ("paid", "shop"), "the sender's headers come along"
        queue.ack(again, result=b"sent")
        (done,) = replies.poll()
    assert done.origin is not None and done.origin[:3] == ("orders", 0, 0)
    assert done.attempts == 2


def test_a_reply_without_a_topic_makes_one(cluster: InMemoryCluster) -> None:
    with cluster.share_consumer("mail", ["orders"], auto_offset_reset="earliest") as queue:
        send(cluster, Message("orders", b"x", reply_to="shop"))
        queue.ack(*queue.poll(), result=b"sent")
    with cluster.replies("shop") as replies:
        assert [reply.result for reply in replies.poll()] == [b"sent"]


@pytest.mark.parametrize("result", ["text", 7, bytearray(b"x")])
def test_a_result_is_bytes(cluster: InMemoryCluster, result: Any) -> None:
    with cluster.share_consumer("mail", ["orders"], auto_offset_reset="earliest") as queue:
        send(cluster, Message("orders", b"x", reply_to="shop"))
        (record,) = queue.poll()
        with pytest.raises(InvalidMessage, match="result"):
            queue.ack(record, result=result)
        with pytest.raises(MessageTooLarge):
            queue.ack(record, result=b"x" * ((1 << 20) + 1))
        queue.ack(record, result=b"")
        with pytest.raises(RecordNotHeld):
            queue.ack(record, result=b"again")


def test_a_header_that_names_no_app_is_no_address(cluster: InMemoryCluster) -> None:
    with cluster.share_consumer("mail", ["orders"], auto_offset_reset="earliest") as queue:
        send(cluster, Message("orders", b"x", headers={"escrowmq-reply-to": b"a b/\xff"}))
        queue.ack(*queue.poll(), result=b"sent")
    share = cluster.admin.describe_group("mail").share
    assert share is not None and share.lag == 0
