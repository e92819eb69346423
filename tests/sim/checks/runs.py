"""Brings the runs of a partition's index into a form that does not depend on when snapshots were taken.

A snapshot seals the runs, and a sealed run does not grow: so one replica may have one run of two messages
where another one rightly has two runs of one. Readers get the same.
"""

from __future__ import annotations

from collections.abc import Iterable

from escrowmq.replication.state.index import Run


def joined(runs: Iterable[Run]) -> list[tuple[int, ...]]:
    """The runs, with neighbours of the same entry and time joined, each with the fields of ``Run``."""
    out: list[tuple[int, ...]] = []
    last_index = last_time_ms = end = -1
    for run in runs:
        base, log_index, pos, size, messages, time_ms = run
        if pos == end and log_index == last_index and time_ms == last_time_ms:
            base, _, pos, size_before, messages_before, _ = out.pop()
            size, messages = size + size_before, messages + messages_before
        out.append((base, log_index, pos, size, messages, time_ms))
        last_index, last_time_ms, end = log_index, time_ms, pos + size
    return out
