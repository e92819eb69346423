"""Reads of a leader wait for a majority's word that it leads, which was given after the question."""

from __future__ import annotations

from escrowmq.replication.replica.lease_dispatcher import READS_MAX, ReadIndex


class Lead:
    """A node whose rounds the test confirms."""

    ready = True

    def __init__(self) -> None:
        self.begun = self.confirmed = 0

    def check_lead(self) -> int:
        self.begun += 1
        return self.begun

    def leads_since(self, check: int) -> bool:
        return check <= self.confirmed


def test_a_read_waits_for_its_round() -> None:
    raft, reads, told = Lead(), ReadIndex(), list[bool]()
    reads.ask(told.append)
    reads.step(raft)
    assert (raft.begun, told) == (1, [])
    raft.confirmed = 1
    reads.step(raft)
    assert told == [True]


def test_a_read_takes_no_part_in_the_round_under_way() -> None:
    """Its answers belong to messages that were sent before the question."""
    raft, reads, told = Lead(), ReadIndex(), list[str]()
    reads.ask(lambda leads: told.append("first"))
    reads.step(raft)
    reads.ask(lambda leads: told.append("second"))
    raft.confirmed = 1
    reads.step(raft)
    assert (raft.begun, told) == (2, ["first"])
    raft.confirmed = 2
    reads.step(raft)
    assert told == ["first", "second"]


def test_a_thousand_reads_share_a_round() -> None:
    raft, reads, told = Lead(), ReadIndex(), list[bool]()
    for _ in range(1000):
        reads.ask(told.append)
    reads.step(raft)
    raft.confirmed = 1
    reads.step(raft)
    assert raft.begun == 1 and told == [True] * 1000


def test_whoever_loses_the_leadership_says_so_to_all() -> None:
    raft, reads, told = Lead(), ReadIndex(), list[bool]()
    reads.ask(told.append)
    reads.step(raft)
    reads.ask(told.append)
    reads.resign()
    assert told == [False, False]
    raft.confirmed = 1  # an answer of the old leadership
    reads.step(raft)
    assert told == [False, False] and raft.begun == 1


def test_a_group_of_one_confirms_at_once() -> None:
    raft, reads, told = Lead(), ReadIndex(), list[bool]()
    raft.confirmed = 1_000
    reads.ask(told.append)
    reads.step(raft)
    assert told == [True]


def test_waiting_reads_are_bounded() -> None:
    reads = ReadIndex()
    for _ in range(READS_MAX):
        assert not reads.full
        reads.ask(lambda leads: None)
    assert reads.full
