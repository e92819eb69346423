"""A slow wire: packets that the router sends into a TUN device come out of it later, or never.

The kernel's own netem would do the same where it is built in; this works wherever TUN does, and needs no
second way to choose the packets. It runs as a process in the router's namespace
(``python -m tests.chaos.rig.delays``), takes its table as JSON lines on its standard input and ends with it:
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
#: What is on its way at most, as in a real router; packets beyond it are lost, and TCP sends them again.
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
        """How long the next packet is under way; None: it is lost."""
        if self.loss and self.dice.random() < self.loss:
            return None
        return max(0.0, self.seconds + self.dice.uniform(-self.jitter, self.jitter))


@dataclass(slots=True)
class Wires:
    """Packets under way, by the moment of their arrival; no clock and no device of its own."""

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
        """A packet arrives from its sender. One of an unknown pair passes at once."""
        wire = self.table.get(packet[_ADDRESSES])
        wait = wire.take() if wire else 0.0
        if wait is None or self._bytes + len(packet) > WAITING_MAX_BYTES:
            return
        self._count += 1
        self._bytes += len(packet)
        heapq.heappush(self._waiting, (now + wait, self._count, packet))

    def due(self, now: float) -> list[bytes]:
        """Packets whose time has come, in order."""
        ready = []
        while self._waiting and self._waiting[0][0] <= now:
            ready.append(heapq.heappop(self._waiting)[2])
            self._bytes -= len(ready[-1])
        return ready

    def pause(self, now: float) -> float | None:
        """Seconds until the next packet is due; None if there is none."""
        return max(0.0, self._waiting[0][0] - now) if self._waiting else None


def open_device(name: str = DEVICE) -> int:
    """The TUN device of that name in this process's namespace, created if need be."""
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
        # epoll counts in milliseconds and rounds up, which is as exact as a wire needs to be.
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
            except OSError:  # no room, or the way is blocked by now: the packet is lost
                continue


def receive(device: int, wires: Wires) -> None:
    """Take what has arrived, but not for ever: due packets must leave too."""
    for _ in range(256):
        try:
            packet = os.read(device, _PACKET_MAX)
        except BlockingIOError:
            return
        wires.put(packet, time.monotonic())


if __name__ == "__main__":
    main()
