"""A replica that was replaced lives on, with real threads, sockets and files: it no longer counts, and says
so."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from escrowmq.replication.errors import DiskFull, Superseded, Unavailable
from escrowmq.replication.host.replica_process import open_replica
from escrowmq.replication.log.datadir import LEARNER, SUPERSEDED, Marks
from escrowmq.replication.log.disk import RealDisk
from escrowmq.replication.log.peer_marks import SLOT_BYTES, SLOT_POSITIONS, Incarnation, _decode
from tests.support.broker_group import BrokerGroup, Member, texts
from tests.support.failing_disk import failing
from tests.support.waiting import wait_until


@pytest.fixture
def group(tmp_path: Path) -> Iterator[BrokerGroup]:
    with BrokerGroup(tmp_path) as group:
        group.topic()
        yield group


def successor(group: BrokerGroup, rid: int) -> Member:
    """A new process of that replica, in another directory; the group connects to it from now on."""
    setup = group.setup(rid)
    identity = replace(setup.identity, incarnation=setup.identity.incarnation + 1)
    member = group.alive[rid] = Member(
        replace(setup, identity=identity, data_dir=group.path / f"r{rid}-next")
    )
    return member


def tell(group: BrokerGroup, peer: str, rid: int, incarnation: Incarnation) -> Incarnation | None:
    return group.alive[int(peer)].parts.running.driver.peer_moved(str(rid), incarnation)


@pytest.mark.parametrize("rid", [0, 1, 2])
def test_the_predecessor_is_refused_and_nothing_is_lost(group: BrokerGroup, rid: int) -> None:
    """Whichever side dials: replica 0 is dialled by both others, replica 2 dials both."""
    group.publish("before")
    group.leader()
    ghost = group.alive.pop(rid)
    assert texts(ghost, 1) == ["before"], "a majority has it, and now this one, too"
    member = successor(group, rid)
    member.host.announce(lambda peer, own: tell(group, peer, rid, own))
    member.open()
    wait_until(lambda: not member.parts.running.learner, what="a full member")
    group.publish("after")
    assert texts(member, 2) == ["before", "after"]
    for other in group.alive.values():
        known = other.parts.running.node.marks.of(str(rid))
        assert other is member or (known is not None and known.number == 1)
    assert texts(ghost, 1) == ["before"]
    if (
        rid
    ):  # it dials the lower ones, or was told on its link; one that is only dialled may hear nothing at all
        wait_until(lambda: isinstance(group.ended.get(rid), Superseded), what="that it is told")
    ghost.stop()
    member.stop()
    del group.alive[rid]


def test_a_second_successor_of_the_same_number_is_told_that_it_is_refused(group: BrokerGroup) -> None:
    """Two supervisors counted alike. The peers keep their link to the first one and dial no other, so the
    second one remained a learner, and the group was never healthy again."""
    group.stop(0)
    first = successor(group, 0)
    first.host.announce(lambda peer, own: tell(group, peer, 0, own))
    first.open()
    wait_until(lambda: not first.parts.running.learner, what="a full member")
    setup = group.setup(0)
    setup = replace(setup, identity=replace(setup.identity, incarnation=1), data_dir=group.path / "r0-third")
    second = Member(setup)
    second.host.announce(lambda peer, own: tell(group, peer, 0, own))
    assert isinstance(group.ended.get(0), Superseded)
    assert Marks(RealDisk(setup.data_dir)).superseded_by() == 1
    second.stop()


def test_a_full_member_is_not_ended_by_one_peer_that_met_a_rival_first(group: BrokerGroup) -> None:
    group.stop(0)
    member = successor(group, 0)
    member.host.announce(lambda peer, own: tell(group, peer, 0, own))
    member.open()
    wait_until(lambda: not member.parts.running.learner, what="a full member")
    member.host.announce(lambda peer, own: Incarnation(own.number, "rival"))
    assert 0 not in group.ended and Marks(RealDisk(group.path / "r0-next")).superseded_by() is None


def test_a_refused_process_ends_even_if_its_disk_takes_no_mark(group: BrokerGroup) -> None:
    group.stop(0)
    member = successor(group, 0)
    group.disks.before("write_atomic", failing(DiskFull("no space left")))
    with pytest.raises(DiskFull):
        member.host.announce(lambda peer, own: Incarnation(own.number, "rival"))
    assert isinstance(group.ended.get(0), Superseded)


def test_a_replica_that_was_refused_never_starts_again_and_keeps_its_directory(tmp_path: Path) -> None:
    group = BrokerGroup(tmp_path)
    with group:
        group.topic()
        group.publish("x")
        victim = group.a_follower()
        running = group.alive[victim].parts.running
        running.end(Superseded("replica", 3))
        setup = group.setup(victim)
        group.stop(victim)
        assert Marks(RealDisk(setup.data_dir)).superseded_by() == 3
        for _ in range(2):
            with pytest.raises(Superseded, match="incarnation 3"):
                open_replica(setup, 0.5)
    assert list((setup.data_dir / "log").glob("*.log"))


def test_the_same_incarnation_on_another_disk_is_refused(group: BrokerGroup) -> None:
    """A directory was lost, and its replica comes back as if nothing had happened."""
    victim = group.a_follower()
    setup = group.setup(victim)
    group.stop(victim)
    shutil.rmtree(setup.data_dir)
    group.alive[victim] = member = Member(setup)
    member.open()
    wait_until(lambda: isinstance(group.ended.get(victim), Superseded), what="the refusal")
    assert Marks(RealDisk(setup.data_dir)).read(SUPERSEDED) == "0"


def test_a_replica_that_lost_its_marks_is_a_learner_until_it_has_them_again(group: BrokerGroup) -> None:
    victim = group.a_follower()
    before = group.alive[victim].parts.running.node.marks.all()
    assert len(before) == 2
    setup = group.setup(victim)
    group.stop(victim)
    (setup.data_dir / "peers").write_bytes(bytes(8192))
    said: list[str] = []
    group.alive[victim] = member = Member(replace(setup, report=said.append))
    member.open()
    assert any("counts again when all have answered" in text for text in said)
    wait_until(lambda: not member.parts.running.learner, what="everybody's answer")
    # The mark goes after the replica counts: whoever dies in between asks everybody again.
    wait_until(lambda: not Marks(RealDisk(setup.data_dir)).read(LEARNER), what="the end of the mark")
    assert member.parts.running.node.marks.all() == before


@pytest.mark.parametrize("known", [True, False], ids=["known", "planted: nobody knows"])
def test_two_empty_replicas_do_not_found_a_group_that_had_a_leader(tmp_path: Path, known: bool) -> None:
    """They are a majority, and what the group had is on the third one, which is still starting."""
    with BrokerGroup(tmp_path) as group:
        group.topic()
        group.publish("x")
        for rid in range(3):
            group.stop(rid)
        group.had_a_leader = known
        empty = [group.setup(rid) for rid in (0, 1)]
        for setup in empty:
            shutil.rmtree(setup.data_dir)
        for setup in empty:
            group.alive[setup.identity.replica] = Member(setup)
        if known:
            for setup in empty:
                with pytest.raises(Unavailable, match="no leader"):
                    group.alive[setup.identity.replica].host.open(0.3)
        else:  # this is what the supervisor's knowledge is for
            for setup in empty:
                group.alive[setup.identity.replica].open()
            assert not group.leader().parts.reads.topics()[1]


def test_what_is_marked_is_marked_before_the_link_is_up(
    group: BrokerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault: the mark is written after the link is up. What a power cut leaves then lets the
    predecessor in."""
    seen: list[tuple[Incarnation | None, Incarnation | None]] = []
    leader, victim = group.leader(), group.a_follower()
    running = leader.parts.running
    connected = running.node.connected

    def link_up(peer: str) -> None:
        if peer == str(victim):
            seen.append((on_disk_of(group, leader.rid).get(peer), running.node.marks.of(peer)))
        connected(peer)

    monkeypatch.setattr(running.node, "connected", link_up)
    group.stop(victim)
    shutil.rmtree(group.path / f"r{victim}")
    group.start(victim)
    wait_until(lambda: seen, what="its link")
    assert all(disk == memory and disk is not None and disk.number == 1 for disk, memory in seen)


def on_disk_of(group: BrokerGroup, rid: int) -> dict[str, Incarnation]:
    """What the file of a replica says, read from outside."""
    data = (group.path / f"r{rid}" / "peers").read_bytes()
    slots = [_decode(data[at : at + SLOT_BYTES]) for at in SLOT_POSITIONS]
    found = [slot for slot in slots if slot is not None]
    return max(found, key=lambda slot: slot[0])[1]
