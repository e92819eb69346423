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
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import ray

from escrowmq.actors.broker.broker_calls import BrokerCalls, marked
from escrowmq.actors.broker.config import BrokerConfig
from escrowmq.actors.broker.parts import Parts
from escrowmq.actors.client.replica_calls import ReplicaCalls
from escrowmq.actors.client.router import Router
from escrowmq.actors.client.topology import SUPERVISOR, ClusterInfo, broker_name, reconnect_s
from escrowmq.replication.calling.answers import LevelReport, ReplicaReport, Reply
from escrowmq.replication.calling.metrics_report import MetricsReport
from escrowmq.replication.carried_settings import pack_settings, unpack_settings
from escrowmq.replication.errors import Closed, Overloaded, Superseded, Unavailable
from escrowmq.replication.host.inspection import status_without_replica
from escrowmq.replication.host.repair import Manifest
from escrowmq.replication.host.replica_process import ReplicaProcess
from escrowmq.replication.host.replica_setup import ReplicaSetup
from escrowmq.replication.host.running_replica import RunningReplica
from escrowmq.replication.log.datadir import Identity
from escrowmq.replication.log.peer_marks import DISK_ID_MAX, Incarnation
from escrowmq.replication.log_lines import LogFormat, log_to_stderr
from escrowmq.replication.net.tls import TlsFiles
from escrowmq.replication.replica.branches import Branches
from escrowmq.replication.replica.validation import parse_request
from escrowmq.replication.state.machine import LEVEL_MAX, Result

# ------------------------------------------------------------------------------------------------------------
# Makes a broker bring transactions over several groups to their end: the shell around replica/branches.py.
#
# A router of its own, with its one thread, calls the other groups; all decisions are made in the replica's
# thread. While nothing waits, it only checks every STEP_S whether there is work, without disturbing the
# leader.

#: Pause between two checks of a leader, and of a follower, for which it only has to notice that it leads.
STEP_S, IDLE_S = 0.05, 0.25
#: Time for one call to another group, through its fail-overs; after it come a pause and then a new call.
CALL_S = 10.0


class BranchWork:
    """For one running replica, from its start to ``close``. See the module's docstring."""

    def __init__(
        self,
        running: RunningReplica,
        info: ClusterInfo,
        *,
        report: Callable[[str], None],
        calls: ReplicaCalls | None = None,
    ) -> None:
        """``calls``: how replicas are reached; None: by Ray."""
        self._running = running
        self.branches = Branches(running.replica.state, self, report)
        self._led = False
        self._next = 0.0
        name = f"escrowmq-branches-{running.gid}-{running.rid}"
        self._router = Router(info, calls=calls, clock=time.monotonic, name=name)
        self._router.attach(self)

    def close(self) -> None:
        """End all calls. Unfinished work is left to the next leader."""
        self._router.close()

    # ------------------------------------------------------------ the router's thread

    def pump(self, now: float) -> float:
        """See :class:`escrowmq.actors.client.client_loop.Source`."""
        if now >= self._next:
            leads = self._running.node.ready and not self._running.closed
            self._next = now + (STEP_S if leads else IDLE_S)
            if leads != self._led or (leads and self.branches.has_work()):
                self._led = leads
                self._soon(self._step)
        return self._next

    def stopped(self, detail: str) -> None:
        """See :class:`escrowmq.actors.client.client_loop.Source`."""

    def _soon(self, work: Callable[[], None]) -> None:
        try:
            self._running.driver.submit(work)
        except (Overloaded, Closed):  # the next step finds the work again
            return

    # ------------------------------------------------------------ the replica's thread

    def _step(self) -> None:
        if self._running.node.ready:
            self.branches.step(self._running.now_ms())
        else:
            self.branches.resign()

    def call(self, gid: int, method: str, args: tuple[Any, ...], done: Callable[[Any], None]) -> None:
        """See :class:`escrowmq.replication.replica.branches.Links`."""

        def answered(future: Future[Any]) -> None:
            answer = None if future.exception() is not None else future.result()
            self._running.later(lambda: done(answer if type(answer) is list else None))

        try:
            future = self._router.leader_call(gid, method, *args, timeout_s=CALL_S)
        except Closed:
            return
        future.add_done_callback(answered)

    def write(self, request: bytes, done: Callable[[Sequence[Result] | None], None]) -> None:
        """See :class:`escrowmq.replication.replica.branches.Links`."""
        ops = parse_request(request, from_broker=True)
        self._running.replica.submit(request, ops, lambda reply: done(reply[1] if reply[0] == "ok" else None))


