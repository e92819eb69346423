"""The check at rest finds what recovery would refuse, and changes nothing."""

from __future__ import annotations

from escrowmq.replication.format.segment_format import encode_sidecar
from escrowmq.replication.replica.verify import verify_log
from tests.sim.disk import SimDisk
from tests.support.storage import set_content, sim_disk, synced_log


def log_of_five_segments() -> SimDisk:
    disk = sim_disk()
    synced_log(disk, 10, segment_bytes=200)
    return disk


def test_a_sound_log_has_no_problems() -> None:
    reports = verify_log(log_of_five_segments())
    assert [(r.first, r.last, r.size) for r in reports] == [(i, i + 1, 176) for i in (1, 3, 5, 7, 9)]
    assert not any(r.problem for r in reports)
    assert verify_log(sim_disk()) == []


def test_every_kind_of_damage_is_named_and_left_alone() -> None:
    disk = log_of_five_segments()
    disk.flip("0000000000000001.log", 3)
    disk.flip("0000000000000003.log", 110)
    disk.remove("0000000000000005.log")
    other = disk.read_all("0000000000000003.pos")
    positions_of_another = encode_sidecar(7, memoryview(other)[28:40].cast("I"), [(7, 9)])  # type: ignore[arg-type]
    set_content(disk, "0000000000000007.pos", positions_of_another)
    set_content(disk, "0000000000000009.log", disk.read_all("0000000000000009.log")[:-1])
    before = {name: disk.read_all(name) for name in disk.names()}
    problems = {r.name[:16].lstrip("0"): (r.problem or "", r.torn) for r in verify_log(disk)}
    assert problems["1"] == ("damaged file header at byte 0", False)
    assert problems["3"] == ("no sound entry at byte 104", False)
    assert "0000000000000007.pos does not describe it" in problems["7"][0]
    assert problems["9"] == ("no sound entry at byte 104", True)
    assert {name: disk.read_all(name) for name in disk.names()} == before


def test_a_missing_segment_is_a_gap() -> None:
    disk = log_of_five_segments()
    disk.remove("0000000000000005.log")
    assert [r.problem for r in verify_log(disk)] == [None, None, "entry 5 belongs before it: a gap", None]
