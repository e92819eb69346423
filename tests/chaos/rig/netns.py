"""Hosts of a simulated network: each is a network namespace, and a router in another namespace joins them.

The machine's own network is not touched: the router is linked only to the hosts. The router's routing rules
decide about the traffic between two hosts: it can be cut (in one direction or both) or sent over a slow link
(``delays``), all of it or that of some TCP ports. Needs root and ``ip``.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.rig.delays import DEVICE
from tests.chaos.rig.shell import RigError, attempt, is_stale, own_tag, run

#: The same addresses in every run, since the namespaces of two runs are not connected.
_PREFIX = "10.77"
_CUT, _SLOW, _TABLE = 100, 200, 77
_CLONE_NEWNET = 0x40000000
_NAMESPACES = Path("/var/run/netns")
_ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True)
class Ports:
    """TCP traffic with both ports in this range."""

    first: int
    last: int

    def selector(self) -> tuple[str, ...]:
        """The range in the syntax of ``ip rule``."""
        wanted = f"{self.first}-{self.last}"
        return ("ipproto", "tcp", "sport", wanted, "dport", wanted)


#: The range from which the hosts' kernels choose a port if a program asks for any.
GIVEN_PORTS = Ports(32768, 60999)


def unavailable() -> str | None:
    """Why this machine cannot simulate hosts; None if it can. Finds out by trying."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "there is no ip command (iproute2)"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "there is no /dev/net/tun"
    name = f"{own_tag()}-try"
    problem = attempt(("ip", "netns", "add", name))
    if problem is None:
        try:
            problem = (
                attempt(("ip", "-n", name, "link", "add", "v0", "type", "veth", "peer", "name", "v1"))
                or attempt(("ip", "-n", name, "rule", "add", "pref", "1", "iif", "v0", "blackhole"))
                or attempt(("ip", "-n", name, "tuntap", "add", "dev", DEVICE, "mode", "tun"))
            )
        finally:
            attempt(("ip", "netns", "del", name))
    return problem


