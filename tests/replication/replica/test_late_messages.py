"""A copy of a batch of plain messages that arrives after its producer was forgotten must not be stored again.

Batches have numbers, but the memory of them is bounded: the first batch of a forgotten producer looks like
that of a new producer.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import encode_row
from escrowmq.replication.model import ResultCode
from tests.support.fed_state import FedState
from tests.support.single import Single

GENERATION = 3
DUPLICATE, OUT_OF_SEQUENCE = int(ResultCode.DUPLICATE), int(ResultCode.OUT_OF_SEQUENCE)
STALE, FENCED = int(ResultCode.STALE), int(ResultCode.FENCED)


def batch(producer: str, seq: int, heard_ms: int, epoch: int = 0) -> bytes:
    row = encode_row(None, f"{producer}-{epoch}-{seq}".encode(), None, None)
    return ops.message("t", 0, producer, epoch, seq, [row], heard_ms)


def small(path: Path) -> Single:
    """A group that remembers only the last three producers."""
    single = Single(path)
    single.topic()
    single.submit(ops.settings({"producers_generation": GENERATION}))
    return single


def store(single: Single, producer: str, seq: int = 0) -> bytes:
    """Stores a batch of a client that has heard everything so far; returns its bytes."""
    request = batch(producer, seq, single.state.now_ms)
    assert single.submit(request)[0][0] == 0
    return request


def forget(single: Single, times: int = 2) -> None:
    for number in range(times * GENERATION):
        store(single, f"other-{single.now_ms}-{number}")


def test_a_copy_that_arrives_after_its_producer_was_forgotten_is_refused(tmp_path: Path) -> None:
    single = small(tmp_path)
    request = store(single, "p")
    assert single.submit(request)[0][0] == DUPLICATE
    forget(single)
    before = single.texts()
    assert ("p", 0) not in single.state.producers.young | single.state.producers.old
    assert single.submit(request) == [[STALE, single.state.now_ms]]
    assert single.texts() == before


class Client:
    """Sends a batch until it is stored, once at each attempt. All that it ever sent is in ``sent``."""

    def __init__(self, name: str, sent: list[tuple[str, bytes]]) -> None:
        self.name, self.sent = name, sent
        self.epoch = self.seq = self.number = 0
        self.heard_ms = -1

    def frame(self) -> tuple[str, bytes]:
        text = f"{self.name}-{self.number}"
        told = -1 if self.seq else self.heard_ms
        row = encode_row(None, text.encode(), None, None)
        self.sent.append((text, ops.message("t", 0, self.name, self.epoch, self.seq, [row], told)))
        return self.sent[-1]

    def hear(self, code: int, info: Any) -> bool:
        """Takes an answer; returns whether the batch is stored now."""
        if code == STALE:
            self.heard_ms = info
        elif code == OUT_OF_SEQUENCE:
            self.epoch, self.seq = self.epoch + 1, 0
        else:
            assert code == 0
            self.seq, self.number, self.heard_ms = self.seq + 1, self.number + 1, info[1]
        return code == 0


@pytest.mark.parametrize("seed", range(5))
def test_each_batch_is_stored_once_whatever_copies_of_it_arrive(seed: int) -> None:
    """Even if many entries have the same time."""
    rng, log = random.Random(seed), FedState()
    log.add(ops.settings({"producers_generation": GENERATION}))
    sent: list[tuple[str, bytes]] = []
    clients = [Client(f"p{number}", sent) for number in range(9)]
    stored: list[str] = []
    refused = 0

    def deliver(text: str, request: bytes, later_ms: int) -> Any:
        log.now_ms += later_ms - 1_000  # the log itself adds a second
        (result,) = log.add(request)
        if result[0] == 0:
            stored.append(text)
        return result

    for _ in range(300):
        client = rng.choice(clients)
        while not client.hear(*deliver(*client.frame(), rng.choice((0, 1)))):
            refused += 1
            log.now_ms += 1
        for _ in range(rng.choice((0, 1, 2))):
            deliver(*rng.choice(sent), rng.choice((0, 0, 1)))
    assert len(stored) == len(set(stored)) == 300
    assert 0 < refused < 3 * 300


def test_a_client_that_has_heard_of_what_was_forgotten_is_no_copy(tmp_path: Path) -> None:
    single = small(tmp_path)
    forget(single, 3)
    (refused,) = single.submit(batch("new", 0, -1))
    assert refused[0] == STALE
    assert single.submit(batch("new", 0, refused[1]))[0][0] == 0


def test_what_was_stored_after_the_last_turn_but_one_is_remembered(tmp_path: Path) -> None:
    """A client that heard of something later is never refused; one whose batch is forgotten always is."""
    single = small(tmp_path)
    requests = []
    for number in range(30):
        requests.append(store(single, f"p{number}"))
        forgotten = single.state.producers.forgotten_ms
        assert single.state.producers.turned_ms >= forgotten
    answers = [single.submit(request)[0][0] for request in requests]
    known = answers.index(DUPLICATE)
    assert set(answers[:known]) == {STALE} and set(answers[known:]) == {DUPLICATE}


def test_a_later_batch_of_a_forgotten_producer_begins_anew(tmp_path: Path) -> None:
    single = small(tmp_path)
    store(single, "p")
    forget(single)
    assert single.submit(batch("p", 1, single.state.now_ms)) == [[OUT_OF_SEQUENCE, 0]]
    assert single.submit(batch("p", 0, single.state.now_ms, epoch=1))[0][0] == 0
    assert single.submit(batch("p", 0, -1)) == [[FENCED, 1]]


def test_what_was_forgotten_is_remembered_over_a_restart_and_in_a_snapshot(tmp_path: Path) -> None:
    single = Single(tmp_path, segment_bytes=3_000)
    single.topic()
    single.submit(ops.settings({"producers_generation": GENERATION}))
    late = store(single, "p")
    forget(single, 9)
    forgotten = single.state.producers.forgotten_ms
    assert forgotten > 0 and single.checkpoints.indexes
    single.close()
    again = Single(tmp_path, segment_bytes=3_000)
    assert again.redone < 9 * GENERATION, "most came from a snapshot"
    assert again.state.producers.forgotten_ms == forgotten
    assert again.submit(late)[0][0] == STALE
    again.close()
