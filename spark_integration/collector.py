"""Python's cycle collector in Spark's workers: at rest while a task makes objects by the ten thousand."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_frozen = False


@contextmanager
def collector_paused() -> Iterator[None]:
    """No cycle collection in this process meanwhile, and none ever of what it has imported until now.

    Rows are tuples by the ten thousand, without cycles. They set the collector off all the time, and each
    time it went through everything that Spark and Ray have imported: a third of a task's processor time.
    Spark also collects after every task of a worker that it uses again.
    """
    global _frozen
    was = gc.isenabled()
    gc.disable()
    if not _frozen:  # once: what a user's code leaves behind between tasks is collected as ever
        gc.freeze()
        _frozen = True
    try:
        yield
    finally:
        if was:
            gc.enable()
