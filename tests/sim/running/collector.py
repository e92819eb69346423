"""Collects garbage only between schedules: during a schedule, the collector takes 7 % of its time or more."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_frozen = False


@contextmanager
def resting_collector() -> Iterator[None]:
    """Switch the collector off. If it is off already (in a run of many schedules), the caller collects."""
    if not gc.isenabled():
        yield
        return
    collect()  # garbage of the schedule before
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def collected_after() -> Iterator[None]:
    """Switch the collector off, and remove at the end what the schedule leaves."""
    gc.disable()
    try:
        yield
    finally:
        collect()
        gc.enable()  # the same process may look for a smaller schedule next, which are many


def collect() -> None:
    """Collect garbage. Imported objects stay and need not be traversed again: 0.1 s per schedule."""
    global _frozen
    gc.collect()
    if not _frozen:
        _frozen = True
        gc.freeze()
