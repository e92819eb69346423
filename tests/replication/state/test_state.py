"""The replicated state, entry by entry: what each operation does, and what it refuses."""

from __future__ import annotations

from dataclasses import asdict

from hypothesis import given
from hypothesis import strategies as st

from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import ENVELOPE, decode_ops, encode_command, encode_row
from escrowmq.replication.model import ResultCode
from tests.support.fed_state import FedState


def test_messages_get_dense_offsets_and_a_batch_is_one_run() -> None:
    log = FedState()
    rows = [encode_row(b"k", b"v", None, None)] * 5
    assert log.add(ops.message("t", 1, "p", 0, 0, rows)) == [[0, [0, log.now_ms]]]
    assert log.add(ops.message("t", 1, "p", 0, 1, rows)) == [[0, [5, log.now_ms]]]
    runs = log.state.topics.topics["t"].partitions[1].index.runs_from(6)
    assert [(r.base, r.messages) for r in runs] == [(5, 5)]


def test_a_repeated_batch_is_a_duplicate_with_its_first_offset_and_a_gap_is_refused() -> None:
    log = FedState()
    rows = [encode_row(None, b"v", None, None)]
    log.add(ops.message("t", 0, "p", 0, 0, rows))
    (again,) = log.add(ops.message("t", 0, "p", 0, 0, rows))
    assert again[0] == ResultCode.DUPLICATE and again[1][0] == 0  # type: ignore[index]
    assert log.add(ops.message("t", 0, "p", 0, 2, rows)) == [[ResultCode.OUT_OF_SEQUENCE, 1]]
    assert log.end() == 1


def test_a_newer_epoch_starts_at_zero_and_fences_the_older() -> None:
    log = FedState()
    rows = [encode_row(None, b"v", None, None)]
    log.add(ops.message("t", 0, "p", 0, 0, rows))
    assert log.add(ops.message("t", 0, "p", 1, 0, rows))[0][0] == ResultCode.OK
    assert log.add(ops.message("t", 0, "p", 0, 1, rows)) == [[ResultCode.FENCED, 1]]


def test_prepared_messages_are_unreadable_until_commit_and_then_all_there() -> None:
    log = FedState()
    assert log.prepare(["a", "b", "c"]) == [[0]]
    assert log.end() == 0
    assert log.commit(["a", "b", "c"]) == [[0]]
    runs = log.state.topics.topics["t"].partitions[0].index.runs_from(0)
    assert [(r.base, r.messages) for r in runs] == [(0, 3)], "neighbours in one entry are one run"


@given(st.lists(st.tuples(st.lists(st.integers(0, 4), max_size=25), st.integers(0, 1)), max_size=4))
def test_rows_of_a_transaction_that_are_neighbours_are_one_reference(
    parts: list[tuple[list[int], int]],
) -> None:
    """Whatever the order of the rows, the result is as if each were handled alone."""
    log, names = FedState(), ["a", "b", "c", "d", "e"]
    frames = [ops.prepare("app", "t", names, None, 0, 0, [7] * 5, -1, len(parts))]
    sizes = [[1 + (i * 7 + tx) % 9 for i, tx in enumerate(txs)] for txs, _ in parts]
    for (txs, partition), lengths in zip(parts, sizes, strict=True):
        frames.append(ops.pre_message("t", partition, txs, lengths, [b"x" * sum(lengths)]))
    positions = [
        op.body_pos for op in decode_ops(encode_command(frames, 1 + len(parts), 0), ENVELOPE.size)[1:]
    ]
    assert log.add(*frames) == [[0]]
    expected: dict[str, list[list[int]]] = {name: [] for name in names}
    for (txs, partition), lengths, pos in zip(parts, sizes, positions, strict=True):
        slot = log.state.topics.topics["t"].partitions[partition].slot
        for tx, size in zip(txs, lengths, strict=True):
            mine = expected[names[tx]]
            if mine and mine[-1][0] == slot and mine[-1][2] + mine[-1][3] == pos:
                mine[-1][3:] = [mine[-1][3] + size, mine[-1][4] + 1]
            else:
                mine.append([slot, log.index, pos, size, 1])
            pos += size
    table = log.state.transactions.app("app").open
    assert {name: list(table[name].refs) for name in names} == {
        name: [n for ref in refs for n in ref] for name, refs in expected.items()
    }


def test_rollback_leaves_nothing_behind() -> None:
    log = FedState()
    log.prepare(["a"])
    assert log.add(ops.rollback("app", ["a"])) == [[0]]
    assert log.end() == 0 and log.state.transactions.open_count() == 0


def test_the_first_decision_wins_and_the_other_is_told() -> None:
    log = FedState()
    log.prepare(["a", "b"])
    log.commit(["a"])
    (result,) = log.add(ops.rollback("app", ["a"]))
    assert result == [ResultCode.PARTIAL, [[0, ResultCode.TX_CONFLICT, "COMMITTED"]]]
    assert log.commit(["nobody"]) == [[ResultCode.PARTIAL, [[0, ResultCode.UNKNOWN_TX, None]]]]


