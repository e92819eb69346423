"""Directories of replaced replicas: decides which may be removed, and removes them on an operator's request.

A replica that is moved, or restarted after its disk was lost, starts in a directory with a new name. The
earlier directory is kept, because until the successor votes it may be the only other copy (docs/decisions.md,
44). Pure functions decide from the supervisor's knowledge which directories may be removed; searching and
removing run on the node. A directory that a process has locked is never touched: a suspended process may
resume.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from escrowmq.cluster.placement import Node, ReplicaKey, Seat
from escrowmq.cluster.survey import REMOVED, UNREADABLE, Find
from escrowmq.replication.calling.answers import MembersReport
from escrowmq.replication.errors import DataDirLocked
from escrowmq.replication.log.datadir import take_lock

#: Removing the files of a large log takes the file system seconds.
REMOVE_TIMEOUT_S = 60.0
NOBODY_REMOVED: Mapping[ReplicaKey, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class StaleReplicaDir:
    """The directory of an earlier incarnation of a replica.

    ``successor``: the incarnation that replaced it, on node ``successor_node``. -1: there is none, because
    the replica was removed from its group, or because the removal of this directory was interrupted (its name
    shows which). ``keep``: why it must stay; "" if it may be removed.
    """

    node: str
    directory: str
    gid: int
    rid: int
    incarnation: int
    successor: int
    successor_node: str
    keep: str = ""


def leftovers(
    finds: Sequence[Find],
    cluster_id: str,
    seats: Mapping[ReplicaKey, Seat],
    voting: Collection[ReplicaKey],
    removed: Mapping[ReplicaKey, str] = NOBODY_REMOVED,
) -> list[StaleReplicaDir]:
    """Directories of this cluster, by node, whose replica has a later incarnation or is no longer a member.

    ``voting``: replicas that run as full members, in the incarnation of their seat. A directory of a later
    incarnation than its seat's is not a leftover: the supervisor's records may be older than the directory.
    ``removed``: replicas that were removed from their group -> why their directories must stay nevertheless
    ("": they may be removed).
    """
    found: list[StaleReplicaDir] = []
    for find in finds:
        key = find.gid, find.rid
        if find.half_removed:
            if find.cluster_id in (cluster_id, UNREADABLE):  # UNREADABLE: its identity was deleted first
                directory = Seat(find.gid, find.rid, find.node, find.incarnation).directory + REMOVED
                found.append(StaleReplicaDir(find.node, directory, *key, find.incarnation, -1, ""))
            continue
        if key in removed and find.cluster_id == cluster_id:
            directory = Seat(find.gid, find.rid, find.node, find.incarnation).directory
            found.append(StaleReplicaDir(find.node, directory, *key, find.incarnation, -1, "", removed[key]))
            continue
        seat = seats.get(key)
        if seat is None or find.cluster_id != cluster_id or find.incarnation >= seat.incarnation:
            continue
        votes = seat.key in voting
        keep = "" if votes else f"incarnation {seat.incarnation} does not vote yet"
        directory = Seat(find.gid, find.rid, find.node, find.incarnation).directory
        found.append(
            StaleReplicaDir(
                find.node,
                directory,
                find.gid,
                find.rid,
                find.incarnation,
                seat.incarnation,
                seat.node,
                keep,
            )
        )
    return sorted(found, key=lambda one: (one.node, one.directory))


def removed_replicas(
    finds: Sequence[Find], members: Mapping[int, MembersReport], voting: Collection[ReplicaKey]
) -> dict[ReplicaKey, str]:
    """Those of the found replicas that were removed from their group.

    The value says why the directory must stay nevertheless ("": it may be removed). ``members``: for each
    group, its newest configuration known to be applied.
    """
    found = {}
    for gid, rid in {(find.gid, find.rid) for find in finds}:
        now = members.get(gid)
        if now is None or rid in now.all or rid > now.highest:
            continue
        running = sum((gid, voter) in voting for voter in now.voters)
        found[gid, rid] = "" if 2 * running > len(now.voters) else "no majority of its group is running"
    return found


def remove_all(
    found: Sequence[StaleReplicaDir], data_dir: Path, cluster_id: str, nodes: Sequence[Node]
) -> list[StaleReplicaDir]:
    """Remove the directories that may be removed, each on its node; returns those that are left."""
    by_name = {node.name: node for node in nodes}
    task = ray.remote(num_cpus=0, max_retries=0)(remove)
    left: list[StaleReplicaDir] = []
    for one in found:
        if one.keep:
            left.append(one)
            continue
        there = NodeAffinitySchedulingStrategy(by_name[one.node].node_id, soft=False)
        call = task.options(scheduling_strategy=there).remote(str(data_dir), one.directory, cluster_id)
        try:
            keep = ray.get(call, timeout=REMOVE_TIMEOUT_S)
        except (ray.exceptions.RayError, ray.exceptions.GetTimeoutError) as error:
            keep = f"node {one.node!r} could not remove it: {error}"
        if keep:
            left.append(replace(one, keep=keep))
    return left


def begin_removal(data_dir: Path, node: Node, gid: int, rid: int, cluster_id: str) -> Any:
    """Start removing the directories of a former member on a node.

    Returns Ray's reference to the result of ``remove_replica``.
    """
    task = ray.remote(num_cpus=0, max_retries=0)(remove_replica)
    there = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
    return task.options(scheduling_strategy=there).remote(str(data_dir), gid, rid, cluster_id)


def remove_replica(data_dir: str, gid: int, rid: int, cluster_id: str) -> str:
    """Remove the directories of all incarnations of a replica on this machine.

    Returns "" if they are gone, else why one stays. Raises OSError.
    """
    name = Seat(gid, rid, "").directory
    patterns = name, name + REMOVED, f"{name}-i*"
    found = sorted({path for pattern in patterns for path in Path(data_dir).glob(pattern)})
    problems = [remove(data_dir, path.name, cluster_id) for path in found]
    return "; ".join(filter(None, problems))


def remove(data_dir: str, directory: str, cluster_id: str) -> str:
    """Remove one directory on this machine; returns "" if it is gone, else why it stays.

    It is renamed first, so that a crash never leaves half a directory under a replica's name. Raises OSError.
    """
    path = Path(data_dir) / directory
    if directory.endswith(REMOVED):
        return _remove_the_rest(path, cluster_id)
    try:
        content = json.loads((path / "identity.json").read_text())
    except FileNotFoundError:
        return ""
    except ValueError as error:
        return f"its identity.json cannot be read ({error}): find out whose it is"
    if content.get("cluster_id") != cluster_id:
        return f"it belongs to cluster {content.get('cluster_id')!r}"
    try:
        lock = take_lock(path / "lock", 0o644, lambda holder: f"process {holder} uses it")
    except DataDirLocked as error:
        return str(error)
    try:
        gone = path.with_name(directory + REMOVED)
        shutil.rmtree(gone, ignore_errors=True)
        path.rename(gone)
        shutil.rmtree(gone)
    finally:
        os.close(lock)
    return ""


def _remove_the_rest(path: Path, cluster_id: str) -> str:
    """Finish an interrupted removal; returns as ``remove`` does.

    Only ``remove`` gives a directory such a name, after it has checked that it may be removed.
    """
    try:
        identity = json.loads((path / "identity.json").read_text())
    except (FileNotFoundError, ValueError):
        identity = {}
    if identity.get("cluster_id", cluster_id) != cluster_id:
        return f"it belongs to cluster {identity['cluster_id']!r}"
    shutil.rmtree(path, ignore_errors=True)  # another process may be removing it, too
    return f"not all of {path} could be removed: check its permissions" if path.exists() else ""
