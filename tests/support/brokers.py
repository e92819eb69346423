"""Real broker services behind a network that obeys the test: no Ray, so no seconds of start-up.

Only the way of a call is a double: it runs in a thread pool, and calls to a replica that is *silent*
get no answer, as with a killed process whose death Ray has not noticed yet.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from escrowmq.actors.broker.config import BrokerConfig
from escrowmq.actors.broker.group_service import GroupService
from escrowmq.actors.client.replica_calls import Done
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.replication.format import codec, ops
from escrowmq.replication.host.requests import BrokerService
from escrowmq.replication.host.watching import Watching
from escrowmq.replication.model import group_of
from escrowmq.replication.replica.admission import Submission
from tests.support.broker_group import BrokerGroup
from tests.support.requests import message
from tests.support.waiting import wait_until

_GROUP_CALLS = {
    "group_join": "join",
    "group_heartbeat": "heartbeat",
    "group_leave": "leave",
    "commit_offsets": "commit",
    "group_list": "names",
    "group_describe": "describe",
}
_WATCHING = {"watch", "spans"}


class Brokers:
    """A cluster in this process, and the ``ReplicaCalls`` of its clients."""

    def __init__(self, path: Path, groups: int = 1, replicas: int = 3, **settings: Any) -> None:
        config = BrokerConfig(**settings)
        self.info = ClusterInfo("c", "test", groups, replicas)
        self.groups = [BrokerGroup(path / f"g{gid}", config, replicas, gid, groups) for gid in range(groups)]
        self.silent: set[tuple[int, int]] = set()
        #: Calls by replica and method, to see who was asked.
        self.asked: list[tuple[int, int, str]] = []
        self._services: dict[tuple[int, int], GroupService] = {}
        self._threads = ThreadPoolExecutor(64)
        self._lock = threading.Lock()
        for group in self.groups:
            group.start()
        for group in self.groups:
            group.leader()

    def close(self) -> None:
        for group in self.groups:
            group.close()
        self._threads.shutdown(wait=False)

    def call(self, gid: int, rid: int, method: str, args: tuple[Any, ...], done: Done) -> None:
        self.asked.append((gid, rid, method))
        if (gid, rid) not in self.silent:
            self._threads.submit(self._run, gid, rid, method, args, done)

    def _run(self, gid: int, rid: int, method: str, args: tuple[Any, ...], done: Done) -> None:
        try:
            service = self.groups[gid].alive[rid]
            target: Any = service
            if method in _GROUP_CALLS:
                target, method = self._group_service(gid, rid, service), _GROUP_CALLS[method]
            elif method in _WATCHING:
                target = Watching(service)
            answer = getattr(target, method)(*args)
        except Exception as error:
            answer, failure = None, error
        else:
            failure = None
        if (gid, rid) not in self.silent:  # it may have died meanwhile
            done(answer, failure)

    def _group_service(self, gid: int, rid: int, service: BrokerService) -> GroupService:
        with self._lock:
            known = self._services.get((gid, rid))
            if known is None:
                known = self._services[gid, rid] = GroupService.over(service)
            return known

    def leader(self, gid: int = 0) -> int:
        return self.groups[gid].leader().rid

    def group_of(self, topic: str, partition: int) -> BrokerGroup:
        return self.groups[group_of(topic, partition, self.info.groups)]

    def leader_of(self, topic: str, partition: int) -> BrokerService:
        return self.group_of(topic, partition).leader()

    def topic(self, name: str, partitions: int = 1, **settings: Any) -> None:
        for group in self.groups:
            group.topic(name, partitions, **settings)

    def delete(self, name: str) -> None:
        for group in self.groups:
            group.submit(ops.delete_topic(name))

    def produce(self, topic: str, partition: int, values: Iterable[bytes], tx_id: str | None = None) -> None:
        (result,) = self.group_of(topic, partition).submit(message(topic, partition, [*values], tx_id=tx_id))
        assert result[0] == 0, result

    def trim(self, topic: str, starts: Mapping[int, int], gid: int = 0) -> None:
        """What the leader's retention does when messages are too old; on every replica on return."""
        frame = ops.trim(topic, starts)
        done = False
        while not done:  # a busy machine may elect anew in between
            service = self.groups[gid].leader()
            answer: Future[Any] = Future()
            submission = Submission(frame, codec.decode_ops(frame), answer.set_result)
            service.driver.submit(lambda s=service, sub=submission: s.replica.admission.offer(sub) and None)
            done = answer.result(10.0)[0] == "ok"

        def trimmed() -> bool:
            bounds = [replica.partition_bounds(topic) for replica in self.groups[gid].alive.values()]
            return all(each[p][0] >= start for each in bounds for p, start in starts.items())

        wait_until(trimmed, what="the trim on every replica")

    def lose(self, gid: int, rid: int) -> None:
        """The replica's process dies; nobody is told."""
        self.silent.add((gid, rid))
        self.groups[gid].stop(rid)
        self._services.pop((gid, rid), None)


class ClientCalls:
    """One client's calls: closing it leaves the brokers to the others."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers, self._closed = brokers, False

    def call(self, gid: int, rid: int, method: str, args: tuple[Any, ...], done: Done) -> None:
        if not self._closed:
            self._brokers.call(gid, rid, method, args, done)

    def close(self) -> None:
        self._closed = True
