"""A whole file is the old one or the new one after a power cut at any operation: the product's own code, over
the simulated disk and, for its order of calls, over the real one."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from escrowmq.replication.log.disk import RealDisk
from tests.sim.environment.disk import PowerCut, SimDisk

OLD, NEW = b"old" * 300, (b"new" * 300, b"and more" * 100)
SEEDS = 40


def broken() -> list[bytes]:
    """What files hold after power cuts that is neither the old content nor the new one; which it is, once the
    call has returned."""
    wrong = []
    for seed in range(SEEDS):
        for operation in range(20):
            disk = SimDisk(random.Random(seed))
            disk.write_atomic("state", (OLD,))
            disk.stop_after(operation)
            right = [OLD, b"".join(NEW)]
            try:
                disk.write_atomic("state", NEW)
                right = [b"".join(NEW)]
            except PowerCut:
                pass
            disk.power_cut()
            found = disk.read_all("state") if disk.exists("state") else b""
            if found not in right:
                wrong.append(found)
    return wrong


def test_a_power_cut_leaves_the_old_file_or_the_new_one() -> None:
    assert SimDisk.write_atomic is RealDisk.write_atomic, "the simulator runs the product's own code"
    assert broken() == []


def test_on_a_real_disk_the_file_is_synced_then_named_then_the_directory_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def noted(name: str) -> None:
        real = getattr(os, name)

        def call(*given: object) -> object:
            calls.append(name)
            return real(*given)

        monkeypatch.setattr(os, name, call)

    for name in ("fdatasync", "fsync", "replace"):
        noted(name)
    RealDisk(tmp_path).write_atomic("state", NEW)
    assert (tmp_path / "state").read_bytes() == b"".join(NEW)
    assert calls == ["fdatasync", "replace", "fsync"]
