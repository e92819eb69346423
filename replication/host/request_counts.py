"""Outcomes of requests, counted in the threads that handle them.

Many threads handle requests, and each counts in its own cell, since ``+=`` on a shared counter loses
counts; a reader adds up the cells. A request costs two readings of the clock and a pass over its operations.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

from escrowmq.replication.format.codec import Op, OpType
from escrowmq.replication.metrics import LATENCY_S, Histogram

_DECISIONS = (OpType.COMMIT, OpType.ROLLBACK)


class Cell:
    """The counts of one thread."""

    __slots__ = ("commit_s", "prepare_s", "refused")

    def __init__(self) -> None:
        self.prepare_s, self.commit_s = Histogram(LATENCY_S), Histogram(LATENCY_S)
        self.refused: dict[str, int] = {}

    def answered(self, status: str, ops: Sequence[Op], seconds: float) -> None:
        """A request with these operations was answered with ``status``, after ``seconds``."""
        if status != "ok":
            self.refused[status] = self.refused.get(status, 0) + 1
            return
        kinds = {op.type for op in ops}
        if OpType.PREPARE in kinds:
            self.prepare_s.observe(seconds)
        if not kinds.isdisjoint(_DECISIONS):
            self.commit_s.observe(seconds)


class Cells(threading.local):
    """``cell``: that of the calling thread. There are as many as calling threads, which Ray bounds."""

    def __init__(self, all_cells: list[Cell]) -> None:
        self.cell = Cell()
        all_cells.append(self.cell)


class RequestCounts:
    """Outcomes of requests. Thread-safe."""

    def __init__(self) -> None:
        self._all: list[Cell] = []
        self._cells = Cells(self._all)

    def answered(self, status: str, ops: Sequence[Op], seconds: float) -> None:
        """See :meth:`Cell.answered`."""
        self._cells.cell.answered(status, ops, seconds)

    def refused(self) -> Counter[str]:
        """Requests that were not done, by reason."""
        total = Counter[str]()
        for cell in list(self._all):
            total.update(cell.refused.copy())
        return total

    def prepare_s(self) -> Histogram:
        """Seconds of requests with a PREPARE."""
        return Histogram.sum(LATENCY_S, [cell.prepare_s for cell in list(self._all)])

    def commit_s(self) -> Histogram:
        """Seconds of requests with a COMMIT or ROLLBACK."""
        return Histogram.sum(LATENCY_S, [cell.commit_s for cell in list(self._all)])
