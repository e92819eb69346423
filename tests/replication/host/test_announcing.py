"""A successor tells every peer until each has noted it, and stops only when it is closed."""

from __future__ import annotations

import pytest

from escrowmq.replication.errors import Closed, Superseded
from escrowmq.replication.host.replica_process import NEWCOMERS_S, announce
from escrowmq.replication.host.replica_setup import PeerList
from escrowmq.replication.log.peer_marks import Incarnation

OWN = Incarnation(2, "disk")


def test_each_peer_is_told_until_it_has_noted_it() -> None:
    told: list[str] = []
    pauses: list[float] = []

    def tell(peer: str, own: Incarnation) -> Incarnation | None:
        assert own == OWN
        told.append(peer)
        return OWN if peer == "0" or told.count(peer) == 3 else None  # the other one is starting

    announce(OWN, ["0", "2"], tell, pauses.append)
    assert told == ["0", "2", "2", "2"]
    assert len(pauses) == 2


def test_members_that_leave_meanwhile_are_not_waited_for_and_those_that_come_are_told() -> None:
    peers, told = PeerList("1", ["0", "2"]), list[str]()

    def tell(peer: str, own: Incarnation) -> Incarnation | None:
        told.append(peer)
        return None if peer == "2" else OWN  # it is gone for good

    announce(OWN, peers, tell, lambda seconds: peers.follow(5, ["0", "3"]))
    assert told == ["0", "2", "3"]


def test_one_that_joins_later_is_told_and_one_that_comes_again_is_told_again() -> None:
    """It may have a link to the predecessor, and nobody else would end that one."""
    peers, told, pauses = PeerList("1", ["0", "2"]), list[str](), list[float]()
    lists = iter([["0", "2"], ["0", "2", "3"], ["0", "3"], ["0", "2", "3"]])

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        names = next(lists, None)
        if names is None:
            raise Closed("stopping")
        peers.follow(4 + len(pauses), names)

    def tell(peer: str, own: Incarnation) -> Incarnation:
        told.append(peer)
        return OWN

    with pytest.raises(Closed):
        announce(OWN, peers, tell, sleep, stay=True)
    assert told == ["0", "2", "3", "2"]
    assert set(pauses) == {NEWCOMERS_S}


def test_one_that_took_nobodys_place_tells_nobody() -> None:
    announce(Incarnation(0, "disk"), ["0", "2"], lambda peer, own: pytest.fail("told"), lambda seconds: None)


@pytest.mark.parametrize("recorded", [Incarnation(2, "another disk"), Incarnation(3, "disk")])
def test_one_that_a_peer_refuses_learns_that_it_was_replaced(recorded: Incarnation) -> None:
    """The peer has a link to the other process, so no handshake would tell it: it stayed a learner."""
    with pytest.raises(Superseded) as caught:
        announce(OWN, ["0", "2"], lambda peer, own: recorded if peer == "2" else own, lambda seconds: None)
    assert caught.value.by == recorded.number


def test_it_ends_when_the_replica_is_closed() -> None:
    def closed(seconds: float) -> None:
        raise Closed("stopping")

    with pytest.raises(Closed):
        announce(OWN, ["0"], lambda peer, own: None, closed)
