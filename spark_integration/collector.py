"""Pauses Python's garbage collector in Spark's workers while a task creates many thousands of objects."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_frozen = False


@contextmanager
def collector_paused() -> Iterator[None]:
    """Disable garbage collection in this process, and exclude from it for good all objects that exist now.

    A task creates tens of thousands of rows, which are tuples without cycles. They trigger the collector all
    the time, and each collection traversed everything that Spark and Ray have imported; this took a third of
    a task's CPU time. Spark also collects after every task of a worker that it reuses, which is why the
    existing objects are excluded.
    """
    global _frozen
    was = gc.isenabled()
    gc.disable()
    if not _frozen:  # only once: objects that user code leaves behind later are collected as usual
        gc.freeze()
        _frozen = True
    try:
        yield
    finally:
        if was:
            gc.enable()
