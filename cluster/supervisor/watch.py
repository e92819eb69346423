"""Observes Ray's nodes and the replicas' processes for the supervisor, and starts and ends such processes.

Every look has a time limit: all replicas are asked at once, and one that does not answer in time is silent,
not dead. Only Ray may say that an actor is gone for good, and only then is it created again: two processes
for one replica would compete for its directory.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from escrowmq.actors.broker.broker import start_broker
from escrowmq.actors.broker.config import BrokerConfig
from escrowmq.actors.client.topology import ClusterInfo, broker_name
from escrowmq.cluster.settings import HEAD_RESOURCE, SupervisorSettings
from escrowmq.cluster.supervisor.cluster_dir import Secret
from escrowmq.cluster.supervisor.member_steps import Condition, Node, ReplicaStart, Seat, Seen, unique_names
from escrowmq.replication.calling.answers import MembersReport, ReplicaReport
from escrowmq.replication.calling.patience import Backoff
from escrowmq.replication.net.tls import TlsFiles

log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 1.0
#: Time for a removed replica to end: it has no leadership to hand over and only syncs and closes.
END_S = 2.0
#: A request to a process that died and came back is never answered, so it is repeated after this time.
ASK_AGAIN_S = 5.0
#: Ray's errors for an actor that will not come back by itself.
_GONE = (ray.exceptions.ActorDiedError, ray.exceptions.ActorUnschedulableError)
_TYPED = re.compile(r"escrowmq\.replication\.errors\.(\w+): (.*)")


@dataclass(frozen=True, slots=True)
class StartFailure:
    """Why a replica did not start: the name of the error's type, and its text."""

    type_name: str
    text: str


@dataclass(slots=True, eq=False)
class Track:
    """What the supervisor knows about one replica, over time."""

    seat: Seat
    handle: Any = None
    condition: Condition = Condition.GONE
    status: ReplicaReport | None = None
    failure: StartFailure | None = None
    starts: int = 0
    failed_starts: int = 0  # in a row
    retry_at: float = 0.0
    node_missing_since: float | None = None
    away_since: float | None = None  # its node is missing, its process does not answer, or it cannot start
    begun_at: float | None = None  # when its process was created, if it has not answered yet
    superseded_by: int | None = None
    question: Any = None
    asked_at: float = 0.0

    @property
    def votes(self) -> bool:
        """Whether it was last seen running as a full member, in the incarnation of its seat."""
        running = self.condition is Condition.RUNNING and self.status is not None
        return running and self.status is not None and self.status.incarnation == self.seat.incarnation

    @property
    def takes_part(self) -> bool:
        """Whether its process answers and has not failed to start."""
        starting = self.condition is Condition.STARTING and self.failure is None
        return starting or self.condition in (Condition.RUNNING, Condition.LEARNING)

    def note_presence(self, now: float, start_timeout_s: float) -> None:
        """Update ``away_since``; called after each look.

        A process that was created and has not answered yet counts as away only after ``start_timeout_s``: a
        cold node takes seconds to start one, and if a new replica were given up, the next one would be just
        as slow.
        """
        begins = self.begun_at is not None and now - self.begun_at < start_timeout_s
        if self.takes_part or (begins and self.failure is None and self.node_missing_since is None):
            self.away_since = None
        elif self.away_since is None:
            self.away_since = now

    def seen(self) -> Seen:
        """The input for ``member_steps.decide``."""
        return Seen(self.condition, self.node_missing_since, self.retry_at, self.superseded_by)


def live_nodes(only: str | None = None) -> list[Node]:
    """Ray's live nodes, sorted by name. ``only``: only the node with this id."""
    nodes = [
        Node(
            str(entry["NodeName"]),
            str(entry["NodeID"]),
            str(entry["NodeManagerAddress"]),
            head=HEAD_RESOURCE in entry["Resources"],
        )
        for entry in ray.nodes()  # type: ignore[no-untyped-call]
        if entry["Alive"] and only in (None, entry["NodeID"])
    ]
    return sorted(unique_names(nodes), key=lambda node: node.name)


