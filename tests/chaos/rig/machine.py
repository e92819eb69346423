"""The whole rig: hosts, disks, Ray and EscrowMQ on them, and the faults that can be inflicted on them.

At the start, replica 1 of every group is on host ``n1``, which has a separate disk, and so on. ``spares`` are
hosts without a replica, to which the supervisor may move one. ``HEAD`` is the host of Ray's control store and
of the clients; it has no small disk, and is not killed. Example::

    with MachineRig() as rig:
        rig.enter()                                    # this thread now runs on the head
        with escrowmq.connect(rig.address) as cluster:
            rig.cut(0, 1)
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from tests.chaos.rig import disks, netns
from tests.chaos.rig.disks import MIB, Disk
from tests.chaos.rig.netns import Network
from tests.chaos.rig.nodes import HEAD, RAFT_LINKS, RayNodes
from tests.chaos.rig.shell import (
    RigError,
    own_directory,
    remove_directory,
    remove_stale_directories,
    share_mounts,
)

Place = int | str


class MachineRig:
    """The constructor builds everything, ``close`` removes it. Faults last until ``heal`` or ``mend``."""

    def __init__(
        self,
        replicas: int = 3,
        *,
        groups: int = 1,
        spares: int = 0,
        disk_bytes: int = 256 * MIB,
        thin: tuple[int, ...] = (),
        config: dict[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        """``thin``: replicas whose disks can be exhausted. ``config``: settings as in escrowmq.yaml."""
        netns.remove_stale()  # first, because their processes hold the mounts
        remove_stale_directories()
        self.replicas = range(replicas)
        #: All hosts except the head; each has a disk.
        self.hosts = tuple(self.host(number) for number in range(replicas + spares))
        self.disks: dict[str, Disk] = {}
        self._network: Network | None = None
        self.directory = own_directory()
        try:
            share_mounts(self.directory)
            on_thin = [self.host(replica) for replica in thin]
            for host in self.hosts:
                self.disks[host] = Disk(self.directory / "disks" / host, disk_bytes, thin=host in on_thin)
            self._network = Network((HEAD, *self.hosts), seed)
            places = {host: disk.path for host, disk in self.disks.items()}
            self.ray = RayNodes(self.network, self.directory, places)
            self.ray.start_all()
            path = self.directory / "escrowmq.yaml"
            path.write_text(json.dumps(config or {}))
            self.ray.up(path, [self.host(replica) for replica in self.replicas], groups)
        except BaseException:
            self.close()
            raise

    @staticmethod
    def available() -> str | None:
        """Why this machine cannot simulate machines; None if it can. Takes a fraction of a second."""
        return netns.unavailable() or disks.unavailable()

    def __enter__(self) -> MachineRig:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill everything on the hosts, and remove the hosts, their disks and files. Idempotent."""
        if self._network is not None:
            self._network.close()
        remove_directory(self.directory)

    # ------------------------------------------------------------ places

    @property
    def network(self) -> Network:
        """The hosts."""
        assert self._network is not None, "the rig is not built"
        return self._network

    @property
    def address(self) -> str:
        """Ray's address, for ``escrowmq.connect`` on the head."""
        return self.ray.address

    @staticmethod
    def host(place: Place) -> str:
        """The host of a replica; a host's name is returned unchanged."""
        return f"n{place}" if isinstance(place, int) else place

    def enter(self) -> None:
        """Move this thread, and all that it starts from now on, to the head: clients must be on a Ray node.

        For the main thread of a process that has not started Ray yet.
        """
        self.network.enter(HEAD)

    def command(self, *arguments: str) -> list[str]:
        """A command line that runs on the head, wherever the caller is."""
        return [*self.network.within(HEAD), *arguments]

    def logs(self) -> list[Path]:
        """The output of Ray's and the brokers' processes, most recent last."""
        files = self.directory.glob("*/session_2*/logs/*.*")
        return sorted((path for path in files if path.is_file()), key=lambda path: path.stat().st_mtime)

    # ------------------------------------------------------------ network

    def cut(self, a: Place, b: Place, one_way: bool = False, *, raft_only: bool = False) -> None:
        """Drop all packets from ``a`` to ``b`` (and back). ``raft_only``: Ray's traffic still passes."""
        ports = RAFT_LINKS if raft_only else None
        self.network.cut(self.host(a), self.host(b), one_way=one_way, ports=ports)

    def cut_off(self, place: Place, *, raft_only: bool = False) -> None:
        """Cut a host off from the others; Ray and the clients on the head still reach it."""
        for other in self._others(place):
            self.cut(place, other, raft_only=raft_only or HEAD in (other, place))

    def _others(self, place: Place) -> list[str]:
        """All other hosts that may have a replica."""
        return [host for host in (*self.hosts, HEAD) if host != self.host(place)]

    def slow_down(self, place: Place, seconds: float) -> None:
        """Delay a host's links to the others, but not those to the clients and Ray on the head."""
        for other in self._others(place):
            self.delay(place, other, seconds, raft_only=HEAD in (other, place))

    def isolate(self, place: Place) -> None:
        """Cut a host off from everything, Ray included, which declares the node dead after 1 to 3 s."""
        self.network.isolate(self.host(place))

    def delay(
        self,
        a: Place,
        b: Place,
        seconds: float,
        *,
        jitter: float = 0.0,
        loss: float = 0.0,
        one_way: bool = False,
        raft_only: bool = False,
    ) -> None:
        """Delay packets in both directions, and drop a share of them; between replicas, or to the head."""
        ports = RAFT_LINKS if raft_only else None
        self.network.delay(
            self.host(a), self.host(b), seconds, jitter=jitter, loss=loss, one_way=one_way, ports=ports
        )

    def heal(self) -> None:
        """Let all packets arrive again. A node that Ray declared dead meanwhile needs ``mend``."""
        self.network.heal()

    # ------------------------------------------------------------ disks

    def fill_disk(self, place: Place, leave: int = 0) -> None:
        """Fill the disk (ENOSPC), except for ``leave`` bytes."""
        self.disks[self.host(place)].fill(leave)

    def give_back(self, place: Place, size: int) -> None:
        """Free so many bytes of a full disk."""
        self.disks[self.host(place)].give_back(size)

    def free_disk(self, place: Place) -> None:
        """Free a full disk."""
        self.disks[self.host(place)].free()

    def fail_disk(self, place: Place) -> None:
        """Every access fails with EIO, and unsynced data are lost, until ``replace_disk``."""
        self.disks[self.host(place)].fail()

    def exhaust_disk(self, place: Place) -> None:
        """Writes succeed, but the fsync after them fails, until ``replace_disk``. For ``thin`` replicas."""
        self.disks[self.host(place)].exhaust()

    def replace_disk(self, place: Place) -> None:
        """Mount a failed disk again, with the synced data; the node, if it runs, is killed for that."""
        running = self.ray.raylet(self.host(place)) is not None
        self.kill_node(place)
        self.disks[self.host(place)].replace()
        if running:
            self.start_node(place)

    def data_path(self, place: Place) -> Path:
        """The data directory of a host, as this process reaches it."""
        host = self.host(place)
        return self.ray.data_dir if host == HEAD else self.disks[host].path

    # ------------------------------------------------------------ nodes

    def kill_node(self, place: Place) -> None:
        """SIGKILL everything on a host: its raylet, its brokers, and what else runs there."""
        self.network.kill(self.host(place))

    def start_node(self, place: Place) -> None:
        """``ray start`` on a host whose processes are gone; the supervisor starts its replicas."""
        if self.ray.raylet(self.host(place)) is not None:
            raise RigError(f"node {place} runs already")
        self.ray.start(self.host(place))

    def mend(self) -> None:
        """Undo every fault. Repeat it until the cluster is healthy: nodes may die late from earlier cuts."""
        self.heal()
        for host, disk in self.disks.items():
            disk.free()
            if disk.failed:
                self.replace_disk(host)
        self.revive()

    def revive(self) -> None:
        """Start the nodes that died. Cut links and full disks stay as they are."""
        for host in self.hosts:
            if self.ray.raylet(host) is None:
                self.kill_node(host)
                self.start_node(host)


def wait_until(what: str, condition: Any, patience_s: float = 60.0) -> Any:
    """The first true value of ``condition()``; its own errors count as "not yet". Raises TimeoutError."""
    from escrowmq import EscrowMQError

    deadline, last = time.monotonic() + patience_s, None
    while time.monotonic() < deadline:
        try:
            last = condition()
        except EscrowMQError as error:
            last = error
        if last and not isinstance(last, Exception):
            return last
        time.sleep(0.1)
    raise TimeoutError(f"not within {patience_s:g} s: {what}; last: {last!r}")
