"""A group of real processes takes replicas in and lets them go, while a producer sends and commits."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import escrowmq
from escrowmq import Message
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from escrowmq import Cluster
    from escrowmq.replication.calling.answers import MembersReport

pytestmark = pytest.mark.ray

TOPIC = "orders"


class Load(threading.Thread):
    """Plain messages and transactions in turn, each numbered, one at a time."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(name="load", daemon=True)
        self._producer = cluster.producer(app="load", linger_ms=0)
        self._stopping = threading.Event()
        self.sent: list[bytes] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                value = b"%d" % len(self.sent)
                if len(self.sent) % 2:
                    self._producer.send(Message(TOPIC, value)).result(30)
                else:
                    with self._producer.transaction() as tx:
                        tx.send(Message(TOPIC, value))
                self.sent.append(value)
        except BaseException as error:
            self.error = error

    def goes_on(self) -> None:
        """Wait until ten more are acknowledged."""
        there = len(self.sent)
        wait_until(lambda: self.error or len(self.sent) >= there + 10, 30.0, "more messages")
        assert self.error is None, self.error

    def stop(self) -> list[bytes]:
        """What was acknowledged."""
        self._stopping.set()
        self.join(40)
        self._producer.close()
        assert self.error is None, self.error
        return self.sent


class Group:
    """The only broker group of a cluster: its actors, beside those of the supervisor."""

    def __init__(self, cluster: Cluster, data_dir: Path) -> None:
        self._cluster, self._data_dir, self.rids = cluster, data_dir, [0]

    def broker(self, rid: int) -> Any:
        import ray

        from escrowmq.actors.client.topology import broker_name

        return ray.get_actor(broker_name(0, rid), namespace=self._cluster.info.namespace)

    def bring(self, rid: int) -> None:
        """Start a replica that nobody knows yet."""
        from escrowmq.actors.broker.broker import start_broker
        from escrowmq.cluster.secret import kept_secret

        info, config, secret = (
            self._cluster.info,
            self._cluster.config.broker,
            kept_secret(self._data_dir).reveal(),
        )
        start_broker(
            info, 0, rid, config, str(self._data_dir / f"g0-r{rid}"), "127.0.0.1", secret, members=self.rids
        )
        self.rids.append(rid)

    def end(self, rid: int) -> None:
        import ray

        self.rids.remove(rid)
        ray.kill(self.broker(rid), no_restart=True)

    def change(self, change_id: str, add: Sequence[int] = (), remove: Sequence[int] = ()) -> MembersReport:
        """Ask everybody for a step, until whoever leads says that the change is done."""
        import ray

        deadline = time.monotonic() + 30
        while True:
            for rid in self.rids:
                answer = ray.get(self.broker(rid).change_members.remote(change_id, add, remove), timeout=15)
                if answer[0] == "ok" and answer[1].act == "DONE":
                    found: MembersReport = answer[1].members
                    return found
                assert time.monotonic() < deadline, answer
            time.sleep(0.05)

    def pid(self, rid: int) -> int:
        import ray

        return int(ray.get(self.broker(rid).status.remote(), timeout=15).pid)


@pytest.mark.timeout(120)
def test_from_one_replica_to_three_and_back(
    ray_local: str, unique: Callable[[str], str], tmp_path: Path
) -> None:
    with escrowmq.start_local(1, 1, tmp_path, namespace=unique("members")) as cluster:
        cluster.admin.create_topic(TOPIC)
        group, load = Group(cluster, tmp_path), Load(cluster)
        load.start()
        load.goes_on()
        for rid in (1, 2):
            group.bring(rid)
            group.change(f"more-{rid}", add=[rid])
            load.goes_on()
        (members,) = cluster.admin.members()
        assert (members.voters, members.learners, members.next_replica) == ((0, 1, 2), (), 3)
        assert (members.change_id, members.applied, members.leader) == ("more-2", True, 0)

        # The only replica that the producer was told of goes away, and one that came leads.
        os.kill(group.pid(0), signal.SIGKILL)
        load.goes_on()
        (members,) = cluster.admin.members()
        assert members.leader in (1, 2)
        wait_until(lambda: cluster.status().healthy, 30.0, "that all three are well", every_s=0.2)
        assert [replica.replica for replica in cluster.status().groups[0].replicas] == [0, 1, 2]

        done = group.change("less", remove=[1, 2])  # whoever leads hands over to the one that stays
        assert list(done.voters) == [0]
        for rid in (1, 2):
            group.end(rid)
        load.goes_on()
        sent = load.stop()
        with cluster.consumer(auto_offset_reset="earliest") as consumer:
            consumer.assign([(TOPIC, 0)])
            found: list[bytes] = []
            deadline = time.monotonic() + 20
            while len(found) < len(sent) and time.monotonic() < deadline:
                found += [record.value for record in consumer.poll(timeout_s=0.5)]
            found += [record.value for record in consumer.poll(timeout_s=0.3)]
        assert found == sent, "each once, and in their order"
