"""Asks an exporter of this user on this machine, instead of joining Ray for one question.

If no exporter answers (none runs, it belongs to another cluster or version, or it hangs), the command joins
the cluster itself. An answer or an error of the cluster is final.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from pathlib import Path
from typing import Any

import msgspec

from escrowmq.cluster.reading_socket import (
    ANSWER_BYTES_MAX,
    SOCKETS_MAX,
    Answer,
    Question,
    folder,
    is_ours,
    receive,
    same_user,
    send,
)
from escrowmq.cluster.reads import READS
from escrowmq.replication import errors

log = logging.getLogger(__name__)

#: Limit of the wait for an exporter's answer. A status with a hanging replica takes two seconds.
WAIT_S = 5.0
#: The defaults of the cluster's settings, copied; a test compares them.
NAMESPACE, AUTO = "escrowmq", "auto"
_PREFIX, _PROFILE = "ESCROWMQ_", "ESCROWMQ_PROFILE"


class NoExporter(Exception):
    """No exporter has answered for that cluster. The text says why."""


def ask(address: str, namespace: str | None, config: Path | None, read: str, arguments: list[Any]) -> Any:
    """The answer to one of ``READS``. Raises NoExporter, and what the cluster's answer raises."""
    where = folder()
    if not is_ours(where):
        raise NoExporter(f"no exporter of this user has run here: {where}")
    wanted, space = _cluster(address, namespace, config)
    from escrowmq import __version__

    question = Question(__version__, read, arguments, space, wanted)
    why = "no exporter runs here"
    for path in sorted(where.glob("*.sock"))[:SOCKETS_MAX]:
        try:
            answer = _ask(path, question)
            if answer.not_mine is None:
                return _told(answer, read)
            why = answer.not_mine
        except (OSError, msgspec.DecodeError) as error:
            why = f"{path}: {error}"
        log.debug("%s", why)
    raise NoExporter(why)


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


def _ask(path: Path, question: Question) -> Answer:
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(WAIT_S)
        link.connect(str(path))
        if not same_user(link):
            raise OSError("another user listens there")
        # A busy exporter refuses at once and disconnects; its answer can still be read.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            send(link, question)
        return msgspec.msgpack.decode(receive(link, ANSWER_BYTES_MAX), type=Answer)


def _told(answer: Answer, read: str) -> Any:
    if answer.error is None:
        return msgspec.msgpack.decode(answer.value, type=READS[read].kind)
    name, arguments = answer.error
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, errors.EscrowMQError)):
        raise NoExporter(f"the exporter answered with an unknown error: {name}")
    raise kind(*arguments)
