"""The Broker actor: one replica of one group as one named Ray actor. A thin shell over BrokerService.

Threaded, with a concurrency group per kind of call, so that parked fetches never hold up commits. The
replica starts in a thread of its own, because peers must be able to call an actor that is still
repairing itself; until it has started, calls are answered as by a follower. Methods answer plain
tuples (see replication/host/requests.py); Ray never repeats them.
"""

from __future__ import annotations

import gc
import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray

from escrowmq.actors.broker.answer_buffers import AnswerBuffers, out_of_band
from escrowmq.actors.broker.config import BrokerConfig
from escrowmq.actors.broker.group_service import GroupService
from escrowmq.actors.broker.peers import RayPeers
from escrowmq.actors.client.topology import ClusterInfo, broker_name
from escrowmq.replication.host.requests import BrokerService
from escrowmq.replication.host.watching import Watching
from escrowmq.replication.log.datadir import Identity
from escrowmq.replication.net.tls import TlsFiles
from escrowmq.replication.replica.fetching import FetchRequest

log = logging.getLogger(__name__)

Answer = tuple[Any, ...]
#: Memory for large answers to fetches, in all 32 MiB; a fetch that finds none free is answered all the same.
FETCH_BUFFERS, FETCH_BUFFER_BYTES = 4, 8 << 20


