"""The Broker actor: one replica of one group as one named Ray actor. A thin shell over broker_calls.py.

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
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import ray

from escrowmq.actors.broker.branch_work import BranchWork
from escrowmq.actors.broker.broker_calls import BrokerCalls, marked
from escrowmq.actors.broker.config import BrokerConfig
from escrowmq.actors.broker.parts import Parts
from escrowmq.actors.broker.peers import RayPeers
from escrowmq.actors.client.head_patience import reconnect_s
from escrowmq.actors.client.topology import ClusterInfo, broker_name
from escrowmq.replication.calling.answers import LevelReport, ReplicaReport, Reply
from escrowmq.replication.calling.metrics_report import MetricsReport
from escrowmq.replication.carried_settings import pack_settings, unpack_settings
from escrowmq.replication.errors import Closed, Superseded, Unavailable
from escrowmq.replication.host.inspection import status_without_replica
from escrowmq.replication.host.replica_process import ReplicaProcess
from escrowmq.replication.host.replica_setup import ReplicaSetup
from escrowmq.replication.log.datadir import Identity
from escrowmq.replication.log.peer_marks import DISK_ID_MAX, Incarnation
from escrowmq.replication.log_lines import LogFormat, log_to_stderr
from escrowmq.replication.net.tls import TlsFiles
from escrowmq.replication.state.machine import LEVEL_MAX

log = logging.getLogger(__name__)

for _method, _group in marked(BrokerCalls):
    ray.method(concurrency_group=_group)(_method)


class Broker(BrokerCalls):
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
        super().__init__()
        self._gid, self._rid = gid, rid
        settings = unpack_settings(BrokerConfig, config, self._report)
        if settings.log_format == LogFormat.json:
            log_to_stderr(LogFormat.json, self._as_logged)
        self._info = info = unpack_settings(ClusterInfo, info, self._report)
        peers = RayPeers(info, gid)
        self._branches: BranchWork | None = None
        self._host = ReplicaProcess(
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
            self._host.announce(lambda peer, own: self._peers.tell_moved(peer, self._rid, own), stay=True)

    def _not_open(self) -> Unavailable:
        return self._host.unavailable()

    # -------------------------------------------------------------- control

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
    def told(self, epoch: int, members: Sequence[int]) -> None:
        """The supervisor knows of members that this replica may not know yet. Works from the first moment
        on: a replica that is being opened may need them."""
        parts = self._parts
        if parts is None:
            self._host.setup.peers.tell(epoch, [str(rid) for rid in members])
        else:
            with contextlib.suppress(Closed, TimeoutError):
                parts.members.told(epoch, members)

    @ray.method(concurrency_group="peer")
    def about(self) -> dict[str, Any]:
        """The fields of ClusterInfo, for clients that start while the supervisor is away; ``reconnect_s``:
        how long the processes of this node wait for Ray's lost head. Works from the first moment on."""
        return {**asdict(self._info), "reconnect_s": reconnect_s(os.environ)}

    # -------------------------------------------------------------- peers

    @ray.method(concurrency_group="peer")
    def raft_address(self) -> tuple[str, int]:
        return self._running().running.address

    @ray.method(concurrency_group="peer")
    def levels(self) -> LevelReport:
        parts = self._parts
        return LevelReport(LEVEL_MAX, 0) if parts is None else parts.running.levels()

    @ray.method(concurrency_group="peer")
    def peer_moved(self, rid: int, incarnation: int, disk_id: str) -> tuple[int, str] | None:
        """Replica ``rid`` now runs elsewhere: refuse its earlier incarnations from now on. Returns which one
        is recorded; None: this replica is not running, tell it again."""
        parts = self._parts
        if parts is None or str(rid) not in self._host.setup.peers:
            return None
        with contextlib.suppress(Closed, TimeoutError):
            moved = Incarnation(incarnation, disk_id[:DISK_ID_MAX])
            return parts.running.driver.peer_moved(str(rid), moved)
        return None

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
        "share": config.share_threads,
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
