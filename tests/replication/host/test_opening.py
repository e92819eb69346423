"""A replica either runs or leaves nothing behind: a failed opening leaves no thread, lock or descriptor.

Real files and threads; disk faults are injected at the disk.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from escrowmq.replication.errors import (
    ConfigError,
    CorruptLog,
    DataDirLocked,
    DataDirMismatch,
    DiskFailed,
    DiskFull,
    EscrowMQError,
    FsyncFailed,
    NotAuthorized,
    ReadFailed,
    Unavailable,
    UnknownVersion,
)
from escrowmq.replication.host.replica_process import ReplicaProcess, open_replica
from escrowmq.replication.host.replica_setup import ReplicaSetup
from escrowmq.replication.log.datadir import LEARNER, PORT_FILE, WANTS_COPY, Identity
from escrowmq.replication.net.tls import TlsFiles
from escrowmq.replication.replica.checkpoints import Checkpoints
from tests.support.failing_disk import FailingDisks, Touched, failing
from tests.support.one_replica import nothing_left, opens_and_has_everything, running


# ------------------------------------------------------------------ every step may fail
def another_owner(setup: ReplicaSetup, disks: FailingDisks) -> ReplicaSetup:
    return replace(setup, identity=Identity("c", 0, 7), founders=8)


def newer_version(setup: ReplicaSetup, disks: FailingDisks) -> ReplicaSetup:
    file = setup.data_dir / "identity.json"
    file.write_text(file.read_text().replace('"format": 1', '"format": 99'))
    return setup


def damaged_log(setup: ReplicaSetup, disks: FailingDisks) -> ReplicaSetup:
    newest = max((setup.data_dir / "log").glob("*.log"))
    content = bytearray(newest.read_bytes())
    content[len(content) // 3] ^= 8
    newest.write_bytes(content)
    return setup


def missing_segment(setup: ReplicaSetup, disks: FailingDisks) -> ReplicaSetup:
    sorted((setup.data_dir / "log").glob("*.log"))[-2].unlink()
    return setup


def damaged_vote(setup: ReplicaSetup, disks: FailingDisks) -> ReplicaSetup:
    vote = setup.data_dir / "log" / "vote"
    vote.write_bytes(bytes(vote.stat().st_size))
    return setup


def log_cannot_be_read(setup: ReplicaSetup, disks: FailingDisks) -> ReplicaSetup:
    disks.before("read", failing(ReadFailed("as it happens")), "*/log/*")
    return setup


def sync_fails(setup: ReplicaSetup, disks: FailingDisks) -> ReplicaSetup:
    disks.before("sync", failing(FsyncFailed("as it happens")))
    return setup


def full_and_empty(setup: ReplicaSetup, disks: FailingDisks) -> ReplicaSetup:
    shutil.rmtree(setup.data_dir)
    disks.before("append", failing(DiskFull("no space left")))
    return setup


def full_at_the_vote(setup: ReplicaSetup, disks: FailingDisks) -> ReplicaSetup:
    shutil.rmtree(setup.data_dir / "log")
    disks.before("append", failing(DiskFull("no space left")))
    return setup


def snapshot_cannot_be_opened(setup: ReplicaSetup, disks: FailingDisks) -> ReplicaSetup:
    disks.before("open", failing(DiskFailed("as it happens")), "*.snap")
    return setup


def mark_cannot_be_removed(setup: ReplicaSetup, disks: FailingDisks) -> ReplicaSetup:
    (setup.data_dir / WANTS_COPY).write_text("damaged")
    disks.before("remove", failing(DiskFailed("as it happens")), f"*/{WANTS_COPY}")
    return replace(setup, founders=3)


def no_secret(setup: ReplicaSetup, disks: FailingDisks) -> ReplicaSetup:
    return replace(setup, secret=b"")


def no_certificate(setup: ReplicaSetup, disks: FailingDisks) -> ReplicaSetup:
    nowhere = setup.data_dir / "nowhere"
    return replace(setup, tls=TlsFiles(nowhere, nowhere, nowhere))


def not_our_address(setup: ReplicaSetup, disks: FailingDisks) -> ReplicaSetup:
    return replace(setup, listen_host="192.0.2.1")  # reserved for documentation


def node_cannot_be_built(setup: ReplicaSetup, disks: FailingDisks) -> ReplicaSetup:
    def fail(touched: Touched) -> None:
        if threading.current_thread().name.startswith("raft-"):
            raise ReadFailed("as it happens")

    disks.before("exists", fail, f"*/{LEARNER}")
    return setup


def port_cannot_be_noted(setup: ReplicaSetup, disks: FailingDisks) -> ReplicaSetup:
    # By then it leads, maybe.
    disks.before("write_atomic", failing(DiskFailed("as it happens")), f"*/{PORT_FILE}")
    return setup


def no_peer_answers(setup: ReplicaSetup, disks: FailingDisks) -> ReplicaSetup:
    shutil.rmtree(setup.data_dir)
    return replace(setup, founders=3)


def no_peer_to_repair_from(setup: ReplicaSetup, disks: FailingDisks) -> ReplicaSetup:
    return replace(damaged_vote(setup, disks), founders=3)


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (another_owner, DataDirMismatch),
        (newer_version, UnknownVersion),
        (damaged_log, CorruptLog),
        (missing_segment, CorruptLog),
        (damaged_vote, CorruptLog),
        (log_cannot_be_read, ReadFailed),
        (sync_fails, FsyncFailed),
        (full_and_empty, DiskFull),
        (full_at_the_vote, DiskFull),
        (snapshot_cannot_be_opened, DiskFailed),
        (mark_cannot_be_removed, DiskFailed),
        (no_secret, NotAuthorized),
        (no_certificate, ConfigError),
        (not_our_address, Unavailable),
        (node_cannot_be_built, ReadFailed),
        (port_cannot_be_noted, DiskFailed),
        (no_peer_answers, Unavailable),
        (no_peer_to_repair_from, Unavailable),
    ],
)
def test_an_opening_that_fails_leaves_nothing_behind_and_the_next_one_works(
    setup: ReplicaSetup,
    spoil: Callable[[ReplicaSetup, FailingDisks], ReplicaSetup],
    error: type[EscrowMQError],
    tmp_path: Path,
) -> None:
    shutil.copytree(setup.data_dir, tmp_path / "sound")
    ran = spoil is port_cannot_be_noted  # while the note was written: it may have led and mapped its tables
    disks = FailingDisks()
    with nothing_left(after_a_run=ran):
        spoilt = spoil(replace(setup, disk=disks), disks)
        with pytest.raises(error) as kept:  # keeping the error must not keep anything open
            open_replica(spoilt, patience_s=0.3)
    assert str(kept.value)
    with nothing_left(after_a_run=True):
        shutil.rmtree(setup.data_dir)
        shutil.copytree(tmp_path / "sound", setup.data_dir)
        opens_and_has_everything(setup)


def test_a_locked_directory_is_refused_and_its_owner_goes_on(setup: ReplicaSetup) -> None:
    with running(setup) as replica, nothing_left():
        with pytest.raises(DataDirLocked):
            open_replica(setup)
        assert replica.whoami()[0]


def test_a_lock_file_that_cannot_be_written_locks_all_the_same(
    setup: ReplicaSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its content serves only the error message of processes that come too late."""

    def full(*args: Any) -> NoReturn:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with nothing_left():
        first = ReplicaProcess(setup)
        with pytest.raises(DataDirLocked):
            ReplicaProcess(setup)
        first.close()


