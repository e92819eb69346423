"""What a leader decides and what a restart finds: real files with real fsync, without Raft."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from escrowmq.replication.errors import InvalidMessage
from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import decode_command, encode_row
from escrowmq.replication.format.membership import Members, encode_members
from escrowmq.replication.format.operation import OpType
from escrowmq.replication.model import ResultCode
from escrowmq.replication.replica.replica import Limits
from escrowmq.replication.replica.validation import parse_request
from tests.support.fed_state import dump
from tests.support.requests import UP_TO_DATE, message, prepare
from tests.support.single import Single


def start(path: Path, **options: Any) -> Single:
    single = Single(path, **options)
    single.topic(partitions=2, retention_ms=1_000_000)
    return single


def test_one_entry_holds_references_and_the_commit(tmp_path: Path) -> None:
    single = start(tmp_path)
    single.submit(prepare(["a", "b", "c"]))
    single.submit(ops.commit("app", ["a", "c"]))
    _, entry = decode_command(single.journal.read(single.journal.last_index))
    assert [op.type for op in entry] == [OpType.REF_MESSAGE, OpType.COMMIT]
    assert len(entry[0].meta.references) == 8, "a and c are no neighbours: two references"
    assert single.texts() == ["a", "c"]


def test_neighbours_share_one_reference(tmp_path: Path) -> None:
    single = start(tmp_path)
    single.submit(prepare([f"x{i}" for i in range(50)]))
    single.submit(ops.commit("app", [f"x{i}" for i in range(50)]))
    _, entry = decode_command(single.journal.read(single.journal.last_index))
    assert len(entry[0].meta.references) == 4 and entry[0].meta.references[3] == 50


def test_bodies_from_an_older_segment_are_copied(tmp_path: Path) -> None:
    single = start(tmp_path, segment_bytes=20_000)
    single.submit(prepare(["old"]))
    single.submit(message("t", 1, [b"x" * 30_000], seq=0))
    single.submit(message("t", 1, [b"x" * 30_000], seq=1))
    single.submit(ops.commit("app", ["old"]))
    _, entry = decode_command(single.journal.read(single.journal.last_index))
    assert [op.type for op in entry] == [OpType.TX_MESSAGE, OpType.COMMIT]
    assert single.texts() == ["old"]


def test_two_decisions_at_once_the_first_wins_and_both_are_answered(tmp_path: Path) -> None:
    single = start(tmp_path)
    single.submit(prepare(["a", "b"]))
    single.node.held = []
    first = single.send(ops.commit("app", ["a"]))
    second = single.send(ops.rollback("app", ["a", "b"]))
    assert first == second == []
    single.node.release()
    assert first == [("ok", [[0]])]
    assert second == [("ok", [[ResultCode.PARTIAL, [[0, ResultCode.TX_CONFLICT, "COMMITTED"]]]])]
    assert single.texts() == ["a"]


def test_a_repeated_commit_is_answered_alike_and_publishes_once(tmp_path: Path) -> None:
    """RocketMQ's known defect: a repeated commit publishes twice."""
    single = start(tmp_path)
    single.submit(prepare(["a"]))
    assert single.submit(ops.commit("app", ["a"])) == [[0]]
    assert single.submit(ops.commit("app", ["a"])) == [[0]]
    assert single.texts() == ["a"]


def test_commit_of_an_unknown_id_and_duplicates_within_one_request(tmp_path: Path) -> None:
    single = start(tmp_path)
    single.submit(prepare(["a"]))
    assert single.submit(ops.commit("app", ["a", "a", "zz"])) == [
        [ResultCode.PARTIAL, [[2, ResultCode.UNKNOWN_TX, None]]]
    ]
    assert single.texts() == ["a"]


