"""How large an entry becomes, and what the sender of something too large is told: real files, without
Raft."""

from __future__ import annotations

from pathlib import Path

import pytest

from escrowmq.replication.errors import DiskFull, EscrowMQError, MessageTooLarge, Overloaded
from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import decode_command
from escrowmq.replication.format.operation import OpType
from escrowmq.replication.raft.node import COMMAND_BYTES_MAX
from escrowmq.replication.replica import entry_writing
from escrowmq.replication.replica.replica import APART_S, Replica
from tests.support.requests import message, prepare
from tests.support.single import Single

MIB = 1 << 20


def start(path: Path, segment_bytes: int = 16 * MIB) -> Single:
    single = Single(path, segment_bytes=segment_bytes)
    single.topic(partitions=2)
    return single


def far_behind(single: Single, commits: int, size: int) -> bytes:
    """A request of ``commits`` COMMITs, of one transaction each, whose messages lie in an earlier segment."""
    ids = [f"tx{n}" for n in range(commits)]
    for tx_id in ids:
        single.submit(prepare([tx_id], size))
    before = single.journal.segment_start(single.journal.last_index)
    seq = 0
    while single.journal.segment_start(single.journal.last_index) == before:
        single.submit(message("t", 1, [b"x" * MIB], seq=seq))
        seq += 1
    return b"".join(ops.commit("app", [tx_id]) for tx_id in ids)


def test_what_is_copied_is_bounded_by_entry_and_not_by_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine COMMITs, in a request of 468 bytes, made an entry of 35 MiB, which Raft refuses."""
    size, kinds = nine_decisions(tmp_path, monkeypatch)
    assert size < 50_000
    assert kinds.count(OpType.TX_MESSAGE) == 1 and kinds.count(OpType.REF_MESSAGE) == 8


def test_planted_a_bound_of_each_decision_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = property(lambda self: entry_writing.COPY_BYTES_MAX, lambda self, left: None)
    monkeypatch.setattr(entry_writing.EntryWriter, "copy_budget", fresh, raising=False)
    size, kinds = nine_decisions(tmp_path, monkeypatch)
    assert size > 9 * 39_000 and kinds.count(OpType.TX_MESSAGE) == 9


def nine_decisions(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[int]]:
    """Bytes and operations of the entry, if one of nine decisions may be copied."""
    monkeypatch.setattr(entry_writing, "COPY_BYTES_MAX", 40_000)
    single = start(path, segment_bytes=MIB)
    request = far_behind(single, 9, 39_000)
    assert len(request) < 500
    assert single.submit(request) == [[0]] * 9
    command = single.journal.read(single.journal.last_index)
    assert len(single.texts()) == 9, "all of them can be read"
    single.close()
    return len(command), [op.type for op in decode_command(command)[1]]


def test_an_entry_of_nine_decisions_is_taken_by_raft(tmp_path: Path) -> None:
    """The same at full size."""
    single = start(tmp_path)
    request = far_behind(single, 9, 4 * MIB - 100)
    assert single.submit(request) == [[0]] * 9
    assert len(single.journal.read(single.journal.last_index)) < 5 * MIB < COMMAND_BYTES_MAX
    single.close()


def test_requests_that_are_too_large_together_come_again_one_by_one(tmp_path: Path) -> None:
    """None of them may be too large by itself: "malformed" would end them for good."""
    single = start(tmp_path)
    single.node.held = []
    answers = single.send(prepare(["a"]), prepare(["b"]))
    ((_, done),) = single.node.held
    done(MessageTooLarge(40 * MIB, COMMAND_BYTES_MAX), False)
    assert answers == [("overloaded", APART_S)] * 2
    single.close()


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (None, ("not_leader", None, 1)),
        (Overloaded("too many entries wait for a majority", 0.05), ("overloaded", 0.05)),
        (DiskFull("the leader's disk is full"), ("disk_full", 1.0)),
        (
            MessageTooLarge(40 * MIB, COMMAND_BYTES_MAX),
            ("malformed", "it makes an entry of 41943040 bytes, but the limit is 33554432; send less"),
        ),
    ],
)
def test_why_an_entry_was_refused_is_told_as_it_is(
    tmp_path: Path, reason: EscrowMQError | None, told: tuple[object, ...]
) -> None:
    """Only what another leader can accept sends the client to another leader: otherwise it would come back
    without end, and be told of a missing leader at last."""
    single = start(tmp_path)
    single.node.held = []
    answers = single.send(prepare(["a"]))
    ((_, done),) = single.node.held
    done(reason, False)
    assert answers == [told]
    single.node.held = None
    assert single.submit(prepare(["a"])) == [[0]], "and the next one goes on"
    single.close()


def test_planted_refusals_of_one_kind_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that calls every refusal a lack of leadership sends its clients away without end."""
    monkeypatch.setattr(Replica, "_refused", lambda self, reason, requests: self.not_leader())
    single = start(tmp_path)
    single.node.held = []
    answers = single.send(prepare(["a"]))
    ((_, done),) = single.node.held
    done(DiskFull("the leader's disk is full"), False)
    assert answers == [("not_leader", None, 1)], "not the disk, and of this very leader"
    single.close()
