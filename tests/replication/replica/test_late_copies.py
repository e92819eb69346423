"""A copy of a PREPARE that arrives after its transaction was settled and forgotten must not open it again.

Requests are repeated with the same bytes, and a copy may lie in a queue or in a hanging broker for long. If
it opened the transaction again, the check would ask the application, which would truthfully say that it
committed.
"""

from __future__ import annotations

from pathlib import Path

from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import encode_row
from escrowmq.replication.format.ops import PrepareExtra
from escrowmq.replication.model import ResultCode
from escrowmq.replication.state.transactions import APP_AS_IDS
from tests.support.single import Single

GENERATION = 3
SMALL = {"settled_generation": GENERATION + APP_AS_IDS}
STALE = int(ResultCode.STALE)


def prepare(tx_id: str, heard_ms: int, part: int = 0) -> bytes:
    row = encode_row(None, tx_id.encode(), None, tx_id)
    extra = PrepareExtra(instance="me", heard_ms=heard_ms)
    return ops.prepare("app", "t", [tx_id], None, 0, part, [7], -1, 1, extra) + ops.pre_message(
        "t", 0, [0], [len(row)], [row]
    )


def small(path: Path) -> Single:
    """A group that remembers only the last three settled transactions."""
    single = Single(path)
    single.topic()
    single.submit(ops.settings(SMALL))
    return single


def heard(single: Single) -> int:
    """The time that a client would hear in an answer now."""
    return single.state.now_ms


def settle(single: Single, tx_id: str) -> bytes:
    """Takes a transaction from its PREPARE, whose bytes are returned, to its COMMIT."""
    request = prepare(tx_id, heard(single))
    assert single.send(request)[0][:2] == ("ok", [[0]])
    assert single.submit(ops.commit("app", [tx_id])) == [[0]]
    return request


def forget(single: Single, times: int = 2) -> None:
    for number in range(times * GENERATION):
        settle(single, f"other-{single.now_ms}-{number}")


def test_a_copy_that_arrives_after_its_id_was_forgotten_is_refused(tmp_path: Path) -> None:
    single = small(tmp_path)
    late = settle(single, "x")
    forget(single)
    ((_, results, _),) = single.send(late)
    assert results == [[ResultCode.PARTIAL, [[0, STALE, None]]]]
    # The check that would have followed: a truthful application says that it has committed.
    single.send(ops.commit("app", ["x"], "feedback"))
    assert single.texts().count("x") == 1, "committed twice"
    single.close()


def test_every_copy_of_a_forgotten_transaction_is_refused_and_none_of_what_is_remembered(
    tmp_path: Path,
) -> None:
    """Whatever was forgotten when: of all copies of all transactions, none opens anything."""
    single = small(tmp_path)
    copies = [settle(single, f"x{number}") for number in range(8 * GENERATION)]
    outcomes = set()
    for copy in copies:
        ((_, results, _),) = single.send(copy)
        assert results[0][0] == ResultCode.PARTIAL
        outcomes.add(results[0][1][0][1])
    assert outcomes == {STALE, ResultCode.DUPLICATE}
    assert single.state.transactions.open_count() == 0
    single.close()


def test_a_client_that_has_heard_since_gets_in(tmp_path: Path) -> None:
    """Its transaction is another one, which has waited for long: it is told the time, and is sent again."""
    single = small(tmp_path)
    before = heard(single)
    forget(single)
    ((_, results, time_ms),) = single.send(prepare("slow", before))
    assert results == [[ResultCode.PARTIAL, [[0, STALE, None]]]]
    assert single.send(prepare("slow", time_ms))[0][1] == [[0]]
    single.close()


def test_before_anything_is_forgotten_a_new_client_is_not_turned_away(tmp_path: Path) -> None:
    single = small(tmp_path)
    for number in range(2 * GENERATION - 1):
        settle(single, f"x{number}")
        assert single.send(prepare(f"new{number}", -1))[0][1] == [[0]]
    single.close()


def test_what_is_open_is_no_late_copy(tmp_path: Path) -> None:
    """Its producer may be slow, and may have more parts to send."""
    single = small(tmp_path)
    before = heard(single)
    assert single.send(prepare("slow", before))[0][1] == [[0]]
    forget(single)
    assert single.send(prepare("slow", before))[0][1] == [[0]]
    assert single.send(prepare("slow", before, part=1))[0][1] == [[0]]
    single.close()


def test_what_was_forgotten_is_remembered_over_a_restart_and_in_a_snapshot(tmp_path: Path) -> None:
    single = Single(tmp_path, segment_bytes=3_000)
    single.topic()
    single.submit(ops.settings(SMALL))
    late = settle(single, "x")
    forget(single, 9)
    forgotten = single.state.forgotten_ms
    assert forgotten > 0 and single.checkpoints.indexes
    single.close()
    again = Single(tmp_path, segment_bytes=3_000)
    assert again.redone < 3 * 9 * GENERATION, "most came from a snapshot"
    assert again.state.forgotten_ms == forgotten
    assert again.send(late)[0][1] == [[ResultCode.PARTIAL, [[0, STALE, None]]]]
    again.close()
