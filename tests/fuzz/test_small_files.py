"""Small files that a start reads: whose data these are, the cluster's record, the port, the configuration."""

from __future__ import annotations

import json
import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from escrowmq.cluster.config import load_config
from escrowmq.cluster.settings import ClusterSettings
from escrowmq.cluster.supervisor.cluster_dir import CLUSTER_FILE, ClusterDir, Secret, read_secret
from escrowmq.cluster.supervisor.member_steps import Seat
from escrowmq.replication.format.find_table import KEY, encode, entry_of
from escrowmq.replication.host.finding import FindFiles
from escrowmq.replication.log.datadir import DataDir, Identity, read_port
from escrowmq.replication.log.disk import RealDisk
from escrowmq.replication.log.peer_marks import Incarnation, PeerMarks
from tests.fuzz.engine import EXAMPLES, Target, examine, fuzz

IDENTITY = Identity("c", 0, 1)
SHAPE, SECRET = ClusterSettings(), Secret(b"s" * 32)
CONFIG = b"""
cluster: {namespace: shop, groups: 2}
storage:
  data_dir: /data
security:
  secret: "0123456789abcdef"
broker: &b
  segment_bytes: 1048576
  heartbeat_s: 0.05
producer: {linger_ms: 3}
"""
#: What YAML and JSON can say that their readers stumble over in ways of their own.
ODD = [
    b"a: 2001-99-99", b"\xff\xfe", b"&a [*a]", b"broker: &a {x: *a}", b"? [1]\n: 2", b"{" * 150, b"[" * 150,
    b"!!python/object/apply:os.system [x]", b"a: 1" + b"0" * 5000, b"--- 1\n--- 2", b"? {a: 1}\n: 2",
    b"broker: {segment_bytes: 1e400}", b"storage: {data_dir: [1]}", b"a: !!binary x",
    b'storage: {data_dir: "\\0"}',
]  # fmt: skip
#: Deep enough for the reader of JSON; YAML's takes minutes for it, which is the operator's own doing.
DEEP = [b"[" * 100_000, b'{"a":' * 100_000]


def in_directory(name: str, use: Callable[[Path], object]) -> Callable[[bytes], None]:
    """``use(directory)`` with a file of that name in it."""

    def run(data: bytes) -> None:
        with tempfile.TemporaryDirectory() as path:
            file = Path(path) / name
            file.write_bytes(data)
            file.chmod(0o600)
            use(Path(path))

    return run


def open_data(path: Path) -> None:
    DataDir(path, IDENTITY).close()


def open_marks(path: Path) -> None:
    marks = PeerMarks(RealDisk(path), Incarnation(0, "own"))
    for peer, number, disk_id in marks.all():
        assert (type(peer), type(number), type(disk_id)) == (str, int, str)
        assert 0 <= number < 1 << 63
    marks.close()


def open_cluster(path: Path) -> None:
    opened = ClusterDir(path, SHAPE, SECRET)
    record = opened.record
    opened.close()
    assert (record.groups, record.replicas) == (SHAPE.groups, SHAPE.replicas)
    for (gid, rid), seat in record.seats.items():
        assert (type(gid), type(rid), type(seat.node), type(seat.incarnation)) == (int, int, str, int)


def port(path: Path) -> None:
    assert 0 <= read_port((path / "raft-port").read_bytes()) < 1 << 16


def search(path: Path) -> None:
    files = FindFiles(RealDisk(path), 1 << 20)
    for n in (0, 1, 700):
        found = files.candidates((1, 0), entry_of(KEY, b"%d" % n, 0), 1 << 40)
        assert found is None or all(0 <= place < 1 << 16 for place in found)


def written_find_file() -> bytes:
    return b"".join(encode(0, 65_536, sorted(entry_of(KEY, b"%d" % n, n) for n in range(1_100))))


def written_identity() -> bytes:
    with tempfile.TemporaryDirectory() as path:
        open_data(Path(path))
        return (Path(path) / "identity.json").read_bytes()


def written_marks() -> bytes:
    with tempfile.TemporaryDirectory() as path:
        marks = PeerMarks(RealDisk(Path(path)), Incarnation(0, "own"))
        marks.learn([("1", 2, "d" * 32), ("2", 0, "e" * 32)])
        marks.close()
        return (Path(path) / "peers").read_bytes()


def written_cluster() -> bytes:
    with tempfile.TemporaryDirectory() as path:
        opened = ClusterDir(Path(path), SHAPE, SECRET)
        opened.keep(opened.record.with_seats([Seat(0, n, f"node{n}") for n in range(3)]))
        opened.close()
        return (Path(path) / CLUSTER_FILE).read_bytes()


TARGETS = [
    Target("identity.json", in_directory("identity.json", open_data), [written_identity()]),
    Target("cluster.json", in_directory(CLUSTER_FILE, open_cluster), [written_cluster()]),
    Target("peers", in_directory("peers", open_marks), [written_marks()]),
    Target(".find", in_directory("1-0.find", search), [written_find_file()]),
    Target("raft-port", in_directory("raft-port", port), [b"40123", b"1"]),
    Target("configuration", in_directory("x.yaml", lambda p: load_config(p / "x.yaml")), [CONFIG]),
    Target("secret file", in_directory("s", lambda p: read_secret(p / "s")), [b"0123456789abcdef\n"]),
]


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("ESCROWMQ_"):
            monkeypatch.delenv(name)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_damaged_files_are_refused_with_an_error_of_ours(target: Target) -> None:
    fuzz(target, EXAMPLES // 2)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("data", ODD, ids=range(len(ODD)))
def test_known_oddities_are_refused_too(target: Target, data: bytes) -> None:

    examine(target, data)


@pytest.mark.parametrize("target", TARGETS[:2], ids=lambda t: t.name)
def test_nesting_without_end_is_refused(target: Target) -> None:
    for data in DEEP:
        examine(target, data)


def test_every_field_may_be_of_any_type() -> None:
    rng = random.Random(4)
    for target in TARGETS[:2]:
        good = json.loads(target.seeds[0])
        for key in good:
            for wrong in (None, [], {}, "x", -1, 1.5, True, [[]], [None], [{}], [{"gid": "x"}], 10**30):
                examine(target, json.dumps({**good, key: wrong}).encode())
        seats = good.get("seats", [])
        for _ in range(100 if seats else 0):
            seat = dict(rng.choice(seats))
            seat[rng.choice(list(seat))] = rng.choice([None, [], {}, "x", 10**30, 1.5])
            examine(target, json.dumps({**good, "seats": [seat]}).encode())
