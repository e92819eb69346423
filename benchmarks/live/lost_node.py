"""A node with a large replica is lost for good: time until another node has the replica, effect on clients.

There are four Ray nodes on this machine, three of them with a replica. The lost node is the leader's, the
worst case. It does not come back, so after ``replace_after_s`` the supervisor rebuilds the replica on the
fourth node. All replicas share one disk and this machine's processors.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL
from typing import TYPE_CHECKING, Any

import ray
from ray.cluster_utils import Cluster as RayCluster

import escrowmq
from benchmarks.live.generated import FRAMES_PER_ENTRY, Content, Say, fill, install
from benchmarks.live.sending import Senders, senders
from benchmarks.live.waiting import until
from benchmarks.load.replicas import Replicas, pid_of, send_signal
from escrowmq.cluster.ray_use import as_guest, system_config
from escrowmq.cluster.settings import RaySettings

if TYPE_CHECKING:
    from escrowmq import Cluster

REPLACE_AFTER_S = 5.0
#: Bytes of a row; a hundred rows are one entry.
ROW_BYTES = 10_000
QUIET_S = 10.0
HEAD = "n0"


def measure(folder: Path, log_mb: int, say: Say) -> dict[str, Any]:
    """Run the experiment; returns its figures. ``folder`` must not exist yet."""
    data_dir = folder / "data"
    data_dir.mkdir(parents=True)
    (folder / "escrowmq.yaml").write_text(f"supervisor: {{replace_after_s: {REPLACE_AFTER_S}}}\n")
    entries = (log_mb << 20) // (ROW_BYTES * FRAMES_PER_ENTRY)
    content = Content(1, 4, busy=entries * FRAMES_PER_ENTRY, spread=0, row_bytes=ROW_BYTES)
    fill(folder / "log", content, int(1000 * time.time()), say)
    with _nodes() as (machines, nodes):
        up = ("up", "--address", machines.address, "--data-dir", str(data_dir), "--nodes-min", "4")
        _command(*up, "--config", str(folder / "escrowmq.yaml"))
        _command("down", "--address", machines.address)
        install(folder / "log", data_dir, 3)
        _command(*up, "--config", str(folder / "escrowmq.yaml"))
        say("three replicas on three of four nodes")
        with escrowmq.connect(machines.address) as cluster, senders(cluster) as clients:
            until(lambda: cluster.status().healthy, "all replicas to be healthy")
            _lead_elsewhere(cluster)
            time.sleep(QUIET_S)
            found = _lose(cluster, machines, nodes, clients, say)
            return {"log_mb": log_mb, **found, "errors": clients.errors()}


def _lose(
    cluster: Cluster, machines: RayCluster, nodes: dict[str, Any], clients: Senders, say: Say
) -> dict[str, Any]:
    leader = Replicas(cluster).leader()
    seat = _seat(cluster, leader.replica)
    begin = time.monotonic()
    before = clients.gaps_ms(begin - QUIET_S, begin)
    send_signal(pid_of(leader), SIGKILL)  # together with its node: workers outlive their raylet for a moment
    machines.remove_node(nodes.pop(seat["node"]), allow_graceful=False)
    until(lambda: _seat(cluster, leader.replica)["node"] != seat["node"], "another node for the replica")
    moved = time.monotonic() - begin
    until(lambda: _is_well(cluster), "the replica to be rebuilt", every_s=0.1)
    well = time.monotonic() - begin
    time.sleep(2.0)
    end = time.monotonic()
    found = {
        "replace_after_s": REPLACE_AFTER_S,
        "placed_s": round(moved - REPLACE_AFTER_S, 1),
        "replaced_s": round(well - REPLACE_AFTER_S, 1),
        "worst_gap_before_ms": before,
        "worst_gap_fail_over_ms": clients.gaps_ms(begin, begin + REPLACE_AFTER_S),
        "worst_gap_copying_ms": clients.gaps_ms(begin + REPLACE_AFTER_S, end),
    }
    say(f"lost {seat['node']}: {found}")
    return found


def _lead_elsewhere(cluster: Cluster) -> None:
    """Move leadership away from the head: losing the head would be a loss of Ray itself."""
    cluster.admin.begin_maintenance(HEAD)
    until(lambda: _seat(cluster, Replicas(cluster).leader().replica)["node"] != HEAD, "another leader")
    cluster.admin.open_node(HEAD)


def _seat(cluster: Cluster, replica: int) -> dict[str, Any]:
    found: dict[str, Any] = next(seat for seat in cluster.health()["replicas"] if seat["replica"] == replica)
    return found


def _is_well(cluster: Cluster) -> bool:
    """Whether every replica answers as a full member and none is far behind."""
    status = cluster.status()
    applied = [replica.applied_index for replica in status.groups[0].replicas]
    return bool(status.healthy and cluster.health()["ready"] and max(applied) - min(applied) < 100)


@contextmanager
def _nodes() -> Iterator[tuple[RayCluster, dict[str, Any]]]:
    """Ray with four nodes on this machine; yields it and the nodes other than the head, by name."""
    head = {
        "num_cpus": 1,
        "node_name": HEAD,
        "include_dashboard": False,
        "_system_config": system_config(RaySettings()),
    }
    with as_guest():
        machines = RayCluster(initialize_head=True, head_node_args=head)
    try:
        yield machines, {n: machines.add_node(num_cpus=1, node_name=n) for n in ("n1", "n2", "n3")}
    finally:
        with as_guest():
            if ray.is_initialized():
                ray.shutdown()
            machines.shutdown()  # type: ignore[no-untyped-call]


def _command(*arguments: str) -> None:
    """Run ``escrowmq ...`` as a process."""
    command = [sys.executable, "-c", "from escrowmq.cluster.cli import main; main()", *arguments]
    subprocess.run(command, check=True, timeout=180, stdout=subprocess.DEVNULL)
