"""Asks an exporter or a supervisor of this user on this machine, instead of joining Ray for one question.

If none answers (none runs here, it belongs to another cluster or version, or it hangs), the command joins the
cluster itself. An answer or an error of the cluster is final.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import os
import socket
import stat
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from escrowmq.actors.admin.types import (
    ClusterStatus,
    DeadLetter,
    GroupDescription,
    GroupMembers,
    MemberChange,
    MessageTrace,
    NodeStatus,
    ReplicaShift,
    ScheduledMessage,
    StoredMessage,
    TopicDescription,
    TransactionDescription,
)
from escrowmq.replication import errors
from escrowmq.replication.carried_settings import prepared
from escrowmq.replication.errors import UnknownGroup
from escrowmq.replication.model import OpenTransaction, TopicInfo

if TYPE_CHECKING:
    from escrowmq.actors.admin.admin import Admin
    from escrowmq.actors.client.topology import ClusterInfo


# ------------------------------------------------------------------------------------------------------------
# The state of a cluster as ``escrowmq status`` shows it: what the replicas and the supervisor report.


class Asked(Protocol):
    """What questions need of a cluster: that of a client, or the one that a supervisor supervises."""

    @property
    def info(self) -> ClusterInfo: ...

    @property
    def address(self) -> str: ...

    @property
    def admin(self) -> Admin: ...

    def health(self) -> dict[str, Any]: ...

    def head_waits(self, health: dict[str, Any]) -> dict[str, float]: ...


@dataclass(frozen=True)
class StatusSnapshot:
    """The cluster at one moment. ``health``: the supervisor's answer; ``away``: its error if it gave none."""

    found: ClusterStatus
    health: Mapping[str, Any]
    head: str | None
    away: str | None
    address: str
    namespace: str

    @property
    def well(self) -> bool:
        """Whether all replicas are healthy and the supervisor answers."""
        return self.found.healthy and not self.away


def take(cluster: Asked) -> StatusSnapshot:
    """Ask all replicas and the supervisor."""
    from escrowmq.cluster.settings import Head, head_in_words
    from escrowmq.replication.errors import ClusterNotFound, Unavailable

    health: Mapping[str, Any] = {"nodes": [], "replicas": []}
    away = head = None
    found = cluster.admin.status()
    try:
        health = cluster.health()
        if health.get("head"):  # the supervisor of an embedded cluster reports no head
            head = head_in_words(Head(**health["head"]), cluster.head_waits(health))
    except (ClusterNotFound, Unavailable) as error:  # it was lost with Ray's head; the replicas did answer
        away = str(error)
    return StatusSnapshot(found, health, head, away, cluster.address, cluster.info.namespace)


# ------------------------------------------------------------------------------------------------------------
# The Unix socket between a process that has joined a cluster and a command of the same user, in a folder
# that only this user can enter.
#
# Joining Ray costs a command seconds of processor time; an exporter or a supervisor has joined already. The
# socket gives no new rights: only the user that runs that process (or root) can open it, and that user could
# read the process's memory anyway, Ray's token included. Both ends check the peer's user again, with the
# kernel's answer. Neither end listens on a network or unpickles what it receives.
#
# An answer has two messages: an empty one as soon as the question is there, so that a command leaves a
# stopped process alone after a second, and the answer itself.

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
    ``proof``: that the command has Ray's token (see ``proof`` below)."""

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


def folders(logins: Path = LOGINS, shared: Path = SHARED) -> list[Path]:
    """The folders of this user's sockets on this machine, the preferred one first.

    A service and a shell must find each other, whether or not each of them has a login. So a process listens
    in the first folder that it can use, and a command looks in all of them.
    """
    user, named = os.getuid(), os.environ.get("XDG_RUNTIME_DIR", "")
    runtime = [Path(named)] if named else []
    found = [path / "escrowmq" for path in (*runtime, logins / str(user)) if path.is_dir()]
    return list(dict.fromkeys([*found, shared / f"escrowmq-{user}"]))


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


