"""What only a leader may answer has all that was acknowledged before the question, whoever leads by then."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from escrowmq.replication.errors import Unavailable
from escrowmq.replication.host import running_replica
from tests.support.broker_group import BrokerGroup, Member
from tests.support.requests import TOPIC
from tests.support.waiting import wait_until

MESSAGES = [(TOPIC, 0, -1)]
QUESTIONS: dict[str, Callable[[Member], Any]] = {
    "end of a partition": lambda member: member.parts.reads.offsets(MESSAGES, leader=True),
    "watch": lambda member: member.parts.watching.watch(MESSAGES, 0.0),
    "topics": lambda member: member.parts.reads.topics(leader=True),
    "names of topics": lambda member: member.parts.reads.topic_names(0, 0),
    "positions of a group": lambda member: member.parts.reads.committed("g"),
    "positions and who holds them": lambda member: member.parts.reads.places("g", [TOPIC]),
    "attempts": lambda member: member.parts.reads.attempts("g", MESSAGES),
}


def test_a_leader_that_stood_still_while_it_was_replaced_answers_nothing(group: BrokerGroup) -> None:
    """Its state has no acknowledged message too few, but it does not know the newest."""
    old, stands = group.leader(), threading.Event()
    old.parts.running.driver.submit(lambda: stands.wait(30.0) and None)
    others = [member for rid, member in group.alive.items() if rid != old.rid]
    wait_until(lambda: any(member.whoami()[0] for member in others), 10, "a successor")
    new = next(member for member in others if member.whoami()[0])
    assert old.whoami()[0], "it believes to lead, or this test shows nothing"
    with ThreadPoolExecutor(len(QUESTIONS)) as threads:
        asked = {name: threads.submit(ask, old) for name, ask in QUESTIONS.items()}
        stands.set()
        for name, answer in asked.items():
            try:
                assert answer.result(30.0)[0] != "ok", name
            except Unavailable:  # no majority confirmed in time
                pass
    assert new.parts.reads.offsets(MESSAGES, leader=True)[0] == "ok"


def test_a_leader_without_a_majority_says_when_to_come_back(
    group: BrokerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_replica, "CONFIRM_S", 0.05)
    old, stands = group.leader(), threading.Event()
    try:
        old.parts.running.driver.submit(lambda: stands.wait(30.0) and None)
        with pytest.raises(Unavailable, match="no majority confirms") as caught:
            old.parts.reads.offsets(MESSAGES, leader=True)
        assert caught.value.retry_after_s > 0
    finally:
        stands.set()


def test_an_error_of_a_read_is_its_callers(group: BrokerGroup) -> None:
    leader = group.leader()

    def fails(state: object) -> None:
        raise KeyError("not there")

    for in_loop in (False, True):
        with pytest.raises(KeyError):
            leader.parts.running.confirmed(fails, in_loop=in_loop)
    assert leader.parts.reads.offsets(MESSAGES, leader=True)[0] == "ok", "the replica goes on"
