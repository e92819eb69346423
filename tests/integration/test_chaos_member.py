"""The offsets that the group member of the chaos rounds commits while partitions move."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from escrowmq.replication.model import Message
from tests.chaos.consumer import GROUP, Progress
from tests.history.events import Recorder
from tests.support.polling import read

if TYPE_CHECKING:
    from escrowmq import Cluster, Consumer

pytestmark = pytest.mark.ray
MOVED_S = 20.0


def test_what_was_polled_before_a_rebalance_is_committed_after_it_unless_it_moved_away(
    cluster: Cluster, unique: Callable[[str], str]
) -> None:
    """Chaos seed 10, round 2: no message came after a rebalance, and the last one was never committed."""
    topic, group = unique("orders"), unique("group")
    cluster.admin.create_topic(topic, partitions=2)
    with cluster.producer("sender") as producer:
        for future in [producer.send(Message(topic, b"last", partition=p)) for p in (0, 1)]:
            future.result(30)
    progress = Progress("member", Recorder("member"))

    def joined() -> Consumer:
        return cluster.consumer(group, [topic], auto_offset_reset="earliest", session_timeout_s=3.0)

    with joined() as consumer:
        progress.record(read(consumer, 2))
        with joined() as other:
            deadline = time.monotonic() + MOVED_S
            while len(consumer.assignment()) != 1 or len(other.assignment()) != 1:
                assert time.monotonic() < deadline, (consumer.assignment(), other.assignment())
                assert consumer.poll(timeout_s=0.05) == []
                other.poll(timeout_s=0.05)
            progress.new_epoch()
            progress.commit(consumer)
            (kept,), (moved,) = consumer.assignment(), other.assignment()
            assert (consumer.committed(*kept), consumer.committed(*moved)) == (1, None)
    told = [event.fields for event in progress.recorder.events if event.kind == "offset-commit"]
    assert told == [{"group": GROUP, "topic": kept[0], "partition": kept[1], "offset": 1}]
