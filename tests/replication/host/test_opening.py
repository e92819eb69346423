"""A replica is running or it is not there: an opening that fails leaves no thread, lock or descriptor.

Real files and threads; the faults of a disk are put in at the call that reaches it.
"""

from __future__ import annotations

import gc
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from escrowmq.actors.broker.config import BrokerConfig
from escrowmq.actors.broker.parts import Parts
from escrowmq.replication.errors import (
    Closed,
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
from escrowmq.replication.format import ops
from escrowmq.replication.host import hosting
from escrowmq.replication.host.hosting import ReplicaHost, open_replica
from escrowmq.replication.host.repair import NoPeers
from escrowmq.replication.host.replica_setup import ReplicaSetup
from escrowmq.replication.host.running import NOT_RUNNING, RunningReplica
from escrowmq.replication.log.datadir import Identity
from escrowmq.replication.log.disk import RealDisk, RealFile
from escrowmq.replication.log.marks import LEARNER, PORT_FILE, WANTS_COPY, Marks
from escrowmq.replication.net.tls import TlsFiles
from escrowmq.replication.replica.checkpoints import Checkpoints
from tests.support.requests import message, prepare
from tests.support.waiting import wait_until

Patch = pytest.MonkeyPatch


@pytest.fixture
def setup(tmp_path: Path) -> ReplicaSetup:
    """A group of one, whose directory holds segments, snapshots and run files of an earlier life."""
    setup = ReplicaSetup(
        config=BrokerConfig(segment_bytes=64 << 10, disk_reserve_bytes=0),
        identity=Identity("c", 0, 0),
        groups=1,
        replicas=1,
        data_dir=tmp_path / "r0",
        listen_host="127.0.0.1",
        secret=b"s" * 32,
        resolve=lambda peer: None,
        fatal=lambda error: pytest.fail(f"the process would have ended: {error}"),
    )
    with running(setup) as replica:
        submit = Parts(replica).requests.submit
        assert submit(ops.create_topic("t", {"partitions": 1}))[0] == "ok"
        for number in range(20):
            assert submit(prepare([f"x{number}"], size=10_000)) == ("ok", [[0]])
            assert submit(ops.commit("app", [f"x{number}"])) == ("ok", [[0]])
        wait_until(lambda: list((setup.data_dir / "log").glob("*.runs")), what="a checkpoint")
    return setup


@contextmanager
def running(setup: ReplicaSetup) -> Iterator[RunningReplica]:
    replica = open_replica(setup)
    try:
        wait_until(lambda: replica.whoami()[0], what="the leader")
        yield replica
    finally:
        replica.close()


@contextmanager
def nothing_left(*, after_a_run: bool = False) -> Iterator[None]:
    """After the block there are no threads and no open or mapped files that were not there before it.

    ``after_a_run``: a replica that ran keeps its mapped files until its cycles are collected; its process
    ends anyway.
    """
    gc.collect()
    threads, files = set(threading.enumerate()), open_files()
    yield
    wait_until(lambda: set(threading.enumerate()) <= threads, what="the end of every thread")
    if after_a_run:
        gc.collect()
    assert open_files() == files


def opens_and_has_everything(setup: ReplicaSetup) -> None:
    with running(setup) as replica:
        assert Parts(replica).reads.partition_bounds("t") == {0: (0, 20)}


def open_files() -> list[str]:
    """What the descriptors of this process are open on, but for those of event loops: a closed one's
    number may be anybody's by now."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:  # the listing's own
            continue
    return sorted(path.partition(":")[0] if path.startswith(("pipe", "socket")) else path for path in found)


# ------------------------------------------------------------------ every step may fail
def failing(error: Exception) -> Callable[..., NoReturn]:
    def fail(*args: Any, **named: Any) -> NoReturn:
        raise error

    return fail


def another_owner(setup: ReplicaSetup, patch: Patch) -> ReplicaSetup:
    return replace(setup, identity=Identity("c", 0, 7), replicas=8)


def newer_version(setup: ReplicaSetup, patch: Patch) -> ReplicaSetup:
    file = setup.data_dir / "identity.json"
    file.write_text(file.read_text().replace('"format_version": 1', '"format_version": 99'))
    return setup


def damaged_log(setup: ReplicaSetup, patch: Patch) -> ReplicaSetup:
    newest = max((setup.data_dir / "log").glob("*.log"))
    content = bytearray(newest.read_bytes())
    content[len(content) // 3] ^= 8
    newest.write_bytes(content)
    return setup


def missing_segment(setup: ReplicaSetup, patch: Patch) -> ReplicaSetup:
    sorted((setup.data_dir / "log").glob("*.log"))[-2].unlink()
    return setup


def damaged_vote(setup: ReplicaSetup, patch: Patch) -> ReplicaSetup:
    vote = setup.data_dir / "log" / "vote"
    vote.write_bytes(bytes(vote.stat().st_size))
    return setup


def log_cannot_be_read(setup: ReplicaSetup, patch: Patch) -> ReplicaSetup:
    patch.setattr(RealFile, "read", failing(ReadFailed("as it happens")))
    return setup


def sync_fails(setup: ReplicaSetup, patch: Patch) -> ReplicaSetup:
    patch.setattr(RealFile, "sync", failing(FsyncFailed("as it happens")))
    return setup


def full_and_empty(setup: ReplicaSetup, patch: Patch) -> ReplicaSetup:
    shutil.rmtree(setup.data_dir)
    patch.setattr(RealFile, "append", failing(DiskFull("no space left")))
    return setup


def full_at_the_vote(setup: ReplicaSetup, patch: Patch) -> ReplicaSetup:
    shutil.rmtree(setup.data_dir / "log")
    patch.setattr(RealFile, "append", failing(DiskFull("no space left")))
    return setup


def snapshots_cannot_be_listed(setup: ReplicaSetup, patch: Patch) -> ReplicaSetup:
    patch.setattr(Checkpoints, "recover", failing(DiskFailed("as it happens")))
    return setup


def mark_cannot_be_removed(setup: ReplicaSetup, patch: Patch) -> ReplicaSetup:
    patch.setattr(Marks, "remove", failing(DiskFailed("as it happens")))
    return setup


def no_secret(setup: ReplicaSetup, patch: Patch) -> ReplicaSetup:
    return replace(setup, secret=b"")


def no_certificate(setup: ReplicaSetup, patch: Patch) -> ReplicaSetup:
    nowhere = setup.data_dir / "nowhere"
    return replace(setup, tls=TlsFiles(nowhere, nowhere, nowhere))


def not_our_address(setup: ReplicaSetup, patch: Patch) -> ReplicaSetup:
    return replace(setup, listen_host="192.0.2.1")  # reserved for documentation


def node_cannot_be_built(setup: ReplicaSetup, patch: Patch) -> ReplicaSetup:
    patch.setattr(RunningReplica, "_build_node", failing(ReadFailed("as it happens")))
    return setup


def port_cannot_be_noted(setup: ReplicaSetup, patch: Patch) -> ReplicaSetup:
    patch.setattr(Marks, "write", failing(DiskFailed("as it happens")))  # by then it leads, maybe
    return setup


def no_peer_answers(setup: ReplicaSetup, patch: Patch) -> ReplicaSetup:
    shutil.rmtree(setup.data_dir)
    return replace(setup, replicas=3)


def no_peer_to_repair_from(setup: ReplicaSetup, patch: Patch) -> ReplicaSetup:
    return replace(damaged_vote(setup, patch), replicas=3)


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
        (snapshots_cannot_be_listed, DiskFailed),
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
    spoil: Callable[[ReplicaSetup, Patch], ReplicaSetup],
    error: type[EscrowMQError],
    tmp_path: Path,
) -> None:
    shutil.copytree(setup.data_dir, tmp_path / "sound")
    with pytest.MonkeyPatch.context() as patch, nothing_left():
        spoilt = spoil(setup, patch)
        with pytest.raises(error) as kept:  # whoever keeps the error keeps nothing open by it
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
    setup: ReplicaSetup, monkeypatch: Patch
) -> None:
    """Its content is only for the message to those who come too late."""
    monkeypatch.setattr(os, "pwrite", failing(OSError(28, "No space left on device")))
    with nothing_left():
        first = ReplicaHost(setup)
        with pytest.raises(DataDirLocked):
            ReplicaHost(setup)
        first.close()


# ------------------------------------------------------------------ before, between and after
def test_between_two_attempts_the_directory_stays_locked(setup: ReplicaSetup) -> None:
    with nothing_left():
        host = ReplicaHost(replace(setup, listen_host="192.0.2.1"))
        for _ in range(2):
            with pytest.raises(Unavailable, match="listen"):
                host.open()
            with pytest.raises(DataDirLocked):
                ReplicaHost(setup)
        host.close()
    opens_and_has_everything(setup)


class Silent(NoPeers):
    """Peers that do not answer, and tell when they were asked."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    def founded(self, peer: str) -> bool | None:
        self.asked.set()
        return None


def test_closing_breaks_an_opening_off(tmp_path: Path, setup: ReplicaSetup) -> None:
    silent = Silent()
    waiting = replace(setup, data_dir=tmp_path / "new", replicas=3, source=silent)
    ended: list[BaseException] = []

    def attempt(host: ReplicaHost) -> None:
        try:
            host.open(patience_s=60.0)
        except Closed as error:
            ended.append(error)

    with nothing_left():
        host = ReplicaHost(waiting)
        thread = threading.Thread(target=attempt, args=(host,))
        thread.start()
        assert silent.asked.wait(10.0)
        assert "starting" in str(host.unavailable()) and not host.founded()
        host.close()
        thread.join(10.0)
        assert len(ended) == 1
        assert "stopping" in str(host.unavailable())
        with pytest.raises(Closed):
            host.open()
        host.close()
    ReplicaHost(waiting).close()


@pytest.mark.parametrize("fails", [False, True])
def test_an_opening_that_cannot_be_broken_off_is_undone_at_its_end(
    setup: ReplicaSetup, monkeypatch: Patch, fails: bool
) -> None:
    recover, reached, goes_on = Checkpoints.recover, threading.Event(), threading.Event()

    def slow(self: Checkpoints, factory: Any) -> Any:
        reached.set()
        assert goes_on.wait(20.0)
        if fails:
            raise DiskFailed("as it happens")
        return recover(self, factory)

    monkeypatch.setattr(Checkpoints, "recover", slow)
    monkeypatch.setattr(hosting, "BREAK_OFF_S", 0.1)
    ended: list[type] = []

    def attempt(host: ReplicaHost) -> None:
        try:
            host.open()
        except EscrowMQError as error:
            ended.append(type(error))

    with nothing_left(after_a_run=not fails):
        host = ReplicaHost(setup)
        thread = threading.Thread(target=attempt, args=(host,))
        thread.start()
        assert reached.wait(10.0)
        host.close()  # does not wait for ever
        with pytest.raises(DataDirLocked):  # the opening still works in there
            ReplicaHost(setup)
        goes_on.set()
        thread.join(10.0)
        assert ended == [DiskFailed if fails else Closed]
    monkeypatch.undo()
    opens_and_has_everything(setup)


def test_closing_twice_and_at_once_is_closing(setup: ReplicaSetup) -> None:
    with nothing_left(after_a_run=True):
        host = ReplicaHost(setup)
        replica = host.open()
        assert wait_until(host.founded)
        threads = [threading.Thread(target=end) for end in (host.close, host.close, replica.close)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20.0)
        host.close()
        replica.close()
        del host, replica, threads, thread
    opens_and_has_everything(setup)


def test_a_closed_replica_answers_as_a_follower_or_says_come_back(setup: ReplicaSetup) -> None:
    with running(setup) as replica:
        parts = Parts(replica)
        parked: list[Any] = []
        thread = threading.Thread(target=lambda: parked.extend(parts.reads.fetch([("t", 0, 20)], 1000, 60.0)))
        thread.start()
        wait_until(lambda: replica.news._parked, what="a parked fetch")
    thread.join(10.0)
    assert parked and not parked[0][5], "closing woke it"
    assert replica.whoami() == (False, None, 0)
    for answer in (
        parts.requests.submit(ops.create_topic("u", {})),
        parts.due_checks.lock_due("app", "t", 1, 1.0, 0.0, "me"),
        parts.inspection.transactions(),
        parts.inspection.tx_states("app", ["x"]),
        parts.reads.committed("g"),
        parts.reads.topics(leader=True),
        parts.offers.checkpoint_manifest(),
        parts.groups.join("g", "m", ["t"], 10.0),
        parts.groups.names(),
    ):
        assert answer == NOT_RUNNING
    for call in (
        lambda: parts.reads.fetch([("t", 0, 0)], 1000, 0.0),
        lambda: parts.reads.topics(),
        lambda: parts.reads.partition_bounds("t"),
        lambda: parts.watching.spans([("t", 0, 0, 1, 1)]),
    ):
        with pytest.raises(Unavailable, match="stopping"):
            call()
    assert parts.inspection.status().role == "starting"


def test_a_checkpoint_under_way_ends_before_the_directory_is_free(
    setup: ReplicaSetup, monkeypatch: Patch
) -> None:
    """Else it would write into a directory that another process has opened by then."""
    write, reached, goes_on = RealDisk.write_atomic, threading.Event(), threading.Event()

    def slow(self: RealDisk, name: str, parts: Any) -> None:
        if name.endswith(".snap"):
            reached.set()
            assert goes_on.wait(20.0)
        write(self, name, parts)

    with running(setup) as replica:
        monkeypatch.setattr(RealDisk, "write_atomic", slow)
        submit, number = Parts(replica).requests.submit, 0
        while not reached.is_set():
            submit(message("t", 0, [b"x" * 10_000], seq=number))
            number += 1
        closing = threading.Thread(target=replica.close)
        closing.start()
        closing.join(0.5)
        assert closing.is_alive()
        with pytest.raises(DataDirLocked):
            ReplicaHost(setup)
        goes_on.set()
        closing.join(10.0)
    monkeypatch.undo()
    open_replica(setup).close()


def test_a_replica_that_does_not_stop_keeps_its_directory(setup: ReplicaSetup, monkeypatch: Patch) -> None:
    told: list[str] = []
    monkeypatch.setattr("escrowmq.replication.host.running.CHECKPOINT_WAIT_S", 0.1)
    host = ReplicaHost(replace(setup, report=told.append))
    replica = host.open()
    goes_on = threading.Event()
    stuck = replica._checkpoint = threading.Thread(target=goes_on.wait, args=(20.0,))
    stuck.start()
    for attempt in (1, 2):  # whoever stops a broker may ask again
        host.close()
        assert len(told) == attempt and "stays locked" in told[-1]
        with pytest.raises(DataDirLocked):
            ReplicaHost(setup)
    goes_on.set()
    stuck.join()
    host.close()  # now it can
    opens_and_has_everything(setup)


def test_a_mark_to_copy_is_kept_until_the_replica_has_one(
    setup: ReplicaSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = setup.data_dir / WANTS_COPY
    mark.write_text("damaged")
    damaged_vote(setup, monkeypatch)
    with pytest.raises(Unavailable):
        open_replica(replace(setup, replicas=3), patience_s=0.3)
    assert mark.exists() and (setup.data_dir / PORT_FILE).exists()


def test_a_mark_of_damage_goes_where_all_proves_to_be_sound(setup: ReplicaSetup) -> None:
    """A bad moment of the disk is over, or what was damaged has been mended: nobody need be asked."""
    mark = setup.data_dir / WANTS_COPY
    mark.write_text("damaged")
    open_replica(replace(setup, replicas=3), patience_s=0.3).close()
    assert not mark.exists() and not (setup.data_dir / LEARNER).exists()
