"""The Unix socket between a process that has joined a cluster and a command of the same user, in a folder
that only this user can enter.

Joining Ray costs a command seconds of processor time; an exporter or a supervisor has joined already. The
socket gives no new rights: only the user that runs that process (or root) can open it, and that user could
read the process's memory anyway, Ray's token included. Both ends check the peer's user again, with the
kernel's answer. Neither end listens on a network or unpickles what it receives.

An answer has two messages: an empty one as soon as the question is there, so that a command leaves a stopped
process alone after a second, and the answer itself.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from escrowmq.replication.carried_settings import prepared

#: Longest question, and longest answer (enough for a million open transactions).
QUESTION_BYTES_MAX, ANSWER_BYTES_MAX = 64 << 10, 512 << 20
#: Sockets that a command tries: one or two for each cluster on this machine.
SOCKETS_MAX = 16
#: The message that says that the question is there.
TAKEN = b""
_LENGTH = struct.Struct(">I")
_CREDENTIALS = struct.Struct("3i")


@prepared
class Question(msgspec.Struct, frozen=True):
    """``address`` None: the only Ray cluster on this machine. ``version``: both ends must have the same.
    ``proof``: that the command has Ray's token (ray_token.py)."""

    version: str
    read: str
    arguments: list[Any]
    namespace: str
    address: str | None = None
    proof: bytes = b""


@prepared
class Answer(msgspec.Struct, frozen=True):
    """One of: the packed ``value``; an ``error`` of the cluster with its arguments; ``not_mine``: why this
    exporter does not answer (it serves another cluster, has another version, or is busy)."""

    value: msgspec.Raw = msgspec.Raw(b"\xc0")
    error: tuple[str, list[Any]] | None = None
    not_mine: str | None = None


def version() -> str:
    """This software's version, not imported: the public face names all modules, those that use this too."""
    return str(sys.modules["escrowmq"].__version__)


#: Where a login puts a folder for each user's sockets, and what is used without a login.
LOGINS, SHARED = Path("/run/user"), Path("/tmp")


def folders() -> list[Path]:
    """The folders of this user's sockets on this machine, the preferred one first.

    A service and a shell must find each other, whether or not each of them has a login. So a process listens
    in the first folder that it can use, and a command looks in all of them.
    """
    user, named = os.getuid(), os.environ.get("XDG_RUNTIME_DIR", "")
    runtime = [Path(named)] if named else []
    found = [path / "escrowmq" for path in (*runtime, LOGINS / str(user)) if path.is_dir()]
    return list(dict.fromkeys([*found, SHARED / f"escrowmq-{user}"]))


def is_ours(path: Path) -> bool:
    """Whether the folder belongs to this user and no other user can enter it. False for a symbolic link: it
    may lead anywhere."""
    try:
        found = path.lstat()
    except OSError:
        return False
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return ours and not found.st_mode & (stat.S_IRWXG | stat.S_IRWXO)


def same_user(link: socket.socket) -> bool:
    """Whether this user or root is at the other end, according to the kernel."""
    told = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(told)[1] in (os.getuid(), 0)


def send(link: socket.socket, message: Any) -> None:
    """Send one message. Raises OSError."""
    send_packed(link, msgspec.msgpack.encode(message))


def send_packed(link: socket.socket, packed: bytes) -> None:
    """Send one message that is packed already. Raises OSError."""
    link.sendall(_LENGTH.pack(len(packed)) + packed)


def receive(link: socket.socket, bytes_max: int, deadline: float | None = None) -> bytes:
    """Receive one packed message. Raises OSError, also for a message that is cut off or too long.

    ``deadline`` (of ``time.monotonic``): TimeoutError if the message has not begun by then. A message that
    has begun may take the link's own time limit for each part.
    """
    link_s = link.gettimeout()
    if deadline is not None:
        link.settimeout(max(deadline - time.monotonic(), 0.001))
    begun = _read(link, 1)
    link.settimeout(link_s)
    (size,) = _LENGTH.unpack(begun + _read(link, _LENGTH.size - 1))
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
