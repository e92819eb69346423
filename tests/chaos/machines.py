"""The cluster of a round: embedded in its process, or on machines of their own (see ``rig``)."""

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

#: What a round on machines must have in its environment before Ray is imported.
ENVIRONMENT: Mapping[str, str] = {"RAY_AUTH_MODE": "disabled"}
OBJECT_STORE_BYTES = 256 << 20
#: Disks that hold a round's log several times over, and can still be filled in a moment.
DISK_BYTES = 640 << 20
#: What a leader keeps free. In every other round on machines so little that its own log, too, meets the end.
RESERVES_BYTES = (32 << 20, 256 << 10)
#: Segments are sealed, and snapshots and run files written, many times in a round on machines.
SEGMENT_BYTES = 1 << 20
#: One host without replicas: together with the head, two places to move a replica to.
SPARES = 1
#: So long a node must be away until its replicas are moved: more than the node of a passing fault is, mostly.
REPLACE_AFTER_S = 6.0
#: Everything stored is read again so often, as soon as it is quiet: what flipped and nobody read must be
#: mended by the end of the round.
SCRUB_PERIOD_S = 10.0


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

    @property
    def hosts(self) -> tuple[str, ...]:
        """All that replicas are moved among, but the head."""
        return self.rig.hosts

    def cut_off(self, host: str) -> None:
        """From the other hosts; clients and Ray reach it."""
        self.rig.cut_off(host)

    def cut(self, a: str, b: str) -> None:
        """The link between two hosts."""
        self.rig.cut(a, b, raft_only=HEAD in (a, b))

    def slow_down(self, host: str, seconds: float) -> None:
        """To all others, and as long again back: a round trip takes twice that."""
        self.rig.slow_down(host, seconds)

    def heal(self) -> None:
        """The network."""
        self.rig.heal()

    def fill_disk(self, host: str, leave: int = 0) -> None:
        self.rig.fill_disk(host, leave)

    def give_back(self, host: str, size: int) -> None:
        self.rig.give_back(host, size)

    def free_disk(self, host: str) -> None:
        self.rig.free_disk(host)

    def data_path(self, host: str) -> Path:
        """Its data directory, as this process reaches it."""
        return self.rig.data_path(host)

    def raylet(self, host: str) -> int:
        """Pid of the host's raylet; one that died late of an earlier fault is started again."""
        if self.rig.ray.raylet(host) is None:
            self.rig.revive()
        pid = self.rig.ray.raylet(host)
        assert pid is not None, f"node {host} does not run"
        return pid

    def processes(self, host: str) -> list[int]:
        """Everything that runs there."""
        return self.rig.network.processes(host)

    def kill_raylet(self, host: str) -> None:
        """SIGKILL of the raylet alone; what it had started notices by itself."""
        os.kill(self.raylet(host), signal.SIGKILL)

    def kill_node(self, host: str) -> None:
        """SIGKILL of everything on the machine."""
        self.rig.kill_node(host)

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
    """Broker groups of three replicas on this machine, all settings of brokers at their defaults but
    scrubbing."""
    # Ray's Unix sockets allow no long path, so its own directory lies beside the others.
    ray = {"num_cpus": 8, "temp_dir": directory / "ray", "object_store_bytes": OBJECT_STORE_BYTES}
    broker = {"scrub_period_s": SCRUB_PERIOD_S}
    with escrowmq.start_local(
        groups=groups, replicas=3, data_dir=data_dir(directory), ray=ray, broker=broker
    ) as cluster:
        yield cluster, None


def data_dir(directory: Path) -> Path:
    """Of an embedded cluster."""
    return directory / "data"


@contextlib.contextmanager
def on_machines(directory: Path, plan: Round) -> Iterator[tuple[escrowmq.Cluster, Machines]]:
    """Broker groups, the replicas of each on machines of their own."""
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
    """The rig takes its own directory with it."""
    place = directory / "machines"
    place.mkdir(exist_ok=True)
    for number, path in enumerate(machines.logs()):
        with contextlib.suppress(OSError):
            host = path.relative_to(machines.rig.directory).parts[0]
            (place / f"{host}-{number}-{path.name}").write_bytes(path.read_bytes()[-1_000_000:])
