"""Cluster status: all replicas and feedback processes are asked at once, and the wait is about a second.

An operator looks at the status when something is wrong, so a dead or hanging process must not delay the
answer: it is shown as unreachable.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

import msgspec

from escrowmq.actors.admin.types import ClusterStatus, FeedbackStatus, GroupStatus, ReplicaStatus
from escrowmq.actors.client.replica_calls import SUPERVISOR_RID, FeedbackProcesses, ShardReports
from escrowmq.actors.client.router import Router
from escrowmq.replication.calling.answers import AcrossReport, MembersReport, ReplicaReport

# ------------------------------------------------------------------------------------------------------------
# Whether a replica is well and, if not, what is wrong, in words for operators.


def problems_of(report: ReplicaReport | None, unheard: Collection[str]) -> tuple[str, ...]:
    """What is wrong with a replica; () if nothing. ``report`` None: it did not answer in time. ``unheard``:
    the ids of members that the leader has no connection to.

    A learner holds what it has copied so far and does not count for a majority yet, so its group survives
    fewer losses than its number of members suggests: that is reported as a problem, too.
    """
    if report is None:
        return ("gives no answer",)
    if report.superseded_by is not None:
        return (f"was replaced by its incarnation {report.superseded_by}",)
    if report.role not in ("leader", "follower"):
        return (f"does not run: {report.failure or 'it starts, or is being repaired'}",)
    found = []
    if report.disk_full:
        free, reserve = _mib(report.free_bytes), _mib(report.reserve_bytes)
        found.append(f"its disk is full, new work is refused: {free} are free, {reserve} are kept free")
    if report.room_problem:
        found.append(f"the free space of its file system is not known: {report.room_problem}")
    if report.learner:
        found.append("copies the log, and does not count for a majority yet")
    if str(report.rid) in unheard:
        found.append("the leader has no connection to it")
    if report.scrub is not None and report.scrub.damaged:
        found.append(f"{report.scrub.damaged} entries of its log are damaged and not repaired yet")
    return tuple(found)


def unheard_by(leader: ReplicaReport | None) -> frozenset[str]:
    """The ids of the members that a leader has no connection to."""
    return frozenset(peer.peer for peer in leader.peers if not peer.connected) if leader else frozenset()


def _mib(count: int) -> str:
    return f"{count / (1 << 20):,.0f} MiB"


log = logging.getLogger(__name__)

#: A healthy replica answers in milliseconds; a second leaves room for a busy machine.
STATUS_WAIT_S = 1.0
#: Counters that replicas keep since their process started.
COUNTED = ("pushed", "followed", "presumed", "forgotten", "against_home")


def cluster_status(
    router: Router, feedback: FeedbackProcesses | None = None, wait_s: float = STATUS_WAIT_S
) -> ClusterStatus:
    """The status of all replicas and feedback processes after at most ``wait_s`` seconds. Half as long is
    added if replicas joined since this client heard of its groups' members: they are asked once the others
    have named them, or the supervisor, if all of the others are gone."""
    first = {gid: router.members(gid) for gid in range(router.info.groups)}
    deadline = time.monotonic() + wait_s
    asked = _ask(router, [(gid, rid) for gid, rids in first.items() for rid in rids])
    supervisor = {gid: router.replica_call(gid, SUPERVISOR_RID, "members_of", gid) for gid in first}
    asked_feedback = None if feedback is None else feedback.ask(wait_s / 2)
    found = {key: _answer(future, deadline) for key, future in asked.items()}
    members: dict[int, tuple[int, ...]] = {}
    for gid, rids in first.items():
        told = [report.members for rid in rids if (report := found[gid, rid]) is not None]
        # It is waited for only if nobody who is known here is left. A ghost may be the only one that is.
        told.append(_told_by_supervisor(supervisor[gid], deadline if not any(told) else 0.0))
        members[gid] = _members(told) or rids
    later = _ask(
        router, [(gid, rid) for gid, rids in members.items() for rid in rids if (gid, rid) not in found]
    )
    patience = max(deadline, time.monotonic() + wait_s / 2) if later else deadline
    found |= {key: _answer(future, patience) for key, future in later.items()}
    return ClusterStatus(
        router.info.cluster_id,
        tuple(_group(gid, {rid: found[gid, rid] for rid in rids}) for gid, rids in members.items()),
        () if asked_feedback is None else _feedback(asked_feedback, deadline),
    )


def _ask(router: Router, replicas: Sequence[tuple[int, int]]) -> dict[tuple[int, int], Future[Any]]:
    return {(gid, rid): router.replica_call(gid, rid, "status") for gid, rid in replicas}


def _told_by_supervisor(asked: Future[Any], deadline: float) -> MembersReport | None:
    try:
        told = asked.result(max(deadline - time.monotonic(), 0.0))
    except Exception:  # it may be away
        return None
    return told if isinstance(told, MembersReport) else None


def _members(told: Sequence[MembersReport | None]) -> tuple[int, ...]:
    """The members in the newest of these configurations, in order; () if there is none."""
    newest = max((one for one in told if one is not None), key=lambda one: one.version, default=None)
    return () if newest is None else tuple(sorted(newest.all))


def _feedback(asked: Future[ShardReports], deadline: float) -> tuple[FeedbackStatus, ...] | None:
    try:
        reports = asked.result(max(deadline - time.monotonic(), 0.0))
    except Exception as error:  # a look-up in Ray can fail in any way; the replicas' status matters more
        log.warning("the feedback processes could not be asked: %r", error)
        return None
    return tuple(FeedbackStatus(number, report) for number, report in enumerate(reports))


def _answer(future: Future[Any], deadline: float) -> ReplicaReport | None:
    try:
        report: ReplicaReport = future.result(max(deadline - time.monotonic(), 0.0))
        return report
    except FutureTimeout:
        return None
    except Exception:  # a call of a dead or dying actor can fail in any way
        return None


def _replica(gid: int, rid: int, answer: ReplicaReport | None, unheard: Collection[str]) -> ReplicaStatus:
    report = answer or ReplicaReport(gid=gid, rid=rid, role="unreachable")
    return ReplicaStatus(
        gid,
        rid,
        answer is not None,
        report.role,
        report.term,
        report.leader,
        report.commit_index,
        report.applied_index,
        report.first_index,
        report.last_index,
        report.durable_index,
        report.open_transactions,
        {} if answer is None else msgspec.to_builtins(answer),
        problems_of(answer, unheard),
    )


def _group(gid: int, reports: Mapping[int, ReplicaReport | None]) -> GroupStatus:
    # A deposed leader may not know yet and still call itself leader: the highest term counts.
    leaders = [report for report in reports.values() if report is not None and report.role == "leader"]
    newest = max(leaders, key=lambda report: report.term, default=None)
    unheard = unheard_by(newest)
    replicas = tuple(_replica(gid, rid, report, unheard) for rid, report in reports.items())
    furthest = max(replicas, key=lambda replica: replica.applied_index)
    own = newest or reports[furthest.replica]
    return GroupStatus(
        gid,
        None if newest is None else newest.rid,
        max((replica.term for replica in replicas), default=0),
        replicas,
        0 if own is None else own.level,
        None if own is None or own.across is None else _counted(own.across, list(reports.values())),
        None if own is None else own.given_ids,
        None if newest is None else newest.overdue,
        None if own is None else own.timers,
    )


def _counted(own: AcrossReport, reports: Sequence[ReplicaReport | None]) -> AcrossReport:
    """``own`` with the sums of all replicas' counters: the present leader may have led only for a moment."""
    seen = [report.across for report in reports if report is not None and report.across is not None]
    return msgspec.structs.replace(
        own, **{name: sum(getattr(across, name) for across in seen) for name in COUNTED}
    )
