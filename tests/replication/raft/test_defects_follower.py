"""Defects A and B: a follower loses what it acknowledged, or commits what no majority holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.controls.guards import taken_away
from tests.support.stage import Mail, Stage, our_group, stock_group


def lose_an_acknowledged_tail(stage: Stage) -> tuple[list[bytes], Stage]:
    """An AppendEntries that the network delivers twice, the second time late; then the leader dies.

    Returns what the leader acknowledged.
    """
    leader = stage.elect("r0")
    stage.route = lambda mail: "r2" not in (mail.sender, mail.receiver)  # r2 misses everything
    acknowledged: list[bytes] = []
    late: list[Mail] = []
    stage.keep = lambda mail: bool(mail.message.get("entries")) and late.append(mail)  # type: ignore[func-returns-value]
    for n in range(5):
        leader.propose(b"%d" % n, lambda result, _: acknowledged.append(result))
        stage.run(0.2)
    assert acknowledged == [b"0", b"1", b"2", b"3", b"4"]

    stage.hand_over(next(mail for mail in late if mail.receiver == "r1"))  # the first of them, again
    stage.mail.clear()
    stage.awake = {"r1", "r2"}  # the leader is gone
    stage.route = lambda mail: "r0" not in (mail.sender, mail.receiver)
    stage.elect("r1" if stage.members["r1"].last_index() >= stage.members["r2"].last_index() else "r2")
    stage.run(2)
    return acknowledged, stage


def test_a_stock_loses_an_acknowledged_tail_to_a_late_duplicate() -> None:
    acknowledged, stage = lose_an_acknowledged_tail(stock_group())
    assert stage.members["r1"].applied == acknowledged  # it had applied them ...
    assert stage.members["r2"].applied != acknowledged  # ... and the group no longer has them


def test_a_ours_keeps_it() -> None:
    acknowledged, stage = lose_an_acknowledged_tail(our_group())
    assert stage.members["r1"].applied == stage.members["r2"].applied == acknowledged


def resent_entries(stage: Stage) -> int:
    """How often the leader sends an entry that it had sent before, with no message lost.

    Ten rounds, the acknowledgements of each of which arrive while the next is under way.
    """
    leader, sent = stage.elect("r0"), []

    def slow_acks(mail: Mail) -> bool:
        if mail.receiver == "r1":
            sent.extend(entry[1] for entry in mail.message.get("entries", ()))
        return mail.message["type"] == "next_node_idx"

    stage.keep = slow_acks
    for n in range(10):
        leader.propose(b"%d" % n)
        stage.tick("r0")
        stage.now += 0.06
        stage.tick("r0")
        arrived, stage.kept = stage.kept, []
        stage.deliver_all()
        for mail in arrived:
            stage.hand_over(mail)
    return len(sent) - len(set(sent))


def test_a_stock_resends_what_it_has_sent_because_every_ack_moves_it_back() -> None:
    assert resent_entries(stock_group()) > 0


def test_a_ours_sends_every_entry_once() -> None:
    assert resent_entries(our_group()) == 0


# ------------------------------------------------------------------ B
def diverge(stage: Stage) -> tuple[dict[str, Any], int]:
    """r0 leads, is cut off, and writes a tail that only it has; r1 leads the others and commits more.

    Then all of them stop. Returns what r1's next message to r0 says in any case, and where the tail starts.
    """
    old = stage.elect("r0")
    stage.isolate("r0")
    for n in range(5):
        old.propose(b"divergent %d" % n)
    stage.tick("r0")
    start = old.last_index() - 5
    new = stage.elect("r1")
    for n in range(5):
        new.propose(b"true %d" % n)
    stage.run(0.5)
    stage.awake = set()
    stage.mail.clear()
    message = {"type": "append_entries", "term": new.term(), "commit_index": new.commit_index(), "seq": 1}
    return message, start


def commit_a_divergent_tail(stage: Stage) -> Stage:
    """The first message from r1 that reaches r0 has no previous index."""
    message, _ = diverge(stage)
    stage.hand_over(Mail("r1", "r0", {**message, "serialized": None, "log_start": 1}))
    stage.tick("r0")
    return stage


def test_b_stock_commits_its_own_divergent_tail_on_a_snapshot_message() -> None:
    stage = commit_a_divergent_tail(stock_group())
    assert stage.members["r0"].applied[0] == b"divergent 0"
    assert stage.members["r1"].applied[0] == b"true 0"


def test_b_ours_commits_nothing_without_a_log_match() -> None:
    stage = commit_a_divergent_tail(our_group())
    assert stage.members["r0"].applied == []
    stage.heal()
    stage.awake = set(stage.names)
    stage.run(2)
    assert stage.members["r0"].applied == stage.members["r1"].applied == [b"true %d" % n for n in range(5)]


def test_b_ours_without_the_guard_breaks_as_stock_does() -> None:
    with taken_away("snapshot-commit"):
        stage = commit_a_divergent_tail(our_group())
    assert stage.members["r0"].applied[:1] == [b"divergent 0"]


def commit_a_stale_tail(stage: Stage) -> Stage:
    """As above, but the first message that reaches r0 is a heartbeat that matches far below its divergent
    tail."""
    message, start = diverge(stage)
    heartbeat = {**message, "entries": (), "prevLogIdx": start, "prevLogTerm": 1}
    stage.hand_over(Mail("r1", "r0", heartbeat))
    stage.tick("r0")
    return stage


@pytest.mark.parametrize("group", [stock_group, our_group])
def test_a_heartbeat_below_a_divergent_tail_commits_nothing_of_it(group: Callable[[], Stage]) -> None:
    """Stock survives this one because it truncates; skipping held entries makes the cap necessary."""
    assert commit_a_stale_tail(group()).members["r0"].applied == []


def test_skipping_held_entries_needs_the_commit_cap() -> None:
    with taken_away("commit-cap"):
        stage = commit_a_stale_tail(our_group())
    assert stage.members["r0"].applied[:1] == [b"divergent 0"]
