"""Names under which actors find each other in the Ray namespace.

Callers look actors up by name, so the names are part of the protocol between the parts
and are defined in one place. A name must be unambiguous: two different (app, topic) pairs never share one.
"""

from __future__ import annotations

from typing import Protocol
from urllib.parse import quote

SUPERVISOR = "supervisor"


class ClusterShape(Protocol):
    """What feedback needs to know of a cluster: where to look up its brokers."""

    @property
    def namespace(self) -> str: ...
    @property
    def groups(self) -> int: ...
    @property
    def replicas(self) -> int: ...
    @property
    def log_format(self) -> str: ...


def broker_name(gid: int, rid: int) -> str:
    """Ray name of replica ``rid`` of broker group ``gid``."""
    return f"broker-g{gid}-r{rid}"


def shard_name(index: int) -> str:
    """Ray name of feedback process ``index``. It cannot collide with the name of a pair."""
    return f"feedback-shard:{index}"


def feedback_name(app: str, topic: str) -> str:
    """Name of the feedback that asks ``app`` about its transactions of ``topic``, in logs and status.

    Earlier versions start a Ray actor of this name for each pair.

    Dashes of the app are escaped: otherwise app ``a-b`` with topic ``c`` would share an actor with app ``a``
    and topic ``b-c``, and be asked about transactions it has never heard of.
    """
    return f"feedback-{quote(app, safe='').replace('-', '%2D')}-{topic}"
