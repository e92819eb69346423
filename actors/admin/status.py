"""Cluster status: every replica is asked at once, none is waited for longer than a second.

An operator looks at the status when something is wrong, so a dead or hanging replica must not delay
the answer: it is shown as unreachable.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

import msgspec

from escrowmq.actors.admin.types import ClusterStatus, GroupStatus, ReplicaStatus
from escrowmq.actors.client.router import Router
from escrowmq.replication.calling.answers import ReplicaReport

#: A healthy replica answers in milliseconds; a second is for a busy machine.
STATUS_WAIT_S = 1.0


def cluster_status(router: Router, wait_s: float = STATUS_WAIT_S) -> ClusterStatus:
    """The status of all replicas after at most ``wait_s``."""
    info = router.info
    asked = {
        (gid, rid): router.replica_call(gid, rid, "status")
        for gid in range(info.groups)
        for rid in range(info.replicas)
    }
    deadline = time.monotonic() + wait_s
    found = {key: _answer(future, deadline) for key, future in asked.items()}
    return ClusterStatus(
        info.cluster_id,
        tuple(
            _group(gid, tuple(_replica(gid, rid, found[gid, rid]) for rid in range(info.replicas)))
            for gid in range(info.groups)
        ),
    )


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


def _group(gid: int, replicas: tuple[ReplicaStatus, ...]) -> GroupStatus:
    # A deposed leader that nobody has told yet may still call itself one: the highest term counts.
    leaders = [replica for replica in replicas if replica.role == "leader"]
    newest = max(leaders, key=lambda replica: replica.term, default=None)
    return GroupStatus(
        gid,
        None if newest is None else newest.replica,
        max((replica.term for replica in replicas), default=0),
        replicas,
    )
