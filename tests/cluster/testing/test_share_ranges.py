"""What share groups and operators are told of offsets that are not there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from escrowmq import Message, OffsetOutOfRange, ShareConsumer, UnknownDeadLetter, UnknownGroup
from escrowmq.actors.admin.dead_letters import DeadLetters
from escrowmq.actors.client.results import submitting
from escrowmq.replication.format import ops
from escrowmq.replication.format.internal_topics import dead_topic
from escrowmq.replication.replica.lease_dispatcher import LeaseDispatcher
from escrowmq.replication.replica.share_admission import ShareAdmission
from escrowmq.testing import InMemoryCluster


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    with InMemoryCluster() as made:
        made.admin.create_topic("orders")
        yield made


@pytest.fixture
def queue(cluster: InMemoryCluster) -> Iterator[ShareConsumer]:
    with cluster.producer("shop") as producer:
        for number in range(3):
            producer.send(Message("orders", b"%d" % number, reply_to="shop")).result(0)
    settings = {"auto_offset_reset": "earliest", "prefetch_records": 0}
    with cluster.share_consumer("mail", ["orders"], **settings) as made:
        yield made


def pretend(queue: ShareConsumer, offset: int) -> None:
    """As if the next message were at another offset."""
    core = queue.core
    with core.condition:
        (batch,) = core._held_batches._batches.values()
        batch.open.add(offset)
        batch.handed.add(offset)


def test_an_ack_beyond_the_end_says_which_range_there_is(
    cluster: InMemoryCluster, queue: ShareConsumer
) -> None:
    records = queue.poll()
    core = queue.core
    with core.condition:
        batch = core._held_batches.find(records[0])
        core._session.ack_accumulator.add(batch.gid, batch.source, 17, core.clock())
    with pytest.raises(OffsetOutOfRange, match=r"offset 17 of orders/0 .* \[0, 3\]") as caught:
        queue.flush()
    assert (caught.value.start, caught.value.end) == (0, 3) and "seek" not in str(caught.value)
    assert queue.statistics().acks_failed == 1


@pytest.mark.parametrize("say", ["nack", "ack"])
def test_so_does_what_is_said_of_one_message(
    cluster: InMemoryCluster, queue: ShareConsumer, say: str
) -> None:
    records = queue.poll()
    pretend(queue, 17)
    record = replace(records[0], offset=17)
    with pytest.raises(OffsetOutOfRange, match=r"\[0, 3\]"):
        queue.nack(record) if say == "nack" else queue.ack(record, b"done")


@pytest.mark.parametrize("say", ["nack", "ack", "ack with a reply"])
def test_a_group_that_was_deleted_is_unknown(
    cluster: InMemoryCluster, queue: ShareConsumer, monkeypatch: pytest.MonkeyPatch, say: str
) -> None:
    (record, *_) = queue.poll(3)  # no more than there is, so that it does not ask for more
    monkeypatch.setattr(  # a leader that was cut off does not know of members either
        ShareAdmission,
        "deletion",
        lambda self, writer, submission, number: writer.verbatim(
            submission, number, submission.units[number]
        ),
    )
    monkeypatch.setattr(LeaseDispatcher, "members", lambda self, group: [])
    cluster.admin.delete_group("mail")
    with pytest.raises(UnknownGroup, match="mail"):
        if say == "nack":
            queue.nack(record)
        else:
            queue.ack(record, b"done" if "reply" in say else None)
            queue.flush()


def trim_dead_letters(cluster: InMemoryCluster, offset: int) -> None:
    """As retention does."""
    topic = dead_topic("mail")
    submitting(cluster.admin.router, 10.0)(0, ops.trim(topic, {0: offset}))


def test_dead_letters_that_retention_takes_meanwhile_are_unknown_at_once(
    cluster: InMemoryCluster, queue: ShareConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for record in queue.poll():
        queue.reject(record)
    known, seen = DeadLetters._left, []

    def left(self: DeadLetters, group: str) -> object:
        found = known(self, group)
        if not seen:
            trim_dead_letters(cluster, 2)
        seen.append(group)
        return found

    monkeypatch.setattr(DeadLetters, "_left", left)
    with pytest.raises(UnknownDeadLetter, match="0-0"):
        cluster.admin.dead_letter("mail", "0-0")
    seen.clear()
    trim_before = cluster.admin.dead_letters("mail")
    assert [letter.id for letter in trim_before] == ["0-2"]
