"""The supervisor: one detached actor that founds the cluster, watches the replicas, and restarts them.

It has no part in the handling of messages: without it, brokers elect leaders and commit as before, and Ray
still restarts their processes. It is needed when nodes go away and come back. Its own state is a small file
(cluster_dir), so it can be restarted at any time. Its decisions are pure functions (member_steps).
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import ray
from ray._private.authentication.authentication_utils import is_token_auth_enabled

from escrowmq.actors.broker.broker import Broker  # noqa: F401  (workers then have it imported before brokers start)
from escrowmq.actors.broker.config import BrokerConfig
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.cluster.address import current_address
from escrowmq.cluster.driver import DriverProcess, DriverWatch, end_cluster
from escrowmq.cluster.settings import ClusterSettings, SupervisorSettings, head_of
from escrowmq.cluster.supervisor.cluster_dir import ClusterDir, Secret
from escrowmq.cluster.supervisor.desired_state_checks import NodeUse, wanted_move, wanted_node, wanted_size
from escrowmq.cluster.supervisor.member_keeper import MemberKeeper
from escrowmq.cluster.supervisor.member_steps import Condition, Node, ReplicaKey, decide, found_seats
from escrowmq.cluster.supervisor.reading_server import SupervisedCluster, SupervisorReading
from escrowmq.cluster.supervisor.stale_replica_dirs import (
    adopted,
    leftovers,
    refuse_existing,
    remove_all,
    removed_replicas,
    survey,
)
from escrowmq.cluster.supervisor.watch import StartFailure, Track, Watch, live_nodes
from escrowmq.replication.calling.answers import MembersReport, ReplicaReport
from escrowmq.replication.calling.patience import Backoff, Patience, patiently
from escrowmq.replication.carried_settings import by_name, from_names, names_of, passed_over, unpack_names
from escrowmq.replication.errors import DataDirLocked, EscrowMQError, Unavailable
from escrowmq.replication.log_lines import LogFormat, log_to_stderr
from escrowmq.replication.net.tls import TlsFiles

# ------------------------------------------------------------------------------------------------------------
# How the supervisor interprets the member configurations that replicas report. Pure.
#
# The log decides who the members are. Each replica reports the newest configuration in its own log, which may
# be uncommitted and may still be truncated. So a decision that must be safe has to be safe under each of the
# configurations that may be in force.


def newest(reports: Iterable[ReplicaReport | None]) -> dict[int, MembersReport]:
    """By group: the newest configuration that any of its replicas has applied. Silent groups are left out."""
    found: dict[int, MembersReport] = {}
    for gid, members in _told(reports):
        if members.applied and (gid not in found or members.version > found[gid].version):
            found[gid] = members
    return found


def possible_voters(reports: Iterable[ReplicaReport | None]) -> dict[int, list[frozenset[int]]]:
    """By group: the voters of each configuration that may be in force."""
    told = list(reports)
    applied = newest(told)
    found: dict[int, list[frozenset[int]]] = {}
    for gid, members in _told(told):
        old = gid in applied and members.version <= applied[gid].version
        # Of two configurations with the same version, the one that was not applied was truncated, even if a
        # replica still reports it.
        voters = frozenset(applied[gid].voters if old else members.voters)
        if voters and voters not in found.setdefault(gid, []):
            found[gid].append(voters)
    return found


def to_be_told(report: ReplicaReport | None, known: MembersReport | None) -> bool:
    """Whether a replica with this report may not know the current members and has to be told.

    In a group whose members never changed there is nothing to tell.
    """
    if known is None or not known.change_id:
        return False
    return report is None or report.members is None or report.members.version < known.version


def _told(reports: Iterable[ReplicaReport | None]) -> list[tuple[int, MembersReport]]:
    return [(r.gid, r.members) for r in reports if r is not None and r.members is not None]


log = logging.getLogger(__name__)

#: Pause between looks while replicas are starting, when their state changes often.
BUSY_PAUSE_S = 0.1
#: Pause between looks while members change: each look takes one step, and catching up takes many.
CHANGING_PAUSE_S = 0.3
#: A restarted process may find its directory locked by its dying predecessor for this long.
LOCK_PATIENCE_S = 5.0
LOCK_RETRY = Backoff(first_s=0.1, longest_s=0.1)
#: Errors that waiting will not resolve.
_REFUSALS = ("DataDirMismatch", "UnknownVersion", "ConfigError", "NotAuthorized")


@by_name
@dataclass(frozen=True, slots=True)
class SupervisorPlan:
    """What the supervisor has to run. ``here_only``: all replicas on its own node, on the loopback interface.
    ``driver``: the program with which the cluster ends."""

    shape: ClusterSettings
    data_dir: Path
    secret: Secret | None
    broker: BrokerConfig
    settings: SupervisorSettings
    here_only: bool = False
    adopt: bool = False
    tls: TlsFiles | None = None
    driver: DriverProcess | None = None

    def packed(self) -> bytes:
        """The plan as it is sent to the supervisor."""
        names = names_of(replace(self, secret=None))
        secret = None if self.secret is None else self.secret.reveal()
        return msgspec.msgpack.encode({**names, "secret": secret})


def unpacked(plan: bytes) -> SupervisorPlan:
    """Inverse of ``packed``."""
    names = unpack_names(plan)
    if unknown := passed_over(SupervisorPlan, names):
        log.warning("the plan is of a newer version: ignoring %s", ", ".join(unknown))
    return from_names(SupervisorPlan, names)


def settings_in(plan: SupervisorPlan) -> dict[str, dict[str, Any]]:
    """The settings of a cluster by section and name, for comparison. The secret is left out."""
    tls = plan.tls
    return {
        "cluster": names_of(plan.shape),
        "storage": {"data_dir": str(plan.data_dir)},
        "security": {
            "tls_cert_file": None if tls is None else str(tls.cert),
            "tls_key_file": None if tls is None else str(tls.key),
            "tls_ca_file": None if tls is None else str(tls.ca),
        },
        "supervisor": names_of(plan.settings),
        "broker": names_of(plan.broker),
    }


class Supervisor:
    """See the module's docstring. The constructor starts it; ``open()`` says whether that succeeded."""

    def __init__(self, plan: bytes) -> None:
        self._plan = unpacked(plan)
        if self._plan.broker.log_format == LogFormat.json:
            log_to_stderr(LogFormat.json, lambda: {"process": "supervisor"})
        self._here = ray.get_runtime_context().get_node_id()
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._tracks: dict[ReplicaKey, Track] = {}
        self._nodes: list[Node] = []
        self._members: dict[int, MembersReport] = {}  # by group: the newest seen so far
        self._dir: ClusterDir | None = None
        self._watch: Watch | None = None
        self._keeper: MemberKeeper | None = None
        self._problem: StartFailure | None = None
        self._driver_watch: DriverWatch | None = None
        self._reading = SupervisorReading()
        self._opened_at = time.monotonic()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="supervise", daemon=True)
        #: Why the directory could not be opened. Kept for ``open``: through Ray, an error raised by a
        #: constructor loses its type.
        self._refused: EscrowMQError | None = None
        try:  # here and not in a method: after a restart by Ray, no method is called
            self._open()
        except EscrowMQError as error:
            self._refused = error

    # -------------------------------------------------------------- calls

    def open(self) -> dict[str, Any]:
        """Returns ``about``; raises the error of ClusterDir, if there was one."""
        if self._refused is not None:
            raise self._refused
        return self.about()

    def about(self) -> dict[str, Any]:
        """The fields of ClusterInfo."""
        if self._dir is None:
            raise Unavailable("the supervisor is starting", 0.5)
        record = self._dir.record
        shape = {name: getattr(record, name) for name in ("cluster_id", "namespace", "groups", "replicas")}
        return {**shape, "log_format": self._plan.broker.log_format}

    def settings(self) -> dict[str, Any]:
        """The settings of the cluster (``settings_in``), and its secret's fingerprint. Raises Unavailable."""
        if self._dir is None:
            raise Unavailable("the supervisor is starting", 0.5)
        return {**settings_in(self._plan), "secret_fingerprint": self._dir.record.secret_fingerprint}

    def health(self) -> dict[str, Any]:
        """Nodes and replicas as last seen, and the problem that prevents a start, if there is one."""
        with self._lock:
            return self._health()

    def group_founded(self, gid: int) -> bool | None:
        """Whether the group has ever had a leader; a replica with an empty directory asks this. None: this
        supervisor has not read it yet."""
        return None if self._dir is None else gid in self._dir.record.founded

    def members_of(self, gid: int) -> MembersReport | None:
        """The newest configuration of a group's members seen so far; None: not known yet. Clients that find
        no leader ask this."""
        return self._members.get(gid)

    def seated(self) -> dict[int, list[int]]:
        """By group: the numbers of its replicas. Empty until the cluster is founded."""
        seats = {} if self._dir is None else self._dir.record.seats
        return {gid: [rid for of, rid in seats if of == gid] for gid, _ in seats}

    def leftovers(self, remove: bool = False) -> list[dict[str, Any]]:
        """Directories of replaced replicas on the nodes that are up: the fields of ``StaleReplicaDir``.

        ``remove``: first remove those that may be removed. Raises Unavailable.
        """
        if self._dir is None:
            raise Unavailable("the supervisor is starting", 0.5)
        with self._lock:
            nodes = list(self._nodes)
            seats = {key: track.seat for key, track in self._tracks.items()}
            voting = {key for key, track in self._tracks.items() if track.votes}
        record, data_dir = self._dir.record, self._plan.data_dir
        finds = survey(data_dir, nodes, self._here, half_removed=True)
        removed = removed_replicas(finds, self._members, voting)
        found = leftovers(finds, record.cluster_id, seats, voting, removed)
        if remove:
            found = remove_all(found, data_dir, record.cluster_id, nodes)
        return [asdict(one) for one in found]

    # -------------------------------------------------------------- calls that change what is wanted

    def set_replicas(self, gid: int, replicas: int) -> None:
        """Set a group's wanted number of voters. Recorded on return. Raises ConfigError, Unavailable."""
        self._kept().wish(lambda record: wanted_size(record, gid, replicas))

    def move_replica(self, gid: int, rid: int, node: str) -> None:
        """Request the replacement of a voter by a new replica on ``node``. Recorded on return. Raises
        ConfigError, Unavailable."""
        keeper, names = self._kept(), {node.name for node in self._nodes}
        keeper.wish(lambda record: wanted_move(record, keeper.groups(), names, gid, rid, node))

    def set_node(self, node: str, use: str, force: bool = False) -> None:
        """Set the use of a node (``NodeUse``). Recorded on return. Raises ConfigError, Unavailable."""
        keeper, names, wanted = self._kept(), {node.name for node in self._nodes}, NodeUse(use)
        keeper.wish(lambda record: wanted_node(record, keeper.groups(), names, node, wanted, force=force))

    def changes(self) -> list[dict[str, Any]]:
        """An entry for each group whose replicas are not as wanted. Raises Unavailable."""
        return self._kept().changes(self._nodes)

    def node_uses(self) -> list[dict[str, Any]]:
        """An entry for each node: its wanted use, its replicas and leaders. Raises Unavailable."""
        return self._kept().node_uses(self._nodes)

    def rebalance(self, apply: bool) -> list[dict[str, Any]]:
        """The moves that would spread replicas and leaders better (``Shift``). Raises Unavailable. ``apply``:
        these moves are wanted from now on."""
        return self._kept().rebalance(self._nodes, apply)

    def _kept(self) -> MemberKeeper:
        if self._keeper is None:
            raise Unavailable("the cluster is starting", 0.5)
        return self._keeper

    def wait_ready(self, timeout_s: float) -> dict[str, Any]:
        """Wait until all replicas run and all groups have a leader, a start is refused, or time is up;
        returns ``health``."""
        deadline = time.monotonic() + timeout_s
        with self._news:
            while True:
                health = self._health()
                left = deadline - time.monotonic()
                if health["ready"] or health["refusal"] or left <= 0 or self._stopping.is_set():
                    return health
                self._news.wait(min(left, 1.0))

    def shut_down(self) -> None:
        """Stop all brokers gracefully and end their processes; only the supervisor's own process is left."""
        self._stopping.set()
        if self._driver_watch is not None:
            self._driver_watch.close()
        if self._thread.is_alive():
            self._thread.join(self._plan.settings.check_every_s + 30.0)
        self._reading.close()
        with self._lock:
            tracks = [track for track in self._tracks.values() if track.handle is not None]
            # Followers first, then leaders: a stopping leader looks for a successor, and must not choose one
            # that is about to stop.
            leading = [track.handle for track in tracks if track.status and track.status.role == "leader"]
            following = [track.handle for track in tracks if track.handle not in leading]
            for handles in (following, leading):
                stops = [handle.stop.remote() for handle in handles]
                if stops:
                    ray.wait(stops, num_returns=len(stops), timeout=self._plan.settings.stop_timeout_s)
            for track in tracks:
                with contextlib.suppress(Exception):  # it has already ended
                    ray.kill(track.handle, no_restart=True)
            if self._dir is not None:
                self._dir.close()

    # -------------------------------------------------------------- the loop

    def _open(self) -> None:
        """Lock the data directory and start the supervisor's thread."""
        if (driver := self._plan.driver) is not None:
            plan = self._plan
            self._driver_watch = DriverWatch(
                driver, lambda: end_cluster(driver, plan.shape.namespace, plan.data_dir, self.shut_down)
            )
        self._dir = _open_dir(self._plan)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._pass()
                self._problem = None
            except Exception as error:
                log.warning("a look at the cluster failed and will be repeated: %s", error)
                self._problem = StartFailure(type(error).__name__, str(error))
            with self._news:
                self._news.notify_all()
                busy = not self._tracks or any(
                    t.condition is not Condition.RUNNING for t in self._tracks.values()
                )
            check_every_s = self._plan.settings.check_every_s
            busy = busy and time.monotonic() - self._opened_at < self._plan.settings.start_timeout_s
            changing = self._keeper is not None and self._keeper.busy
            pause_s = BUSY_PAUSE_S if busy else CHANGING_PAUSE_S if changing else check_every_s
            self._stopping.wait(min(pause_s, check_every_s))

    def _pass(self) -> None:
        assert self._dir is not None
        nodes = live_nodes(only=self._here if self._plan.here_only else None)
        with self._lock:
            self._nodes = nodes
        if not self._dir.record.seats and not self._found(nodes):
            return
        watch = self._watch = self._watch or self._begin_watch(self._dir)
        if not self._tracks:
            with self._lock:
                self._tracks = {key: Track(seat) for key, seat in self._dir.record.seats.items()}
        keeper = self._keeper = self._keeper or self._begin_keeping(self._dir, watch)
        # Without the lock: a look takes up to a second, and health() must not wait for it.
        watch.look(list(self._tracks.values()), nodes)
        self._note_founded(self._dir)
        seats = {key: track.seat for key, track in self._tracks.items()}
        seen = {key: track.seen() for key, track in self._tracks.items()}
        reports = [track.status for track in self._tracks.values()]
        self._tell_members(watch, newest(reports))
        voters = possible_voters(reports)
        late_s = self._plan.settings.replace_after_s
        wishes = self._dir.record.wishes
        away = [key for key, seat in seats.items() if seat.node in wishes.maintained]  # they will be back
        seen |= {key: replace(seen[key], node_missing_since=None) for key in away}
        closed = {*wishes.drained, *wishes.maintained}
        for start in decide(seats, seen, nodes, time.monotonic(), late_s, voters, closed):
            if self._stopping.is_set():
                return
            if start.moved:
                why = "its peers refuse its process there" if start.replaces else "its node stays away"
                log.warning(
                    "replica %s starts empty on node %s, as incarnation %d: %s",
                    start.seat.key,
                    start.node.name,
                    start.seat.incarnation,
                    why,
                )
                self._dir.change(lambda record, seat=start.seat: record.with_seats([seat]))  # type: ignore[misc]
            founded = start.seat.has_a_group(self._dir.record.founded)
            known = self._members.get(start.seat.gid)
            watch.start(self._tracks[start.seat.key], start, founded, () if known is None else known.all)
        keeper.turn(nodes)

    def _tell_members(self, watch: Watch, known: dict[int, MembersReport]) -> None:
        """Tell replicas that were away, or are being repaired, the current members."""
        for gid, members in known.items():
            before = self._members.get(gid)
            if before is None or members.version > before.version:
                self._members[gid] = members
        for track in self._tracks.values():
            there = self._members.get(track.seat.gid)
            if there is not None and to_be_told(track.status, there):
                watch.tell(track, there)

    def _note_founded(self, directory: ClusterDir) -> None:
        """Record permanently which groups have had a leader."""
        led = {track.seat.gid for track in self._tracks.values() if track.status and track.status.ready}
        if not led <= set(directory.record.founded):
            directory.change(lambda record: record.with_founded(led))

    def _found(self, nodes: list[Node]) -> bool:
        """Place the replicas of a new cluster, if enough nodes are up; False if not."""
        assert self._dir is not None
        plan, record = self._plan, self._dir.record
        if len(nodes) < plan.settings.nodes_min and not plan.here_only:
            return False
        finds = survey(plan.data_dir, nodes, self._here)
        if plan.adopt and finds:
            found = adopted(finds, record.groups, record.replicas)
            fingerprint = self._dir.secret.fingerprint(found.cluster_id)
            seats, wishes = found.seats, record.wishes
            for gid, size in found.sizes.items():
                wishes = wishes.with_size(gid, size)
            record = replace(record, cluster_id=found.cluster_id, secret_fingerprint=fingerprint)
            record = replace(record, retired=tuple(found.retired), wishes=wishes)
            record = record.with_founded(range(record.groups))
        else:
            refuse_existing(finds, plan.data_dir)
            seats = found_seats(record.groups, record.replicas, nodes)
        self._dir.keep(record.with_seats(seats))
        return True

    def _begin_watch(self, directory: ClusterDir) -> Watch:
        plan, record = self._plan, directory.record
        shape = record.cluster_id, record.namespace, record.groups, record.replicas
        info = ClusterInfo(*shape, plan.broker.log_format)
        seen = SupervisedCluster(info, current_address(), self.health)
        self._reading.begin(seen, with_token=is_token_auth_enabled())
        return Watch(
            info,
            plan.broker,
            plan.settings,
            plan.data_dir,
            directory.secret,
            listen_host="127.0.0.1" if plan.here_only else None,
            tls=plan.tls,
        )

    def _begin_keeping(self, directory: ClusterDir, watch: Watch) -> MemberKeeper:
        late_s = self._plan.settings.replace_after_s
        return MemberKeeper(directory, watch, self._tracks, self._lock, self._plan.data_dir, late_s)

    # -------------------------------------------------------------- answers

    def _health(self) -> dict[str, Any]:
        replicas = [_shown(track) for track in self._tracks.values()]
        led = {replica["group"] for replica in replicas if replica["ready"]}
        waited_for = [r for r in replicas if not self._comes(r["group"], r["replica"])]
        running = bool(replicas) and all(r["condition"] == Condition.RUNNING.value for r in waited_for)
        return {
            "ready": running and len(led) == self._plan.shape.groups,
            "groups_led": sorted(led),
            "founded": bool(replicas),
            "nodes": [asdict(node) for node in self._nodes],
            "nodes_min": self._plan.settings.nodes_min,
            "data_dir": str(self._plan.data_dir),
            "replicas": replicas,
            "refusal": self._refusal(),
            "member_problems": {} if self._keeper is None else self._keeper.problems(),
            # An embedded Ray ends with the program that started it: there is no head to lose.
            "head": None if self._plan.here_only else asdict(head_of(os.environ)),
            "problem": None if self._problem is None else asdict(self._problem),
        }

    def _comes(self, gid: int, rid: int) -> bool:
        """Whether a replica is known to have no vote: not yet, or no longer."""
        members = self._members.get(gid)
        return members is not None and rid not in members.voters

    def _refusal(self) -> dict[str, Any] | None:
        """An error that will not go away by itself; None if there is none."""
        failures = [track.failure for track in self._tracks.values() if track.failure is not None]
        if self._problem is not None:
            failures.append(self._problem)
        patience_over = time.monotonic() - self._opened_at > LOCK_PATIENCE_S
        for failure in failures:
            locked = failure.type_name == "DataDirLocked" and patience_over
            if failure.type_name in _REFUSALS or locked:
                return asdict(failure)
        return None


def _shown(track: Track) -> dict[str, Any]:
    status = track.status
    return {
        "group": track.seat.gid,
        "replica": track.seat.rid,
        "node": track.seat.node,
        "incarnation": track.seat.incarnation,
        "condition": track.condition.value,
        "node_missing": track.node_missing_since is not None,
        "ready": status is not None and status.ready and track.condition is Condition.RUNNING,
        "role": None if status is None else status.role,
        "pid": None if status is None else status.pid,
        "starts": track.starts,
        "failure": None if track.failure is None else asdict(track.failure),
    }


def _open_dir(plan: SupervisorPlan) -> ClusterDir:
    """Open the directory. A predecessor that was killed a moment ago may still hold the lock, so retry."""
    return patiently(
        lambda: ClusterDir(plan.data_dir, plan.shape, plan.secret),
        Patience(LOCK_PATIENCE_S / 2, LOCK_RETRY),
        DataDirLocked,
        clock=time.monotonic,
        sleep=time.sleep,
    )
