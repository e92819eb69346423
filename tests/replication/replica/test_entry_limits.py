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
from escrowmq.replication.replica.replica import APART_S
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


def test_what_is_copied_is_bounded_by_entry_and_not_by_decision(tmp_path: Path) -> None:
    """Nine COMMITs, in a request of 468 bytes, made an entry of 35 MiB, which Raft refuses."""
    single = start(tmp_path)
    request = far_behind(single, 9, 4 * MIB - 100)
    assert len(request) < 500
    assert single.submit(request) == [[0]] * 9
    command = single.journal.read(single.journal.last_index)
    assert len(command) < 5 * MIB < COMMAND_BYTES_MAX
    kinds = [op.type for op in decode_command(command)[1]]
    assert kinds.count(OpType.TX_MESSAGE) == 1 and kinds.count(OpType.REF_MESSAGE) == 8
    assert len(single.texts()) == 9, "all of them can be read"
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
