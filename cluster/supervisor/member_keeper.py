"""The supervisor's part in changes of members: keeps what is wanted, and carries out the steps.

At every look at the cluster, pure code (member_steps) decides afresh which step is next. If a step needs an
answer, the request is sent and its answer is read at a later look, so that nothing here blocks the
supervisor. Each group has at most one pending request. What must survive the supervisor is written to its
directory before it is done.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray

from escrowmq.cluster.supervisor.cluster_dir import ClusterDir, ClusterRecord
from escrowmq.cluster.supervisor.desired_state import DesiredState, Lead, Move
from escrowmq.cluster.supervisor.desired_state_checks import uses
from escrowmq.cluster.supervisor.member_steps import (
    ClusterNodes,
    Do,
    Group,
    MemberStep,
    Node,
    ReplicaKey,
    Seat,
    cluster_nodes,
    lead_done,
    lost_of,
    moves_done,
    next_steps,
    plan,
)
from escrowmq.cluster.supervisor.stale_replica_dirs import begin_removal
from escrowmq.cluster.supervisor.watch import Track, Watch, first_line
from escrowmq.replication.calling.answers import ReplicaReport
from escrowmq.replication.calling.patience import Backoff
from escrowmq.replication.raft.elections import room_to_lead

log = logging.getLogger(__name__)

#: A pending request is given up after this time. A leader answers within ten seconds (``STEP_WAIT_S``), but
#: removing a large directory takes longer.
ASK_AGAIN_S = 60.0
#: Most requests are answered at once. Waiting this long for the answer lets the next look see the result.
ANSWER_S = 0.2
#: While a leader hands over, it accepts no requests. So a leader whose successor does not take over is asked
#: again only after this time, and if a rebalance wants that successor, after twice as long each time.
LEAD_AGAIN = Backoff(first_s=10.0, longest_s=600.0)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A step whose result is not known yet."""

    step: MemberStep
    answer: Any
    since: float


