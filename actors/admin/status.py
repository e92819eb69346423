"""Cluster status: every replica is asked at once, none is waited for longer than a second.

An operator looks at the status when something is wrong, so a dead or hanging replica must not delay
the answer: it is shown as unreachable.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from escrowmq.actors.admin.types import ClusterStatus, GroupStatus, ReplicaStatus
from escrowmq.actors.client.router import Router

#: A healthy replica answers in milliseconds; a second is for a busy machine.
STATUS_WAIT_S = 1.0
_POSITIONS = ("term", "commit_index", "applied_index", "first_index", "last_index", "durable_index")


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


def _answer(future: Future[Any], deadline: float) -> Mapping[str, Any] | None:
    try:
        answer: Mapping[str, Any] = future.result(max(deadline - time.monotonic(), 0.0))
        return answer
    except FutureTimeout:
        return None
    except Exception:  # whatever a dead or dying actor's call ends in
        return None


def _replica(gid: int, rid: int, answer: Mapping[str, Any] | None) -> ReplicaStatus:
    found = answer or {}
    term, commit, applied, first, last, durable = (int(found.get(name) or 0) for name in _POSITIONS)
    return ReplicaStatus(
        gid,
        rid,
        answer is not None,
        str(found.get("role", "unreachable")),
        term,
        found.get("leader"),
        commit,
        applied,
        first,
        last,
        durable,
        int(found.get("open_transactions") or 0),
        found,
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
