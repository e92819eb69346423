"""What brokers answered in versions from before format levels: a frozen copy, never changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from escrowmq.replication.model import TransactionState


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    app: str
    tx_id: str
    query_id: str
    topic: str
    prepared_ms: int
    timeout_ms: int
    checks: int
    parked: bool
    messages: int
    home_group: int


class OpenTransactions(msgspec.Struct, frozen=True):
    apps: Sequence[str] = ()
    tx_ids: Sequence[str] = ()
    query_ids: Sequence[str] = ()
    topics: Sequence[str] = ()
    prepared_ms: Sequence[int] = ()
    timeouts_ms: Sequence[int] = ()
    checks: Sequence[int] = ()
    parked: Sequence[bool] = ()
    messages: Sequence[int] = ()
    home_groups: Sequence[int] = ()

    def rows(self) -> list[OpenTransaction]:
        columns = (getattr(self, name) for name in self.__struct_fields__)
        return [OpenTransaction(*row) for row in zip(*columns, strict=True)]


class FoundTransaction(msgspec.Struct, frozen=True):
    app: str
    state: TransactionState
    open: OpenTransaction | None


class PeerReport(msgspec.Struct, frozen=True):
    peer: str
    connected: bool
    match_index: int


class ReplicaReport(msgspec.Struct, frozen=True, kw_only=True):
    gid: int
    rid: int
    role: str
    ready: bool = False
    leader: int | None = None
    pid: int = 0
    node_id: str = ""
    failure: str | None = None
    term: int = 0
    commit_index: int = 0
    applied_index: int = 0
    first_index: int = 0
    last_index: int = 0
    durable_index: int = 0
    recovered_index: int = 0
    open_transactions: int = 0
    topics: int = 0
    log_bytes: int = 0
    snapshots: Sequence[int] = ()
    waiting: int = 0
    address: str = ""
    disk_full: bool = False
    free_bytes: int = 0
    peers: Sequence[PeerReport] = ()
