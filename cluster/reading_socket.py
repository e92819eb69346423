"""Where an exporter and a command of the same user meet: a Unix socket in a folder that only this user can
enter.

Joining Ray takes a command seconds of processor time; an exporter has joined. The socket gives nobody more
than he has: whoever can open it is the user that runs the exporter (or root), and could read that process's
memory, Ray's token included. Both ends check it again by the kernel's word. Nothing is listened to on a
network, and nothing that comes is unpickled.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import tempfile
from pathlib import Path
from typing import Any

import msgspec

#: Longest question, and longest answer: a million open transactions.
QUESTION_BYTES_MAX, ANSWER_BYTES_MAX = 64 << 10, 512 << 20
#: Sockets that a command tries: exporters of so many clusters on a machine.
SOCKETS_MAX = 8
_LENGTH = struct.Struct(">I")
_CREDENTIALS = struct.Struct("3i")


class Question(msgspec.Struct, frozen=True):
    """``address`` None: the only Ray cluster on this machine. ``version``: both ends are of the same one."""

    version: str
    read: str
    arguments: list[Any]
    namespace: str
    address: str | None = None


class Answer(msgspec.Struct, frozen=True):
    """One of: the ``value``, packed; an ``error`` of the cluster with its arguments; ``not_mine``: this
    exporter looks at another cluster, is of another version, or is busy."""

    value: msgspec.Raw = msgspec.Raw(b"\xc0")
    error: tuple[str, list[Any]] | None = None
    not_mine: str | None = None


def folder() -> Path:
    """Of this user on this machine."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and Path(runtime).is_dir():
        return Path(runtime) / "escrowmq"
    return Path(tempfile.gettempdir()) / f"escrowmq-{os.getuid()}"


def is_ours(path: Path) -> bool:
    """Whether the folder is this user's, and nobody else can enter it. A link is none: it may lead
    anywhere."""
    try:
        found = path.lstat()
    except OSError:
        return False
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return ours and not found.st_mode & (stat.S_IRWXG | stat.S_IRWXO)


def same_user(link: socket.socket) -> bool:
    """Whether this user, or root, is at the other end, as the kernel says."""
    told = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(told)[1] in (os.getuid(), 0)


def send(link: socket.socket, message: Any) -> None:
    """One message. Raises OSError."""
    packed = msgspec.msgpack.encode(message)
    link.sendall(_LENGTH.pack(len(packed)) + packed)


def receive(link: socket.socket, bytes_max: int) -> bytes:
    """One message, packed. Raises OSError, also for one that is cut off or too long."""
    (size,) = _LENGTH.unpack(_read(link, _LENGTH.size))
    if size > bytes_max:
        raise OSError(f"a message of {size} bytes is announced, above the limit of {bytes_max}")
    return _read(link, size)


def _read(link: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = link.recv(min(size - len(parts), 1 << 20))
        if not part:
            raise OSError("the other end has closed the connection")
        parts += part
    return bytes(parts)
