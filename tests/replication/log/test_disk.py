"""RealDisk and SimDisk behave alike; a full or failing real disk raises the right error type."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from escrowmq.replication.errors import CorruptLog, DiskFailed, DiskFull, FsyncFailed, OutOfDescriptors
from escrowmq.replication.log.disk import Disk, RealDisk, StoredFiles
from tests.support.storage import sim_disk


@pytest.fixture(params=["real", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    yield RealDisk(tmp_path) if request.param == "real" else sim_disk()


def test_files_append_overwrite_cut_and_read_by_position(disk: Disk) -> None:
    file = disk.open("log", create=True)
    file.append([b"one", b"", b"two"])
    file.append([b"three"])
    assert (file.size(), file.read(0, 100), file.read(3, 3), file.read(50, 1)) == (
        11,
        b"onetwothree",
        b"two",
        b"",
    )
    file.write_at(3, b"TWO")
    file.truncate(6)
    file.sync()
    file.append([b"!"])
    assert disk.read_all("log") == b"oneTWO!"
    assert disk.open("log").size() == 7
    with pytest.raises(AssertionError):
        file.write_at(6, b"ab")


def test_more_buffers_than_one_system_call_takes(disk: Disk) -> None:
    file = disk.open("log", create=True)
    parts = [bytes([k % 256]) * (k % 5) for k in range(3000)]
    file.append(parts)
    assert disk.read_all("log") == b"".join(parts)


def test_names_are_flat_sorted_and_forgiving_about_removal(disk: Disk) -> None:
    for name in ("b", "a", "c"):
        disk.open(name, create=True)
    disk.rename("c", "a")
    disk.remove("b")
    disk.remove("never was")
    disk.sync_dir()
    assert disk.names() == ["a"]
    assert disk.exists("a")
    assert not disk.exists("b")
    for action in (lambda: disk.open("b"), lambda: disk.rename("b", "x"), lambda: disk.read_all("b")):
        with pytest.raises(FileNotFoundError):
            action()


def test_write_atomic_replaces_the_whole_file(disk: Disk) -> None:
    disk.write_atomic("state", [b"first ", b"content"])
    disk.write_atomic("state", [b"second"])
    assert disk.read_all("state") == b"second"
    assert disk.names() == ["state"]
    disk.write_atomic("empty", [])
    assert disk.read_all("empty") == b""


def test_a_closed_file_is_not_found(disk: Disk) -> None:
    file = disk.open("log", create=True)
    file.close()
    for action in (lambda: file.read(0, 1), lambda: file.append([b"x"])):
        with pytest.raises(FileNotFoundError):
            action()


def test_nothing_is_behind_the_end_however_far(disk: Disk) -> None:
    """The kernel calls such a position an error, which was taken for a failing disk."""
    file = disk.open("a", create=True)
    file.append([b"abc"])
    for pos in (3, 1 << 40, (1 << 63) - 11, (1 << 63) - 1, 1 << 63, 1 << 70):
        assert file.read(pos, 10) == b""


def test_free_bytes_is_a_number(disk: Disk) -> None:
    assert disk.free_bytes() > 0


# ---------------------------------------------------------------- faults of a real disk


def test_an_append_that_fails_half_way_is_cut_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = RealDisk(tmp_path)
    file = disk.open("log", create=True)
    file.append([b"kept"])
    real = os.pwritev

    def short(number: int, buffers: list[bytes], pos: int) -> int:
        return real(number, [b"".join(buffers)[:3]], pos)

    def full(number: int, data: bytes, pos: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", short)
        patch.setattr(os, "pwrite", full)
        with pytest.raises(DiskFull, match=r"cannot append to .*log: No space left.*nothing was lost"):
            file.append([b"lost", b"too"])
    assert disk.read_all("log") == b"kept"
    file.append([b", and more"])
    assert disk.read_all("log") == b"kept, and more"


def test_short_writes_are_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RealDisk(tmp_path).open("log", create=True)
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda n, buffers, pos: real(n, [b"".join(buffers)[:5]], pos))
    real_one = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda n, data, pos: real_one(n, data[:2], pos))
    file.append([b"hello", b" ", b"world"])
    assert file.read(0, 20) == b"hello world"


def test_a_real_full_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """/dev/full answers ENOSPC to every write, as a full disk does."""
    file = RealDisk(Path("/dev")).open("full")
    monkeypatch.setattr(os, "ftruncate", lambda number, size: None)  # a device cannot be truncated
    with pytest.raises(DiskFull):
        file.append([b"x"])


def test_errors_that_are_not_about_room_end_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = RealDisk(tmp_path).open("log", create=True)

    def eio(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    for name, action, error in (
        ("fdatasync", file.sync, FsyncFailed),
        ("pwritev", lambda: file.append([b"x"]), DiskFailed),
        ("pread", lambda: file.read(0, 1), DiskFailed),
        ("fsync", RealDisk(tmp_path).sync_dir, FsyncFailed),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, eio)
            with pytest.raises(error):
                action()


def test_after_a_cut_the_sync_writes_the_size_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    file = RealDisk(tmp_path).open("log", create=True)
    file.append([b"12345"])
    monkeypatch.setattr(os, "fsync", lambda number: calls.append("fsync"))
    monkeypatch.setattr(os, "fdatasync", lambda number: calls.append("fdatasync"))
    file.sync()
    file.truncate(2)
    file.sync()
    file.sync()
    assert calls == ["fdatasync", "fsync", "fdatasync"]


def test_closing_does_not_pull_the_file_away_under_a_reader(tmp_path: Path) -> None:
    """A read must never return another file's bytes because a descriptor's number was reused."""
    disk = RealDisk(tmp_path)
    disk.write_atomic("mine", [b"m" * 4096])
    disk.write_atomic("other", [b"o" * 4096])
    problems: list[bytes] = []
    for _ in range(200):
        file = disk.open("mine")
        stop = threading.Event()

        def read(file=file, stop=stop) -> None:  # type: ignore[no-untyped-def]
            while not stop.is_set():
                try:
                    data = file.read(0, 4096)
                except FileNotFoundError:
                    return
                if data != b"m" * 4096:
                    problems.append(data)

        thread = threading.Thread(target=read)
        thread.start()
        file.close()
        others = [disk.open("other") for _ in range(5)]
        stop.set()
        thread.join()
        del others
    assert not problems


def test_a_limit_of_descriptors_is_named_and_the_disk_is_not_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said that the disk was to be replaced, at a limit of 4,096."""
    disk = RealDisk(tmp_path)
    disk.write_atomic("there", [b"x"])
    numbers = {errno.EMFILE: "RLIMIT_NOFILE", errno.ENFILE: "fs.file-max"}
    for number, limit in numbers.items():

        def none_left(*args: object, number: int = number) -> int:
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patch:
            patch.setattr(os, "open", none_left)
            patch.setattr(os, "scandir", none_left)
            for call in (lambda: disk.open("there"), disk.sync_dir, disk.names):
                with pytest.raises(OutOfDescriptors, match=limit) as met:
                    call()
                assert "disk" not in str(met.value).replace(str(tmp_path), "")


def test_stored_files_are_open_within_a_bound_and_readable_until_the_last_reader_lets_them_go(
    disk: Disk,
) -> None:
    """A run file kept a descriptor from its checkpoint until retention: 4,096 of them were the end."""
    names = [f"{n}.runs" for n in range(20)]
    for name in names:
        disk.write_atomic(name, [name.encode()])
    files = StoredFiles(disk, 4)
    found = [files.file(name) for name in names]
    for _ in range(2):
        for file in found:
            assert file.read(0, file.size) == file.name.encode() and files.descriptors <= 4
    for name in names:
        files.retire(name)
        disk.remove(name)
    assert files.descriptors == 0
    assert [file.read(0, file.size).decode() for file in found] == names
    with pytest.raises(CorruptLog, match="cut off"):
        found[0].read(1, found[0].size)
    with pytest.raises(CorruptLog, match="missing"):
        files.file(names[0])