# ------------------------------------------------------------------------------------------------------------
# Ray's token as this process has it, found as Ray finds it, but without Ray's import.
#
# It proves over a Unix socket that a command could join a Ray cluster that requires the token. The token
# itself is never sent, and never shown.

_PURPOSE = b"escrowmq reading "


def proof(namespace: str) -> bytes:
    """What shows that this process has Ray's token; b"" if it has none, or does not use it."""
    if os.environ.get("RAY_AUTH_MODE", "token").lower() != "token":
        return b""
    token = _token()
    return hmac.digest(token, _PURPOSE + namespace.encode(), hashlib.sha256) if token else b""


def _token() -> bytes:
    given = os.environ.get("RAY_AUTH_TOKEN", "").strip()
    if given:
        return given.encode()
    named = os.environ.get("RAY_AUTH_TOKEN_PATH", "")
    try:
        return (Path(named) if named else Path.home() / ".ray" / "auth_token").read_bytes().strip()
    except (OSError, RuntimeError):  # no such file, not readable, or no home
        return b""


# ------------------------------------------------------------------------------------------------------------
# The questions of commands that only read, and the type of each answer.
#
# A command joins the cluster and asks, or lets an exporter ask that has joined already (reading_client.py).
# The exporter's answer is decoded with these types. No question changes anything, so it may be asked twice.


@dataclass(frozen=True, slots=True)
class Read:
    """``ask(cluster, *arguments)`` returns a ``kind``."""

    ask: Callable[..., Any]
    kind: Any


def _group(cluster: Asked, name: str) -> GroupDescription:
    found = cluster.admin.describe_group(name)
    if not found.members and not found.partitions and name not in cluster.admin.groups():
        raise UnknownGroup(name)
    return found


def _transactions(
    cluster: Asked, state: str | None, app: str | None, topic: str | None, limit: int
) -> list[OpenTransaction]:
    found = cluster.admin.list_transactions(state, app, topic, limit)
    if topic is not None and not found:
        cluster.admin.describe_topic(topic)  # raises for an unknown topic, which has no transactions either
    return found


#: All questions, by name.
READS: dict[str, Read] = {
    "status": Read(take, StatusSnapshot),
    "topics": Read(lambda cluster: cluster.admin.topics(), list[TopicInfo]),
    "topic": Read(lambda cluster, name: cluster.admin.describe_topic(name), TopicDescription),
    "groups": Read(
        lambda cluster: cluster.admin.describe_groups(cluster.admin.groups()), list[GroupDescription]
    ),
    "group": Read(_group, GroupDescription),
    "transactions": Read(_transactions, list[OpenTransaction]),
    "scheduled": Read(
        lambda cluster, topic, before, limit: cluster.admin.scheduled(topic, before, limit),
        list[ScheduledMessage],
    ),
    "dead_letters": Read(
        lambda cluster, group, limit, since, reason: cluster.admin.dead_letters(group, limit, since, reason),
        list[DeadLetter],
    ),
    "dead_letter": Read(lambda cluster, group, id: cluster.admin.dead_letter(group, id), DeadLetter),
    "message": Read(
        lambda cluster, topic, partition, offset: cluster.admin.message(topic, partition, offset),
        StoredMessage,
    ),
    "trace": Read(
        lambda cluster, topic, partition, offset: cluster.admin.trace(topic, partition, offset),
        MessageTrace,
    ),
    "transaction": Read(
        lambda cluster, tx_id, app: cluster.admin.show_transaction(tx_id, app), TransactionDescription
    ),
    "settings": Read(lambda cluster: cluster.admin.change_settings(), dict[str, int]),
    "members": Read(lambda cluster: cluster.admin.members(), tuple[GroupMembers, ...]),
    "changes": Read(lambda cluster: cluster.admin.member_changes(), tuple[MemberChange, ...]),
    "nodes": Read(lambda cluster: cluster.admin.nodes(), tuple[NodeStatus, ...]),
    "rebalance": Read(lambda cluster: cluster.admin.plan_rebalance(), tuple[ReplicaShift, ...]),
}
for _each in READS.values():
    prepared(_each.kind)


