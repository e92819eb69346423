"""How often callers wake the producer's thread: once per request, and not once per transaction. No threads;
the test runs the turns."""

from __future__ import annotations

import random
from typing import Any

import pytest

from escrowmq.actors.client.client_loop import ClientLoop
from escrowmq.actors.client.config import ChannelConfig
from escrowmq.actors.client.linked_calls import SelectWakeup
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.actors.client.wakeup import Wakeup
from escrowmq.actors.producer.config import ProducerConfig
from escrowmq.actors.producer.core import ProducerCore
from escrowmq.actors.producer.encoding.blocks import DecisionBlock

MANY = 64
LINGER_S = 0.001


class CountingWakeup(Wakeup):
    """Counts the calls that wake a waiter."""

    __slots__ = ("woken",)

    def __init__(self) -> None:
        super().__init__()
        self.woken = 0

    def set(self) -> None:
        self.woken += 1


class Producer:
    """A producer of one broker group, whose requests stand in a list."""

    def __init__(self, groups: int = 1) -> None:
        self.now, self.requests, self.ids = 0.0, list[Any](), 0
        info = ClusterInfo("c", "n", groups, 1)
        self.turns = ClientLoop(info, ChannelConfig(), self, clock=lambda: self.now, rng=random.Random(1))
        self.wakeup = self.turns.wakeup = CountingWakeup()
        config = ProducerConfig(transaction_linger_ms=1000 * LINGER_S)
        self.core = ProducerCore(info, "shop", config, clock=lambda: self.now, turns=self.turns)
        self.wake = self.turns.turn()

    def call(self, gid: int, rid: int, method: str, args: tuple[Any, ...], done: Any) -> None:
        if method == "whoami":
            done((True, rid, 1), None)
        else:
            assert method == "submit"
            self.requests.append(done)

    def close(self) -> None: ...

    def decide(self, count: int, gid: int = 0) -> int:
        """Callers commit; the producer's thread runs whenever it is woken. How often that was."""
        times = 0
        for _ in range(count):
            self.ids += 1
            before = self.wakeup.woken
            self.core.enqueue(gid, DecisionBlock(True, (f"tx-{self.ids}",)))
            if self.wakeup.woken > before:
                times += 1
                self.turn()
        return times

    def turn(self) -> None:
        """Until nothing is left to do at once."""
        woken = -1
        while self.wake <= self.now or self.wakeup.woken > woken:
            woken = self.wakeup.woken
            self.wake = self.turns.turn()

    def answer(self) -> None:
        """The oldest request is answered."""
        self.requests.pop(0)(("ok", [[0]]), None)
        self.turn()

    def later(self) -> None:
        """Time passes until the thread wakes by itself."""
        self.now = self.wake
        self.turn()


def in_rhythm(producer: Producer) -> None:
    """``MANY`` were answered together, and their callers are about to come back."""
    producer.decide(1)  # alone: it goes at once
    producer.decide(MANY)
    producer.later()
    for _ in range(2):
        producer.answer()
    assert not producer.requests


def test_many_callers_that_come_back_together_wake_it_once() -> None:
    producer = Producer()
    in_rhythm(producer)
    assert producer.decide(MANY - 1) == 0 and not producer.requests
    assert producer.decide(1) == 1 and len(producer.requests) == 1


def test_a_lone_caller_wakes_it_and_is_sent_at_once() -> None:
    producer = Producer()
    for _ in range(3):
        assert producer.decide(1) == 1 and len(producer.requests) == 1
        producer.answer()


def test_those_who_do_not_come_back_are_waited_for_until_the_linger_ends() -> None:
    """Without a wake-up: the producer's thread has set itself an end."""
    producer = Producer()
    in_rhythm(producer)
    answered = producer.now
    producer.now += LINGER_S / 2
    assert producer.decide(3) == 0
    producer.later()
    assert len(producer.requests) == 1 and producer.now == pytest.approx(answered + LINGER_S)


def test_after_that_the_first_one_wakes_it_again() -> None:
    producer = Producer()
    in_rhythm(producer)
    producer.later()
    assert producer.wake - producer.now > LINGER_S, "and it sleeps for long"
    producer.now += 10.0
    assert producer.decide(1) == 1, "or nobody would look"
    producer.later()
    assert len(producer.requests) == 1


def test_while_a_request_is_under_way_only_the_first_one_wakes_it() -> None:
    producer = Producer()
    producer.decide(1)
    assert len(producer.requests) == 1
    assert producer.decide(MANY) == 1
    producer.later()
    assert len(producer.requests) == 2, "the linger is over"


def test_one_group_s_rhythm_holds_up_no_other_group_s_lone_caller() -> None:
    producer = Producer(groups=2)
    in_rhythm(producer)
    assert producer.decide(5) == 0
    assert producer.decide(1, gid=1) == 1 and len(producer.requests) == 1


def test_one_byte_wakes_a_sleeper_however_many_call() -> None:
    wakeup = SelectWakeup()
    wakeup._asleep = True  # as in ``wait``, before the sleeper's thread runs again
    for _ in range(MANY):
        wakeup.set()
    assert len(wakeup._read.recv(512)) == 1
    wakeup.close()