class MemberKeeper:
    """Only the supervisor's thread calls ``turn``. ``tracks`` is changed under ``lock``."""

    def __init__(
        self,
        directory: ClusterDir,
        watch: Watch,
        tracks: dict[ReplicaKey, Track],
        lock: threading.Lock,
        data_dir: Path,
        patience_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[..., Any] = ray.wait,
        get: Callable[..., Any] = ray.get,
        remove: Callable[..., Any] = begin_removal,
    ) -> None:
        """``wait``, ``get``: as Ray's, for the answers of its actors and tasks. ``remove``: begins to remove
        the directory of a replica that is no more."""
        self._clock, self._wait, self._get, self._remove = clock, wait, get, remove
        self._directory, self._watch, self._tracks, self._lock = directory, watch, tracks, lock
        self._data_dir, self._patience_s = data_dir, patience_s
        self._asked: dict[int, _Asked] = {}
        self._problems: dict[int, str] = {}  # by group: why its last step failed
        self._waits: dict[int, str] = {}  # by group: why its leader postpones the next step
        self._said: dict[int, str] = {}
        self._lead_asked: dict[int, tuple[int, float]] = {}  # group -> (requested leader, when requested)
        self._lead_attempts: Counter[ReplicaKey] = Counter()  # handovers that began, to the wanted leader
        self.busy = False

    # ------------------------------------------------------------ what is seen
    def groups(self) -> list[Group]:
        """All groups, as wanted and as last seen. Thread-safe."""
        record = self._directory.record
        with self._lock:
            tracks = list(self._tracks.values())
        return [group_of_tracks(gid, record, tracks) for gid in range(record.groups)]

    def fleet(self, nodes: Sequence[Node], groups: Sequence[Group]) -> ClusterNodes:
        wishes = self._directory.record.wishes
        return cluster_nodes(nodes, groups, wishes.drained, wishes.maintained)

    def changes(self, nodes: Sequence[Node]) -> list[dict[str, Any]]:
        """For each group that is not as wanted: its present state, its next step, and any problem."""
        groups = self.groups()
        steps = next_steps(groups, self.fleet(nodes, groups), self._clock(), self._patience_s)
        by_gid = {group.gid: group for group in groups}
        return [
            {
                "group": step.gid,
                "wanted": by_gid[step.gid].wanted,
                "voters": _numbers(by_gid[step.gid], learners=False),
                "learners": _numbers(by_gid[step.gid], learners=True),
                "waits": step.do is Do.WAIT,
                "step": step.text + self._waits.get(step.gid, ""),
                "problem": self._problems.get(step.gid),
            }
            for step in steps
        ]

    def problems(self) -> dict[int, str]:
        """By group: why its next step fails. Thread-safe."""
        return dict(self._problems)

    def node_uses(self, nodes: Sequence[Node]) -> list[dict[str, Any]]:
        """For each node: its wanted use, whether it is up, and its replicas and leaders."""
        fleet = self.fleet(nodes, self.groups())
        return [
            {
                "node": node,
                "use": use.value,
                "there": node in fleet.alive,
                "head": node == fleet.head,
                "replicas": fleet.load.get(node, 0),
                "leaders": fleet.leads.get(node, 0),
            }
            for node, use in uses(self._directory.record.wishes, fleet.alive).items()
        ]

    def wish(self, made: Callable[[ClusterRecord], DesiredState]) -> None:
        """Store what is wanted from now on. Thread-safe. Raises what ``made`` raises."""
        self._directory.change(lambda record: replace(record, wishes=made(record)))
        self.busy = True  # so that the next look is soon

    def rebalance(self, nodes: Sequence[Node], apply: bool) -> list[dict[str, Any]]:
        """The replicas and leaders that would be better on other nodes.

        ``apply``: these moves are wanted from now on, until each has been done once. Thread-safe.
        """
        groups = self.groups()
        shifts = plan(groups, self.fleet(nodes, groups))
        if apply:
            moves = [Move(s.gid, s.rid, s.to_node) for s in shifts if not s.leads]
            leads = [Lead(s.gid, s.rid) for s in shifts if s.leads]
            self.wish(lambda record: record.wishes.with_moves(moves).with_leads(leads))
        return [
            {
                "group": shift.gid,
                "replica": shift.rid,
                "from_node": shift.from_node,
                "to_node": shift.to_node,
                "leads": shift.leads,
            }
            for shift in shifts
        ]

    # ------------------------------------------------------------ one look
    def turn(self, nodes: Sequence[Node]) -> None:
        """Read the results of the last steps, and start the next ones."""
        self._note_answers()  # first: they may have changed the record
        groups, now = self.groups(), self._clock()
        fleet = self.fleet(nodes, groups)
        for group in groups:
            self._forget_done(group, fleet, now)
        wanted = {(group.gid, group.lead) for group in groups}
        self._lead_attempts = Counter({key: n for key, n in self._lead_attempts.items() if key in wanted})
        steps = next_steps(groups, fleet, now, self._patience_s)
        self.busy = any(map(self._is_soon_done, steps))
        for step in steps:
            self._say(step)
            if step.do is not Do.WAIT and step.gid not in self._asked:
                self._carry_out(step, nodes)
        unfinished = {step.gid for step in steps}
        self._problems = {gid: text for gid, text in self._problems.items() if gid in unfinished}
        self._waits = {gid: text for gid, text in self._waits.items() if gid in unfinished}
        self._said = {gid: text for gid, text in self._said.items() if gid in unfinished}

    def _is_soon_done(self, step: MemberStep) -> bool:
        """Whether to look again soon. A replica that has not taken over more than once is left some time."""
        if step.do is Do.WAIT or step.gid in self._problems:
            return False
        return step.do is not Do.HAND_OVER or self._lead_attempts[step.gid, step.rid] < 2

    def _say(self, step: MemberStep) -> None:
        if self._said.get(step.gid) != step.text:
            self._said[step.gid] = step.text
            log.warning("group %d: %s", step.gid, step.text)

    def _carry_out(self, step: MemberStep, nodes: Sequence[Node]) -> None:
        key = step.gid, step.rid
        if step.do is Do.PLACE:
            seat = Seat(step.gid, step.rid, step.node)
            self._directory.change(lambda record: record.with_seats([seat]))
            with self._lock:
                self._tracks[key] = Track(seat)
        elif step.do is Do.RETIRE:
            seat = self._tracks[key].seat
            self._directory.change(lambda record: record.with_retired(key))
            with self._lock:
                del self._tracks[key]
            self._watch.end(seat)
        elif step.do is Do.CLEAR:
            (seat,) = (seat for seat in self._directory.record.retired if seat.key == key)
            self._watch.end(seat)  # again: the supervisor may have ended before it did this
            (node,) = (node for node in nodes if node.name == seat.node)
            cluster_id = self._directory.record.cluster_id
            self._ask(step, self._remove(self._data_dir, node, seat.gid, seat.rid, cluster_id))
        else:
            self._ask_leader(step)

    def _ask_leader(self, step: MemberStep) -> None:
        leader = _leader([track for track in self._tracks.values() if track.seat.gid == step.gid])
        if leader is None or leader.handle is None:
            return
        try:
            if step.do is Do.HAND_OVER:
                if not self._may_ask_to_lead(step):
                    return
                answer = leader.handle.hand_over.remote(step.rid)
            else:
                # The version makes a late request harmless: it does nothing once another step was taken.
                change = leader.handle.change_members
                answer = change.remote(step.text, step.add, step.remove, step.version)
        except ray.exceptions.RayError as error:  # it has ended
            self._problems[step.gid] = f"leader {leader.seat.rid} cannot do it: {first_line(error)}"
            return
        self._ask(step, answer)

    def _may_ask_to_lead(self, step: MemberStep) -> bool:
        rid, since = self._lead_asked.get(step.gid, (-1, 0.0))
        now = self._clock()
        again = max(self._lead_attempts[step.gid, step.rid] - 1, 0)
        if rid == step.rid and now - since < LEAD_AGAIN.pause_s(again):
            return False
        self._lead_asked[step.gid] = step.rid, now
        return True

    def _ask(self, step: MemberStep, answer: Any) -> None:
        self._asked[step.gid] = _Asked(step, answer, self._clock())
        self._wait([answer], num_returns=1, timeout=ANSWER_S)

    def _note_answers(self) -> None:
        for gid, asked in list(self._asked.items()):
            try:
                answer = self._get(asked.answer, timeout=0)
            except ray.exceptions.GetTimeoutError:
                if self._clock() - asked.since > ASK_AGAIN_S:
                    del self._asked[gid]
                continue
            except ray.exceptions.RayError as error:
                self._lead_asked.pop(gid, None)
                self._problems[gid] = f"{asked.step.text}: {first_line(error)}"
            else:
                self._note(asked.step, answer)
            del self._asked[gid]

    def _note(self, step: MemberStep, answer: Any) -> None:
        problem = answer if step.do is Do.CLEAR else _refusal(answer)
        self._waits.pop(step.gid, None)
        if step.do is Do.HAND_OVER and answer[0] != "ok":  # another replica leads now; ask it at once
            self._lead_asked.pop(step.gid, None)
        elif step.do is Do.HAND_OVER and self._directory.record.wishes.lead_of(step.gid) == step.rid:
            self._lead_attempts[step.gid, step.rid] += 1
        if problem:
            text = f"{step.text}: {problem}"
            if self._problems.get(step.gid) != text:
                log.warning("group %d: %s", step.gid, text)
            self._problems[step.gid] = text
            return
        self._problems.pop(step.gid, None)
        if step.do is not Do.CLEAR and answer[0] == "not_yet":
            self._waits[step.gid] = f" (not yet: {answer[1]})"
        if step.do is Do.CLEAR:
            self._directory.change(lambda record: record.without_retired((step.gid, step.rid)))

    def _forget_done(self, group: Group, fleet: ClusterNodes, now: float) -> None:
        """Remove the wishes that have been fulfilled."""
        if rids := moves_done(group):
            self._directory.change(lambda r: replace(r, wishes=r.wishes.without_moves(group.gid, rids)))
        if lead_done(group, fleet, lost_of(group, now, self._patience_s)):
            self._directory.change(lambda r: replace(r, wishes=r.wishes.without_lead(group.gid)))


