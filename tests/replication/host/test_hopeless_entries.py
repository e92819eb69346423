"""When a damaged entry is given up as not to be found elsewhere, so that only a copy of the leader's state
helps."""

from __future__ import annotations

import pytest

from escrowmq.replication.host import repair
from escrowmq.replication.host.repair import HOPELESS_ROUNDS, HOPELESS_ROUNDS_OF_LEADER, Mender
from escrowmq.replication.log.holes import Hole, KnownHoles, StoredEntry

LEADER, OTHER = "0", "2"
HOLE = Hole(1, 7, 7, 100, 200, 1)


class Damaged:
    """A log whose entry 7 is damaged, and which accepts no replacement for it."""

    first_index, last_index = 1, 9

    def __init__(self) -> None:
        self.holes = KnownHoles([HOLE])

    def term_at(self, index: int) -> int | None:
        return 1

    def cached(self, index: int) -> bytes | None:
        return None

    def is_sound(self, hole: Hole) -> bool:
        return False

    def mend(self, hole: Hole, entry: StoredEntry) -> bool:
        return False


class Peers:
    """``answers``: what each peer says; the other peers do not answer."""

    def __init__(self, answers: dict[str, bytes]) -> None:
        self.answers = answers

    def entries(self, peer: str, first: int, last: int) -> bytes | None:
        return self.answers.get(peer)


def mender(*answering: str) -> Mender:
    return Mender(
        Damaged(), [LEADER, OTHER], Peers(dict.fromkeys(answering, b"")), lambda fn: fn(), lambda text: None
    )


def rounds(under_test: Mender, count: int) -> Mender:
    for _ in range(count):
        assert under_test.round() is not None, "it is tried again, whatever is found"
    return under_test


def test_all_have_said_so() -> None:
    under_test = rounds(mender(LEADER, OTHER), HOPELESS_ROUNDS - 1)
    assert not under_test.lacks(7, LEADER)
    assert rounds(under_test, 1).lacks(7, LEADER) and under_test.lacks(7) and not under_test.lacks(8, LEADER)


def test_one_that_never_says_anything_does_not_keep_the_replica_from_the_leaders_copy() -> None:
    under_test = rounds(mender(LEADER), HOPELESS_ROUNDS_OF_LEADER - 1)
    assert not under_test.lacks(7, LEADER), "the other one may only be starting"
    assert rounds(under_test, 1).lacks(7, LEADER)
    assert not under_test.lacks(7, OTHER), "another leader may have it"


def test_with_the_leaders_word_taken_away_it_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: only the answers of all peers together count."""
    monkeypatch.setattr(repair, "HOPELESS_ROUNDS_OF_LEADER", 1 << 60)
    assert not rounds(mender(LEADER), 100).lacks(7, LEADER)


def test_nobody_counts_but_the_leader_where_the_others_are_silent() -> None:
    assert not rounds(mender(OTHER), 100).lacks(7, LEADER)
