"""The cluster of a round: embedded in its process, or on machines of their own (see ``rig``)."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import escrowmq
from tests.chaos.rig import netns, shell
from tests.chaos.rig.machine import MachineRig

#: What a round on machines must have in its environment before Ray is imported.
ENVIRONMENT: Mapping[str, str] = {"RAY_AUTH_MODE": "disabled"}
OBJECT_STORE_BYTES = 256 << 20
#: Disks that hold a round's log several times over, and can still be filled in a moment.
DISK_BYTES, DISK_RESERVE_BYTES = 640 << 20, 32 << 20


def missing() -> str | None:
    """Why replicas cannot run on machines of their own here; None if they can."""
    return MachineRig.available()


def remove_leftovers() -> None:
    """Namespaces and mounts of rigs whose processes were killed."""
    if os.geteuid() == 0:
        netns.remove_stale()
        shell.remove_stale_directories()


class Machines:
    """The rig, as far as faults need it."""

    def __init__(self, rig: MachineRig) -> None:
        self.rig = rig

    def cut_off(self, replica: int) -> None:
        """From the other replicas; clients and Ray reach it."""
        self.rig.cut_off(replica)

    def cut(self, a: int, b: int) -> None:
        """The link between two replicas."""
        self.rig.cut(a, b)

    def delay(self, replica: int, seconds: float) -> None:
        """From a replica to all others, and as long again back: a round trip takes twice that."""
        for other in self.rig.replicas:
            if other != replica:
                self.rig.delay(replica, other, seconds)

    def heal(self) -> None:
        """The network."""
        self.rig.heal()

    def fill_disk(self, replica: int) -> None:
        self.rig.fill_disk(replica)

    def free_disk(self, replica: int) -> None:
        self.rig.free_disk(replica)

    def kill_raylet(self, replica: int) -> None:
        """SIGKILL of the raylet alone; what it had started notices by itself."""
        pid = self.rig.ray.raylet(self.rig.host(replica))
        assert pid is not None, f"the node of replica {replica} does not run"
        os.kill(pid, signal.SIGKILL)

    def kill_node(self, replica: int) -> None:
        """SIGKILL of everything on the machine."""
        self.rig.kill_node(replica)

    def mend(self) -> None:
        """Everything runs and is joined again. To be repeated until the cluster is well."""
        self.rig.mend()

    def revive(self) -> None:
        """Nodes that died run again; what is cut or full stays so."""
        self.rig.revive()

    def logs(self) -> list[Path]:
        """What Ray and the brokers wrote."""
        return self.rig.logs()


@contextlib.contextmanager
def embedded(directory: Path, groups: int) -> Iterator[tuple[escrowmq.Cluster, None]]:
    """Broker groups of three replicas on this machine, all settings of brokers at their defaults."""
    # Ray's Unix sockets allow no long path, so its own directory lies beside the others.
    ray = {"num_cpus": 8, "temp_dir": directory / "ray", "object_store_bytes": OBJECT_STORE_BYTES}
    data = directory / "data"
    with escrowmq.start_local(groups=groups, replicas=3, data_dir=data, ray=ray) as cluster:
        yield cluster, None


@contextlib.contextmanager
def on_machines(directory: Path, seed: int) -> Iterator[tuple[escrowmq.Cluster, Machines]]:
    """One broker group, each replica on a machine of its own."""
    config = {"broker": {"disk_reserve_bytes": DISK_RESERVE_BYTES}}
    with MachineRig(disk_bytes=DISK_BYTES, config=config, seed=seed) as rig:
        rig.enter()
        machines = Machines(rig)
        try:
            with escrowmq.connect(rig.address) as cluster:
                yield cluster, machines
        except BaseException:
            _keep_logs(machines, directory)
            raise


def _keep_logs(machines: Machines, directory: Path) -> None:
    """The rig takes its own directory with it."""
    place = directory / "machines"
    place.mkdir(exist_ok=True)
    for number, path in enumerate(machines.logs()):
        with contextlib.suppress(OSError):
            host = path.relative_to(machines.rig.directory).parts[0]
            (place / f"{host}-{number}-{path.name}").write_bytes(path.read_bytes()[-1_000_000:])
