"""The Broker actor: one replica of one group as one named Ray actor. A thin shell over the parts of parts.py.

Threaded, with a concurrency group per kind of call, so that parked fetches never delay commits. The
replica is opened in a separate thread, because peers must be able to call an actor that is still
repairing itself. Until it is open, calls that only a leader serves are answered as by a follower, so that
clients know that nothing was done; all others raise Unavailable, which says when to retry. The answers are
those of replication/calling/answers.py and client/consumer_groups.py; Ray never repeats a call.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import ray

from escrowmq.actors.broker.answer_buffers import AnswerBuffers, out_of_band
from escrowmq.actors.broker.branch_work import BranchWork
from escrowmq.actors.broker.config import BrokerConfig
from escrowmq.actors.broker.packed_topics import TopicPacker
from escrowmq.actors.broker.parts import Parts
from escrowmq.actors.broker.peers import RayPeers
from escrowmq.actors.client.head_patience import reconnect_s
from escrowmq.actors.client.topology import ClusterInfo, broker_name
from escrowmq.replication.calling.answers import (
    EarlierChecks,
    FetchEnds,
    Leadership,
    LevelReport,
    MembersReport,
    ReplicaReport,
    Reply,
)
from escrowmq.replication.calling.metrics_report import MetricsReport
from escrowmq.replication.carried_settings import pack_settings, unpack_settings
from escrowmq.replication.errors import Closed, Superseded
from escrowmq.replication.host.hosting import ReplicaHost
from escrowmq.replication.host.inspection import status_without_replica
from escrowmq.replication.host.replica_setup import ReplicaSetup
from escrowmq.replication.host.running import NOT_RUNNING
from escrowmq.replication.log.datadir import Identity
from escrowmq.replication.log.peer_marks import DISK_ID_MAX, Incarnation
from escrowmq.replication.log_lines import LogFormat, log_to_stderr
from escrowmq.replication.net.tls import TlsFiles
from escrowmq.replication.replica.fetching import FetchRequest
from escrowmq.replication.state.machine import LEVEL_MAX

log = logging.getLogger(__name__)

#: Memory for large fetch answers, 32 MiB in total; a fetch that finds none free is answered without it.
FETCH_BUFFERS, FETCH_BUFFER_BYTES = 4, 8 << 20


class Broker:
    """See the module's docstring. One instance per process."""

    def __init__(
        self,
        info: ClusterInfo | bytes,
        gid: int,
        rid: int,
        config: BrokerConfig | bytes,
        data_dir: str,
        listen_host: str,
        secret: bytes,
        tls: TlsFiles | bytes | None = None,
        incarnation: int = 0,
        founded: bool = False,
        members: Sequence[int] = (),
    ) -> None:
        """``info``, ``config``, ``tls``: as bytes (``pack_settings``), or as supervisors of earlier versions
        passed them, which Ray keeps. ``data_dir``: this replica's own. ``incarnation``: how often it was
        replaced before. ``founded``: whether the group has had a leader. ``members``: the group's members, if
        they are not the founders. Raises DataDirLocked, DataDirMismatch, UnknownVersion."""
        # The tables are long-lived tuples without cycles. Collections must be rare: with a million open
        # transactions a full one would stop the replica for as long as an election takes.
        gc.set_threshold(200_000, 50, 1_000)
        self._gid, self._rid = gid, rid
        self._parts: Parts | None = None
        settings = unpack_settings(BrokerConfig, config, self._report)
        if settings.log_format == LogFormat.json:
            log_to_stderr(LogFormat.json, self._as_logged)
        self._info = info = unpack_settings(ClusterInfo, info, self._report)
        peers = RayPeers(info, gid)
        self._branches: BranchWork | None = None
        self._host = ReplicaHost(
            ReplicaSetup(
                config=settings,
                identity=Identity(info.cluster_id, gid, rid, incarnation),
                groups=info.groups,
                founders=info.replicas,
                data_dir=Path(data_dir),
                listen_host=listen_host,
                secret=secret,
                resolve=peers.resolve,
                source=peers,
                levels=lambda: peers.levels((rid, *map(int, self._host.setup.peers))),
                # After a restart by Ray the process gets the arguments of its first start again.
                founded=lambda: founded or peers.group_founded(),
                report=self._report,
                told=tuple(members),
                ask_members=peers.members,
                tls=None if tls is None else unpack_settings(TlsFiles, tls, self._report),
            )
        )
        self._peers = peers
        self._failure: str | None = None
        self._superseded_by: int | None = None
        self._topic_packer = TopicPacker()
        self._fetch_buffers = AnswerBuffers(FETCH_BUFFERS, FETCH_BUFFER_BYTES)
        threading.Thread(target=self._open, name="open", daemon=True).start()
        threading.Thread(target=self._announce, name="announce", daemon=True).start()

    def _report(self, text: str) -> None:
        log.warning("%s: %s", broker_name(self._gid, self._rid), text)

    def _as_logged(self) -> dict[str, Any]:
        parts = self._parts
        term = {} if parts is None else {"term": parts.running.node.term}
        return {"group": self._gid, "replica": self._rid, **term}

    def _open(self) -> None:
        while True:
            try:
                parts = Parts(self._host.open())
                if self._info.groups > 1:
                    self._branches = BranchWork(parts.running, self._info, report=self._report)
                self._parts = parts
                return
            except Closed:
                return
            except Superseded as error:
                log.error("replica cannot start: %s", error)
                self._failure, self._superseded_by = repr(error), error.by
                return  # the process stays, to say why
            except Exception as error:
                # The process stays, so that operators can ask it why; it takes no part in the group.
                log.error("replica cannot start: %s", error)
                self._failure = repr(error)
            time.sleep(5.0)

    def _announce(self) -> None:
        with contextlib.suppress(Closed):
            self._host.announce(lambda peer, own: self._peers.tell_moved(peer, self._rid, own))

    def _led(self, ask: Callable[[Parts], Reply]) -> Reply:
        """A call that only a leader serves."""
        parts = self._parts
        return NOT_RUNNING if parts is None else ask(parts)

    def _running(self) -> Parts:
        """For calls that every replica serves. Raises Unavailable until it is open."""
        parts = self._parts
        if parts is None:
            raise self._host.unavailable()
        return parts

    # -------------------------------------------------------------- produce

    @ray.method(concurrency_group="produce")
    def submit(self, request: bytes) -> Reply:
        return self._led(lambda parts: parts.requests.submit(request))

    @ray.method(concurrency_group="settle")
    def follow(self, request: bytes) -> Reply:
        """For brokers only: decisions of another group, the home of transactions that have branches here."""
        return self._led(lambda parts: parts.requests.follow(request))

    # -------------------------------------------------------------- fetch

    @ray.method(concurrency_group="fetch")
    def fetch(self, requests: Sequence[FetchRequest], max_bytes: int, wait_s: float) -> list[Any]:
        results = self._running().reads.fetch(requests, max_bytes, wait_s, self._fetch_buffers.join)
        return [(*head, out_of_band(blob)) for *head, blob in results]

    @ray.method(concurrency_group="fetch")
    def watch(self, requests: Sequence[tuple[str, int, int]], wait_s: float) -> Reply:
        return self._running().watching.watch(requests, wait_s)

    @ray.method(concurrency_group="control")
    def spans(self, requests: Sequence[tuple[str, int, int, int, int]]) -> Reply:
        return self._running().watching.spans(requests)

    @ray.method(concurrency_group="control")
    def fetch_ends(
        self, topic: str, partition: int, offset: int, until: int, max_bytes: int, count: int
    ) -> FetchEnds:
        return self._running().reads.fetch_ends(topic, partition, offset, until, max_bytes, count)

    # -------------------------------------------------------------- feedback

    @ray.method(concurrency_group="feedback")
    def lock_due(self, app: str, topic: str, max_n: int, lease_s: float, wait_s: float, owner: str) -> Reply:
        answer = self._led(lambda parts: parts.due_checks.lock_due(app, topic, max_n, lease_s, wait_s, owner))
        return ("ok", EarlierChecks(answer[1])) if answer[0] == "ok" else answer

    @ray.method(concurrency_group="feedback")
    def due_pairs(self, term: int, seen: int, part: int, parts: int, wait_s: float) -> Reply:
        return self._led(lambda brokers: brokers.due_checks.due_pairs(term, seen, part, parts, wait_s))

    @ray.method(concurrency_group="control")
    def lock_pairs(
        self, wanted: Sequence[tuple[str, str, int]], lease_s: float, owner: str, owned: bool = True
    ) -> Reply:
        return self._led(lambda parts: parts.due_checks.lock_pairs(wanted, lease_s, owner, owned))

    @ray.method(concurrency_group="control")
    def open_pairs(self, apps: Sequence[str], part: int, parts: int) -> Reply:
        return self._led(lambda brokers: brokers.due_checks.open_pairs(apps, part, parts))

    @ray.method(concurrency_group="control")
    def release_locks(
        self, app: str, topic: str, tx_ids: Sequence[str], owner: str, waits_ms: Sequence[int] = ()
    ) -> Reply:
        return self._led(lambda parts: parts.due_checks.release_locks(app, topic, tx_ids, owner, waits_ms))

    @ray.method(concurrency_group="control")
    def check_again(self, app: str, tx_id: str) -> Reply:
        return self._led(lambda parts: parts.due_checks.check_again(app, tx_id))

    @ray.method(concurrency_group="control")
    def open_topics(self, app: str) -> Reply:
        return self._led(lambda parts: parts.due_checks.open_topics(app))

    @ray.method(concurrency_group="control")
    def tx_states(self, app: str, tx_ids: Sequence[str]) -> Reply:
        return self._led(lambda parts: parts.inspection.tx_states(app, tx_ids))

    # -------------------------------------------------------------- control

    @ray.method(concurrency_group="control")
    def offsets(self, requests: Sequence[tuple[str, int, int]], leader: bool = False) -> Any:
        return self._running().reads.offsets(requests, leader)

    @ray.method(concurrency_group="control")
    def topics(self, leader: bool | Sequence[str] = False) -> Reply:
        if leader and leader is not True:
            return self._led(lambda parts: parts.reads.topics(leader))
        answer = (
            self._led(lambda parts: parts.reads.topics(leader)) if leader else self._running().reads.topics()
        )
        return ("ok", self._topic_packer.packed(answer[1])) if answer[0] == "ok" else answer

    @ray.method(concurrency_group="control")
    def topic_names(self, term: int, version: int) -> Reply:
        return self._led(lambda parts: parts.reads.topic_names(term, version))

    @ray.method(concurrency_group="control")
    def partition_bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        return self._running().reads.partition_bounds(topic)

    @ray.method(concurrency_group="control")
    def committed(self, group: str, topics: Sequence[str] | None = None) -> Reply:
        return self._led(lambda parts: parts.reads.committed(group, topics))

    @ray.method(concurrency_group="control")
    def transactions(
        self, state: str | None = None, app: str | None = None, topic: str | None = None, limit: int = 1000
    ) -> Reply:
        return self._led(lambda parts: parts.inspection.transactions(state, app, topic, limit))

    @ray.method(concurrency_group="control")
    def find_transaction(self, tx_id: str, app: str | None = None) -> Reply:
        return self._led(lambda parts: parts.inspection.find_transaction(tx_id, app))

    @ray.method(concurrency_group="control")
    def audit(self) -> Reply:
        return self._led(lambda parts: parts.inspection.audit())

    @ray.method(concurrency_group="control")
    def whoami(self) -> Leadership:
        parts = self._parts
        return Leadership(False, None, 0) if parts is None else parts.running.whoami()

    @ray.method(concurrency_group="control")
    def status(self) -> ReplicaReport:
        parts = self._parts
        report = parts.inspection.status() if parts else status_without_replica(self._gid, self._rid)
        node_id = ray.get_runtime_context().get_node_id()
        branches, across = self._branches, report.across
        if branches is not None and across is not None:
            across = branches.branches.with_counts(across)
        return msgspec.structs.replace(
            report,
            pid=os.getpid(),
            node_id=node_id,
            failure=self._failure,
            superseded_by=self._superseded_by,
            across=across,
        )

    @ray.method(concurrency_group="control")
    def metrics(self) -> MetricsReport:
        """Counters and histograms of this process; every replica answers."""
        return msgspec.structs.replace(self._running().instruments.metrics(), pid=os.getpid())

    # -------------------------------------------------------------- members

    @ray.method(concurrency_group="peer")
    def members(self) -> MembersReport:
        """The members of this group, according to this replica's log."""
        return self._running().members.members()

    @ray.method(concurrency_group="peer")
    def told(self, epoch: int, members: Sequence[int]) -> None:
        """The supervisor knows of members that this replica may not know yet. Works from the first moment
        on: a replica that is being opened may need them."""
        parts = self._parts
        if parts is None:
            self._host.setup.peers.tell(epoch, [str(rid) for rid in members])
        else:
            with contextlib.suppress(Closed, TimeoutError):
                parts.members.told(epoch, members)

    @ray.method(concurrency_group="control")
    def change_members(
        self, change_id: str, add: Sequence[int], remove: Sequence[int], version: int | None = None
    ) -> Reply:
        """One step of a change; repeat the call with the same id until it says DONE. ``version``: of the
        members that the caller has seen; if another version is in force, nothing is done."""
        return self._led(lambda parts: parts.members.change(change_id, add, remove, version))

    @ray.method(concurrency_group="control")
    def hand_over(self, to: int) -> Reply:
        """Make another voter the leader."""
        return self._led(lambda parts: parts.members.hand_over(to))

    @ray.method(concurrency_group="peer")
    def about(self) -> dict[str, Any]:
        """The fields of ClusterInfo, for clients that start while the supervisor is away; ``reconnect_s``:
        how long the processes of this node wait for Ray's lost head. Works from the first moment on."""
        return {**asdict(self._info), "reconnect_s": reconnect_s(os.environ)}

    # -------------------------------------------------------------- consumer groups

    @ray.method(concurrency_group="control")
    def group_join(
        self,
        group: str,
        member: str,
        topics: Sequence[str],
        session_timeout_s: float,
        owned: Sequence[tuple[str, int]] = (),
    ) -> Reply:
        return self._led(lambda parts: parts.groups.join(group, member, topics, session_timeout_s, owned))

    @ray.method(concurrency_group="control")
    def group_heartbeat(self, group: str, member: str, generation: int) -> Reply:
        return self._led(lambda parts: parts.groups.heartbeat(group, member, generation))

    @ray.method(concurrency_group="control")
    def group_leave(self, group: str, member: str) -> Reply:
        return self._led(lambda parts: parts.groups.leave(group, member))

    @ray.method(concurrency_group="settle")
    def commit_offsets(
        self, group: str, member: str, generation: int, offsets: Mapping[str, Mapping[int, int]]
    ) -> Reply:
        return self._led(lambda parts: parts.groups.commit(group, member, generation, offsets))

    @ray.method(concurrency_group="control")
    def group_list(self) -> Reply:
        return self._led(lambda parts: parts.groups.names())

    @ray.method(concurrency_group="control")
    def group_describe(self, group: str) -> Reply:
        return self._led(lambda parts: parts.groups.describe(group))

    # -------------------------------------------------------------- peers

    @ray.method(concurrency_group="peer")
    def raft_address(self) -> tuple[str, int]:
        return self._running().running.address

    @ray.method(concurrency_group="peer")
    def levels(self) -> LevelReport:
        parts = self._parts
        return LevelReport(LEVEL_MAX, 0) if parts is None else parts.running.levels()

    @ray.method(concurrency_group="peer")
    def peer_moved(self, rid: int, incarnation: int, disk_id: str) -> bool:
        """Replica ``rid`` now runs elsewhere: refuse its earlier incarnations from now on. False: this
        replica is not running; tell it again."""
        parts = self._parts
        if parts is None or str(rid) not in self._host.setup.peers:
            return False
        with contextlib.suppress(Closed, TimeoutError):
            parts.running.driver.peer_moved(str(rid), Incarnation(incarnation, disk_id[:DISK_ID_MAX]))
            return True
        return False

    @ray.method(concurrency_group="peer")
    def founded(self) -> bool:
        return self._host.founded()

    @ray.method(concurrency_group="peer")
    def checkpoint_manifest(self) -> Reply:
        return self._led(lambda parts: parts.offers.checkpoint_manifest())

    @ray.method(concurrency_group="peer")
    def never_voted(self, rid: int) -> Reply:
        """Called by a replica that starts empty and has a number above the founders'."""
        return self._led(lambda parts: parts.members.never_voted(rid))

    @ray.method(concurrency_group="peer")
    def checkpoint_read(self, name: str, pos: int, size: int) -> bytes:
        return self._running().offers.checkpoint_read(name, pos, size)

    @ray.method(concurrency_group="peer")
    def log_entries(self, first: int, last: int) -> bytes:
        return self._host.entries(first, last)

    @ray.method(concurrency_group="peer")
    def checkpoint_suspect(self, name: str, size: int) -> None:
        self._running().offers.checkpoint_suspect(name, size)

    @ray.method(concurrency_group="peer")
    def stop(self) -> None:
        """Hand over leadership, sync, close. The caller then ends the process."""
        if self._branches is not None:
            self._branches.close()
        self._host.close()


def start_broker(
    info: ClusterInfo,
    gid: int,
    rid: int,
    config: BrokerConfig,
    data_dir: str,
    listen_host: str,
    secret: bytes,
    tls: TlsFiles | None = None,
    *,
    incarnation: int = 0,
    founded: bool = False,
    members: Sequence[int] = (),
    **options: Any,
) -> Any:
    """Create the named, detached actor and return its handle; ``options`` add to or replace Ray's.

    It restarts for ever and never repeats a call: clients retry, with ids that the broker recognises.
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
        # These wait for the log: while it stands still, heartbeats and questions who leads must still work.
        "settle": config.produce_threads,
        "control": config.control_threads,
        "peer": 8,
    }
    remote: Any = ray.remote  # its type stubs lack concurrency_groups
    actor = remote(concurrency_groups=groups)(Broker).options(**settings)
    return actor.remote(
        *(pack_settings(info), gid, rid, pack_settings(config), data_dir, listen_host, secret),
        *(None if tls is None else pack_settings(tls), incarnation, founded, tuple(members)),
    )
