"""Damage at different places on several replicas: they repair each other, and none of them leaves the group.

Real replicas over real files; a bit is flipped in the file itself.
"""

from __future__ import annotations

import threading
from pathlib import Path

from escrowmq.replication.errors import EscrowMQError
from escrowmq.replication.format.segment_format import first_of_name, sidecar_name
from escrowmq.replication.log.datadir import LEARNER
from tests.support.broker_group import BrokerGroup, texts
from tests.support.offered_files import damage_in_bytes
from tests.support.waiting import wait_until

MESSAGES = 100


def flip(path: Path) -> None:
    """Flips one bit of a message's body, in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[int(len(data) * 0.52)] ^= 8
    path.write_bytes(data)


def start_all(trio: BrokerGroup, *rids: int) -> None:
    """Starts replicas at the same moment, as after a power cut; each may wait for the others."""
    members = [trio.create(rid) for rid in rids]
    threads = [threading.Thread(target=member.open) for member in members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)


def restart_what_ended(trio: BrokerGroup) -> None:
    """Does what the supervisor of the processes does."""
    for rid in list(trio.ended):
        del trio.ended[rid]
        trio.stop(rid)
        threading.Thread(target=lambda rid=rid: trio.start(rid), daemon=True).start()


def damage(trio: BrokerGroup, rid: int) -> list[str]:
    """What is wrong with the log files of a replica, except the newest one, which may be in the act of being
    written."""
    found = []
    for path in trio.segments(rid)[:-1]:
        if (wrong := damage_in_bytes(path.name, path.read_bytes())) is not None:
            found.append(wrong)
    return found


def filled(trio: BrokerGroup) -> list[str]:
    written, victim = trio.stop_a_full_follower()
    trio.start(victim)
    for member in list(trio.alive.values()):
        texts(member, MESSAGES)
    return written


def all_read(trio: BrokerGroup, rid: int, written: list[str]) -> bool:
    try:
        return texts(trio.alive[rid], MESSAGES, 1.0) == written
    except (EscrowMQError, AssertionError, KeyError):  # not there yet, or away for repair
        return False


def stop_all(trio: BrokerGroup) -> None:
    for rid in list(trio.alive):
        trio.stop(rid)


def test_two_replicas_damaged_at_different_places_go_on(trio: BrokerGroup) -> None:
    """Both left for repair as learners, one of them needed the other's vote, and the group stopped for good,
    although there were two sound copies of every entry."""
    written = filled(trio)
    stop_all(trio)
    flip(trio.segments(0)[0])
    flip(trio.segments(1)[1])
    start_all(trio, 0, 1, 2)
    trio.leader()
    for rid in (0, 1):
        all_read(trio, rid, written)  # now both know of it
    ended = list(trio.ended)

    def all_well() -> bool:
        restart_what_ended(trio)
        return all(all_read(trio, rid, written) for rid in (0, 1, 2))

    wait_until(all_well, 20.0, "every replica gives all that it holds")
    assert not ended and not trio.ended
    wait_until(lambda: not damage(trio, 0) + damage(trio, 1), 10.0, "everything is mended")
    assert not any((trio.path / f"r{rid}" / LEARNER).exists() for rid in range(3))


def test_a_leader_mends_its_log_and_goes_on_leading(trio: BrokerGroup) -> None:
    written = filled(trio)
    stop_all(trio)  # so that nothing is in memory any more
    start_all(trio, 0, 1, 2)
    leader = trio.leader()
    flip(trio.segments(leader.rid)[0])
    term = leader.whoami()[2]
    wait_until(lambda: all_read(trio, leader.rid, written), 10.0, "the leader gives all that it holds")
    assert trio.leader().rid == leader.rid and leader.whoami()[2] == term
    wait_until(lambda: leader.parts.running.journal.holes.mended == 1, 10.0, "it was mended")
    assert not trio.ended and not damage(trio, leader.rid)


def test_damage_without_a_sidecar_is_mended_before_the_start(trio: BrokerGroup) -> None:
    """Several adjacent entries, so that not even their positions are known; on two replicas."""
    written = filled(trio)
    stop_all(trio)
    for rid, number in ((0, 0), (1, 1)):
        path = trio.segments(rid)[number]
        data = bytearray(path.read_bytes())
        data[len(data) // 3 : len(data) // 2] = bytes(len(data) // 2 - len(data) // 3)
        path.write_bytes(data)
        first = first_of_name(path.name)
        assert first is not None
        path.with_name(sidecar_name(first)).unlink()
    start_all(trio, 0, 1, 2)
    for rid in (0, 1, 2):
        assert texts(trio.alive[rid], MESSAGES) == written
    assert not damage(trio, 0) + damage(trio, 1)
    assert not any((trio.path / f"r{rid}" / LEARNER).exists() for rid in range(3))


def test_a_file_that_was_cut_short_grows_again(trio: BrokerGroup) -> None:
    written = filled(trio)
    stop_all(trio)
    for rid, number, side in ((0, 0, True), (1, 1, False)):
        path = trio.segments(rid)[number]
        path.write_bytes(path.read_bytes()[:-20_000])
        first = first_of_name(path.name)
        assert first is not None
        if not side:
            path.with_name(sidecar_name(first)).unlink()
    start_all(trio, 0, 1, 2)
    for rid in (0, 1, 2):
        wait_until(lambda rid=rid: all_read(trio, rid, written), 10.0, "all is read")  # type: ignore[misc]
    wait_until(lambda: not damage(trio, 0) + damage(trio, 1), 10.0, "everything is mended")
    assert not trio.ended


def test_a_replica_without_a_sound_snapshot_copies_and_stays_a_member(trio: BrokerGroup) -> None:
    """Its state did not fit its log, which was found too late to trigger a copy: every start failed."""
    written, victim = trio.stop_a_full_follower()
    folder = trio.path / f"r{victim}" / "log"
    oldest = trio.segments(victim)[0]
    oldest.unlink()  # as retention does once there are snapshots
    oldest.with_suffix(".pos").unlink()
    for path in folder.glob("*.snap"):
        flip(path)
    learnt: list[str] = []
    trio.disks.before("write_atomic", lambda touched: learnt.append(touched.path.name))
    trio.start(victim)
    assert texts(trio.alive[victim], MESSAGES) == written
    assert learnt and LEARNER not in learnt