# ------------------------------------------------------------------ before and between
def test_between_two_attempts_the_directory_stays_locked(setup: ReplicaSetup) -> None:
    with nothing_left():
        host = ReplicaProcess(replace(setup, listen_host="192.0.2.1"))
        for _ in range(2):
            with pytest.raises(Unavailable, match="listen"):
                host.open()
            with pytest.raises(DataDirLocked):
                ReplicaProcess(setup)
        host.close()
    opens_and_has_everything(setup)


def test_a_mark_to_copy_is_kept_until_the_replica_has_one(setup: ReplicaSetup) -> None:
    mark = setup.data_dir / WANTS_COPY
    mark.write_text("damaged")
    damaged_vote(setup, FailingDisks())
    with pytest.raises(Unavailable):
        open_replica(replace(setup, founders=3), patience_s=0.3)
    assert mark.exists() and (setup.data_dir / PORT_FILE).exists()


def test_after_damage_every_block_of_the_files_is_read_at_the_start(
    setup: ReplicaSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a damaged block would end the replica again each time it is met."""
    recover, asked = Checkpoints.recover, list[bool]()

    def noted(self: Checkpoints, factory: Any, *, doubtful: bool = False) -> Any:
        asked.append(doubtful)
        return recover(self, factory, doubtful=doubtful)

    monkeypatch.setattr(Checkpoints, "recover", noted)
    for mark in (False, True, False):
        if mark:
            (setup.data_dir / WANTS_COPY).write_text("damaged")
        open_replica(replace(setup, founders=3), patience_s=0.3).close()
    assert asked == [False, True, False]


def test_a_mark_of_damage_goes_where_all_proves_to_be_sound(setup: ReplicaSetup) -> None:
    """The disk had a bad moment, or the damage has been repaired: no peer needs to be asked."""
    mark = setup.data_dir / WANTS_COPY
    mark.write_text("damaged")
    open_replica(replace(setup, founders=3), patience_s=0.3).close()
    assert not mark.exists() and not (setup.data_dir / LEARNER).exists()
