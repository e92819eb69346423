"""Simulated hosts: what reaches whom under cuts, delays and loss, and that nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.rig import netns
from tests.chaos.rig.delays import WAITING_MAX_BYTES, Wires
from tests.chaos.rig.netns import Network, Ports
from tests.chaos.rig.shell import run

REASON = netns.unavailable()
needs_hosts = pytest.mark.skipif(REASON is not None, reason=f"no simulated hosts: {REASON}")
ROOT = Path(__file__).resolve().parents[3]
ECHO = """
import socket, sys, threading
def serve(link):
    while data := link.recv(65536): link.sendall(data)
server = socket.create_server(("0.0.0.0", int(sys.argv[1])))
print("up", flush=True)
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""
# Connects, sends so many bytes, waits for all of them; then prints how long connecting and the echo took.
ASK = """
import socket, sys, time
host, port, size, patience = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
link = socket.create_connection((host, port), timeout=patience)
began = time.monotonic()
link.sendall(bytes(size))
while size: size -= len(link.recv(65536))
print(time.monotonic() - began)
"""


@pytest.fixture
def network() -> Iterator[Network]:
    with Network(("a", "b", "c"), seed=1) as made:
        yield made


def echo(network: Network, host: str, port: int = 5000) -> None:
    """Start an echo server on a host; it ends with the network."""
    server = subprocess.Popen(
        [*network.within(host), sys.executable, "-c", ECHO, str(port)], stdout=subprocess.PIPE
    )
    assert server.stdout is not None
    with server.stdout:
        assert server.stdout.readline() == b"up\n"


def ask(
    network: Network, source: str, target: str, port: int = 5000, *, size: int = 1, patience: float = 0.5
) -> float | None:
    """Seconds that an echo takes; None if there is none in time."""
    place = (network.address(target), str(port))
    done = subprocess.run(
        [*network.within(source), sys.executable, "-c", ASK, *place, str(size), str(patience)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        assert "TimeoutError" in done.stderr, done.stderr
        return None
    return float(done.stdout)


@needs_hosts
def test_a_cut_pair_hears_nothing_and_the_others_go_on(network: Network) -> None:
    for host in network.hosts:
        echo(network, host)
    assert all(ask(network, x, y) is not None for x in "abc" for y in "abc")
    network.cut("a", "b")
    reached = {x + y for x in "abc" for y in "abc" if ask(network, x, y, patience=0.3) is not None}
    assert reached == {"aa", "bb", "cc", "ac", "ca", "bc", "cb"}
    network.heal()
    assert ask(network, "a", "b") is not None


@needs_hosts
def test_one_way_means_one_way(network: Network) -> None:
    # Datagrams: TCP needs both ways for anything.
    listen = (
        "import socket; s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('', 6000)); s.settimeout(0.5)\n"
        "print('up', flush=True)\n"
        "try: print(s.recv(9).decode())\nexcept TimeoutError: print('nothing')"
    )

    def hears(source: str, target: str) -> str:
        command = [*network.within(target), sys.executable, "-c", listen]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as listener:
            assert listener.stdout is not None and listener.stdout.readline() == "up\n"
            send = (
                f"import socket; socket.socket(type=2).sendto(b'hello', ({network.address(target)!r}, 6000))"
            )
            run(*network.within(source), sys.executable, "-c", send)
            return listener.stdout.readline().strip()

    network.cut("a", "b", one_way=True)
    assert hears("a", "b") == "nothing"
    assert hears("b", "a") == "hello"


@needs_hosts
def test_some_ports_can_be_cut_and_the_rest_of_the_pair_stays(network: Network) -> None:
    echo(network, "b", 5000)
    echo(network, "b", 40000)
    network.partition([["a", "c"], ["b"]], ports=Ports(32768, 60999))
    assert ask(network, "a", "b", 5000) is not None
    assert ask(network, "a", "b", 40000) is None
    network.heal()
    network.isolate("b")
    assert ask(network, "a", "b", 5000) is None


@needs_hosts
def test_a_delay_is_there_both_ways_and_large_data_pass(network: Network) -> None:
    echo(network, "b")
    echo(network, "c")
    network.delay("a", "b", 0.5)
    took = ask(network, "a", "b", patience=5)
    assert took is not None and 1.0 <= took < 1.3
    assert (ask(network, "a", "c") or 9) < 0.2
    network.delay("a", "b", 0.05, jitter=0.02, loss=0.01)
    assert ask(network, "a", "b", size=300_000, patience=20) is not None
    network.heal()
    assert (ask(network, "a", "b") or 9) < 0.2


@needs_hosts
def test_a_host_is_killed_with_all_that_runs_on_it(network: Network) -> None:
    echo(network, "b")
    echo(network, "c")
    assert network.kill("b") == 1
    assert network.processes("b") == [] and len(network.processes("c")) == 1


@needs_hosts
def test_what_a_killed_run_leaves_is_removed_by_the_next() -> None:
    code = (
        "import subprocess, time; from tests.chaos.rig.netns import Network, processes_in\n"
        "n = Network(('x',))\n"
        "subprocess.Popen([*n.within('x'), 'sleep', '1000'])\n"
        "while not processes_in(n.namespace('x')): time.sleep(0.01)\n"  # it starts outside of the namespace
        "print(n.namespace('x'), flush=True); time.sleep(1000)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as crashing:
        assert crashing.stdout is not None
        left = crashing.stdout.readline().strip()
        os.kill(crashing.pid, signal.SIGKILL)
    (asleep,) = netns.processes_in(left)
    assert left in netns.remove_stale()
    assert left not in run("ip", "netns", "list")
    deadline = time.monotonic() + 5
    while Path(f"/proc/{asleep}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    status = Path(f"/proc/{asleep}/status")
    assert not status.exists() or re.search(r"State:\s+Z", status.read_text())


def line(seconds: float = 1.0, jitter: float = 0.0, loss: float = 0.0) -> str:
    return (
        f'{{"source": "10.0.0.1", "target": "10.0.0.2", "seconds": {seconds}, "jitter": {jitter}, '
        f'"loss": {loss}, "seed": 1}}'
    )


def packet(number: int, size: int = 40) -> bytes:
    return bytes(12) + bytes([10, 0, 0, 1, 10, 0, 0, 2]) + number.to_bytes(4, "big") + bytes(size - 24)


def test_a_wire_keeps_order_loses_its_share_and_holds_a_bounded_number() -> None:
    wires = Wires()
    wires.set(line(seconds=1.0))
    for number in range(3):
        wires.put(packet(number), now=10.0)
    assert wires.due(10.9) == [] and wires.pause(10.9) == pytest.approx(0.1)
    assert wires.due(11.0) == [packet(0), packet(1), packet(2)] and wires.pause(11.0) is None
    wires.set(line(loss=0.3))
    for number in range(1000):
        wires.put(packet(number), now=20.0)
    assert 600 < len(wires.due(30.0)) < 800
    wires.set(line())
    for number in range(1100):
        wires.put(packet(number, 60_000), now=40.0)
    assert sum(map(len, wires.due(50.0))) <= WAITING_MAX_BYTES
