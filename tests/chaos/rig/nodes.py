"""A Ray cluster with simulated hosts as nodes, and EscrowMQ on it, started as users start it.

One host has Ray's control store, the supervisor and the clients, and at first no replica: Ray does not
survive the loss of this host, so no test loses it. Every other host is a Ray node, with a replica of each
group or, as a spare, without. The supervisor may move a replica to any host, the head included. All of Ray's
ports are below the range from which the kernel chooses ports, so traffic with both ports in that range is
Raft's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from escrowmq.cluster.ray_use import system_config
from escrowmq.cluster.settings import ClusterSettings, RaySettings
from escrowmq.cluster.supervisor.cluster_dir import ClusterDir
from escrowmq.cluster.supervisor.member_steps import Node, found_seats
from tests.chaos.rig.netns import GIVEN_PORTS, Network
from tests.chaos.rig.shell import RigError

#: Sorts after the others, because replicas are placed on nodes in the order of the nodes' names.
HEAD = "ray"
GCS_PORT = 10000
RAFT_LINKS = GIVEN_PORTS
START_TIMEOUT_S = 90.0
START_ATTEMPTS = 3
_OBJECT_STORE_BYTES = 100_000_000
_PORTS = {
    "node-manager-port": 10001,
    "object-manager-port": 10002,
    "metrics-export-port": 10003,
    "dashboard-agent-listen-port": 10004,
    "dashboard-agent-grpc-port": 10005,
    "runtime-env-agent-port": 10006,
    "min-worker-port": 11000,
    "max-worker-port": 19999,
}
#: Mounts the host's disk over the data directory, for this process and its children.
_WITH_DISK = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'


class RayNodes:
    """Ray on the hosts of a network. ``data_dir``: one path, where each host's disk is mounted."""

    def __init__(self, network: Network, directory: Path, disks: dict[str, Path]) -> None:
        self.network, self._directory, self._disks = network, directory, disks
        self.data_dir = directory / "data"
        self.data_dir.mkdir()
        self.address = f"{network.address(HEAD)}:{GCS_PORT}"

    def start_all(self) -> None:
        """Start the head first, then the others together."""
        self.start(HEAD)
        with ThreadPoolExecutor() as pool:
            list(pool.map(self.start, [host for host in self.network.hosts if host != HEAD]))

    def start(self, host: str) -> None:
        """Run ``ray start`` on a host, as an operator does; repeat it if it fails. Raises RigError.

        Health checks are strict: on a busy machine, a node that starts slowly is soon declared dead.
        """
        for attempt in range(1, START_ATTEMPTS + 1):
            try:
                self._start(host)
                return
            except RigError:
                if attempt == START_ATTEMPTS:
                    raise
                self.network.kill(host)

    def _start(self, host: str) -> None:
        command = [str(Path(sys.executable).with_name("ray")), "start", "--disable-usage-stats"]
        command += ["--node-name", host, "--node-ip-address", self.network.address(host)]
        command += ["--num-cpus", "2", "--object-store-memory", str(_OBJECT_STORE_BYTES)]
        command += ["--temp-dir", str(self._directory / host), "--include-log-monitor", "false"]
        command += [f"--{name}={port}" for name, port in _PORTS.items()]
        if host == HEAD:
            command += ["--head", f"--port={GCS_PORT}", "--include-dashboard=false"]
            command += ["--system-config", json.dumps(system_config(RaySettings()))]
        else:
            command += ["--address", self.address]
        if host in self._disks:
            disk = (str(self._disks[host]), str(self.data_dir))
            command = ["sh", "-c", _WITH_DISK, "sh", *disk, *command]
        self._on(host, command)

    def raylet(self, host: str) -> int | None:
        """Pid of the host's raylet; None if it is dead."""
        for pid in self.network.processes(host):
            try:
                if Path(f"/proc/{pid}/comm").read_text().strip() == "raylet":
                    return pid
            except OSError:
                continue
        return None

    def escrowmq(self, *arguments: str) -> Any:
        """Run ``escrowmq ... --format json`` on the head; returns its result. Raises RigError."""
        code = "from escrowmq.cluster.cli import main; main()"
        command = [sys.executable, "-c", code, *arguments, "--address", self.address, "--format", "json"]
        return json.loads(self._on(HEAD, command))

    def up(self, config: Path | None, hosts: Sequence[str], groups: int) -> dict[str, Any]:
        """Run ``escrowmq up`` with a replica of every group on each of these hosts.

        Their places are chosen in advance: the supervisor would also use the head and the spares for
        several groups.
        """
        shape = ClusterSettings(groups=groups, replicas=len(hosts))
        directory = ClusterDir(self.data_dir, shape, None)
        seats = found_seats(groups, len(hosts), [Node(host, "", "") for host in hosts])
        directory.keep(directory.record.with_seats(seats))
        directory.close()
        arguments = ["up", "--data-dir", str(self.data_dir), "--replicas", str(len(hosts))]
        arguments += ["--groups", str(groups), "--nodes-min", str(len(self.network.hosts))]
        if config is not None:
            arguments += ["--config", str(config)]
        answer: dict[str, Any] = self.escrowmq(*arguments)
        return answer

    def _on(self, host: str, command: Sequence[str]) -> str:
        done = subprocess.run(
            [*self.network.within(host), *command],
            capture_output=True,
            text=True,
            env=_environment(),
            timeout=START_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise RigError(f"on {host}: {' '.join(command)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout


def _environment() -> dict[str, str]:
    """This process's environment, without the variables for another Ray.

    Without a token: only the hosts can reach this Ray. Besides, a process reads the token's path only when it
    imports Ray, perhaps long before there is a rig.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return {**own, "RAY_AUTH_MODE": "disabled"}
