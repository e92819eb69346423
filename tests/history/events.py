"""Events that clients record: operations (invoke, then ok, failed or unknown), and everything they read.

A client that dies leaves an invoke without an end, which counts as unknown. A value carries the id of its
message and a checksum of all its bytes: readers record the id instead of the value, and truncated, mixed or
flipped bytes are still detected.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import msgspec

INVOKE, OK, FAIL, UNKNOWN, READ = "invoke", "ok", "fail", "unknown", "read"
#: ``outcome`` asks for the recorded outcome of a transaction: at its home group, or with ``branch`` at that
#: group. ``check``: a producer of the app was asked about it. ``stored``: whether the application's database,
#: which has a fence, holds the rows of the local transaction at the end. Offsets are those of consumer
#: groups. ``topic-create`` and ``topic-delete``: of a topic that exists several times (see lives.py).
KINDS = frozenset(
    {"prepare", "decide", "send", "local", "stored", "outcome", "check", "offset-commit", "offset-fetch"}
    | {"topic-create", "topic-delete"}
    # Of share groups, see sharing.py.
    | {
        "share-group",
        "share-acquire",
        "share-ack",
        "share-nack",
        "share-release",
        "share-extend",
        "share-redrive",
        "share-redirect",
    }
    | {"share-handle", "share-end", "share-poll", "share-pass", "share-delete"}
)

_END = b"|"  # ends the id in a value
_CRC_HEX = 8


class BadHistory(Exception):
    """The recording itself is wrong, so it says nothing about the system."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One message as a client sent it."""

    id: str  # unique in the whole history
    topic: str
    partition: int = -1  # -1: the broker chooses, or the key
    key: str | None = None
    group: int = -1  # the broker group of its partition; -1: not known, or there is only one


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of a history. ``op`` numbers the operations of a process; reads have none."""

    at: int  # nanoseconds of one clock, the same for all processes
    process: str
    phase: str
    kind: str = ""
    op: int = -1
    fields: dict[str, Any] = {}


def body(id: str, size: int) -> bytes:
    """A value of ``size`` bytes (or the few more that the id takes) that only ``id`` can have."""
    name = id.encode()
    assert _END not in name, f"the id {id!r} may not contain {_END!r}"
    room = size - len(name) - len(_END) - _CRC_HEX
    filler = (hashlib.sha256(name).hexdigest().encode() * (room // 64 + 1))[:room] if room > 0 else b""
    return name + _END + b"%08x" % google_crc32c.value(name + filler) + filler


def identify(value: bytes) -> str:
    """The id of a value that ``body`` made, or ``corrupt:<digest>``."""
    name, end, rest = bytes(value).partition(_END)
    crc, filler = rest[:_CRC_HEX], rest[_CRC_HEX:]
    if end and crc == b"%08x" % google_crc32c.value(name + filler):
        return name.decode()
    return f"corrupt:{hashlib.sha256(value).hexdigest()[:16]}"


class Recorder:
    """Records the events of one process in memory, and in a file of JSON lines if one is given.

    Each event is one unbuffered write, so a SIGKILL loses at most the end of the last line. A process that
    starts again may append to its file; its operations get numbers that were not used before.
    """

    def __init__(
        self, process: str, file: Path | None = None, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self.process, self._clock = process, clock
        self.events: list[Event] = []
        self._lock = threading.Lock()
        self._next = 0
        self._file = None
        if file is not None:
            self._file = file.open("ab", buffering=0)
            # Every operation took more than one byte, so the size is above all numbers in the file.
            self._next = self._file.tell()
            if self._next:
                self._file.write(b"\n\n")  # ends a torn last line, and says that it may be torn

    def invoke(self, kind: str, **fields: Any) -> int:
        """Record the start of an operation; returns its number, which ``ok``, ``fail`` and ``unknown``
        take."""
        assert kind in KINDS, f"unknown kind of operation {kind!r}"
        with self._lock:
            op, self._next = self._next, self._next + 1
            self._add(INVOKE, kind, op, fields)
        return op

    def ok(self, op: int, **fields: Any) -> None:
        self._end(OK, op, fields)

    def fail(self, op: int, why: str) -> None:
        """The operation certainly had no effect and never will."""
        self._end(FAIL, op, {"why": why})

    def unknown(self, op: int, why: str, *, earlier: bool = False) -> None:
        """``earlier``: if it had an effect, then in a topic of that name that was deleted since."""
        self._end(UNKNOWN, op, {"why": why} | ({"earlier": True} if earlier else {}))

    def read(
        self,
        reader: str,
        topic: str,
        partition: int,
        records: Sequence[tuple[int, str]],
        *,
        start: int | None = None,
        end: int | None = None,
        cut: str | None = None,
        life: int | None = None,
    ) -> None:
        """Record a read: the (offset, id) pairs that ``reader`` got.

        ``start`` and ``end``: everything that the partition holds between them (a final read). ``start``
        alone: the reader sought to it; without it, the reader continues from its position. ``cut``: all reads
        with the same name form one stable cut over their partitions. ``life``: the id of the topic, if it
        exists several times and the reader knows which one it read.
        """
        fields: dict[str, Any] = {"reader": reader, "topic": topic, "partition": partition}
        fields["records"] = list(records)
        given = (("start", start), ("end", end), ("cut", cut), ("life", life))
        fields |= {k: v for k, v in given if v is not None}
        with self._lock:
            self._add(READ, "", -1, fields)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _end(self, phase: str, op: int, fields: dict[str, Any]) -> None:
        with self._lock:
            self._add(phase, "", op, fields)

    def _add(self, phase: str, kind: str, op: int, fields: dict[str, Any]) -> None:
        event = Event(self._clock(), self.process, phase, kind, op, fields)
        if self._file is None:
            self.events.append(event)
        else:
            self._file.write(encode(event))


def encode(event: Event) -> bytes:
    """An event as one line."""
    return msgspec.json.encode(event) + b"\n"


_DECODER = msgspec.json.Decoder(Event)


def decode(line: bytes) -> Event:
    """The event of a line; raises msgspec.DecodeError for a torn one."""
    event = _DECODER.decode(line)
    if "messages" in event.fields:
        event.fields["messages"] = [Sent(**message) for message in event.fields["messages"]]
    return event
