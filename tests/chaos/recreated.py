"""The topic that is deleted and created again while clients send to it and members of the group read it.

Only the driver deletes and creates it, one request after the other, and repeats a request until it is
answered. Just before a deletion it reads what the topic holds, so that the history has messages of which it
is certain which of the topics of that name they are in.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import ray

from escrowmq import EscrowMQError
from escrowmq.actors.client.topology import broker_name
from escrowmq.actors.consumer.reader import PartitionReader
from escrowmq.replication.errors import Unavailable, UnknownTopic
from escrowmq.replication.format.codec import decode_rows
from escrowmq.replication.model import TopicInfo, first_group, group_of
from tests.chaos.deployment import Deployment, Stuck, until
from tests.chaos.messages import RECREATED
from tests.chaos.replica_reads import OneReplica
from tests.history.events import Recorder, identify

PARTITIONS = 3
#: Limit for a deletion or creation, while other processes are killed.
DONE_S = 120.0
#: Limit for the read before a deletion; without an answer the deletion goes ahead.
READ_S = 5.0


class RecreatedTopic:
    """See the module's docstring. Thread-safe: a second fault may recreate the topic during another."""

    def __init__(self, deployment: Deployment, recorder: Recorder, options: Mapping[str, int]) -> None:
        self._deployment, self._recorder, self._options = deployment, recorder, options
        self._lock = threading.Lock()
        self._info: TopicInfo | None = None
        #: How often it was created, and how many partitions were not read before a deletion.
        self.lives = self.unread = 0

    @property
    def id(self) -> int:
        """The id of the topic that there is now."""
        assert self._info is not None
        return self._info.topic_id

    def create(self) -> None:
        """Create the topic. Raises Stuck."""
        op = self._recorder.invoke("topic-create", topic=RECREATED)

        def created() -> TopicInfo:
            return self._deployment.cluster.admin.create_topic(RECREATED, PARTITIONS, **self._options)

        self._info = until(f"topic {RECREATED} is created", created, DONE_S)
        self._recorder.ok(op, id=self.id)
        self.lives += 1

    def recreate(self, pause_s: float) -> None:
        """Read the topic, delete it, and create it again after a pause. Raises Stuck."""
        with self._lock:
            self._read()
            op = self._recorder.invoke("topic-delete", topic=RECREATED)
            until(f"topic {RECREATED} is deleted", self._deleted, DONE_S)
            self._recorder.ok(op)
            time.sleep(pause_s)
            self.create()

    def _deleted(self) -> bool:
        try:
            self._deployment.cluster.admin.delete_topic(RECREATED)
        except UnknownTopic:
            pass  # an earlier request, whose answer was lost, has deleted it
        return True

    # -------------------------------------------------------------- what it holds
    def _read(self) -> None:
        assert self._info is not None
        info = self._deployment.info
        for partition in range(PARTITIONS):
            gid = group_of(first_group(self._info), partition, info.groups)
            try:
                self._read_partition(gid, self._deployment.leader(gid, READ_S), partition)
            except (EscrowMQError, Stuck, ray.exceptions.RayError, ValueError):  # no leader, or it has ended
                self.unread += 1

    def _read_partition(self, gid: int, rid: int, partition: int) -> None:
        """Read a partition from one replica, which has the topic with this id before and after that.

        A replica that is cut off, or that has restarted, may still have an earlier one.
        """
        info = self._deployment.info
        broker = ray.get_actor(broker_name(gid, rid), namespace=info.namespace)
        before = self._has_it(gid, rid, broker)
        start, end = ray.get(broker.partition_bounds.remote(RECREATED), timeout=READ_S)[partition]
        calls = OneReplica(info, [rid] * info.groups)
        try:
            where = RECREATED, partition, start, end
            with PartitionReader(info, *where, group=gid, calls=calls, timeout_s=READ_S) as blocks:
                records = [
                    (block.base_offset + n, identify(value))
                    for block in blocks
                    for n, (_, value, _, _) in enumerate(decode_rows(block.rows, block.messages))
                ]
        finally:
            calls.close()
        if self._has_it(gid, rid, broker) != before:
            raise Unavailable(f"replica {rid} of group {gid} has restarted", 0.1)
        self._recorder.read(
            f"life-{self.id}", RECREATED, partition, records, start=start, end=end, life=self.id
        )

    def _has_it(self, gid: int, rid: int, broker: Any) -> int:
        """The pid of the replica's process. Raises Unavailable if it has another topic of that name."""
        pid = self._deployment.broker_pids().get((gid, rid), 0)
        _, topics = ray.get(broker.topics.remote(), timeout=READ_S)
        if all((one.name, one.topic_id) != (RECREATED, self.id) for one in topics):
            raise Unavailable(f"replica {rid} of group {gid} has another topic", 0.1)
        return pid
