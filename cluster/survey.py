"""Searches the nodes for data of replicas before a cluster is founded there.

If a cluster were founded over existing data, its replicas would refuse their directories one by one. The
search before gives a single error that names the node instead. With ``adopt``, the data are taken over: this
is for a head node that was lost together with its cluster.json.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from escrowmq.cluster.placement import Node, ReplicaKey, Seat
from escrowmq.replication.carried_settings import prepared
from escrowmq.replication.errors import DataDirMismatch, Unavailable
from escrowmq.replication.log.marks import MEMBERS

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
