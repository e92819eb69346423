"""The cluster of a round: embedded in the round's process, or with each replica on its own machine (see
``rig``)."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import escrowmq
from tests.chaos.plan import Round
from tests.chaos.rig import netns, shell
from tests.chaos.rig.machine import MachineRig
from tests.chaos.rig.nodes import HEAD as HEAD

#: The environment that a round on machines needs before Ray is imported.
ENVIRONMENT: Mapping[str, str] = {"RAY_AUTH_MODE": "disabled"}
OBJECT_STORE_BYTES = 256 << 20
#: Size of a disk: several times a round's log, but small enough to be filled in a moment.
DISK_BYTES = 640 << 20
#: Room that a leader keeps free. In every other round on machines it is so little that the leader's own log
#: runs out of room, too.
RESERVES_BYTES = (32 << 20, 256 << 10)
#: So small that segments are sealed, and snapshots and run files written, many times in a round on machines.
SEGMENT_BYTES = 1 << 20
#: One host without replicas. With the head, there are two places to move a replica to.
SPARES = 1
#: A node must be away for this time until its replicas are moved: longer than most temporary faults last.
REPLACE_AFTER_S = 6.0
#: Period of scrubbing, as soon as it is quiet: flipped bytes that no one reads must be mended by the end of
#: the round.
SCRUB_PERIOD_S = 10.0


def missing() -> str | None:
    """Why replicas cannot run on separate machines here; None if they can."""
    return MachineRig.available()


def remove_leftovers() -> None:
    """Remove namespaces and mounts of rigs whose processes were killed."""
    if os.geteuid() == 0:
        netns.remove_stale()
        shell.remove_stale_directories()


class Machines:
    """The parts of the rig that faults need."""

    def __init__(self, rig: MachineRig) -> None:
        self.rig = rig

    @property
    def hosts(self) -> tuple[str, ...]:
        """All hosts that replicas are moved among, except the head."""
        return self.rig.hosts

    def cut_off(self, host: str) -> None:
        """Cut a host off from the other hosts; clients and Ray still reach it."""
        self.rig.cut_off(host)

    def cut(self, a: str, b: str) -> None:
        """Cut the link between two hosts."""
        self.rig.cut(a, b, raft_only=HEAD in (a, b))

    def slow_down(self, host: str, seconds: float) -> None:
        """Delay the host's traffic in both directions: a round trip takes twice ``seconds``."""
        self.rig.slow_down(host, seconds)

    def heal(self) -> None:
        """End all faults of the network."""
        self.rig.heal()

    def fill_disk(self, host: str, leave: int = 0) -> None:
        self.rig.fill_disk(host, leave)

    def give_back(self, host: str, size: int) -> None:
        self.rig.give_back(host, size)

    def free_disk(self, host: str) -> None:
        self.rig.free_disk(host)

    def data_path(self, host: str) -> Path:
        """The host's data directory, as this process reaches it."""
        return self.rig.data_path(host)

    def raylet(self, host: str) -> int:
        """Pid of the host's raylet; if an earlier fault has killed it late, it is started again."""
        if self.rig.ray.raylet(host) is None:
            self.rig.revive()
        pid = self.rig.ray.raylet(host)
        assert pid is not None, f"node {host} does not run"
        return pid

    def processes(self, host: str) -> list[int]:
        """Pids of everything that runs on the host."""
        return self.rig.network.processes(host)

    def kill_raylet(self, host: str) -> None:
        """Send SIGKILL to the raylet alone; the processes that it started must notice that themselves."""
        os.kill(self.raylet(host), signal.SIGKILL)

    def kill_node(self, host: str) -> None:
        """Send SIGKILL to everything on the machine."""
        self.rig.kill_node(host)

    def mend(self) -> None:
        """Restart what died and join what was cut. Repeat it until the cluster is healthy."""
        self.rig.mend()

    def revive(self) -> None:
        """Restart nodes that died; cut links and full disks stay as they are."""
        self.rig.revive()

    def logs(self) -> list[Path]:
        """The logs of Ray and of the brokers."""
        return self.rig.logs()


@contextlib.contextmanager
def embedded(directory: Path, groups: int) -> Iterator[tuple[escrowmq.Cluster, None]]:
    """Broker groups of three replicas on this machine, with all broker settings at their defaults except
    scrubbing."""
    # Ray's Unix sockets allow no long path, so its directory is beside the others.
    ray = {"num_cpus": 8, "temp_dir": directory / "ray", "object_store_bytes": OBJECT_STORE_BYTES}
    broker = {"scrub_period_s": SCRUB_PERIOD_S}
    with escrowmq.start_local(
        groups=groups, replicas=3, data_dir=data_dir(directory), ray=ray, broker=broker
    ) as cluster:
        yield cluster, None


def data_dir(directory: Path) -> Path:
    """The data directory of an embedded cluster."""
    return directory / "data"


@contextlib.contextmanager
def on_machines(directory: Path, plan: Round) -> Iterator[tuple[escrowmq.Cluster, Machines]]:
    """Broker groups whose replicas each run on their own machine."""
    config = {
        "broker": {
            "disk_reserve_bytes": RESERVES_BYTES[plan.number // 2 % len(RESERVES_BYTES)],
            "segment_bytes": SEGMENT_BYTES,
            "scrub_period_s": SCRUB_PERIOD_S,
        },
        "supervisor": {"replace_after_s": REPLACE_AFTER_S},
    }
    with MachineRig(
        groups=plan.groups, spares=SPARES, disk_bytes=DISK_BYTES, config=config, seed=plan.seed
    ) as rig:
        rig.enter()
        machines = Machines(rig)
        try:
            with escrowmq.connect(rig.address) as cluster:
                yield cluster, machines
        except BaseException:
            _keep_logs(machines, directory)
            raise


def _keep_logs(machines: Machines, directory: Path) -> None:
    """Copy the logs, since the rig removes its directory."""
    place = directory / "machines"
    place.mkdir(exist_ok=True)
    for number, path in enumerate(machines.logs()):
        with contextlib.suppress(OSError):
            host = path.relative_to(machines.rig.directory).parts[0]
            (place / f"{host}-{number}-{path.name}").write_bytes(path.read_bytes()[-1_000_000:])
