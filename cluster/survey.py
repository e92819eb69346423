"""Looking for replicas' data on the nodes before a cluster is founded there.

Founding over somebody's data would end in replicas that refuse their directories, one by one; found
out beforehand it is one error that names the node. With ``adopt`` the data are taken over instead:
for a head node that was lost with its cluster.json.
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
from escrowmq.replication.errors import DataDirMismatch, Unavailable
from escrowmq.replication.log.marks import MEMBERS

#: Starting a worker process on a cold node takes seconds; a node that takes longer is not well.
SURVEY_TIMEOUT_S = 30.0
#: A directory that is being removed has this behind its name, and is no replica's any more.
REMOVED = ".removed"
UNREADABLE = "unreadable"
_DIRECTORY = re.compile(r"g(\d+)-r(\d+)(?:-i(\d+))?" + f"({re.escape(REMOVED)})?")


@dataclass(frozen=True, slots=True)
class FoundMembers:
    """The members of its group as a replica last knew them to be decided."""

    version: int
    voters: tuple[int, ...]
    learners: tuple[int, ...]
    highest: int


@dataclass(frozen=True, slots=True)
class Find:
    """A replica's directory found on a node. ``members``: None where they never changed. ``half_removed``: it
    is none any more; its removal was interrupted."""

    node: str
    cluster_id: str
    gid: int
    rid: int
    incarnation: int
    members: FoundMembers | None = None
    half_removed: bool = False


@dataclass(frozen=True, slots=True)
class Adopted:
    """A cluster as its directories show it. ``retired``: of replicas that are no members any more.
    ``sizes``: of the groups whose members have changed, how many voters each is to have."""

    cluster_id: str
    seats: list[Seat]
    retired: list[Seat]
    sizes: dict[int, int]


def look(data_dir: str, node: str, half_removed: bool = False) -> list[Find]:
    """Replica directories below ``data_dir`` on this machine; those whose removal was interrupted only with
    ``half_removed``."""
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
    """A damaged mark is passed over: the other replicas have theirs."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=FoundMembers)
    except (OSError, UnicodeDecodeError, RecursionError, msgspec.DecodeError):
        return None


def survey(data_dir: Path, nodes: Sequence[Node], here: str, half_removed: bool = False) -> list[Find]:
    """What all nodes hold. ``here``: id of the node this runs on. Raises Unavailable."""
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
            f"{first.cluster_id!r}, and the supervisor's node has no cluster.json for it: use another data "
            "directory, or restore cluster.json, or take the data over with 'escrowmq up --adopt' while "
            "every node of that cluster is up"
        )


def adopted(finds: Sequence[Find], groups: int, replicas: int) -> Adopted:
    """The one cluster whose data were found, by the newest incarnations. ``replicas``: of each group at its
    beginning, who are its members unless one of the directories says otherwise.

    Raises DataDirMismatch unless it is exactly one, with every voter of every group: a newer incarnation may
    be on a node that is missing, and must not be passed over.
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
            f"the nodes hold {sorted(newest)} (group, replica), and adopting needs exactly "
            f"{sorted(expected)}: bring all nodes up, and give the numbers of groups and replicas it had at "
            "its founding"
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
    """How many voters are wanted where so many were found: a change may have been under way."""
    return 3 if voters == 2 else voters - (voters + 1) % 2
