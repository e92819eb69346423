"""Simulates a slow link: packets that the router sends into a TUN device come out of it later, or are lost.

The kernel's netem does the same, but not every kernel has it; this needs only TUN, and the routing rules
choose the packets. It runs as a process in the router's namespace
(``python -m tests.chaos.rig.delays``), reads its table as JSON lines from standard input, and ends when that
ends:
``{"source": "10.77.0.2", "target": "10.77.1.2", "seconds": 1.0, "jitter": 0.2, "loss": 0.1, "seed": 7}``.
"""

from __future__ import annotations

import fcntl
import heapq
import json
import os
import random
import selectors
import struct
import sys
import time
from dataclasses import dataclass, field

DEVICE = "delay0"
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_PACKET_MAX = 65536
#: Limit of the bytes in transit, as in a real router. Packets beyond it are lost, and TCP sends them again.
WAITING_MAX_BYTES = 64 << 20
_ADDRESSES = slice(12, 20)


@dataclass(slots=True)
class Wire:
    """One direction between two hosts."""

    seconds: float
    jitter: float
    loss: float
    dice: random.Random

    def take(self) -> float | None:
        """Seconds that the next packet takes; None: it is lost."""
        if self.loss and self.dice.random() < self.loss:
            return None
        return max(0.0, self.seconds + self.dice.uniform(-self.jitter, self.jitter))


@dataclass(slots=True)
class Wires:
    """Packets in transit, by the time of their arrival. It has no clock and no device."""

    table: dict[bytes, Wire] = field(default_factory=dict)
    _waiting: list[tuple[float, int, bytes]] = field(default_factory=list)
    _bytes: int = 0
    _count: int = 0

    def set(self, line: str) -> None:
        """Apply one line of the table."""
        entry = json.loads(line)
        pair = b"".join(bytes(map(int, entry[end].split("."))) for end in ("source", "target"))
        self.table[pair] = Wire(
            entry["seconds"], entry["jitter"], entry["loss"], random.Random(entry["seed"])
        )

    def put(self, packet: bytes, now: float) -> None:
        """Take a packet from its sender. It is due at once if its two hosts are not in the table."""
        wire = self.table.get(packet[_ADDRESSES])
        wait = wire.take() if wire else 0.0
        if wait is None or self._bytes + len(packet) > WAITING_MAX_BYTES:
            return
        self._count += 1
        self._bytes += len(packet)
        heapq.heappush(self._waiting, (now + wait, self._count, packet))

    def due(self, now: float) -> list[bytes]:
        """The packets that are due, in order."""
        ready = []
        while self._waiting and self._waiting[0][0] <= now:
            ready.append(heapq.heappop(self._waiting)[2])
            self._bytes -= len(ready[-1])
        return ready

    def pause(self, now: float) -> float | None:
        """Seconds until the next packet is due; None if there is none."""
        return max(0.0, self._waiting[0][0] - now) if self._waiting else None


def open_device(name: str = DEVICE) -> int:
    """The TUN device with this name in this process's namespace; created if it does not exist."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return device


def main() -> None:
    """Carry packets until standard input ends."""
    device, wires = open_device(), Wires()
    selector = selectors.DefaultSelector()
    selector.register(device, selectors.EVENT_READ)
    selector.register(sys.stdin, selectors.EVENT_READ)
    print("ready", flush=True)
    while True:
        # epoll's time-out is rounded up to milliseconds, which is exact enough.
        for key, _ in selector.select(wires.pause(time.monotonic())):
            if key.fileobj is sys.stdin:
                line = sys.stdin.readline()
                if not line:
                    return
                wires.set(line)
                print("ok", flush=True)
            else:
                receive(device, wires)
        for packet in wires.due(time.monotonic()):
            try:
                os.write(device, packet)
            except OSError:  # no buffer space, or the route is blocked by now: the packet is lost
                continue


def receive(device: int, wires: Wires) -> None:
    """Read a limited number of packets that have arrived: due packets must leave, too."""
    for _ in range(256):
        try:
            packet = os.read(device, _PACKET_MAX)
        except BlockingIOError:
            return
        wires.put(packet, time.monotonic())


if __name__ == "__main__":
    main()