# ------------------------------------------------------------------------------------------------------------
# A broker's calls to other replicas through Ray: addresses and files of its own group, levels of all groups.
#
# They are rare: to dial a Raft link, to copy a checkpoint. Any failure means "no answer now", and the caller
# asks again.

#: A peer that is alive answers in milliseconds; Ray reports a dead one only after seconds.
ASK_S = 2.0
COPY_S = 30.0


class RayPeers:
    """The other replicas of one group. Any thread; blocks for a bounded time."""

    def __init__(self, info: ClusterInfo, gid: int) -> None:
        self._info, self._gid = info, gid
        self._ahead: tuple[tuple[str, str, int], Any] | None = None

    def _ask(self, peer: str, method: str, *args: Any, timeout_s: float = ASK_S) -> Any:
        try:
            actor = ray.get_actor(broker_name(self._gid, int(peer)), namespace=self._info.namespace)
            return ray.get(getattr(actor, method).remote(*args), timeout=timeout_s)
        except (ValueError, ray.exceptions.RayError, ray.exceptions.GetTimeoutError, Unavailable):
            return None  # not created yet, dead, restarting, or busy

    def resolve(self, peer: str) -> tuple[str, int] | None:
        """The address of the peer's Raft link."""
        address: tuple[str, int] | None = self._ask(peer, "raft_address")
        return address

    def tell_moved(self, peer: str, rid: int, own: Incarnation) -> Incarnation | None:
        """Tell the peer that replica ``rid`` is now this process; returns which one it has recorded."""
        answer = self._ask(peer, "peer_moved", rid, own.number, own.disk_id)
        return None if answer is None else Incarnation(*answer)

    def group_founded(self) -> bool | None:
        """Whether the supervisor knows that this group has had a leader; None: no answer."""
        try:
            supervisor: Any = ray.get_actor(SUPERVISOR, namespace=self._info.namespace)
            answer: bool | None = ray.get(supervisor.group_founded.remote(self._gid), timeout=ASK_S)
            return answer
        except (ValueError, ray.exceptions.RayError, ray.exceptions.GetTimeoutError):
            return None

    def founded(self, peer: str) -> bool | None:
        """Whether the peer's log has any history."""
        answer: bool | None = self._ask(peer, "founded")
        return answer

    def members(self) -> Iterable[int]:
        """The members of this group, by number, as the supervisor knows them; () if it does not answer."""
        return self._seated().get(self._gid, ())

    def _seated(self) -> Mapping[int, Sequence[int]]:
        """By group: the numbers of its replicas, as the supervisor has placed them; {}: no answer."""
        try:
            supervisor: Any = ray.get_actor(SUPERVISOR, namespace=self._info.namespace)
            found: Mapping[int, Sequence[int]] = ray.get(supervisor.seated.remote(), timeout=ASK_S)
            return found
        except (ValueError, ray.exceptions.RayError, ray.exceptions.GetTimeoutError):
            return {}

    def levels(self, own_group: Sequence[int]) -> dict[tuple[int, int], LevelReport | None]:
        """The format level of every replica of every group; None: no answer.
        ``own_group``: this group's members; the supervisor knows those of the other groups. Until it answers,
        those groups count as not answering, because the founders may be only some of the members."""
        seated = self._seated() if self._info.groups > 1 else {}
        members = {**seated, self._gid: own_group}
        unknown = [gid for gid in range(self._info.groups) if not members.get(gid)]
        members |= {gid: range(self._info.replicas) for gid in unknown}
        calls = {
            (gid, rid): None if gid in unknown else self._ask_level(gid, rid)
            for gid, rids in members.items()
            for rid in rids
        }
        under_way = [call for call in calls.values() if call is not None]
        if under_way:
            ray.wait(under_way, num_returns=len(under_way), timeout=ASK_S)
        return {key: None if call is None else _answered(call) for key, call in calls.items()}

    def _ask_level(self, gid: int, rid: int) -> Any | None:
        try:
            return ray.get_actor(broker_name(gid, rid), namespace=self._info.namespace).levels.remote()
        except (ValueError, ray.exceptions.RayError):
            return None  # not created yet

    def manifest(self, peer: str) -> Manifest | None:
        """The peer's offer, if it is the leader."""
        status, *rest = self._ask(peer, "checkpoint_manifest") or ("gone",)
        return rest[0] if status == "ok" else None

    def never_voted(self, peer: str, rid: int) -> bool | None:
        """Whether replica ``rid`` never voted, according to the peer if it certainly leads."""
        try:
            actor: Any = ray.get_actor(broker_name(self._gid, int(peer)), namespace=self._info.namespace)
            status, *rest = ray.get(actor.never_voted.remote(rid), timeout=ASK_S)
        except (ValueError, ray.exceptions.RayError, ray.exceptions.GetTimeoutError, Unavailable):
            return None
        return bool(rest[0]) if status == "ok" else None

    def read(self, peer: str, name: str, pos: int, size: int) -> bytes:
        """Part of a file; raises Unavailable when the peer does not answer.

        The part after it is requested at once, so that the peer reads it while the caller writes this one.
        At most one part is ahead: a copy holds two in memory, whatever the size of the log.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] == (peer, name, pos):
            call = ahead[1]
        else:
            call = self._start_read(peer, name, pos, size)
        following = (peer, name, pos + size)
        started = self._start_read(*following, size)
        try:
            part: bytes = ray.get(call, timeout=COPY_S)
        except (ray.exceptions.RayError, ray.exceptions.GetTimeoutError, Unavailable) as error:
            raise self._no_answer(peer) from error
        self._ahead = following, started
        return part[:size]

    def _start_read(self, peer: str, name: str, pos: int, size: int) -> Any:
        try:
            actor: Any = ray.get_actor(broker_name(self._gid, int(peer)), namespace=self._info.namespace)
            return actor.checkpoint_read.remote(name, pos, size)
        except (ValueError, ray.exceptions.RayError) as error:
            raise self._no_answer(peer) from error

    def _no_answer(self, peer: str) -> Unavailable:
        return Unavailable(f"replica {peer} of group {self._gid} does not answer", 1.0)

    def suspect(self, peer: str, name: str, size: int) -> None:
        """Our copy of a file that the peer offers is damaged; the peer checks its own."""
        self._ask(peer, "checkpoint_suspect", name, size, timeout_s=COPY_S)

    def entries(self, peer: str, first: int, last: int) -> bytes | None:
        """Entries of the peer's log, as far as it has them."""
        answer: bytes | None = self._ask(peer, "log_entries", first, last, timeout_s=COPY_S)
        return answer