def group_of_tracks(gid: int, record: ClusterRecord, tracks: Sequence[Track]) -> Group:
    """One group as the supervisor sees it."""
    here = [track for track in tracks if track.seat.gid == gid]
    leader = _leader(here)
    return Group(
        gid,
        record.wishes.size(gid, record.replicas),
        {track.seat.rid: track.seat for track in here},
        None if leader is None or leader.status is None else leader.status.members,
        None if leader is None else leader.seat.rid,
        frozenset(track.seat.rid for track in here if track.votes),
        record.wishes.moves_of(gid),
        {seat.rid: seat for seat in record.retired if seat.gid == gid},
        {track.seat.rid: track.away_since for track in here if track.away_since is not None},
        record.wishes.lead_of(gid),
        frozenset(track.seat.rid for track in here if track.status is not None and _scarce(track.status)),
    )


def _scarce(status: ReplicaReport) -> bool:
    return status.disk_full or not room_to_lead(status.free_bytes, status.reserve_bytes)


def _leader(tracks: Sequence[Track]) -> Track | None:
    """The ready leader. Of two, the one with the higher term: the other does not know yet that it lost."""
    leading = [track for track in tracks if track.status is not None and track.status.ready and track.votes]
    return max(leading, key=lambda track: track.status.term if track.status else 0, default=None)


def _refusal(answer: Any) -> str:
    """Why a leader will never take the step; "" if it took it, or if it or another leader has to be asked."""
    status, *rest = answer
    return str(rest[0]) if status in ("refused", "malformed") else ""


def _numbers(group: Group, *, learners: bool) -> list[int]:
    if group.members is None:
        return []
    return sorted(group.members.learners if learners else group.members.voters)
