"""Commits that come late never put a group's offset back: delayed on the way, at the broker, in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from escrowmq.actors.consumer.consumer import Consumer
from escrowmq.replication.host import requests
from tests.support.brokers import Brokers, taking
from tests.support.polling import numbered, read
from tests.support.waiting import wait_until

ConsumerOf = Callable[..., Consumer]


class Delayed:
    """``commit_offsets`` calls that it catches seem lost to the callers, and arrive when let go."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers, self.catching = brokers, 0
        self.caught: list[tuple[int, int, str, tuple[Any, ...]]] = []

    def takes(self, gid: int, rid: int, method: str, args: tuple[Any, ...], done: Any) -> bool:
        if method != "commit_offsets" or not self.catching:
            return False
        self.catching -= 1
        self.caught.append((gid, rid, method, args))
        done(None, ConnectionError("the connection was lost"))
        return True

    def let_go(self) -> None:
        """Delivers the calls; their answers are no longer waited for."""
        while self.caught:
            done = threading.Event()
            self._brokers.carry(*self.caught.pop(), lambda answer, error, done=done: done.set())
            assert done.wait(10.0)


def test_a_copy_of_a_repeated_commit_that_comes_late_does_nothing(
    brokers: Brokers, topic: str, unique: Any, consumer_of: ConsumerOf
) -> None:
    """A commit of 3 is repeated, 6 is committed, and the first copy of 3 comes at last. Formerly it was
    carried out: a consumer that then started from the group's offset read everything again."""
    brokers.produce(topic, 0, numbered(0, 10))
    delayed = Delayed(brokers)
    with taking(brokers, delayed.takes):
        consumer = consumer_of(brokers, group=unique("g"), topics=[topic])
        read(consumer, 3)
        delayed.catching = 1
        consumer.commit()
        assert consumer.committed(topic, 0) == 3 and len(delayed.caught) == 1
        read(consumer, 3)
        consumer.commit()
        assert consumer.committed(topic, 0) == 6
        delayed.let_go()
        assert consumer.committed(topic, 0) == 6
        assert [record.offset for record in read(consumer, 4)] == [6, 7, 8, 9], "and nothing is read twice"
        consumer.commit()
        assert consumer.committed(topic, 0) == 10


def test_commits_of_one_consumer_are_made_one_after_the_other(
    brokers: Brokers, topic: str, unique: Any, consumer_of: ConsumerOf
) -> None:
    """Two threads of an application commit: the one that chose its offsets first comes second."""
    brokers.produce(topic, 0, numbered(0, 10))
    consumer = consumer_of(brokers, group=unique("g"), topics=[topic])
    read(consumer, 6)
    under_way = most = 0

    def slowly(gid: int, rid: int, method: str, args: tuple[Any, ...], done: Any) -> bool:
        nonlocal under_way, most

        def arrives(answer: Any, error: BaseException | None) -> None:
            nonlocal under_way
            under_way -= 1
            done(answer, error)

        if method != "commit_offsets":
            return False
        under_way += 1
        most = max(most, under_way)
        threading.Timer(0.1, brokers.carry, (gid, rid, method, args, arrives)).start()
        return True

    with taking(brokers, slowly), ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(consumer.commit, {(topic, 0): offset}) for offset in (3, 4, 5, 6)]:
            future.result(20.0)
    assert most == 1


def test_a_commit_that_is_held_up_at_the_broker_is_refused_once_its_partition_has_moved_on(
    brokers: Brokers, topic: str, unique: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was checked first and queued later: in between its member died, and the next one committed."""
    group, parts = unique("g"), brokers.groups[0].leader().parts
    (_, first) = parts.groups.join(group, "first", [topic], 0.5)
    held_up, go_on = threading.Event(), threading.Event()
    parse = requests.parse_request

    def stalls(request: bytes, **options: Any) -> Any:
        if threading.current_thread().name == "held up":
            held_up.set()
            assert go_on.wait(10.0)
        return parse(request, **options)

    monkeypatch.setattr(requests, "parse_request", stalls)
    answers: list[Any] = []

    def commit() -> None:
        answers.append(parts.groups.commit(group, "first", first.assignment.generation, {topic: {0: 3}}))

    thread = threading.Thread(target=commit, name="held up")
    thread.start()
    assert held_up.wait(10.0)
    (_, second) = parts.groups.join(group, "second", [topic], 10.0)
    generation = second.assignment.generation

    def has_it() -> bool:
        nonlocal generation
        (_, assignment) = parts.groups.heartbeat(group, "second", generation)
        generation = assignment.generation
        return (topic, 0) in assignment.partitions

    wait_until(has_it, what="the partition moves on")
    assert parts.groups.commit(group, "second", generation, {topic: {0: 10}}) == ("ok", None)
    go_on.set()
    thread.join(10.0)
    ((status, refusal),) = answers
    assert status == "ok" and "first is not in this generation" in refusal.reason
    assert parts.reads.group_offsets(group)[topic][0] == 10