log = logging.getLogger(__name__)

#: Limit of the wait until somebody has taken the question, for all sockets together: a process that runs does
#: so in milliseconds, on an overloaded machine in some hundred. A stopped one never does, so one that is not
#: the last one tried gets only a part of the time.
TAKEN_S, TAKEN_EACH_S = 1.5, 0.5
#: Limit of the wait for the answer to begin, and for each part of it. A status with a hanging replica takes
#: two seconds.
WAIT_S = 5.0
#: The defaults of the cluster's settings, copied; a test compares them.
NAMESPACE, AUTO = "escrowmq", "auto"
_PREFIX, _PROFILE = "ESCROWMQ_", "ESCROWMQ_PROFILE"


class NotAnswered(Exception):
    """Nobody has answered for that cluster. The text says why."""


def ask(
    address: str,
    namespace: str | None,
    config: Path | None,
    read: str,
    arguments: list[Any],
    *,
    where: Sequence[Path] | None = None,
    taken_s: float = TAKEN_S,
    taken_each_s: float = TAKEN_EACH_S,
) -> Any:
    """The answer to one of ``READS``. ``where``: the folders of sockets; None: those of this user. Raises
    NotAnswered, and what the cluster's answer raises."""
    ours = [path for path in (folders() if where is None else where) if is_ours(path)]
    if not ours:
        raise NotAnswered("no exporter or supervisor of this user has run here")
    wanted, space = _cluster(address, namespace, config)
    question = Question(version(), read, arguments, space, wanted, proof(space))
    try:
        msgspec.msgpack.encode(question)
    except (OverflowError, UnicodeEncodeError) as error:  # the cluster's own client says which argument
        raise NotAnswered(f"an argument cannot be sent: {error}") from None
    why = "no exporter or supervisor runs here"
    deadline, tried = time.monotonic() + taken_s, 0
    paths = [path for folder in ours for path in sorted(folder.glob("*.sock"))]
    for path in paths:
        until = deadline if path is paths[-1] else min(time.monotonic() + taken_each_s, deadline)
        try:
            answer = _ask(path, question, until)
            if answer.not_mine is None:
                return _told(answer, read)
            why = answer.not_mine
        except ConnectionRefusedError:  # left behind by a process that was killed
            continue
        except (OSError, msgspec.DecodeError) as error:
            why = f"{path}: {error}"
        log.debug("%s", why)
        tried += 1
        if tried >= SOCKETS_MAX:
            break
    raise NotAnswered(why)


def _cluster(address: str, namespace: str | None, config: Path | None) -> tuple[str | None, str]:
    """Address (None: the only cluster on this machine) and namespace, as ``connect`` finds them."""
    if config is not None or any(
        name.upper().startswith(_PREFIX) and name.upper() != _PROFILE for name in os.environ
    ):
        from escrowmq.cluster.config import load_config

        settings = load_config(config)
        address = settings.ray.address if address == AUTO else address
        namespace = namespace or settings.cluster.namespace
    if address == AUTO:
        address = os.environ.get("RAY_ADDRESS", "") or AUTO
    return None if address == AUTO else address, namespace or NAMESPACE


def _ask(path: Path, question: Question, until: float) -> Answer:
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(max(until - time.monotonic(), 0.001))
        link.connect(str(path))
        if not same_user(link):
            raise OSError("another user listens there")
        # A busy process refuses at once and disconnects; its answer can still be read.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            send(link, question)
        link.settimeout(WAIT_S)
        told = receive(link, ANSWER_BYTES_MAX, until)
        if told == TAKEN:
            told = receive(link, ANSWER_BYTES_MAX)
        return msgspec.msgpack.decode(told, type=Answer)


def _told(answer: Answer, read: str) -> Any:
    if answer.error is None:
        return msgspec.msgpack.decode(answer.value, type=READS[read].kind)
    name, arguments = answer.error
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, errors.EscrowMQError)):
        raise NotAnswered(f"the answer is an unknown error: {name}")
    raise kind(*arguments)
