"""Garbage is collected between two schedules: looking for it meanwhile takes 7 % of one and more."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def resting_collector() -> Iterator[None]:
    """Whoever has switched the collector off already (a run of many schedules) collects by itself."""
    if not gc.isenabled():
        yield
        return
    gc.collect()  # what the schedule before has left
    if gc.get_freeze_count() == 0:
        gc.freeze()  # what is imported by now stays, and need not be looked at again: 0.1 s for each schedule
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
