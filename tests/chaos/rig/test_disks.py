"""The disks of simulated hosts do what they say: full, failing, without power, with nothing below them."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.rig import disks
from tests.chaos.rig.disks import MIB, Disk
from tests.chaos.rig.shell import mounts_below, own_directory, remove_directory, remove_stale_directories

REASON = disks.unavailable()
pytestmark = pytest.mark.skipif(REASON is not None, reason=f"no simulated disks: {REASON}")
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def directory() -> Iterator[Path]:
    made = own_directory()
    yield made
    remove_directory(made)
    assert not made.exists() and mounts_below(made) == []


def test_a_full_disk_takes_nothing_until_it_is_freed(directory: Path) -> None:
    disk = Disk(directory / "d", 16 * MIB)
    kept = disk.path / "kept"
    kept.write_bytes(b"before")
    assert disk.fill() > 4 * MIB
    with pytest.raises(OSError) as full, open(disk.path / "more", "wb", buffering=0) as file:
        file.write(bytes(4096))
    assert full.value.errno == errno.ENOSPC
    assert kept.read_bytes() == b"before"
    disk.free()
    (disk.path / "more").write_bytes(bytes(MIB))


def test_a_failing_disk_loses_what_was_not_synced_and_nothing_else(directory: Path) -> None:
    disk = Disk(directory / "d", 16 * MIB)
    file = os.open(disk.path / "log", os.O_CREAT | os.O_RDWR)
    os.write(file, b"synced")
    os.fsync(file)
    os.write(file, b"lost")
    disk.fail()
    for action in (lambda: os.write(file, b"x"), lambda: os.fsync(file), lambda: os.pread(file, 1, 0)):
        with pytest.raises(OSError) as failed:
            action()
        assert failed.value.errno == errno.EIO
    os.close(file)
    disk.replace()
    assert (disk.path / "log").read_bytes() == b"synced"
    (disk.path / "log").write_bytes(b"works again")


def test_a_thin_disk_fails_at_fsync(directory: Path) -> None:
    disk = Disk(directory / "d", 32 * MIB, thin=True)
    file = os.open(disk.path / "log", os.O_CREAT | os.O_RDWR)
    os.write(file, b"synced")
    os.fsync(file)
    disk.exhaust()
    assert os.write(file, bytes(8 * MIB)) == 8 * MIB  # into memory: nobody knows yet
    with pytest.raises(OSError) as failed:
        os.fsync(file)
    assert failed.value.errno in (errno.EIO, errno.ENOSPC)
    os.close(file)
    disk.replace()
    assert (disk.path / "log").read_bytes()[:6] == b"synced"


def test_what_a_killed_run_leaves_mounted_is_removed_by_the_next() -> None:
    code = (
        "import time; from tests.chaos.rig.disks import *; from tests.chaos.rig.shell import own_directory\n"
        "d = own_directory(); Disk(d / 'd', 8 * MIB); print(d, flush=True); time.sleep(1000)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as crashing:
        assert crashing.stdout is not None
        left = Path(crashing.stdout.readline().strip())
        os.kill(crashing.pid, signal.SIGKILL)
    assert mounts_below(left)
    assert left in remove_stale_directories()
    assert not left.exists() and mounts_below(left) == []
