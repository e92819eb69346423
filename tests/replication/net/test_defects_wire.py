"""Defects H, I and N: how stock pysyncobj sends messages, and what it accepts from the network."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import socket
import struct
import threading
import zlib
from pathlib import Path
from typing import Any

import pysyncobj.pickle as stock_pickle
import pytest
from pysyncobj import SyncObj, SyncObjConf

from escrowmq import replication
from escrowmq.replication.format import wire
from tests.support.raft_group import RaftGroup
from tests.support.stage import stock_group
from tests.support.waiting import wait_until

RANDOM = random.Random(7).randbytes


# ------------------------------------------------------------------ H: large entries in parts
def test_h_stock_ends_a_large_entry_too_early() -> None:
    """It recognises the last part by the command's length, but the parts are of the longer pickle."""
    stage = stock_group(appendEntriesBatchSizeBytes=1000)
    leader = stage.elect("r0")
    leader.propose(RANDOM(1250))
    with pytest.raises((EOFError, pickle.UnpicklingError, ValueError, IndexError)):
        stage.run(0.5)


def test_h_ours_carries_an_entry_far_over_the_batch_size_whole(tmp_path: Path) -> None:
    with RaftGroup(tmp_path) as group:
        command = b"\0" + RANDOM(3_000_001)
        assert len(command) > group.config.send_batch_bytes
        assert group.leader().propose(command).wait() is True
        for member in group.alive.values():
            wait_until(lambda m=member: m.commands() == [command], what="the large entry everywhere")


# ------------------------------------------------------------------ I: unpickling strangers' bytes
class Touch:
    """Unpickling this creates a file: it represents any code an attacker may choose."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def attack(address: tuple[str, int], marker: Path) -> None:
    """What a stranger needs to send to a stock node: one pickled, compressed message."""
    data = zlib.compress(pickle.dumps(Touch(marker), 2))
    with socket.create_connection(address, timeout=5) as sock:
        sock.sendall(struct.pack("i", len(data)) + data)
        sock.settimeout(2)
        try:
            sock.recv(1)
        except OSError:
            pass


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def test_i_stock_listens_everywhere_and_runs_a_strangers_code(tmp_path: Path) -> None:
    port = free_port()
    node = SyncObj(f"127.0.0.1:{port}", [], SyncObjConf(autoTick=False))
    attacker = threading.Thread(target=attack, args=(("127.0.0.1", port), tmp_path / "marker"))
    try:
        node.doTick(0.05)
        listening = Path("/proc/net/tcp").read_text()
        assert f"00000000:{port:04X}" in listening, "bound to 0.0.0.0, not to the given address"
        attacker.start()

        def struck() -> bool:
            with contextlib.suppress(Exception):
                node.doTick(0.05)
            return (tmp_path / "marker").exists()

        wait_until(struck, 5, "the stranger's code")
    finally:
        node.destroy()
        attacker.join()


def test_i_ours_binds_its_own_address_and_believes_nothing_from_strangers(tmp_path: Path) -> None:
    with RaftGroup(tmp_path / "group") as group:
        leader = group.leader()
        assert leader.driver.address is not None
        host, port = leader.driver.address
        assert host == "127.0.0.1"
        assert f"0100007F:{port:04X}" in Path("/proc/net/tcp").read_text()
        attack((host, port), tmp_path / "marker")
        wait_until(lambda: leader.driver.counters.malformed == 1, what="the stranger's refusal")
        assert not (tmp_path / "marker").exists()
        assert leader.propose(b"\0still alive").wait() is True


def test_i_nothing_of_ours_unpickles() -> None:
    folder = Path(replication.__file__).parent
    files = list(folder.rglob("*.py"))
    assert folder / "format" / "wire.py" in files
    for path in files:
        assert "import pickle" not in path.read_text(), path.name


# ------------------------------------------------------------------ N: bytes and copies
def test_n_stock_blows_random_bytes_up_and_then_compresses_them_in_vain() -> None:
    entries = [(RANDOM(64 << 10), 2, 1)]
    message = {"type": "append_entries", "term": 1, "commit_index": 1, "entries": entries, "prevLogIdx": 1}
    pickled = stock_pickle.dumps(message)
    assert len(pickled) > 1.4 * (64 << 10)
    assert len(zlib.compress(pickled, 3)) > 1.05 * (64 << 10)


def test_n_ours_sends_bodies_as_they_are() -> None:
    body = RANDOM(64 << 10)
    message = {
        "type": "append_entries", "term": 3, "commit_index": 1, "seq": 9, "prevLogIdx": 1, "prevLogTerm": 2,
        "entries": [(body, 2, 3), (body, 3, 3)],
    }  # fmt: skip
    buffers = wire.encode(message)
    assert sum(map(len, buffers)) < 2 * len(body) + 64
    assert buffers[1] is body, "not even copied"


def test_n_stock_copies_the_tail_of_the_log_at_every_send() -> None:
    copied = 0

    class Counting(list[Any]):
        def __getitem__(self, item: Any) -> Any:
            nonlocal copied
            result = super().__getitem__(item)
            if isinstance(item, slice):
                copied += len(result)
            return result

    stage = stock_group(appendEntriesBatchSizeBytes=1000)
    leader = stage.elect("r0")
    journal = leader.raft._SyncObj__raftLog
    journal._MemoryJournal__journal = Counting(journal._MemoryJournal__journal)
    for _ in range(300):
        leader.propose(bytes(900))
    stage.run(1)
    assert copied > 20 * 300