def test_an_entry_whose_proposal_timed_out_keeps_its_transactions_from_a_second_decision(
    tmp_path: Path,
) -> None:
    """Found by the simulator (seed 36): the entry was applied later, and a rollback was answered OK, too."""
    single = start(tmp_path)
    single.submit(prepare(["a"]))
    single.node.held = []
    first = single.send(ops.commit("app", ["a"]))
    command, done = single.node.held.pop()
    done(None, None)  # timed out, but still in the log, and this replica still leads
    assert first == [("unknown",)]
    second = single.send(ops.rollback("app", ["a"]))
    single.node.held.insert(0, (command, lambda results, outcome: None))
    single.node.release()
    assert second == [("ok", [[ResultCode.PARTIAL, [[0, ResultCode.TX_CONFLICT, "COMMITTED"]]]])]
    assert single.texts() == ["a"]


def test_an_id_whose_decision_had_timed_out_is_decided_by_the_same_leader_when_it_comes_again(
    tmp_path: Path,
) -> None:
    """The decision that timed out is applied, and must not be taken for one under way forever."""
    single = start(tmp_path)
    single.submit(ops.settings({"settled_generation": 1}))
    single.submit(prepare(["a"]))
    single.node.held = []
    single.send(ops.commit("app", ["a"]))
    command, done = single.node.held.pop()
    done(None, None)  # a disk hung for long
    single.node.held.append((command, lambda results, outcome: None))
    single.node.release()
    single.publish("b")
    single.publish("c")  # by now the first one is forgotten
    assert single.submit(prepare(["a"], extra=UP_TO_DATE)) == [[0]]
    assert single.submit(ops.commit("app", ["a"])) == [[0]]
    assert single.texts() == ["a", "b", "c", "a"]


def test_an_entry_lost_with_the_leadership_leaves_its_transactions_decidable(tmp_path: Path) -> None:
    single = start(tmp_path)
    single.submit(prepare(["a"]))
    single.node.held = []
    answers = single.send(ops.commit("app", ["a"]))
    (_, done), *_ = single.node.held
    single.node.held, single.node.ready = None, False
    done(None, None)
    assert answers == [("unknown",)]
    single.node.ready = True
    assert single.submit(ops.commit("app", ["a"])) == [[0]]
    assert single.texts() == ["a"]


def test_the_limit_of_open_transactions_refuses_the_rest_of_the_request_stands(tmp_path: Path) -> None:
    single = start(tmp_path, limits=Limits(open_transactions_max=2))
    results = single.submit(prepare(["a", "b"]), message("t", 1, [b"v"], seq=0))
    assert [r[0] for r in results] == [0, 0]
    results = single.submit(prepare(["c"]), message("t", 1, [b"v"], seq=1))
    assert [r[0] for r in results] == [ResultCode.TOO_MANY_OPEN, 0]
    single.submit(ops.rollback("app", ["a"]))
    assert single.submit(prepare(["c"])) == [[0]]


def test_what_the_limit_let_in_is_answered_alike_when_it_is_sent_again(tmp_path: Path) -> None:
    single = start(tmp_path, limits=Limits(open_transactions_max=2))
    assert single.submit(prepare(["a", "b"])) == [[0]]
    assert single.submit(prepare(["a", "b"])) == [[0]]  # the first answer was lost
    assert single.submit(prepare(["b", "c"]))[0][0] == ResultCode.TOO_MANY_OPEN
    single.submit(ops.rollback("app", ["a"]))
    assert single.submit(prepare(["b", "c"])) == [[0]]


def test_a_full_queue_refuses_with_overloaded_and_nothing_is_lost(tmp_path: Path) -> None:
    single = start(tmp_path, limits=Limits(queue_bytes_max=1_000, entries_in_flight=1))
    single.node.held = []
    taken = single.send(prepare(["first"]))
    frames = [prepare([f"t{i}"], size=200) for i in range(20)]
    answers = single.send(*frames)
    refused = [a for a in answers if a[0] == "overloaded"]
    assert 10 <= len(refused) < 20 and all(a[1] > 0 for a in refused)
    single.node.release()
    single.now_ms += 1
    single.replica.pump(single.now_ms)
    assert [answer[:2] for answer in taken] == [("ok", [[0]])]
    assert sum(a[0] == "ok" for a in answers) + len(refused) == 20


