"""Replicas are replaced faster than a consumer refreshes the list of members: it finds the new ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from escrowmq.actors.client.replica_calls import SUPERVISOR_RID, OnAnswer
from escrowmq.actors.consumer.config import ConsumerConfig
from escrowmq.actors.consumer.consumer import Consumer
from tests.support.brokers import Brokers, ClientCalls
from tests.support.waiting import wait_until


class Calls(ClientCalls):
    """With a supervisor that knows all members, if it answers."""

    def __init__(self, brokers: Brokers, answers: bool) -> None:
        super().__init__(brokers)
        self._group, self._answers = brokers.groups[0], answers

    def call(self, gid: int, rid: int, method: str, args: tuple[Any, ...], done: OnAnswer) -> None:
        if rid != SUPERVISOR_RID:
            super().call(gid, rid, method, args, done)
        elif self._answers:
            done(self._group.leader().parts.members.members(), None)


@pytest.mark.parametrize("all_gone", [True, False], ids=["by the supervisor", "by the one that stayed"])
def test_a_consumer_reads_on_when_others_took_the_places_of_those_it_knew(
    tmp_path: Path, all_gone: bool
) -> None:
    brokers = Brokers(tmp_path)
    (group,) = brokers.groups
    group.topic("t")
    brokers.produce("t", 0, [b"before"])
    config = ConsumerConfig(auto_offset_reset="earliest", heartbeat_interval_s=0.2, call_timeout_s=30.0)
    consumer = Consumer(
        brokers.info, group="readers", topics=["t"], config=config, calls=Calls(brokers, answers=all_gone)
    )
    found: list[bytes] = []

    def reads(count: int) -> None:
        wait_until(
            lambda: (
                found.extend(record.value for record in consumer.poll(timeout_s=0.2)) or len(found) >= count
            ),
            25.0,
            f"{count} messages",
        )
        consumer.commit()

    try:
        reads(1)
        for come, go in ((3, 0), (4, 1), (5, 2))[: 3 if all_gone else 2]:
            group.seated = (*range(come + 1),)
            group.start(come)
            group.change_members(add=[come], remove=[go], change_id=f"c{come}")
            group.leader()
            group.stop(go)
        brokers.produce("t", 0, [b"after"])
        reads(2)
        assert found == [b"before", b"after"], "its offset is there, too"
    finally:
        consumer.close()
        brokers.close()
