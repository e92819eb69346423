"""What an application implements for transaction checks: the states, and the querier.

The querier stays in the producer's process and is never sent anywhere, so it may hold connections,
caches and locks. It is asked about transactions whose decision the broker never received.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol
from urllib.parse import quote

from escrowmq.replication.model import TransactionState

__all__ = ["TransactionState", "TxStatusQuerier"]


class AnotherTable(Exception):
    """Raised by a querier whose connection does not lead to the table that it answers from (``fence``).
    Nothing was looked up: the check goes to another producer that has the table, or waits for one, and is
    not counted. Let it out of a querier of your own that calls a fence."""


class TxStatusQuerier(ABC):
    """Looks up the outcome of a local transaction. Any producer instance of the app may be asked.

    The instance that prepared the transaction is asked first, and alone while it is online; as long as its
    local transaction runs, the querier is not called.

    Called from several threads at once (``AnswererConfig.query_threads``, 4 by default): open the
    database connection per call or per thread. It should answer within a few seconds; if it raises,
    hangs or returns something else, that counts as UNKNOWN, and the check is repeated later.
    """

    #: The name of the table whose rows this querier answers from, if there is one and it is known by now: 16
    #: bytes. Transactions are prepared under it, and only queriers that have it are asked about them. A
    #: querier that calls a fence hands on the fence's, with ``learn_fence``.
    fence: bytes = b""

    def learn_fence(self) -> bytes:
        """Find out ``fence``; may block, and raise what the database raises."""
        return self.fence

    @abstractmethod
    def query_status(self, tx_id: str, query_id: str) -> TransactionState:
        """COMMITTED or ROLLBACK if the local transaction is settled for good, UNKNOWN to be asked again.

        ``query_id`` is the application's own key, given when the transaction was prepared (the
        transaction id if none was given). Answer ROLLBACK only if the local transaction can no longer
        commit: "no such row" may just mean "not yet".
        """

    def query_statuses(self, checks: list[tuple[str, str]]) -> Sequence[TransactionState]:
        """``query_status`` for many checks, (tx_id, query_id) of each, in order: one statement instead of a
        thousand.

        Optional: without it, ``query_status`` is called for each, as it also is after a call that raised,
        took longer than ``query_timeout_s / 2``, or did not return a state for each.
        """
        return [self.query_status(tx_id, query_id) for tx_id, query_id in checks]


def names_a_table(querier: TxStatusQuerier) -> bool:
    """Whether this querier says from which table it answers, or will."""
    return type(querier).learn_fence is not TxStatusQuerier.learn_fence or bool(querier.fence)


# ------------------------------------------------------------------------------------------------------------
# Names under which actors find each other in the Ray namespace.
#
# Callers look actors up by name, so the names are part of the protocol between the parts
# and are defined in one place.

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
    """Ray name of feedback process ``index``."""
    return f"feedback-shard:{index}"


def feedback_name(app: str, topic: str) -> str:
    """Name of the feedback that asks ``app`` about its transactions of ``topic``, in logs and status.

    Dashes of the app are escaped: otherwise app ``a-b`` with topic ``c`` would have the same name as app
    ``a`` with topic ``b-c``.
    """
    return f"feedback-{quote(app, safe='').replace('-', '%2D')}-{topic}"