def test_recovery_is_the_newest_snapshot_and_what_follows_it(tmp_path: Path) -> None:
    single = start(tmp_path, segment_bytes=50_000)
    for i in range(300):
        single.submit(prepare([f"a{i}", f"b{i}"], size=300))
        single.submit(ops.commit("app", [f"a{i}"]))
        if i % 3 == 0:
            single.submit(ops.rollback("app", [f"b{i}"]))
    before, texts = dump(single.state), single.texts()
    last = single.journal.last_index
    assert len(single.checkpoints.indexes) == 2
    single.close()
    again = Single(tmp_path, segment_bytes=50_000)
    after = dump(again.state)
    before.pop("counts"), after.pop("counts")
    assert after == before and again.texts() == texts == [f"a{i}" for i in range(300)]
    assert again.redone == last - again.checkpoints.indexes[-1] < last / 3
    again.close()


def test_a_damaged_newest_snapshot_costs_a_longer_redo_and_nothing_else(tmp_path: Path) -> None:
    single = start(tmp_path, segment_bytes=50_000)
    for i in range(200):
        single.submit(prepare([f"a{i}"], size=600))
        single.submit(ops.commit("app", [f"a{i}"]))
    before = dump(single.state)
    single.close()
    newest = max(tmp_path.glob("*.snap"))
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    again = Single(tmp_path, segment_bytes=50_000)
    assert dump(again.state) == before
    again.close()


def test_retention_drops_segments_but_never_past_an_open_transaction(tmp_path: Path) -> None:
    single = start(tmp_path, segment_bytes=50_000)
    single.submit(prepare(["open"]))
    opened_at = single.journal.last_index
    for i in range(300):
        single.submit(message("t", 1, [b"x" * 1000], seq=i))
    segments = len(single.journal.segments())
    single.now_ms += 10_000_000
    single.replica.on_timer(single.now_ms)
    single.replica.pump(single.now_ms)
    assert single.state.topics.topics["t"].partitions[1].index.start == 300
    assert single.journal.first_index <= opened_at
    single.submit(ops.commit("app", ["open"]))
    assert single.texts() == ["open"], "committed late, and from a segment that is long sealed"
    for i in range(300, 500):
        single.submit(message("t", 1, [b"x" * 1000], seq=i))
    single.now_ms += 20_000
    single.replica.on_timer(single.now_ms)
    single.replica.pump(single.now_ms)
    assert single.journal.first_index > opened_at and len(single.journal.segments()) < segments
    assert single.texts() == ["open"]
    single.close()


def test_a_snapshot_tells_the_members_when_their_entry_is_gone(tmp_path: Path) -> None:
    """Finds snapshots without the group's members: a replica that starts from one would go by those that the
    group began with."""
    single = start(tmp_path, segment_bytes=50_000)
    said, index = Members(2, ("0", "1", "2"), ("3",), "x", 3), single.journal.last_index + 1
    single.journal.add(encode_members(said), index, 1)
    single.journal.sync()
    single.replica.apply(index, 1, b"")
    for seqs in (range(300), range(300, 500)):
        for i in seqs:
            single.submit(message("t", 1, [b"x" * 1000], seq=i))
        single.now_ms += 10_000_000
        single.replica.on_timer(single.now_ms)
        single.replica.pump(single.now_ms)
    assert single.journal.first_index > index
    single.close()
    again = Single(tmp_path, segment_bytes=50_000)
    assert again.state.members == (index, encode_members(said))
    assert again.journal.members.dated(again.journal.last_index) == (index, said)
    again.close()