def test_a_commit_with_one_bad_id_is_refused_whole() -> None:
    log = FedState()
    log.prepare(["a", "b"])
    log.add(ops.rollback("app", ["b"]))
    assert log.commit(["a", "b"])[0][0] == ResultCode.PARTIAL
    assert log.end() == 0 and "a" in log.state.transactions.app("app").open


def test_prepare_again_with_the_same_content_is_accepted_once() -> None:
    log = FedState()
    log.prepare(["a"])
    assert log.prepare(["a"]) == [[0]]
    log.commit(["a"])
    assert log.end() == 1
    (again,) = log.prepare(["a"])
    assert again == [ResultCode.PARTIAL, [[0, ResultCode.DUPLICATE, "COMMITTED"]]]
    (other,) = log.prepare(["a"], digest=8)
    assert other == [ResultCode.PARTIAL, [[0, ResultCode.TX_CONFLICT, "COMMITTED"]]]


def test_prepare_with_other_content_conflicts() -> None:
    log = FedState()
    log.prepare(["a"])
    assert log.prepare(["a"], digest=8) == [[ResultCode.PARTIAL, [[0, ResultCode.TX_CONFLICT, "PREPARE"]]]]


def test_later_parts_add_messages_and_may_be_repeated() -> None:
    log = FedState()
    log.prepare(["a"])
    assert log.prepare(["a"], part=1, digest=9) == [[0]]
    assert log.prepare(["a"], part=1, digest=9) == [[0]]
    log.commit(["a"])
    assert log.end() == 2


def test_checks_come_due_back_off_and_park() -> None:
    log = FedState()
    log.prepare(["a"])
    due = log.state.due
    due.advance(log.now_ms + 5_000)
    assert due.lock("app", "t", 10, "me", 5_000, log.now_ms + 5_000) == []
    for check in (1, 2, 3):
        now = log.state.transactions.app("app").open["a"].due_ms + 500
        due.advance(now)
        assert [tx for tx, _ in due.lock("app", "t", 10, "me", 5_000, now)] == ["a"]
        assert due.lock("app", "t", 10, "other", 5_000, now) == [], "leased"
        log.now_ms = now
        assert log.add(ops.checked("app", ["a"])) == [[0]]
        assert log.state.transactions.app("app").open["a"].checks == check
    assert log.state.transactions.app("app").open["a"].due_ms == -1, "parked, not lost"
    assert log.commit(["a"]) == [[0]]


def test_a_lease_that_ends_unanswered_is_handed_out_again() -> None:
    log = FedState()
    log.prepare(["a"])
    due, now = log.state.due, log.now_ms + 7_000
    due.advance(now)
    assert due.lock("app", "t", 1, "one", 1_000, now)
    due.advance(now + 1_500)
    assert due.lock("app", "t", 1, "two", 1_000, now + 1_500)


def test_messages_of_a_deleted_topic_go_nowhere_even_if_it_is_created_anew() -> None:
    log = FedState()
    log.prepare(["a"])
    log.add(ops.delete_topic("t"))
    log.add(ops.create_topic("t", {"partitions": 2}))
    slot = log.state.transactions.app("app").open["a"].refs[0]
    assert slot not in log.state.topics.slots


def test_retention_never_passes_an_open_transaction() -> None:
    log = FedState()
    log.prepare(["a"])
    opened_at = log.index
    for seq in range(5):
        log.add(ops.message("t", 0, "p", 0, seq, [encode_row(None, b"v", None, None)]))
    assert log.add(ops.retain(log.index)) == [[0, opened_at]]
    log.add(ops.rollback("app", ["a"]))
    assert log.add(ops.retain(log.index)) == [[0, log.index - 1]]
    assert log.state.topics.topics["t"].partitions[0].index.start == 5


def test_an_entry_that_states_no_settings_means_what_it_always_meant() -> None:
    """Clients state every setting; what an entry leaves out is the same at each start, as it is applied
    again."""
    log = FedState()
    assert log.add(ops.create_topic("old", {})) == [[0, 2]]
    info = log.state.topics.topics["old"].info
    assert asdict(info) == {
        "name": "old",
        "partitions": 1,
        "on_check_exhausted": "hold",
        "check_max": 15,
        "transaction_timeout_ms": 6000,
        "retention_ms": 7 * 24 * 60 * 60 * 1000,
        "retention_bytes": -1,
        "first_group": -1,
        "topic_id": 2,
    }
    again = [ops.create_topic("old", {"retention_ms": ms}) for ms in (604_800_000, -1)]
    assert log.add(*again) == [[ResultCode.DUPLICATE, 2], [ResultCode.TOPIC_EXISTS, asdict(info)]]
