"""Asks an exporter or a supervisor of this user on this machine, instead of joining Ray for one question.

If none answers (none runs here, it belongs to another cluster or version, or it hangs), the command joins the
cluster itself. An answer or an error of the cluster is final.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from pathlib import Path
from typing import Any

import msgspec

from escrowmq.cluster.ray_token import proof
from escrowmq.cluster.reading_socket import (
    ANSWER_BYTES_MAX,
    SOCKETS_MAX,
    TAKEN,
    Answer,
    Question,
    folders,
    is_ours,
    receive,
    same_user,
    send,
    version,
)
from escrowmq.cluster.reads import READS
from escrowmq.replication import errors

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


def ask(address: str, namespace: str | None, config: Path | None, read: str, arguments: list[Any]) -> Any:
    """The answer to one of ``READS``. Raises NotAnswered, and what the cluster's answer raises."""
    where = [path for path in folders() if is_ours(path)]
    if not where:
        raise NotAnswered("no exporter or supervisor of this user has run here")
    wanted, space = _cluster(address, namespace, config)
    question = Question(version(), read, arguments, space, wanted, proof(space))
    try:
        msgspec.msgpack.encode(question)
    except (OverflowError, UnicodeEncodeError) as error:  # the cluster's own client says which argument
        raise NotAnswered(f"an argument cannot be sent: {error}") from None
    why = "no exporter or supervisor runs here"
    deadline, tried = time.monotonic() + TAKEN_S, 0
    paths = [path for folder in where for path in sorted(folder.glob("*.sock"))]
    for path in paths:
        until = deadline if path is paths[-1] else min(time.monotonic() + TAKEN_EACH_S, deadline)
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
