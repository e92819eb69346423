"""The rig as a whole: hosts, disks, Ray and EscrowMQ on them, and everything that can be done to them.

At the start replica 1 of every group lives on host ``n1``, with a disk of its own; ``spares`` are hosts
without a replica, for the supervisor to move one to. ``HEAD`` is the host of Ray's control store and of the
clients; it has no small disk, and is not killed. Use it so::

    with MachineRig() as rig:
        rig.enter()                                    # this thread is on the head now
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
    """Builds everything when it is made; ``close`` removes it. Faults stay until ``heal`` or ``mend``."""

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
        """``thin``: replicas whose disks can be exhausted. ``config``: as in escrowmq.yaml."""
        netns.remove_stale()  # first: the processes hold the mounts
        remove_stale_directories()
        self.replicas = range(replicas)
        #: All hosts but the head, each of which has a disk.
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
        """Kill everything on the hosts and remove them, their disks and files. Twice does no harm."""
        if self._network is not None:
            self._network.close()
        remove_directory(self.directory)

    # ------------------------------------------------------------ where things are

    @property
    def network(self) -> Network:
        """The hosts."""
        assert self._network is not None, "the rig is not built"
        return self._network

    @property
    def address(self) -> str:
        """Of Ray, for ``escrowmq.connect`` on the head."""
        return self.ray.address

    @staticmethod
    def host(place: Place) -> str:
        """A replica's host; a host's name is that already."""
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
        """What the processes of Ray and of the brokers wrote, most recent last."""
        files = self.directory.glob("*/session_2*/logs/*.*")
        return sorted((path for path in files if path.is_file()), key=lambda path: path.stat().st_mtime)

    # ------------------------------------------------------------ network

    def cut(self, a: Place, b: Place, one_way: bool = False, *, raft_only: bool = False) -> None:
        """Lose all packets from ``a`` to ``b`` (and back). ``raft_only``: Ray's traffic still passes."""
        ports = RAFT_LINKS if raft_only else None
        self.network.cut(self.host(a), self.host(b), one_way=one_way, ports=ports)

    def cut_off(self, place: Place, *, raft_only: bool = False) -> None:
        """Cut a host from the others, but for Ray and the clients on its head, which reach it."""
        for other in self._others(place):
            self.cut(place, other, raft_only=raft_only or HEAD in (other, place))

    def _others(self, place: Place) -> list[str]:
        """Every host on which a replica may be, but this one."""
        return [host for host in (*self.hosts, HEAD) if host != self.host(place)]

    def slow_down(self, place: Place, seconds: float) -> None:
        """Links of a host to the others are late; clients and Ray on its head reach it as ever."""
        for other in self._others(place):
            self.delay(place, other, seconds, raft_only=HEAD in (other, place))

    def isolate(self, place: Place) -> None:
        """Cut a host from everything, also from Ray, which takes the node for dead in 1 to 3 s."""
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
        """Make packets late, each way, and lose a share of them; between replicas or to the head."""
        ports = RAFT_LINKS if raft_only else None
        self.network.delay(
            self.host(a), self.host(b), seconds, jitter=jitter, loss=loss, one_way=one_way, ports=ports
        )

    def heal(self) -> None:
        """All packets arrive again. A node that Ray has taken for dead meanwhile needs ``mend``."""
        self.network.heal()

    # ------------------------------------------------------------ disks

    def fill_disk(self, place: Place, leave: int = 0) -> None:
        """No space is left (ENOSPC), or just so many bytes."""
        self.disks[self.host(place)].fill(leave)

    def give_back(self, place: Place, size: int) -> None:
        """A full disk has room for so many bytes more."""
        self.disks[self.host(place)].give_back(size)

    def free_disk(self, place: Place) -> None:
        """There is space again."""
        self.disks[self.host(place)].free()

    def fail_disk(self, place: Place) -> None:
        """Every access ends in EIO and unsynced data are lost, until ``replace_disk``."""
        self.disks[self.host(place)].fail()

    def exhaust_disk(self, place: Place) -> None:
        """Writes succeed, the fsync after them fails, until ``replace_disk``. For ``thin`` replicas."""
        self.disks[self.host(place)].exhaust()

    def replace_disk(self, place: Place) -> None:
        """Mount a failed disk anew, with what was synced; the node, if it runs, loses power meanwhile."""
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
        """Undo every fault. To be repeated while the cluster is not well: nodes die late of earlier cuts."""
        self.heal()
        for host, disk in self.disks.items():
            disk.free()
            if disk.failed:
                self.replace_disk(host)
        self.revive()

    def revive(self) -> None:
        """Start the nodes that died. What is cut or full stays so."""
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
