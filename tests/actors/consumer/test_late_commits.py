"""Commits that come late never put a group's offset back: delayed on the way, at the broker, in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from escrowmq.actors.consumer.consumer import Consumer
from escrowmq.replication.host import requests
from tests.support.brokers import Brokers
from tests.support.polling import numbered, read
from tests.support.waiting import wait_until

ConsumerOf = Callable[..., Consumer]


class Delayed:
    """A layer between clients and brokers. ``commit_offsets`` calls that it catches seem lost to their
    callers, and arrive when they are let go."""

    def __init__(self, brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
        self._call = brokers.call
        self.catching = 0
        self.caught: list[tuple[int, int, tuple[Any, ...]]] = []
        monkeypatch.setattr(brokers, "call", self.call)

    def call(self, gid: int, rid: int, method: str, args: tuple[Any, ...], done: Any) -> None:
        if method == "commit_offsets" and self.catching:
            self.catching -= 1
            self.caught.append((gid, rid, args))
            done(None, ConnectionError("the connection was lost"))
        else:
            self._call(gid, rid, method, args, done)

    def let_go(self) -> None:
        """Delivers the calls; their answers are no longer waited for."""
        while self.caught:
            gid, rid, args = self.caught.pop()
            done = threading.Event()
            self._call(gid, rid, "commit_offsets", args, lambda answer, error, done=done: done.set())
            assert done.wait(10.0)


def late_copy(
    brokers: Brokers, topic: str, name: str, consumer_of: ConsumerOf, monkeypatch: pytest.MonkeyPatch
) -> int:
    """The offset after a commit of 3 was repeated, 6 was committed, and the first copy of 3 came at last."""
    brokers.produce(topic, 0, numbered(0, 10))
    delayed = Delayed(brokers, monkeypatch)
    consumer = consumer_of(brokers, group=name, topics=[topic])
    read(consumer, 3)
    delayed.catching = 1
    consumer.commit()
    assert consumer.committed(topic, 0) == 3 and len(delayed.caught) == 1
    read(consumer, 3)
    consumer.commit()
    assert consumer.committed(topic, 0) == 6
    delayed.let_go()
    committed = consumer.committed(topic, 0)
    assert committed is not None
    assert [record.offset for record in read(consumer, 4)] == [6, 7, 8, 9], "and nothing is read twice"
    consumer.commit()
    assert consumer.committed(topic, 0) == 10
    return committed


def test_a_copy_of_a_repeated_commit_that_comes_late_does_nothing(
    brokers: Brokers, topic: str, unique: Any, consumer_of: ConsumerOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Formerly it was carried out: a consumer that then started from the group's offset read everything
    again."""
    assert late_copy(brokers, topic, unique("g"), consumer_of, monkeypatch) == 6


def test_commits_of_one_consumer_are_made_one_after_the_other(
    brokers: Brokers, topic: str, unique: Any, consumer_of: ConsumerOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads of an application commit: the one that chose its offsets first comes second."""
    brokers.produce(topic, 0, numbered(0, 10))
    consumer = consumer_of(brokers, group=unique("g"), topics=[topic])
    read(consumer, 6)
    assert consumer.core.committer is not None
    send, under_way, most = consumer.core.committer._send, 0, 0

    def slowly(*args: Any) -> str | None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        time.sleep(0.1)
        refusal = send(*args)
        under_way -= 1
        return refusal

    monkeypatch.setattr(consumer.core.committer, "_send", slowly)
    with ThreadPoolExecutor(4) as pool:
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