def _answered(call: Any) -> LevelReport | None:
    try:
        report: LevelReport = ray.get(call, timeout=0)
        return report
    except (ray.exceptions.RayError, ray.exceptions.GetTimeoutError):
        return None


log = logging.getLogger(__name__)

for _method, _group in marked(BrokerCalls):
    ray.method(concurrency_group=_group)(_method)


class Broker(BrokerCalls):
    """See the module's docstring. One instance per process."""

    def __init__(
        self,
        info: bytes,
        gid: int,
        rid: int,
        config: bytes,
        data_dir: str,
        listen_host: str,
        secret: bytes,
        tls: bytes | None = None,
        incarnation: int = 0,
        founded: bool = False,
        members: Sequence[int] = (),
    ) -> None:
        """``info``, ``config``, ``tls``: see ``pack_settings``. ``data_dir``: this replica's own.
        ``incarnation``: how often it was replaced before. ``founded``: whether the group has had a leader.
        ``members``: the group's members, if they are not the founders. Raises DataDirLocked, DataDirMismatch,
        UnknownVersion."""
        # The tables are long-lived tuples without cycles. Collections must be rare: with a million open
        # transactions a full one would stop the replica for as long as an election takes.
        gc.set_threshold(200_000, 50, 1_000)
        super().__init__()
        self._gid, self._rid = gid, rid
        settings = unpack_settings(BrokerConfig, config, self._report)
        if settings.log_format == LogFormat.json:
            log_to_stderr(LogFormat.json, self._as_logged)
        self._info = unpack_settings(ClusterInfo, info, self._report)
        peers = RayPeers(self._info, gid)
        self._branches: BranchWork | None = None
        self._host = ReplicaProcess(
            ReplicaSetup(
                config=settings,
                identity=Identity(self._info.cluster_id, gid, rid, incarnation),
                groups=self._info.groups,
                founders=self._info.replicas,
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
        parts = self.parts
        term = {} if parts is None else {"term": parts.running.node.term}
        return {"group": self._gid, "replica": self._rid, **term}

    def _open(self) -> None:
        while True:
            try:
                parts = Parts(self._host.open())
                if self._info.groups > 1:
                    self._branches = BranchWork(parts.running, self._info, report=self._report)
                self.parts = parts
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
        parts = self.parts
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
        parts = self.parts
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
        parts = self.parts
        return LevelReport(LEVEL_MAX, 0) if parts is None else parts.running.levels()

    @ray.method(concurrency_group="peer")
    def peer_moved(self, rid: int, incarnation: int, disk_id: str) -> tuple[int, str] | None:
        """Replica ``rid`` now runs elsewhere: refuse its earlier incarnations from now on. Returns which one
        is recorded; None: this replica is not running, tell it again."""
        parts = self.parts
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
