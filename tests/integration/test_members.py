"""Replicas join and leave a group of real processes, as its wanted size changes, while a producer sends and
commits."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import escrowmq
from escrowmq import ConfigError, Message, Unavailable
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from escrowmq import Cluster

pytestmark = pytest.mark.ray

TOPIC = "orders"


class Load(threading.Thread):
    """Sends plain messages and transactions in turn, numbered, one at a time. ``only``: one of the two
    kinds."""

    def __init__(self, cluster: Cluster, topic: str = TOPIC, only: str = "") -> None:
        super().__init__(name=f"load-{topic}", daemon=True)
        self._producer = cluster.producer(app=f"load-{topic}", linger_ms=0)
        self._topic, self._only = topic, only
        #: Time of each acknowledgement (time.monotonic()).
        self.moments: list[float] = []
        self._stopping = threading.Event()
        self.sent: list[bytes] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                value = b"%d" % len(self.sent)
                if self._only == "plain" or (not self._only and len(self.sent) % 2):
                    self._producer.send(Message(self._topic, value)).result(30)
                else:
                    with self._producer.transaction() as tx:
                        tx.send(Message(self._topic, value))
                self.moments.append(time.monotonic())
                self.sent.append(value)
        except BaseException as error:
            self.error = error

    def goes_on(self) -> None:
        """Wait until ten more are acknowledged."""
        there = len(self.sent)
        wait_until(lambda: self.error or len(self.sent) >= there + 10, 30.0, "more messages")
        assert self.error is None, self.error

    def worst_gap(self, since: float) -> float:
        """The longest time between two acknowledgements from then on (seconds)."""
        moments = [since, *(moment for moment in self.moments if moment > since), time.monotonic()]
        return max(later - earlier for earlier, later in pairwise(moments))

    def stop(self) -> list[bytes]:
        """Stop, and return the acknowledged messages."""
        self._stopping.set()
        self.join(40)
        self._producer.close()
        assert self.error is None, self.error
        return self.sent


def as_wanted(cluster: Cluster, voters: int) -> bool:
    """Whether the group has this many voters, and no change is pending."""
    (group,) = cluster.admin.members()
    try:
        changes = cluster.admin.member_changes()
    except Unavailable:  # the supervisor is restarting
        return False
    return len(group.voters) == voters and not changes


@pytest.mark.long
@pytest.mark.timeout(180)
def test_from_one_replica_to_three_and_back(
    ray_local: str, unique: Callable[[str], str], tmp_path: Path
) -> None:
    import ray

    with escrowmq.start_local(1, 1, tmp_path, namespace=unique("members")) as cluster:
        admin, load = cluster.admin, Load(cluster)
        admin.create_topic(TOPIC)
        load.start()
        load.goes_on()
        with pytest.raises(ConfigError, match="replicas must be 1, 3, 5 or 7, not 2"):
            admin.set_replicas(0, 2)
        admin.set_replicas(0, 3)
        (change,) = admin.member_changes()
        assert (change.group, change.wanted) == (0, 3)
        wait_until(lambda: admin.members()[0].next_replica == 2, 60.0, "another replica", every_s=0.2)
        supervisor = ray.get_actor("supervisor", namespace=cluster.info.namespace)
        ray.kill(supervisor, no_restart=False)  # the wanted size survives
        wait_until(lambda: as_wanted(cluster, 3), 60.0, "three voters", every_s=0.2)
        load.goes_on()
        (members,) = admin.members()
        assert (members.voters, members.learners, members.next_replica) == ((0, 1, 2), (), 3)

        # The only replica that the producer knew at first leaves, and one that joined later leads.
        (first,) = (r for r in cluster.status().groups[0].replicas if r.replica == 0)
        os.kill(first.details["pid"], signal.SIGKILL)
        load.goes_on()
        wait_until(lambda: cluster.status().healthy, 30.0, "that all three are well", every_s=0.2)
        assert [replica.replica for replica in cluster.status().groups[0].replicas] == [0, 1, 2]

        admin.set_replicas(0, 1)
        wait_until(lambda: as_wanted(cluster, 1), 60.0, "one voter", every_s=0.2)
        load.goes_on()
        sent = load.stop()
        (left,) = admin.members()[0].voters
        assert [path.name for path in tmp_path.glob("g0-r*")] == [f"g0-r{left}"]
        assert [seat["replica"] for seat in cluster.health()["replicas"]] == [left]
        assert everything(cluster, TOPIC, len(sent)) == sent, "each once, and in their order"


@pytest.mark.long
@pytest.mark.timeout(400)
def test_from_one_to_three_to_five_to_three_to_one(
    ray_local: str, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """All replicas share this machine's disk and CPUs: the printed gaps are not those of separate
    machines."""
    with escrowmq.start_local(1, 1, tmp_path, namespace=unique("members")) as cluster:
        admin = cluster.admin
        loads = [Load(cluster, only, only) for only in ("plain", "transactions")]
        for load in loads:
            admin.create_topic(load.name.removeprefix("load-"))
            load.start()
        before = 1
        for size in (3, 5, 3, 1):
            for load in loads:
                load.goes_on()
            since = time.monotonic()
            admin.set_replicas(0, size)
            wait_until(lambda size=size: as_wanted(cluster, size), 120.0, f"{size} voters", every_s=0.2)  # type: ignore[misc]
            took = time.monotonic() - since
            gaps = ", ".join(f"{load.name} {load.worst_gap(since):.2f} s" for load in loads)
            print(f"{before} -> {size} replicas in {took:.1f} s; longest time without a commit: {gaps}")
            before = size
        for load in loads:
            load.goes_on()
            sent = load.stop()
            found = everything(cluster, load.name.removeprefix("load-"), len(sent))
            assert found == sent, f"{load.name}: each once, and in their order"
            print(f"{load.name}: {len(sent)} messages")
        (left,) = admin.members()[0].voters
        assert [path.name for path in tmp_path.glob("g0-r*")] == [f"g0-r{left}"]


def everything(cluster: Cluster, topic: str, expected: int) -> list[bytes]:
    """The values in the topic's only partition: waits for ``expected`` of them, then briefly for more."""
    found: list[bytes] = []
    with cluster.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        deadline = time.monotonic() + 30
        while len(found) < expected and time.monotonic() < deadline:
            found += [record.value for record in consumer.poll(timeout_s=0.5)]
        found += [record.value for record in consumer.poll(timeout_s=0.3)]
    return found
