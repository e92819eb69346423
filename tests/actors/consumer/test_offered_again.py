"""A consumer that lost a partition and was given it again, but has not polled since: its offsets are old."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from escrowmq.actors.broker.coordinator import GroupCoordinator
from escrowmq.actors.client.consumer_groups import coordinator_group
from escrowmq.actors.consumer.committer import Committer
from escrowmq.actors.consumer.consumer import Consumer
from escrowmq.replication.errors import StaleMember
from tests.support.brokers import Brokers
from tests.support.polling import numbered, read
from tests.support.waiting import wait_until

ConsumerOf = Callable[..., Consumer]


def returns(brokers: Brokers, topic: str, group: str, consumer_of: ConsumerOf) -> Consumer:
    """A consumer that has read 3 messages, whose session ended, and that has joined again in the background
    after another one had read and committed 6."""
    brokers.produce(topic, 0, numbered(0, 10))
    options: dict[str, Any] = {"group": group, "topics": [topic], "auto_offset_reset": "earliest"}
    config = {"session_timeout_s": 60.0, "heartbeat_interval_s": 25.0}
    sleeper = consumer_of(brokers, config=config, **options)
    read(sleeper, 3)
    membership = sleeper.core.membership
    assert membership is not None
    service = brokers.groups[coordinator_group(group, len(brokers.groups))].leader().parts.groups
    assert service.leave(group, membership.member) == ("ok", None)
    with consumer_of(brokers, **options) as other:
        read(other, 6)
        other.commit()
    joins = membership.joins
    sleeper.core.membership_thread.wake(heartbeat=True)
    wait_until(lambda: membership.joins > joins, 10.0, "it has joined again")
    return sleeper


def commits(sleeper: Consumer, topic: str) -> int | None:
    """The group's offset after the sleeper's tries to commit."""
    for _ in range(3):
        with pytest.raises(StaleMember):
            sleeper.commit()
    return sleeper.committed(topic, 0)


@pytest.mark.parametrize("alone", ["", "broker", "client"])
def test_it_does_not_put_the_groups_offset_back(
    alone: str,
    brokers: Brokers,
    topic: str,
    unique: Any,
    consumer_of: ConsumerOf,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``alone``: the other side does not look."""
    sleeper = returns(brokers, topic, unique("g"), consumer_of)
    if alone == "broker":
        monkeypatch.setattr(Committer, "_check_held", lambda *args: None)
    elif alone == "client":
        monkeypatch.setattr(GroupCoordinator, "_offered", lambda *args: frozenset())
    assert commits(sleeper, topic) == 6
    monkeypatch.undo()
    assert [record.offset for record in read(sleeper, 4)] == [6, 7, 8, 9]
    sleeper.commit()
    assert sleeper.committed(topic, 0) == 10
