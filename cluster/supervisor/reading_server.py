"""Answers commands of the same user that only read, from a process that has joined the cluster.

It serves a few commands at a time, each in its own thread, and tells any other to ask the cluster itself.
``READS`` of cluster/reading_client.py lists the questions. It never answers for a cluster that the command
did not mean.
"""

from __future__ import annotations

import hmac
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from escrowmq.actors.admin.admin import Admin
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.cluster.address import running_here, same_address
from escrowmq.cluster.asking_ray import head_waits
from escrowmq.cluster.reading_client import (
    QUESTION_BYTES_MAX,
    READS,
    TAKEN,
    Answer,
    Asked,
    Question,
    folders,
    is_ours,
    proof,
    receive,
    same_user,
    send,
    send_packed,
    version,
)
from escrowmq.replication.errors import Closed, ConfigError, EscrowMQError

log = logging.getLogger(__name__)

#: Limit for each read and write: a command sends its question at once and reads its answer as it arrives.
TIMEOUT_S = 10.0
#: Limit of commands served at a time: each of them asks the brokers.
AT_A_TIME = 4
RETRY_S = 0.1  # after a command that could not be taken


class ReadingServer:
    """Listens from its creation on. ``start`` begins to answer; ``close`` stops and removes the socket."""

    def __init__(
        self,
        cluster: Asked,
        name: str,
        where: Sequence[Path] | None = None,
        *,
        proof: bytes | None = None,
        here: Callable[[], list[str]] = running_here,
    ) -> None:
        """``name``: what this process is, in texts for people. ``where``: it listens in the first of these
        folders that can be used; None: this user's. ``proof``: what a command must give; None: nothing.
        ``here``: the Ray clusters on this machine. Raises ConfigError if the socket cannot be created."""
        self._cluster, self._name, self._proof, self._here = cluster, name, proof, here
        self._slots = threading.BoundedSemaphore(AT_A_TIME)
        self._closing = False
        self.path, self._listener = _listening(name, folders() if where is None else where)
        self._thread = threading.Thread(target=self._run, name=f"{name}-reading", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering, and remove the socket."""
        self._closing = True
        self.path.unlink(missing_ok=True)
        try:
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        except OSError as error:
            log.debug("the listener was already closed: %s", error)
        self._listener.close()
        if self._thread.is_alive():
            self._thread.join(TIMEOUT_S)

    def _run(self) -> None:
        failing = False
        while not self._is_closing():
            try:
                link, _ = self._listener.accept()
            except OSError as error:  # such as no free file descriptor: commands would wait for an answer
                if self._is_closing():
                    return
                if not failing:  # said once, and not ten times a second
                    log.warning("the %s cannot take commands; it keeps trying: %s", self._name, error)
                failing = True
                time.sleep(RETRY_S)
                continue
            failing = False
            link.settimeout(TIMEOUT_S)
            if not self._slots.acquire(blocking=False):
                _refuse(link, f"the {self._name} is busy")
                continue
            thread = threading.Thread(
                target=self._serve, args=(link,), name=f"{self._name}-answer", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:  # the process may have no more threads
                self._slots.release()
                _refuse(link, f"the {self._name} has no thread for this: {error}")

    def _is_closing(self) -> bool:
        return self._closing

    def _serve(self, link: socket.socket) -> None:
        try:
            with link:
                if not same_user(link):
                    log.warning("refused a command of another user")
                    return
                question = msgspec.msgpack.decode(receive(link, QUESTION_BYTES_MAX), type=Question)
                send_packed(link, TAKEN)
                send(link, self.answer(question))
        except (OSError, msgspec.MsgspecError) as error:
            log.debug("a command disconnected, or sent an invalid question: %s", error)
        finally:
            self._slots.release()

    def answer(self, question: Question) -> Answer:
        """The answer to one question."""
        cluster, read = self._cluster, READS.get(question.read)
        if question.version != version() or read is None:
            return Answer(not_mine=f"the {self._name} has version {version()}")
        if question.namespace != cluster.info.namespace:
            return Answer(not_mine=f"the {self._name} serves namespace {cluster.info.namespace!r}")
        if self._proof is not None and not hmac.compare_digest(question.proof, self._proof):
            return Answer(not_mine=f"the {self._name} answers commands with Ray's token only")
        try:
            if not self._means_this(question.address):
                return Answer(not_mine=f"the {self._name} serves the cluster at {cluster.address}")
            value = read.ask(cluster, *question.arguments)
        except Closed:  # this process's own client: it is about to end
            return Answer(not_mine=f"the {self._name} is being ended")
        except EscrowMQError as error:
            return Answer(error=(type(error).__name__, list(error.args)))
        except Exception as error:  # a bug, here or in the question: the command asks the cluster itself
            log.exception("answering a command failed")
            return Answer(not_mine=f"the {self._name} failed: {error!r}")
        return Answer(value=msgspec.Raw(msgspec.msgpack.encode(value)))

    def _means_this(self, address: str | None) -> bool:
        if address is not None:
            return same_address(address, self._cluster.address)
        here = self._here()
        return len(here) == 1 and same_address(here[0], self._cluster.address)


def _listening(name: str, folders: Sequence[Path]) -> tuple[Path, socket.socket]:
    """A listening socket in the first of these folders that can be used. Raises the first ConfigError."""
    refused: list[ConfigError] = []
    for where in folders:
        try:
            path = where / f"{name}-{os.getpid()}.sock"
            return path, _listen(where, path)
        except ConfigError as error:
            refused.append(error)
    raise refused[0]


def _listen(where: Path, path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    try:
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_ours(where):
            raise ConfigError(f"{where} is open to other users or not yours; remove it, or chmod 700 it")
        _remove_dead(where)
        listener.bind(str(path))
        listener.listen(2 * AT_A_TIME)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {path}: {error.strerror or error}") from error
    except BaseException:
        listener.close()
        raise
    return listener


def _refuse(link: socket.socket, why: str) -> None:
    try:
        with link:
            send(link, Answer(not_mine=why))
    except OSError as error:
        log.debug("a command disconnected: %s", error)


def _remove_dead(where: Path) -> None:
    """Remove the sockets of killed processes: nobody listens on them."""
    for path in where.glob("*.sock"):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            except OSError as error:
                log.debug("%s: %s", path, error)


# ------------------------------------------------------------------------------------------------------------
# The supervisor answers commands of its own user on its machine that only read (reading_server.py).
#
# It has joined the cluster, so a command that asks it need not. Where Ray requires its token, it answers only
# commands that have the token: those that could join Ray.

Health = dict[str, Any]


class SupervisedCluster:
    """The supervisor's own cluster, as questions see it. Clients begin with the first question."""

    def __init__(
        self,
        info: ClusterInfo,
        address: str,
        health: Callable[[], Health],
        new_admin: Callable[[ClusterInfo], Admin] = Admin,
    ) -> None:
        self.info, self.address, self.health, self._new_admin = info, address, health, new_admin
        self._lock = threading.Lock()
        self._admin: Admin | None = None
        self._closed = False

    @property
    def admin(self) -> Admin:
        """Raises Closed."""
        with self._lock:
            if self._closed:
                raise Closed("the cluster is being stopped")
            if self._admin is None:
                self._admin = self._new_admin(self.info)
            return self._admin

    def head_waits(self, health: Health) -> dict[str, float]:
        """See ``Cluster.head_waits``."""
        return head_waits(self.info.namespace, self.address, health)

    def close(self) -> None:
        """End its clients."""
        with self._lock:
            self._closed = True
            if self._admin is not None:
                self._admin.close()
                self._admin = None


class SupervisorReading:
    """Answers from ``begin`` to ``close``. It is a convenience: without it, commands join the cluster."""

    def __init__(
        self, where: Sequence[Path] | None = None, here: Callable[[], list[str]] = running_here
    ) -> None:
        """``where``, ``here``: see ``ReadingServer``."""
        self._where, self._here = where, here
        self._server: ReadingServer | None = None
        self._cluster: SupervisedCluster | None = None

    def begin(self, cluster: SupervisedCluster, *, with_token: bool) -> None:
        """Begin to answer, if there is a folder for the socket, and Ray's token if Ray requires it
        (``with_token``)."""
        self._cluster = cluster
        needed = proof(cluster.info.namespace) if with_token else None
        if needed == b"":
            log.info("commands that only read join Ray themselves: this process does not know Ray's token")
            return
        try:
            self._server = ReadingServer(cluster, "supervisor", self._where, proof=needed, here=self._here)
        except ConfigError as error:
            log.info("commands that only read join Ray themselves: %s", error)
        else:
            self._server.start()

    def close(self) -> None:
        """Stop answering. Idempotent."""
        if self._server is not None:
            self._server.close()
        if self._cluster is not None:
            self._cluster.close()
