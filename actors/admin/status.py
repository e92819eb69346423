"""Cluster status: replicas and feedback processes are asked at once, none waited for longer than a second.

An operator looks at the status when something is wrong, so a dead or hanging process must not delay
the answer: it is shown as unreachable.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

import msgspec

from escrowmq.actors.admin.types import ClusterStatus, FeedbackStatus, GroupStatus, ReplicaStatus
from escrowmq.actors.client.feedback_processes import FeedbackProcesses, ShardReports
from escrowmq.actors.client.router import Router
from escrowmq.replication.calling.answers import AcrossReport, ReplicaReport

log = logging.getLogger(__name__)

#: A healthy replica answers in milliseconds; a second is for a busy machine.
STATUS_WAIT_S = 1.0
#: What replicas count since their processes started.
COUNTED = ("pushed", "followed", "presumed", "forgotten", "against_home")


def cluster_status(
    router: Router, feedback: FeedbackProcesses | None = None, wait_s: float = STATUS_WAIT_S
) -> ClusterStatus:
    """The status of all replicas and feedback processes after at most ``wait_s``."""
    info = router.info
    asked = {
        (gid, rid): router.replica_call(gid, rid, "status")
        for gid in range(info.groups)
        for rid in range(info.replicas)
    }
    deadline = time.monotonic() + wait_s
    asked_feedback = None if feedback is None else feedback.ask(wait_s / 2)
    found = {key: _answer(future, deadline) for key, future in asked.items()}
    return ClusterStatus(
        info.cluster_id,
        tuple(_group(gid, [found[gid, rid] for rid in range(info.replicas)]) for gid in range(info.groups)),
        () if asked_feedback is None else _feedback(asked_feedback, deadline),
    )


def _feedback(asked: Future[ShardReports], deadline: float) -> tuple[FeedbackStatus, ...] | None:
    try:
        reports = asked.result(max(deadline - time.monotonic(), 0.0))
    except Exception as error:  # whatever a look-up in Ray ends in; the replicas' status is worth more
        log.warning("the feedback processes could not be asked: %r", error)
        return None
    return tuple(FeedbackStatus(number, report) for number, report in enumerate(reports))


def _answer(future: Future[Any], deadline: float) -> ReplicaReport | None:
    try:
        report: ReplicaReport = future.result(max(deadline - time.monotonic(), 0.0))
        return report
    except FutureTimeout:
        return None
    except Exception:  # whatever a dead or dying actor's call ends in
        return None


def _replica(gid: int, rid: int, answer: ReplicaReport | None) -> ReplicaStatus:
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
    )


def _group(gid: int, reports: Sequence[ReplicaReport | None]) -> GroupStatus:
    replicas = tuple(_replica(gid, rid, report) for rid, report in enumerate(reports))
    # A deposed leader that nobody has told yet may still call itself one: the highest term counts.
    leaders = [replica for replica in replicas if replica.role == "leader"]
    newest = max(leaders, key=lambda replica: replica.term, default=None)
    told = newest or max(replicas, key=lambda replica: replica.applied_index)
    own = reports[told.replica]
    return GroupStatus(
        gid,
        None if newest is None else newest.replica,
        max((replica.term for replica in replicas), default=0),
        replicas,
        0 if own is None else own.level,
        None if own is None or own.across is None else _counted(own.across, reports),
        None if own is None else own.given_ids,
    )


def _counted(own: AcrossReport, reports: Sequence[ReplicaReport | None]) -> AcrossReport:
    """With what all replicas have counted: who leads now may have led for a moment only."""
    seen = [report.across for report in reports if report is not None and report.across is not None]
    return msgspec.structs.replace(
        own, **{name: sum(getattr(across, name) for across in seen) for name in COUNTED}
    )