class Network:
    """Hosts that can reach each other. A context manager; ``close`` kills all processes on the hosts."""

    def __init__(self, hosts: Sequence[str], seed: int = 0) -> None:
        remove_stale()
        self.hosts = tuple(hosts)
        self._tag, self._seed = f"{own_tag()}-{time.monotonic_ns() % 10**6:06d}", seed
        self._rules: list[tuple[str, ...]] = []
        self._wire: subprocess.Popen[str] | None = None
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------ building

    def _build(self) -> None:
        router = self.namespace("router")
        for name in ("router", *self.hosts):
            run("ip", "netns", "add", self.namespace(name))
            run("ip", "-n", self.namespace(name), "link", "set", "lo", "up")
        for number, host in enumerate(self.hosts):
            inside, link = self.namespace(host), f"v{number}"
            gateway = f"{_PREFIX}.{number}.1"
            run("ip", "-n", router, *f"link add {link} type veth peer name eth0 netns {inside}".split())
            run("ip", "-n", router, *f"addr add {gateway}/24 dev {link}".split())
            run("ip", "-n", router, *f"link set {link} up".split())
            run("ip", "-n", inside, *f"addr add {self.address(host)}/24 dev eth0".split())
            run("ip", "-n", inside, "link", "set", "eth0", "up")
            run("ip", "-n", inside, *f"route add default via {gateway}".split())
            ports = f"echo {GIVEN_PORTS.first} {GIVEN_PORTS.last} > /proc/sys/net/ipv4/ip_local_port_range"
            run(*self.within(host), "sh", "-c", ports)
        # Packets come back from the slow link through another device than the one they arrived at.
        settings = "echo 0 | tee /proc/sys/net/ipv4/conf/*/rp_filter; echo 1 > /proc/sys/net/ipv4/ip_forward"
        run(*self.within("router"), "sh", "-c", settings)
        self._start_wire()
        run("ip", "-n", router, "link", "set", DEVICE, "up")
        run("ip", "-n", router, *f"route add default dev {DEVICE} table {_TABLE}".split())

    def _start_wire(self) -> None:
        self._wire = subprocess.Popen(
            [*self.within("router"), sys.executable, "-m", "tests.chaos.rig.delays"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=_ROOT,
        )
        self._expect("ready")

    def _expect(self, word: str) -> None:
        assert self._wire is not None and self._wire.stdout is not None
        if (answer := self._wire.stdout.readline().strip()) != word:
            raise RigError(f"the process for delays answered {answer!r}, not {word!r}")

    # ------------------------------------------------------------ hosts

    def namespace(self, host: str) -> str:
        """The host's name as ``ip netns`` knows it."""
        return f"{self._tag}-{host}"

    def address(self, host: str) -> str:
        """The host's address."""
        return f"{_PREFIX}.{self.hosts.index(host)}.2"

    def within(self, host: str) -> list[str]:
        """The words that make a command run on the host when put before it."""
        return ["ip", "netns", "exec", self.namespace(host)]

    def enter(self, host: str) -> None:
        """Move this thread to the host, and all threads and processes that it starts from now on."""
        with open(_NAMESPACES / self.namespace(host), "rb") as space:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(space.fileno(), _CLONE_NEWNET) != 0:
                raise RigError(f"setns: {os.strerror(ctypes.get_errno())}")

    def processes(self, host: str) -> list[int]:
        """Ids of all processes on the host except this one."""
        return processes_in(self.namespace(host))

    def kill(self, host: str) -> int:
        """Send SIGKILL to all processes on the host, new ones included; returns their number."""
        return _kill_all(self.namespace(host))

    # ------------------------------------------------------------ faults

    def cut(self, a: str, b: str, *, one_way: bool = False, ports: Ports | None = None) -> None:
        """Drop all packets from ``a`` to ``b``, and back unless ``one_way``, without an error."""
        for source, target in ((a, b),) if one_way else ((a, b), (b, a)):
            self._rule(_CUT, source, target, ports, "blackhole")

    def isolate(self, host: str) -> None:
        """Cut a host off from all others."""
        for other in self.hosts:
            if other != host:
                self.cut(host, other)

    def partition(self, sides: Iterable[Sequence[str]], *, ports: Ports | None = None) -> None:
        """Cut every pair of hosts on different sides."""
        groups = [list(side) for side in sides]
        for number, side in enumerate(groups):
            for other in groups[number + 1 :]:
                for a in side:
                    for b in other:
                        self.cut(a, b, ports=ports)

    def delay(
        self,
        a: str,
        b: str,
        seconds: float,
        *,
        jitter: float = 0.0,
        loss: float = 0.0,
        one_way: bool = False,
        ports: Ports | None = None,
    ) -> None:
        """Delay packets from ``a`` to ``b`` by ``seconds`` ± ``jitter``, and drop the share ``loss`` of them.

        The other direction too, unless ``one_way``. Jitter reorders packets. A later delay of the same pair
        replaces the earlier one.
        """
        for source, target in ((a, b),) if one_way else ((a, b), (b, a)):
            self._seed += 1
            entry = {
                "source": self.address(source),
                "target": self.address(target),
                "seconds": seconds,
                "jitter": jitter,
                "loss": loss,
                "seed": self._seed,
            }
            assert self._wire is not None and self._wire.stdin is not None
            self._wire.stdin.write(json.dumps(entry) + "\n")
            self._wire.stdin.flush()
            self._expect("ok")
            self._rule(_SLOW, source, target, ports, "lookup", str(_TABLE))

    def heal(self) -> None:
        """Undo all cuts and delays. Packets already on a slow link still arrive late."""
        while self._rules:
            run("ip", "-n", self.namespace("router"), "rule", "del", *self._rules[-1])
            self._rules.pop()

    def _rule(self, pref: int, source: str, target: str, ports: Ports | None, *action: str) -> None:
        pair = ("iif", f"v{self.hosts.index(source)}")
        pair += ("from", self.address(source), "to", self.address(target))
        rule = ("pref", str(pref), *pair, *(ports.selector() if ports else ()), *action)
        if rule not in self._rules:
            run("ip", "-n", self.namespace("router"), "rule", "add", *rule)
            self._rules.append(rule)

    def close(self) -> None:
        """Kill everything on the hosts, and remove the hosts. Idempotent."""
        if self._wire is not None:
            assert self._wire.stdin is not None and self._wire.stdout is not None
            self._wire.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._wire.wait(5.0)
            self._wire.stdout.close()
            self._wire = None
        for name in _namespaces():
            if name.startswith(f"{self._tag}-"):
                _remove(name)


def remove_stale() -> list[str]:
    """Remove the namespaces of runs that died, and kill what runs in them; returns their names."""
    stale = [name for name in _namespaces() if is_stale(name)]
    for name in stale:
        _remove(name)
    return stale


def _namespaces() -> list[str]:
    return [line.split()[0] for line in run("ip", "netns", "list").splitlines() if line.strip()]


def _remove(namespace: str) -> None:
    _kill_all(namespace)
    with contextlib.suppress(RigError):  # another process removed it at the same time
        run("ip", "netns", "del", namespace)


def processes_in(namespace: str) -> list[int]:
    """Pids of the processes in a namespace, except this one. Runs no command: it might be one of them."""
    try:
        wanted = (_NAMESPACES / namespace).stat().st_ino
    except FileNotFoundError:
        return []
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid() and _lives_in(int(entry.name), wanted):
            found.append(int(entry.name))
    return found


def _lives_in(pid: int, namespace: int) -> bool:
    try:
        return Path(f"/proc/{pid}/ns/net").stat().st_ino == namespace
    except OSError:  # it has ended
        return False


def _kill_all(namespace: str) -> int:
    """See ``Network.kill``. It opens a descriptor of each process and looks again, since pids are reused."""
    killed = 0
    deadline = time.monotonic() + 10.0
    while pids := processes_in(namespace):
        if time.monotonic() > deadline:
            raise RigError(f"processes in {namespace} outlived SIGKILL: {pids}")
        wanted = (_NAMESPACES / namespace).stat().st_ino
        for pid in pids:
            try:
                handle = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            try:
                if _lives_in(pid, wanted):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                    killed += 1
            except ProcessLookupError:
                continue
            finally:
                os.close(handle)
        time.sleep(0.02)
    return killed
