"""What operators are told of Ray's head, and what a program says while the head is away."""

from __future__ import annotations

import logging

import pytest

from escrowmq.cluster.connecting import HeadAbsence, Word
from escrowmq.cluster.settings import Head, head_in_words, head_of, head_problem

WAIT = "RAY_gcs_rpc_server_reconnect_timeout_s"


@pytest.mark.parametrize(
    ("environment", "head"),
    [
        ({}, Head("memory", 60.0)),
        ({"RAY_gcs_storage": "rocksdb", WAIT: "600"}, Head("rocksdb", 600.0)),
        ({"RAY_REDIS_ADDRESS": "redis:6379"}, Head("redis", 60.0)),
        ({WAIT: "soon"}, Head("memory", 60.0)),
    ],
)
def test_the_head_is_what_its_environment_says(environment: dict[str, str], head: Head) -> None:
    assert head_of(environment) == head


def test_a_head_in_memory_is_not_fault_tolerant() -> None:
    said = head_in_words(Head("memory", 600.0), {"n1": 60.0})
    assert said.startswith("not fault tolerant: all of Ray ends 60 s after losing its head; see docs/")


def test_a_node_that_does_not_wait_is_named() -> None:
    said = head_problem(Head("rocksdb", 600.0), {"n1": 60.0, "n2": 600.0, "n3": 60.0})
    assert said is not None and "processes on n1, n3 end 60 s after its loss: set " + WAIT in said
    said = head_problem(Head("redis", 60.0), {"n1": 600.0})
    assert said is not None and "processes on the head itself end 60 s" in said


def test_a_fault_tolerant_head_says_for_how_long() -> None:
    head = Head("rocksdb", 600.0)
    assert head_problem(head, {"n1": 900.0}) is None
    assert head_in_words(head, {}) == "fault tolerant (rocksdb): the cluster works without its head for 600 s"


class Looks:
    """Looks at a head every second, and what was said of them."""

    def __init__(self, patience_s: float) -> None:
        self.absence, self.now, self.said = HeadAbsence("h:1", patience_s), 0.0, list[tuple[float, Word]]()

    def take(self, there: bool, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1.0
            word = self.absence.seen(there, self.now)
            if word is not None:
                self.said.append((self.now, word))


def test_a_short_absence_is_not_worth_a_word() -> None:
    looks = Looks(60.0)
    for _ in range(5):
        looks.take(True, 3)
        looks.take(False, 2)
    looks.take(True, 1)
    assert not looks.said


def test_an_absence_is_said_once_and_its_end_too() -> None:
    looks = Looks(600.0)
    looks.take(False, 30)
    looks.take(True, 30)
    assert [(now, word.level) for now, word in looks.said] == [
        (3.0, logging.WARNING),
        (31.0, logging.WARNING),
    ]
    assert "Ray ends this process 600 s after the loss" in looks.said[0][1].text
    assert looks.said[1][1].text == "Ray's head at h:1 is back after 30 s"


@pytest.mark.parametrize(("patience_s", "last_at"), [(60.0, 51.0), (600.0, 591.0)])
def test_the_last_word_is_said_in_time_and_once(patience_s: float, last_at: float) -> None:
    looks = Looks(patience_s)
    looks.take(False, int(patience_s) + 30)
    first, last = looks.said
    assert (last[0], last[1].level) == (last_at, logging.ERROR)
    assert first[1].level == logging.WARNING
    assert "restart this program" in last[1].text


def test_with_little_time_both_words_are_said() -> None:
    looks = Looks(5.0)
    looks.take(False, 5)
    assert [word.level for _, word in looks.said] == [logging.WARNING, logging.ERROR]


def test_a_second_absence_is_a_new_one() -> None:
    looks = Looks(60.0)
    looks.take(False, 40)
    looks.take(True, 1)
    looks.take(False, 40)
    assert [word.level for _, word in looks.said] == [logging.WARNING] * 3
    assert "is back" in looks.said[1][1].text