@pytest.mark.parametrize(
    ("request_bytes", "text"),
    [
        (b"\x01\x02", "cut off"),
        (ops.reference("t", 0, [1, 2, 3, 4]), "leaders only"),
        (ops.pre_message("t", 0, [0], [1], [b"x"]), "without its PREPARE"),
        (ops.prepare("a", "t", ["x"], None, 0, 0, [1], -1, 1), "0 follow"),
        (ops.prepare("a", "t", ["x", "x"], None, 0, 0, [1, 1], -1, 0), "twice"),
        (ops.prepare("a", "t", ["x"], ["q", "r"], 0, 0, [1], -1, 0), "differ in length"),
        (
            ops.prepare("a", "t", ["x"], None, 0, 0, [1], -1, 1) + ops.pre_message("t", 0, [1], [1], [b"x"]),
            "does not name",
        ),
        (
            ops.prepare("a", "t", ["x"], None, 0, 0, [1], -1, 1) + ops.pre_message("t", 0, [0], [9], [b"x"]),
            "do not fit",
        ),
        (ops.commit("a", []), "ids per operation"),
        (ops.commit("", ["x"]), "app"),
        (ops.create_topic("bad name", {}), "topic name"),
        (ops.create_topic("t", {"partitions": 0}), "partitions"),
        (ops.create_topic("t", {"colour": 1}), "unknown topic setting"),
        (ops.group_offsets("g", "t", {0: -5}), "0 or more"),
    ],
)
def test_a_malformed_request_is_refused_with_a_reason(request_bytes: bytes, text: str) -> None:
    with pytest.raises(InvalidMessage, match=text):
        parse_request(request_bytes)


def test_a_large_state_is_not_written_at_every_roll(tmp_path: Path) -> None:
    """A million open transactions must not be written out again for every segment."""
    single = start(tmp_path, segment_bytes=20_000)
    for i in range(20):
        single.submit(prepare([f"open{i}-{n}" for n in range(100)], size=30))
    taken = []
    for i in range(200):
        single.submit(message("t", 1, [b"x" * 2_000], seq=i))
        taken = sorted({*taken, *single.checkpoints.indexes})
    rolls = len(single.journal.segments())
    assert 2 <= len(taken) < rolls / 3, (taken, rolls)
    single.close()


def test_copied_and_referenced_messages_of_a_transaction_keep_their_order(tmp_path: Path) -> None:
    """Found by the simulator (seed 21): all copies of a partition came before all references."""
    single = start(tmp_path, limits=Limits(copy_bytes=60))
    sizes = [200, 10, 200, 10, 10, 200]
    for part, size in enumerate(sizes):
        row = encode_row(None, str(part).encode().ljust(size, b"."), None, None)
        single.submit(
            ops.prepare("app", "t", ["a"], None, 0, part, [part + 1], -1, 1)
            + ops.pre_message("t", 0, [0], [len(row)], [row])
        )
    single.submit(ops.commit("app", ["a"]))
    assert [value.rstrip(".") for value in single.texts()] == ["0", "1", "2", "3", "4", "5"]
    _, entry = decode_command(single.journal.read(single.journal.last_index))
    assert len(entry) == 6, "four runs of copies and references and the COMMIT, neighbours joined"


def test_time_goes_on_when_another_leaders_clock_was_far_ahead(tmp_path: Path) -> None:
    """Found by the simulator: nothing came due for as long as the other clock had been ahead."""
    week = 7 * 86_400_000
    single = start(tmp_path)
    right_ms = single.now_ms
    single.now_ms += week
    single.submit(prepare(["a"]))
    single.now_ms = right_ms
    replica = single.replica
    due_ms = replica.state.transactions.app("app").open["a"].due_ms
    assert due_ms > right_ms + week
    for _ in range(150):
        single.now_ms += 100
        replica.on_timer(single.now_ms)
    assert due_ms < replica.group_ms(single.now_ms) < due_ms + 4_000, "at half speed"
    assert replica.state.due.lock("app", "t", 1, "somebody", 1000, replica.group_ms(single.now_ms))


def test_a_replica_whose_clock_catches_up_follows_it_again(tmp_path: Path) -> None:
    single = start(tmp_path)
    single.replica.group_ms(single.now_ms)
    assert single.replica.group_ms(single.now_ms - 5_000) == single.now_ms, "never back"
    assert single.replica.group_ms(single.now_ms - 4_000) == single.now_ms + 500
    assert single.replica.group_ms(single.now_ms + 10_000) == single.now_ms + 10_000
