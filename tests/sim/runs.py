"""Runs of a partition's index in one form, whatever the moment a replica took its snapshots.

A snapshot seals the runs, and a sealed run grows no more: where one replica has one run of two messages
another one rightly has two runs of one. What a reader gets is the same.
"""

from __future__ import annotations

from collections.abc import Iterable

from escrowmq.replication.state.index import Run


def joined(runs: Iterable[Run]) -> list[Run]:
    """Neighbours in the same entry with the same time as one run."""
    out: list[Run] = []
    for run in runs:
        last = out[-1] if out else None
        if last is not None and (last.log_index, last.pos + last.size, last.time_ms) == (
            run.log_index,
            run.pos,
            run.time_ms,
        ):
            out[-1] = last._replace(size=last.size + run.size, messages=last.messages + run.messages)
        else:
            out.append(run)
    return out
