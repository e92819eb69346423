"""A data directory belongs to one replica, and one live process at a time."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from escrowmq.replication.errors import (
    CorruptLog,
    DataDirLocked,
    DataDirMismatch,
    DiskFailed,
    DiskFull,
    UnknownVersion,
)
from escrowmq.replication.log.datadir import DataDir, Identity
from escrowmq.replication.log.disk import RealDisk
from escrowmq.replication.log.journal import SegmentJournal

ME = Identity("cluster-1", 0, 2)


def test_a_new_directory_is_created_and_known_again(tmp_path: Path) -> None:
    path = tmp_path / "g0" / "r2"
    first = DataDir(path, ME)
    assert first.fresh
    SegmentJournal(first.disk).close()
    first.close()
    again = DataDir(path, ME)
    assert not again.fresh
    again.close()


@pytest.mark.parametrize(
    "other", [Identity("cluster-2", 0, 2), Identity("cluster-1", 1, 2), Identity("cluster-1", 0, 1)]
)
def test_the_directory_of_another_replica_is_refused(tmp_path: Path, other: Identity) -> None:
    DataDir(tmp_path, ME).close()
    with pytest.raises(DataDirMismatch, match="belongs to replica 2 of group 0 of cluster 'cluster-1'"):
        DataDir(tmp_path, other)
    DataDir(tmp_path, ME).close()


def test_a_directory_of_unknown_origin_is_refused(tmp_path: Path) -> None:
    (tmp_path / "0000000000000001.log").write_bytes(b"?")
    with pytest.raises(DataDirMismatch, match="its owner is not known"):
        DataDir(tmp_path, ME)
    assert not (tmp_path / "identity.json").exists()


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    DataDir(tmp_path, ME).close()
    path = tmp_path / "identity.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "format": 2}))
    with pytest.raises(UnknownVersion, match="has format 2; this software reads 1: upgrade it"):
        DataDir(tmp_path, ME)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff\x00"])
def test_a_damaged_identity_is_refused(tmp_path: Path, content: bytes) -> None:
    DataDir(tmp_path, ME).close()
    (tmp_path / "identity.json").write_bytes(content)
    with pytest.raises(CorruptLog, match=r"identity\.json is damaged"):
        DataDir(tmp_path, ME)


def test_what_an_interrupted_atomic_write_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "identity.json.tmp").write_bytes(b"{")
    DataDir(tmp_path, ME).close()
    (tmp_path / "x.snap.tmp").write_bytes(b"half")
    DataDir(tmp_path, ME).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["identity.json", "lock", "peers"]


HOLDER = """
import sys, time
from pathlib import Path
from escrowmq.replication.log.datadir import DataDir, Identity
held = DataDir(Path(sys.argv[1]), Identity("cluster-1", 0, 2))
print("held", flush=True)
time.sleep(60)
"""


def test_a_live_replica_keeps_others_out_and_a_dead_one_does_not(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        with pytest.raises(DataDirLocked, match=f"in use by process {child.pid}"):
            DataDir(tmp_path, ME)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert child.stdout is not None
        child.stdout.close()
    DataDir(tmp_path, ME).close()


def test_the_same_process_cannot_hold_it_twice(tmp_path: Path) -> None:
    held = DataDir(tmp_path, ME)
    with pytest.raises(DataDirLocked):
        DataDir(tmp_path, ME)
    held.close()


def test_a_directory_keeps_the_id_that_it_was_given(tmp_path: Path) -> None:
    first = DataDir(tmp_path / "a", ME)
    first.close()
    again = DataDir(tmp_path / "a", ME)
    again.close()
    other = DataDir(tmp_path / "b", ME)
    other.close()
    assert first.incarnation == again.incarnation and first.incarnation.number == 0
    assert len({first.incarnation.disk_id, other.incarnation.disk_id}) == 2


def test_a_directory_from_before_format_1_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    before = json.dumps({"format_version": 1, "cluster_id": "cluster-1", "group": 0, "replica": 2})
    (tmp_path / "identity.json").write_text(before)
    (tmp_path / "0000000000000001.log").write_bytes(b"of those days")
    with pytest.raises(UnknownVersion, match=r"before format 1.*start with empty directories"):
        DataDir(tmp_path, ME)
    assert (tmp_path / "identity.json").read_text() == before
    assert (tmp_path / "0000000000000001.log").read_bytes() == b"of those days"


def test_a_directory_is_not_opened_for_another_incarnation(tmp_path: Path) -> None:
    DataDir(tmp_path, replace(ME, incarnation=1)).close()
    with pytest.raises(DataDirMismatch, match="incarnation 1"):
        DataDir(tmp_path, replace(ME, incarnation=2))


def test_the_file_of_the_peers_incarnations_is_there_before_the_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is missing although the id exists was lost; the directory is never taken for new."""

    def die(self: RealDisk, name: str, buffers: object) -> None:
        if name == "identity.json":
            raise DiskFailed("the power fails")
        write(self, name, buffers)  # type: ignore[arg-type]

    write = RealDisk.write_atomic
    with monkeypatch.context() as patch, pytest.raises(DiskFailed):
        patch.setattr(RealDisk, "write_atomic", die)
        DataDir(tmp_path, ME)
    found = DataDir(tmp_path, ME)
    assert found.fresh
    found.marks().close()
    found.close()
    (tmp_path / "peers").unlink()
    found = DataDir(tmp_path, ME)
    with pytest.raises(CorruptLog, match="missing"):
        found.marks()
    found.close()


@pytest.mark.parametrize(("code", "expected"), [(errno.ENOSPC, DiskFull), (errno.EIO, DiskFailed)])
@pytest.mark.parametrize("call", ["mkdir", "open"])
def test_a_directory_that_cannot_be_made_or_locked_is_a_typed_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, expected: type[Exception], call: str
) -> None:
    real = getattr(os, call)

    def failing(path: Path | str, *arguments: int) -> int | None:
        if str(path).startswith(str(tmp_path / "new")):
            raise OSError(code, os.strerror(code))
        answer: int | None = real(path, *arguments)
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing)
        with pytest.raises(expected, match=r"cannot (create|lock) .*new"):
            DataDir(tmp_path / "new", ME)
    DataDir(tmp_path / "new", ME).close()