class Broker:
    """See the module's text. One instance per process."""

    def __init__(
        self,
        info: ClusterInfo,
        gid: int,
        rid: int,
        config: BrokerConfig,
        data_dir: str,
        listen_host: str,
        secret: bytes,
        tls: TlsFiles | None = None,
    ) -> None:
        """``data_dir`` is this replica's own. Raises DataDirLocked, DataDirMismatch, UnknownVersion."""
        # The tables are long-lived tuples without cycles: rare collections, or a full one would stop the
        # replica for as long as an election takes once a million transactions are open.
        gc.set_threshold(200_000, 50, 1_000)
        peers = RayPeers(info, gid)
        self._failure: BaseException | None = None
        self._service = service = BrokerService(
            config,
            Identity(info.cluster_id, gid, rid),
            groups=info.groups,
            replicas=info.replicas,
            data_dir=Path(data_dir),
            listen_host=listen_host,
            secret=secret,
            resolve=peers.resolve,
            source=peers,
            report=lambda text: log.warning("%s: %s", broker_name(gid, rid), text),
            tls=tls,
        )
        self._groups = GroupService.over(service)
        self._fetch_buffers = AnswerBuffers(FETCH_BUFFERS, FETCH_BUFFER_BYTES)
        self._watching = Watching(service)
        self._thread = threading.Thread(target=self._start, name="start", daemon=True)
        self._thread.start()

    def _start(self) -> None:
        while True:
            try:
                self._service.start()
                return
            except Exception as error:
                # The process stays, so that operators can ask it why; it takes no part in the group.
                log.error("replica cannot start: %s", error)
                self._failure = error
                time.sleep(5.0)

    # -------------------------------------------------------------- produce

    @ray.method(concurrency_group="produce")
    def submit(self, request: bytes) -> Answer:
        return self._service.submit(request)

    # -------------------------------------------------------------- fetch

    @ray.method(concurrency_group="fetch")
    def fetch(self, requests: Sequence[FetchRequest], max_bytes: int, wait_s: float) -> list[Any]:
        results = self._service.fetch(requests, max_bytes, wait_s, self._fetch_buffers.join)
        return [(*head, out_of_band(blob)) for *head, blob in results]

    @ray.method(concurrency_group="fetch")
    def watch(self, requests: Sequence[tuple[str, int, int]], wait_s: float) -> Answer:
        return self._watching.watch(requests, wait_s)

    @ray.method(concurrency_group="control")
    def spans(self, requests: Sequence[tuple[str, int, int, int, int]]) -> Answer:
        return self._watching.spans(requests)

    @ray.method(concurrency_group="control")
    def fetch_ends(
        self, topic: str, partition: int, offset: int, until: int, max_bytes: int, count: int
    ) -> tuple[int, list[int]]:
        return self._service.fetch_ends(topic, partition, offset, until, max_bytes, count)

    # -------------------------------------------------------------- feedback

    @ray.method(concurrency_group="feedback")
    def lock_due(self, app: str, topic: str, max_n: int, lease_s: float, wait_s: float, owner: str) -> Answer:
        return self._service.lock_due(app, topic, max_n, lease_s, wait_s, owner)

    @ray.method(concurrency_group="control")
    def release_locks(self, app: str, topic: str, tx_ids: Sequence[str], owner: str) -> Answer:
        return self._service.release_locks(app, topic, tx_ids, owner)

    @ray.method(concurrency_group="control")
    def open_topics(self, app: str) -> Answer:
        return self._service.open_topics(app)

    @ray.method(concurrency_group="control")
    def tx_states(self, app: str, tx_ids: Sequence[str]) -> Answer:
        return self._service.tx_states(app, tx_ids)

    # -------------------------------------------------------------- control

    @ray.method(concurrency_group="control")
    def offsets(self, requests: Sequence[tuple[str, int, int]], leader: bool = False) -> Any:
        return self._service.offsets(requests, leader)

    @ray.method(concurrency_group="control")
    def topics(self, leader: bool = False) -> Answer:
        return self._service.topics(leader)

    @ray.method(concurrency_group="control")
    def partition_bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        return self._service.partition_bounds(topic)

    @ray.method(concurrency_group="control")
    def committed(self, group: str, topics: Sequence[str] | None = None) -> Answer:
        return self._service.committed(group, topics)

    @ray.method(concurrency_group="control")
    def transactions(
        self, state: str | None = None, app: str | None = None, topic: str | None = None, limit: int = 1000
    ) -> Answer:
        return self._service.transactions(state, app, topic, limit)

    @ray.method(concurrency_group="control")
    def find_transaction(self, tx_id: str, app: str | None = None) -> Answer:
        return self._service.find_transaction(tx_id, app)

    @ray.method(concurrency_group="control")
    def audit(self) -> Answer:
        return self._service.audit()

    @ray.method(concurrency_group="control")
    def whoami(self) -> tuple[bool, int | None, int]:
        return self._service.whoami()

    @ray.method(concurrency_group="control")
    def status(self) -> dict[str, Any]:
        status = self._service.status()
        status["pid"] = os.getpid()
        status["node_id"] = ray.get_runtime_context().get_node_id()
        status["failure"] = None if self._failure is None else repr(self._failure)
        return status

    # -------------------------------------------------------------- consumer groups

    @ray.method(concurrency_group="control")
    def group_join(
        self,
        group: str,
        member: str,
        topics: Sequence[str],
        session_timeout_s: float,
        owned: Sequence[tuple[str, int]] = (),
    ) -> Answer:
        return self._groups.join(group, member, topics, session_timeout_s, owned)

    @ray.method(concurrency_group="control")
    def group_heartbeat(self, group: str, member: str, generation: int) -> Answer:
        return self._groups.heartbeat(group, member, generation)

    @ray.method(concurrency_group="control")
    def group_leave(self, group: str, member: str) -> Answer:
        return self._groups.leave(group, member)

    @ray.method(concurrency_group="control")
    def commit_offsets(
        self, group: str, member: str, generation: int, offsets: Mapping[str, Mapping[int, int]]
    ) -> Answer:
        return self._groups.commit(group, member, generation, offsets)

    @ray.method(concurrency_group="control")
    def group_list(self) -> Answer:
        return self._groups.names()

    @ray.method(concurrency_group="control")
    def group_describe(self, group: str) -> Answer:
        return self._groups.describe(group)

    # -------------------------------------------------------------- peers

    @ray.method(concurrency_group="peer")
    def raft_address(self) -> tuple[str, int]:
        return self._service.raft_address()

    @ray.method(concurrency_group="peer")
    def founded(self) -> bool:
        return self._service.founded()

    @ray.method(concurrency_group="peer")
    def checkpoint_manifest(self) -> Answer:
        return self._service.checkpoint_manifest()

    @ray.method(concurrency_group="peer")
    def checkpoint_read(self, name: str, pos: int, size: int) -> bytes:
        return self._service.checkpoint_read(name, pos, size)

    @ray.method(concurrency_group="peer")
    def checkpoint_suspect(self, name: str, size: int) -> None:
        self._service.checkpoint_suspect(name, size)

    @ray.method(concurrency_group="peer")
    def stop(self) -> None:
        """Hand leadership over, sync, close. The process is then ended by whoever asked."""
        self._service.stop()


def start_broker(
    info: ClusterInfo,
    gid: int,
    rid: int,
    config: BrokerConfig,
    data_dir: str,
    listen_host: str,
    secret: bytes,
    tls: TlsFiles | None = None,
    **options: Any,
) -> Any:
    """Create the named, detached actor and return its handle; ``options`` add to or replace Ray's.

    It restarts for ever and never repeats a call: clients retry, with ids that the broker knows.
    """
    settings: dict[str, Any] = {
        "name": broker_name(gid, rid),
        "namespace": info.namespace,
        "lifetime": "detached",
        "max_restarts": -1,
        "max_task_retries": 0,
        "num_cpus": 0,
    }
    settings.update(options)
    groups = {
        "produce": config.produce_threads,
        "fetch": config.fetch_threads,
        "feedback": config.feedback_threads,
        "control": config.control_threads,
        "peer": 8,
    }
    remote: Any = ray.remote  # its type stubs know no concurrency_groups
    actor = remote(concurrency_groups=groups)(Broker).options(**settings)
    return actor.remote(info, gid, rid, config, data_dir, listen_host, secret, tls)
