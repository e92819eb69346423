"""The cycle collector rests while a task works, and goes on as it was."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from escrowmq.spark_integration.ray_link import collector_paused


@pytest.mark.parametrize("before", [True, False])
def test_it_rests_meanwhile_and_goes_on_as_it_was(before: bool) -> None:
    (gc.enable if before else gc.disable)()
    try:
        with pytest.raises(KeyError), collector_paused():
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() is before
    finally:
        gc.enable()


def test_what_was_imported_is_left_alone_for_good_and_what_comes_later_is_not() -> None:
    """In a process of its own: freezing is for ever."""
    code = """
import gc
from escrowmq.spark_integration.ray_link import collector_paused
assert gc.get_freeze_count() == 0
imported = len(gc.get_objects())
assert imported > 1_000, imported
with collector_paused():
    frozen = gc.get_freeze_count()
assert frozen >= imported, (frozen, imported)
later = [[] for _ in range(10_000)]
with collector_paused():
    assert gc.get_freeze_count() <= frozen
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
