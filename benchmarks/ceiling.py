"""The ceiling: what Ray calls, TCP and fdatasync allow on this machine, without Raft or any logic.

A threaded actor accepts bytes, appends them to a file, copies them to two other actors that do the same, and
answers when two of the three have called fdatasync. It groups what arrives during a sync, as any log should.
It has no terms, checks nothing, and could not recover. It must stay that simple: anything added here lowers
the ceiling and so makes the broker look better.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray

from benchmarks.measure import CpuMeter, CpuUse, Latencies

_LENGTH = struct.Struct("<Q")
GROUP_BYTES_MAX = 4 << 20  # more outstanding than this only adds latency


def _write_all(file: int, parts: list[bytes]) -> None:
    data = b"".join(parts) if len(parts) > 1 else parts[0]
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
    os.fdatasync(file)


class CopyFollower:
    """Receives a stream, writes and syncs it, and answers with the number of bytes that are durable."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        self._server = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, daemon=True).start()

    def where(self) -> tuple[int, int]:
        """(port, pid)."""
        return self._server.getsockname()[1], os.getpid()

    def _serve(self) -> None:
        link, _ = self._server.accept()
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        safe = 0
        while data := link.recv(GROUP_BYTES_MAX):
            _write_all(self._file, [data])
            safe += len(data)
            link.sendall(_LENGTH.pack(safe))


class CopyLeader:
    """Accepts bytes from clients and answers when a majority of the three files has them."""

    def __init__(self, path: str, ports: list[int]) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._queue: list[bytes] = []
        self._accepted = 0
        self._safe = [0] * (1 + len(ports))
        self._majority = 0
        self._waiting: deque[tuple[int, threading.Event]] = deque()
        self._links = [socket.create_connection(("127.0.0.1", port)) for port in ports]
        for place, link in enumerate(self._links, start=1):
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._read_acks, args=(place, link), daemon=True).start()
        threading.Thread(target=self._write, daemon=True).start()

    def pid(self) -> int:
        return os.getpid()

    def put(self, data: bytes) -> int:
        """Returns the position after ``data``, once two of the three files have it."""
        done = threading.Event()
        with self._work:
            self._queue.append(data)
            self._accepted += len(data)
            end = self._accepted
            self._waiting.append((end, done))
            self._work.notify()
        if not done.wait(60):
            raise TimeoutError("no majority for 60 s: a follower of the ceiling has ended")
        return end

    def _write(self) -> None:
        written = 0
        while True:
            with self._work:
                while not self._queue:
                    self._work.wait()
                parts, self._queue = self._queue, []
            group = b"".join(parts)
            for link in self._links:
                link.sendall(group)
            _write_all(self._file, [group])
            written += len(group)
            self._advance(0, written)

    def _read_acks(self, place: int, link: socket.socket) -> None:
        rest = b""
        while data := link.recv(1 << 16):
            rest += data
            whole = len(rest) // 8 * 8
            if whole:
                self._advance(place, _LENGTH.unpack_from(rest, whole - 8)[0])
                rest = rest[whole:]

    def _advance(self, place: int, safe: int) -> None:
        with self._lock:
            self._safe[place] = safe
            self._majority = sorted(self._safe)[1]
            while self._waiting and self._waiting[0][0] <= self._majority:
                self._waiting.popleft()[1].set()


@dataclass
class CeilingFigure:
    """One measurement: calls of ``call_bytes`` each, ``in_flight`` of them at a time."""

    call_bytes: int
    in_flight: int
    seconds: float
    calls: int
    latency: dict[str, float]
    cpu: CpuUse

    @property
    def calls_per_s(self) -> float:
        return self.calls / self.seconds

    @property
    def bytes_per_s(self) -> float:
        return self.calls * self.call_bytes / self.seconds


@dataclass
class Ceiling:
    """Three copying actors on the disk of ``folder``; ``measure`` may be called many times."""

    folder: Path
    _leader: Any = field(init=False)
    _followers: list[Any] = field(init=False)
    _pids: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        follower = ray.remote(num_cpus=0)(CopyFollower)
        self._followers = [follower.remote(str(self.folder / f"copy-{n}")) for n in (1, 2)]
        where = ray.get([f.where.remote() for f in self._followers])
        leader: Any = ray.remote(CopyLeader).options(num_cpus=0, max_concurrency=64)
        self._leader = leader.remote(str(self.folder / "copy-0"), [port for port, _ in where])
        self._pids = {
            "leader": ray.get(self._leader.pid.remote()),
            "follower 1": where[0][1],
            "follower 2": where[1][1],
            "client": os.getpid(),
        }

    def measure(self, call_bytes: int, in_flight: int, seconds: float) -> CeilingFigure:
        """Keep ``in_flight`` calls going for ``seconds``. The bytes are random, so they do not compress."""
        data = os.urandom(call_bytes)
        self._drive(data, in_flight, min(0.5, seconds))  # warms up connections and files
        meter = CpuMeter(self._pids)
        calls, elapsed, latency = self._drive(data, in_flight, seconds)
        return CeilingFigure(call_bytes, in_flight, elapsed, calls, latency.summary(), meter.stop(calls))

    def _drive(self, data: bytes, in_flight: int, seconds: float) -> tuple[int, float, Latencies]:
        latency = Latencies()
        put = self._leader.put
        begin = time.perf_counter()
        pending: deque[tuple[Any, float]] = deque()
        calls = 0
        while (now := time.perf_counter()) - begin < seconds or pending:
            if now - begin < seconds and len(pending) < in_flight:
                pending.append((put.remote(data), now))
                continue
            call, sent = pending.popleft()
            ray.get(call)
            latency.add(time.perf_counter() - sent)
            calls += 1
        return calls, time.perf_counter() - begin, latency

    def close(self) -> None:
        for actor in (self._leader, *self._followers):
            ray.kill(actor)
        for name in ("copy-0", "copy-1", "copy-2"):
            (self.folder / name).unlink(missing_ok=True)
