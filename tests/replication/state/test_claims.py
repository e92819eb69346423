"""Named producers: earlier epochs are fenced, and each number is committed once, whatever is repeated."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from escrowmq.replication.format import ops, timer_ops
from escrowmq.replication.format.codec import encode_row
from escrowmq.replication.format.ops import PrepareExtra
from escrowmq.replication.model import ResultCode as Code
from escrowmq.replication.state import claims
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.snapshot import capture, encode, restore
from tests.support.fed_state import FedState, dump

NAME = "outbox.shop.0"
COMMITTED = [[int(Code.PARTIAL), [[0, int(Code.DUPLICATE), "COMMITTED"]]]]
ROW = encode_row(None, b"v", None, None)


def keeping(names: int) -> FedState:
    """A state with room for so few named producers."""
    log = FedState()
    log.state.claims = claims.Claims(names)
    return log


def digest(number: int) -> bytes:
    return bytes([number]) * 16


def claim(log: FedState, name: str = NAME, claimant: str = "") -> int:
    """As a new claimant does: an epoch above the newest."""
    known = log.state.claims.by_name.get(name)
    epoch = 1 if known is None else known.epoch + 1
    ((code, _),) = log.add(ops.claim(name, epoch, claimant or f"claimant {epoch}"))
    assert code == 0
    return epoch


def message(claimed: int, seq: int) -> bytes:
    return ops.message("t", 0, NAME, ops.first_epoch(claimed), seq, [ROW])


def prepare(
    log: FedState, tx_id: str, epoch: int, number: int, content: bytes | None = None, home: int = -1
) -> Any:
    known = digest(number) if content is None else content
    claim = (NAME, epoch, number, b"" if not number else known)
    extra = PrepareExtra("p", home_index=[5] if home >= 0 else [], heard_ms=log.now_ms + 1, claim=claim)
    return log.add(ops.prepare("app", "t", [tx_id], None, 0, 0, [1], home, 0, extra))


def commit(log: FedState, tx_id: str) -> Any:
    return log.add(ops.Commit("app", [tx_id], "producer", 0, [], -1).frame())


def test_an_epoch_is_one_claimants_and_higher_than_those_before() -> None:
    log = FedState()
    first, second = ops.claim(NAME, 1, "a"), ops.claim(NAME, 1, "b")
    assert log.add(first, second) == [[0, [1, 0]], [int(Code.FENCED), 1]]
    assert log.add(ops.claim(NAME, 2, "b"), first) == [[0, [2, 0]], [int(Code.FENCED), 2]], "a late copy"
    assert log.add(ops.claim(NAME, 2, "b")) == [[0, [2, 0]]], "repeated"
    assert log.add(ops.claim(NAME, 9, "c")) == [[0, [9, 0]]], "as in the other groups"
    assert log.add(ops.claim("other", 1, "a")) == [[0, [1, 0]]]


def test_an_earlier_epoch_sends_nothing_any_more() -> None:
    log = FedState()
    claim(log), claim(log)
    fenced = [[int(Code.FENCED), 2]]
    assert log.add(message(1, 0)) == fenced == log.add(message(1, -1)) == log.add(message(3, 0))
    assert log.add(ops.message("t", 0, NAME, 7, 0, [ROW])) == fenced, "by a producer without a claim"
    for producer in (NAME, NAME + ops.OF_DELAYED):
        epoch = ops.first_epoch(1) + 5
        late = timer_ops.scheduled("t", 0, producer, epoch, 0, [-60_000], [ROW], 5, 0, -1, 0)
        assert log.add(late) == fenced
    assert prepare(log, "x", 1, 0) == fenced == prepare(log, "x", 1, 1) == prepare(log, "x", 1, 0, home=3)
    assert log.add(message(2, 0))[0][0] == 0
    assert log.add(ops.message("t", 0, NAME, ops.first_epoch(2) + 1, 0, [ROW]))[0][0] == 0
    assert log.add(ops.message("t", 0, "nobody", 0, 0, [ROW]))[0][0] == 0
    assert prepare(log, "x", 2, 0) == [[0]] == prepare(log, "y", 2, 0), "without numbers: as many as it likes"
    assert prepare(log, "z", 3, 0) == fenced, "an epoch above the claimed one"


def test_a_name_that_nobody_has_claimed_is_fenced_too() -> None:
    log = FedState()
    assert prepare(log, "x", 1, 1) == [[int(Code.FENCED), 0]] == log.add(message(1, 0))


def test_a_number_is_committed_once_however_long_ago_it_was() -> None:
    log = FedState()
    claim(log)
    assert prepare(log, "1.0", 1, 1) == [[0]] == prepare(log, "1.0", 1, 1), "a repetition of the same attempt"
    assert prepare(log, "1.1", 1, 1) == [[int(Code.CLAIM_OPEN), ["app", "1.0"]]]
    assert prepare(log, "1.0", 1, 1, digest(9)) == [[int(Code.CLAIM_OPEN), ["app", "1.0"]]]
    log.add(ops.rollback("app", ["1.0"]))
    assert prepare(log, "1.1", 1, 1) == [[0]] == commit(log, "1.1")
    assert prepare(log, "1.2", 1, 1) == COMMITTED == prepare(log, "1.1", 1, 1)
    assert log.add(ops.claim(NAME, 2, "b")) == [[0, [2, 1]]]
    assert prepare(log, "1.2", 2, 1) == COMMITTED
    assert prepare(log, "1.2", 2, 1, digest(9)) == [[int(Code.OUT_OF_STEP), 1]], "other messages"
    assert prepare(log, "5.0", 2, 5) == [[0]] == commit(log, "5.0"), "numbers may be left out"
    assert prepare(log, "3.0", 2, 3) == [[int(Code.OUT_OF_STEP), 5]]
    assert prepare(log, "1.1", 2, 1) == [[int(Code.OUT_OF_STEP), 5]]


def test_a_commit_of_the_last_claimant_counts_for_the_next() -> None:
    log = FedState()
    claim(log)
    assert prepare(log, "1.0", 1, 1) == [[0]]
    claim(log)
    assert prepare(log, "1.1", 2, 1) == [[int(Code.CLAIM_OPEN), ["app", "1.0"]]]
    assert commit(log, "1.0") == [[0]]
    assert prepare(log, "1.1", 2, 1) == COMMITTED


def test_a_branch_asks_for_the_epoch_alone() -> None:
    log = FedState()
    log.add(ops.claim(NAME, 3, "c"))
    assert prepare(log, "1.0", 3, 1, home=2) == [[0]] == prepare(log, "1.1", 3, 1, home=2)
    assert log.state.claims.open == {}, "its home decides about the number"


def test_names_used_long_ago_go_first_and_recent_ones_stay() -> None:
    log = keeping(3)
    for name in ("a", NAME, "b"):
        claim(log, name)
    assert log.add(ops.claim("new", 1, "c")) == [[int(Code.TOO_MANY_CLAIMS), 3]]
    prepare(log, "1.0", 1, 1)
    log.now_ms += claims.KEPT_MS + 60_000
    claim(log, "a"), claim(log, "new")
    assert list(log.state.claims.by_name) == [NAME, "a", "new"], "that of an open transaction stays"


def test_the_name_of_an_open_numbered_transaction_stays_although_it_is_the_oldest() -> None:
    """Finds a claim that is forgotten although its numbered transaction is open, whose number would be lost
    with it."""
    log = keeping(3)
    claim(log)
    assert prepare(log, "1.0", 1, 1) == [[0]]
    claim(log, "a"), claim(log, "b")
    log.now_ms += claims.KEPT_MS + 60_000
    claim(log, "new"), claim(log, "newer")
    assert list(log.state.claims.by_name) == [NAME, "new", "newer"]
    assert commit(log, "1.0") == [[0]] and log.state.claims.by_name[NAME].number == 1
    log.now_ms += claims.KEPT_MS + 60_000
    claim(log, "newest")
    assert list(log.state.claims.by_name) == ["new", "newer", "newest"], "none is open any more"


@pytest.mark.parametrize("home", [-1, 2])
def test_a_name_is_in_use_while_its_producer_prepares(home: int) -> None:
    """``home`` 2: branches alone. Finds PREPAREs that do not count as a use of the claim."""
    log = keeping(2)
    claim(log), claim(log, "b")
    log.now_ms += claims.KEPT_MS + 60_000
    assert prepare(log, "1.0", 1, 0 if home < 0 else 1, home=home) == [[0]]
    claim(log, "new")
    assert list(log.state.claims.by_name) == [NAME, "new"], "that of the other one was used longer ago"
    assert log.add(ops.claim("c", 1, "c")) == [[int(Code.TOO_MANY_CLAIMS), 2]], "both are in use"


def test_a_name_is_in_use_while_its_producer_sends_plain_messages() -> None:
    log = keeping(2)
    claim(log), claim(log, "b")
    log.now_ms += claims.KEPT_MS + 60_000
    assert log.add(message(1, 0))[0][0] == 0
    claim(log, "new")
    assert list(log.state.claims.by_name) == [NAME, "new"]
    log.now_ms += claims.KEPT_MS + 60_000
    claim(log, "c"), claim(log, "d")
    assert log.add(message(1, 1)) == [[int(Code.FENCED), 0]], "nobody knows who has claimed it since"


def test_a_message_without_a_claim_is_stored_while_nobody_has_claimed_its_producer_s_name() -> None:
    log = FedState()
    assert log.add(ops.message("t", 0, NAME, 0, 0, [ROW]))[0][0] == 0


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("claim")),
        st.tuples(st.just("prepare"), st.integers(0, 2), st.integers(1, 4), st.integers(0, 1)),
        st.tuples(st.just("commit"), st.integers(1, 4), st.integers(0, 1)),
        st.tuples(st.just("rollback"), st.integers(1, 4), st.integers(0, 1)),
        st.tuples(st.just("restart")),
    ),
    max_size=40,
)


@settings(max_examples=120, deadline=None)
@given(_STEPS)
@example([("prepare", 0, 1, 0), ("restart",), ("prepare", 0, 1, 1)])
def test_whatever_is_repeated_late_or_by_another_each_number_is_committed_once(
    steps: list[tuple[Any, ...]],
) -> None:
    """``prepare``: by a claimant so many epochs back, of a number, in one of two attempts."""
    log = FedState()
    claim(log)
    epoch, committed = 1, list[int]()
    for what, *told in steps:
        if what == "claim":
            epoch = claim(log)
            assert log.state.claims.by_name[NAME].number == (committed[-1] if committed else 0)
        elif what == "prepare":
            back, number, attempt = told
            before = set(log.state.claims.open)
            ((code, *_),) = prepare(log, f"{number}.{attempt}", epoch - back, number)
            if back:
                assert code == Code.FENCED and set(log.state.claims.open) == before
            if number in committed:
                assert code in (Code.PARTIAL, Code.OUT_OF_STEP, Code.FENCED)
        elif what in ("commit", "rollback"):
            number, attempt = told
            tx_id = f"{number}.{attempt}"
            if tx_id in log.state.transactions.look("app").open:  # else the leader would write nothing
                if what == "commit":
                    assert commit(log, tx_id) == [[0]]
                    committed.append(number)
                else:
                    log.add(ops.rollback("app", [tx_id]))
        else:
            state = StateMachine(0, 1)
            restore(state, "x.snap", b"".join(encode(capture(log.state, 1, []))))
            assert dump(state)["claims"] == dump(log.state)["claims"]
            log.state.claims = state.claims
        assert len(log.state.claims.open) <= 1 and set(log.state.claims.open) == {
            ("app", tx_id) for tx_id in log.state.transactions.look("app").open
        }
    assert committed == sorted(set(committed))
