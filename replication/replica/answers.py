"""Shapes and bounds of what a broker answers."""

from __future__ import annotations

from typing import Any

from escrowmq.replication.state.open_table import OpenTx

#: What one answer may bring, whatever its caller asks for: it is put together in this process's memory.
FETCH_BYTES_MAX = 64 << 20
FETCH_ENDS_MAX = 64
DUE_MAX = 10_000
FILE_PART_BYTES_MAX = 8 << 20
LEASE_S_MAX = 86_400.0


def open_row(app: str, tx_id: str, r: OpenTx) -> tuple[Any, ...]:
    """The fields of ``OpenTransaction``, in their order."""
    return (
        app, tx_id, r.query_id, r.topic, r.prepared_ms, r.timeout_ms, r.checks,
        r.due_ms < 0, sum(r.refs[4::5]), r.home_group,
    )  # fmt: skip