@dataclass(frozen=True, slots=True)
class Watch:
    """Looks at replicas and starts them, for one cluster."""

    info: ClusterInfo
    broker: BrokerConfig
    settings: SupervisorSettings
    data_dir: Path
    secret: Secret
    #: Address for Raft links instead of the node's, for replicas that are all on one machine.
    listen_host: str | None = None
    tls: TlsFiles | None = None

    def look(self, tracks: Sequence[Track], nodes: Sequence[Node]) -> None:
        """Ask every replica for its status, and record the results."""
        now = time.monotonic()
        names = {node.name for node in nodes}
        for track in tracks:
            if track.seat.node in names:
                track.node_missing_since = None
            elif track.node_missing_since is None:
                track.node_missing_since = now
            self._ask(track, now)
        asked = [track.question for track in tracks if track.question is not None]
        if asked:
            ray.wait(asked, num_returns=len(asked), timeout=ANSWER_TIMEOUT_S, fetch_local=False)
        for track in tracks:
            self._note(track, now)
            track.note_presence(now, self.settings.start_timeout_s)

    def _ask(self, track: Track, now: float) -> None:
        if track.handle is None:
            name = broker_name(track.seat.gid, track.seat.rid)
            with contextlib.suppress(ValueError):  # there is none
                track.handle = ray.get_actor(name, namespace=self.info.namespace)
        if track.handle is None:
            track.condition, track.status = Condition.GONE, None
        elif track.question is None or now - track.asked_at > ASK_AGAIN_S:
            track.question, track.asked_at = track.handle.status.remote(), now

    def _note(self, track: Track, now: float) -> None:
        if track.question is None:
            return
        try:
            status: ReplicaReport = ray.get(track.question, timeout=0)
        except ray.exceptions.GetTimeoutError:
            track.condition = Condition.SILENT
            return
        except _GONE as error:
            self._lost(track, error, now)
        except ray.exceptions.RayError as error:  # it is being restarted, or the call failed
            track.condition = Condition.SILENT
            log.info("%s does not answer: %s", broker_name(*track.seat.key), first_line(error))
        else:
            track.status, track.condition, track.begun_at = status, condition_of(status), None
            starting = status.role == "starting"
            track.failure = failure_in(status.failure or "") if starting else None
            track.superseded_by = status.superseded_by
            if not starting:
                track.failed_starts = 0
        track.question = None

    def _lost(self, track: Track, error: BaseException, now: float) -> None:
        """Record that Ray has given up the actor: its node is dead, or its constructor raised."""
        track.handle, track.condition, track.status = None, Condition.GONE, None
        track.failure = failure_in(str(error))
        if track.failure is not None:
            retry = Backoff(self.settings.retry_min_s, self.settings.retry_max_s)
            track.retry_at = now + retry.pause_s(track.failed_starts)
            track.failed_starts += 1
            log.warning("%s cannot start: %s", broker_name(*track.seat.key), track.failure.text)

    def tell(self, track: Track, members: MembersReport) -> None:
        """Tell a replica that answers the members of its group."""
        if track.handle is None or track.condition is Condition.SILENT:
            return
        with contextlib.suppress(ray.exceptions.RayError):  # it has ended meanwhile
            track.handle.told.remote(members.version, list(members.all))

    def end(self, seat: Seat) -> None:
        """End the process of a removed replica, if there is one. Blocks for at most ``END_S``."""
        try:
            handle: Any = ray.get_actor(broker_name(seat.gid, seat.rid), namespace=self.info.namespace)
        except ValueError:  # it has already ended
            return
        ray.wait([handle.stop.remote()], num_returns=1, timeout=END_S)
        with contextlib.suppress(ray.exceptions.RayError):  # it has ended meanwhile
            ray.kill(handle, no_restart=True)

    def start(self, track: Track, start: ReplicaStart, founded: bool, members: Sequence[int] = ()) -> None:
        """Create the replica's process on its node, with hard affinity: its data are only there.

        ``founded``: its group has had a leader, so an empty directory means that data were lost. ``members``:
        the members of its group, as far as known.
        """
        seat, node = start.seat, start.node
        if start.replaces and track.handle is not None:
            with contextlib.suppress(ray.exceptions.RayError):  # it has ended meanwhile
                ray.kill(track.handle, no_restart=True)
        track.superseded_by = None
        track.seat, track.starts = seat, track.starts + 1
        directory = self.data_dir / seat.directory
        try:
            track.handle = start_broker(
                self.info,
                seat.gid,
                seat.rid,
                self.broker,
                str(directory),
                self.listen_host or node.ip,
                self.secret.reveal(),
                self.tls,
                incarnation=seat.incarnation,
                founded=founded,
                members=members,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False),
            )
        except ValueError:  # the name is still taken; the next look finds that actor
            track.handle, track.question, track.condition = None, None, Condition.GONE
            return
        track.condition, track.question = Condition.STARTING, None
        track.begun_at = time.monotonic()
        log.info("starting %s on node %s", broker_name(seat.gid, seat.rid), node.name)


def condition_of(status: ReplicaReport) -> Condition:
    """The condition that a replica's own report means."""
    if status.superseded_by is not None:
        return Condition.SUPERSEDED
    if status.role == "starting":
        return Condition.STARTING
    return Condition.LEARNING if status.learner else Condition.RUNNING


def failure_in(text: str) -> StartFailure | None:
    """The typed error in Ray's text about a failed constructor, or in an error's ``repr``."""
    found = _TYPED.findall(text)
    if found:
        return StartFailure(*found[-1])
    shown = re.match(r"(\w+)\((.*)\)", text, re.DOTALL)
    return StartFailure(shown[1], shown[2].strip("'\",")) if shown else None


def first_line(error: BaseException) -> str:
    """An error's text without Ray's stack traces."""
    return str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
