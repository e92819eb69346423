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

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from escrowmq.cluster.placement import Node, Seat
from escrowmq.replication.errors import DataDirMismatch, Unavailable

#: Starting a worker process on a cold node takes seconds; a node that takes longer is not well.
SURVEY_TIMEOUT_S = 30.0
_DIRECTORY = re.compile(r"g(\d+)-r(\d+)(?:-i(\d+))?")


@dataclass(frozen=True, slots=True)
class Find:
    """A replica's directory found on a node."""

    node: str
    cluster_id: str
    gid: int
    rid: int
    incarnation: int


def look(data_dir: str, node: str) -> list[Find]:
    """Replica directories below ``data_dir`` on this machine."""
    found: list[Find] = []
    root = Path(data_dir)
    for path in sorted(root.iterdir()) if root.is_dir() else []:
        name = _DIRECTORY.fullmatch(path.name)
        if not name or not (path / "identity.json").exists():
            continue
        try:
            content = json.loads((path / "identity.json").read_text())
            cluster_id = str(content["cluster_id"])
        except (OSError, ValueError, KeyError, TypeError):
            cluster_id = "unreadable"
        found.append(Find(node, cluster_id, int(name[1]), int(name[2]), int(name[3] or 0)))
    return found


def survey(data_dir: Path, nodes: Sequence[Node], here: str) -> list[Find]:
    """What all nodes hold. ``here``: id of the node this runs on. Raises Unavailable."""
    found = [find for node in nodes if node.node_id == here for find in look(str(data_dir), node.name)]
    remote = ray.remote(num_cpus=0, max_retries=0)(look)
    asked = [
        remote.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False)).remote(
            str(data_dir), node.name
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


def adopted(finds: Sequence[Find], groups: int, replicas: int) -> tuple[str, list[Seat]]:
    """(cluster id, seats) of the one cluster whose data were found, newest incarnations first.

    Raises DataDirMismatch unless it is exactly one, with a majority of every group's replicas: a newer
    incarnation may be on a node that is missing, and must not be passed over.
    """
    ids = sorted({find.cluster_id for find in finds})
    if len(ids) != 1:
        raise DataDirMismatch(f"nothing to adopt: the nodes hold data of {len(ids)} clusters {ids}")
    newest: dict[tuple[int, int], Find] = {}
    for find in finds:
        known = newest.get((find.gid, find.rid))
        if known is None or find.incarnation > known.incarnation:
            newest[find.gid, find.rid] = find
    expected = {(gid, rid) for gid in range(groups) for rid in range(replicas)}
    if set(newest) != expected:
        raise DataDirMismatch(
            f"the nodes hold {sorted(newest)} (group, replica), and adopting needs exactly "
            f"{sorted(expected)}: bring all nodes up, and give the numbers of groups and replicas it had"
        )
    return ids[0], [Seat(f.gid, f.rid, f.node, f.incarnation) for f in newest.values()]
