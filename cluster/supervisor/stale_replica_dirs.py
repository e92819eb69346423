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
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from escrowmq.cluster.supervisor.member_steps import Node, ReplicaKey, Seat
from escrowmq.replication.calling.answers import MembersReport
from escrowmq.replication.carried_settings import prepared
from escrowmq.replication.errors import DataDirLocked, DataDirMismatch, Unavailable
from escrowmq.replication.log.datadir import MEMBERS, take_lock

# ------------------------------------------------------------------------------------------------------------
# Searches the nodes for data of replicas before a cluster is founded there.
#
# If a cluster were founded over existing data, its replicas would refuse their directories one by one. The
# search before gives a single error that names the node instead. With ``adopt``, the data are taken over:
# this is for a head node that was lost together with its cluster.json.

#: Starting a worker process on a cold node takes seconds; a node that takes longer than this has a problem.
SURVEY_TIMEOUT_S = 30.0
#: Suffix of a directory that is being removed and no longer belongs to a replica.
REMOVED = ".removed"
UNREADABLE = "unreadable"
_DIRECTORY = re.compile(r"g(\d+)-r(\d+)(?:-i(\d+))?" + f"({re.escape(REMOVED)})?")


@prepared
@dataclass(frozen=True, slots=True)
class FoundMembers:
    """The members of a group in the last configuration that a replica knew to be committed."""

    version: int
    voters: tuple[int, ...]
    learners: tuple[int, ...]
    highest: int


@dataclass(frozen=True, slots=True)
class Find:
    """A replica's directory found on a node.

    ``members``: None if they never changed. ``half_removed``: its removal was interrupted, so it no longer
    belongs to a replica.
    """

    node: str
    cluster_id: str
    gid: int
    rid: int
    incarnation: int
    members: FoundMembers | None = None
    half_removed: bool = False


@dataclass(frozen=True, slots=True)
class Adopted:
    """A cluster as its directories show it.

    ``retired``: seats of former members. ``sizes``: the wanted number of voters of each group whose members
    have changed.
    """

    cluster_id: str
    seats: list[Seat]
    retired: list[Seat]
    sizes: dict[int, int]


def look(data_dir: str, node: str, half_removed: bool = False) -> list[Find]:
    """Replica directories in ``data_dir`` on this machine.

    ``half_removed``: include directories whose removal was interrupted.
    """
    found: list[Find] = []
    root = Path(data_dir)
    for path in sorted(root.iterdir()) if root.is_dir() else []:
        name = _DIRECTORY.fullmatch(path.name)
        removing = bool(name and name[4])
        if not name or (removing and not half_removed):
            continue
        if not removing and not (path / "identity.json").exists():
            continue
        try:
            content = json.loads((path / "identity.json").read_text())
            cluster_id = str(content["cluster_id"])
        except (OSError, ValueError, KeyError, TypeError):
            cluster_id = UNREADABLE
        numbers = int(name[1]), int(name[2]), int(name[3] or 0)
        found.append(Find(node, cluster_id, *numbers, _members(path / MEMBERS), removing))
    return found


def _members(path: Path) -> FoundMembers | None:
    """The members that a replica has stored; None if there are none or the file is damaged.

    A damaged file does not matter: the other replicas have theirs.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=FoundMembers)
    except (OSError, UnicodeDecodeError, RecursionError, msgspec.DecodeError):
        return None


def survey(data_dir: Path, nodes: Sequence[Node], here: str, half_removed: bool = False) -> list[Find]:
    """The replica directories on all nodes. ``here``: id of this process's node. Raises Unavailable."""
    found = [
        find
        for node in nodes
        if node.node_id == here
        for find in look(str(data_dir), node.name, half_removed)
    ]
    remote: Any = ray.remote(num_cpus=0, max_retries=0)(look)
    asked = [
        remote.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False)).remote(
            str(data_dir), node.name, half_removed
        )
        for node in nodes
        if node.node_id != here
    ]
    try:
        for answer in ray.get(asked, timeout=SURVEY_TIMEOUT_S):
            found.extend(answer)
    except (ray.exceptions.RayError, ray.exceptions.GetTimeoutError) as error:
        raise Unavailable(f"not every node could be searched for existing data: {error}", 1.0) from error
    return found


def refuse_existing(finds: Sequence[Find], data_dir: Path) -> None:
    """Raise DataDirMismatch if there is any data: a new cluster must not be founded over it."""
    if finds:
        first = finds[0]
        raise DataDirMismatch(
            f"{data_dir} on node {first.node!r} holds replica {first.rid} of group {first.gid} of cluster "
            f"{first.cluster_id!r}, but the supervisor's node has no cluster.json for it; use another data "
            "directory, or restore cluster.json, or take over the data with 'escrowmq up --adopt' while "
            "every node of that cluster is up"
        )


def adopted(finds: Sequence[Find], groups: int, replicas: int) -> Adopted:
    """The one cluster whose data were found, with the newest incarnation of each replica.

    ``replicas``: the initial number of replicas of each group; these are its members unless one of the
    directories says otherwise.

    Raises DataDirMismatch unless there is exactly one cluster and every voter of every group was found: a
    missing node may have a newer incarnation, which must not be ignored.
    """
    ids = sorted({find.cluster_id for find in finds})
    if len(ids) != 1:
        raise DataDirMismatch(f"nothing to adopt: the nodes hold data of {len(ids)} clusters {ids}")
    newest: dict[ReplicaKey, Find] = {}
    members: dict[int, FoundMembers] = {}
    for find in finds:
        known = newest.get((find.gid, find.rid))
        if known is None or find.incarnation > known.incarnation:
            newest[find.gid, find.rid] = find
        before, told = members.get(find.gid), find.members
        if told is not None and (before is None or told.version > before.version):
            members[find.gid] = told
    everybody = tuple(range(replicas))
    voters = {gid: members[gid].voters if gid in members else everybody for gid in range(groups)}
    expected = {(gid, rid) for gid, rids in voters.items() for rid in rids}
    strange = [
        key for key in newest if key[0] not in voters or (key[0] not in members and key not in expected)
    ]
    if strange or not expected <= set(newest):
        raise DataDirMismatch(
            f"the nodes hold {sorted(newest)} (group, replica), but adopting needs exactly "
            f"{sorted(expected)}; bring up all nodes, and give the numbers of groups and replicas with which "
            "the cluster was founded"
        )
    seats = {key: Seat(find.gid, find.rid, find.node, find.incarnation) for key, find in newest.items()}
    gone = {key for key in seats if key[0] in members and _is_gone(key[1], members[key[0]])}
    return Adopted(
        ids[0],
        [seat for key, seat in seats.items() if key not in gone],
        [seats[key] for key in sorted(gone)],
        {gid: _size(len(told.voters)) for gid, told in members.items()},
    )


def _is_gone(rid: int, members: FoundMembers) -> bool:
    return rid <= members.highest and rid not in (*members.voters, *members.learners)


def _size(voters: int) -> int:
    """The wanted number of voters, from the number found: an even number shows an unfinished change."""
    return 3 if voters == 2 else voters - (voters + 1) % 2


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
