"""Open transactions that a newer claim overtakes, whatever is repeated, settled or restarted meanwhile."""

from __future__ import annotations

from itertools import chain
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from escrowmq.replication.format import ops
from escrowmq.replication.format.ops import ROLLBACK, PrepareExtra
from escrowmq.replication.model import ResultCode as Code
from escrowmq.replication.state import claims
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.snapshot import capture, encode, restore
from tests.support.fed_state import FedState, dump

NAME, OTHER = "shard-7", "shard-8"
AGAIN_MS = 2_000


def claim(log: FedState, epoch: int, name: str = NAME) -> None:
    assert log.add(ops.claim(name, epoch, f"claimant {epoch}")) == [[0, [epoch, 0]]]


def prepare(
    log: FedState,
    *tx_ids: str,
    epoch: int = 1,
    name: str | None = NAME,
    on_timeout: str = ROLLBACK,
    part: int = 0,
    home: int = -1,
    instance: str = "p",
) -> Any:
    claim = None if name is None else (name, epoch, 0, b"")
    index = [5] * len(tx_ids) if home >= 0 else []
    extra = PrepareExtra(
        instance, home_index=index, heard_ms=log.now_ms + 1, claim=claim, on_timeout=on_timeout
    )
    return log.add(ops.prepare("app", "t", tx_ids, None, 0, part, [1] * len(tx_ids), home, 0, extra))


def taken(log: FedState, limit: int = 100) -> dict[str, int]:
    """What the leader rolls back now: id -> log index of its newest PREPARE."""
    found = log.state.claims.overtaken.take(limit, AGAIN_MS, log.now_ms, log.state.transactions)
    assert set(found) <= {"app"}
    return found.get("app", {})


def restarted(log: FedState) -> StateMachine:
    state = StateMachine(0, 1)
    restore(state, "x.snap", b"".join(encode(capture(log.state, 1, []))))
    for part in ("open", "claims", "held"):
        assert dump(state)[part] == dump(log.state)[part]
    return state


def test_a_claim_overtakes_what_nobody_is_asked_about_and_nothing_else() -> None:
    log = FedState()
    claim(log, 1), claim(log, 1, OTHER)
    assert prepare(log, "alone", "with it") == [[0]]
    index = log.index
    prepare(log, "local", on_timeout="")
    prepare(log, "of another", name=OTHER)
    prepare(log, "of nobody", name=None)
    prepare(log, "a branch", on_timeout="", home=2)
    assert taken(log) == {}
    claim(log, 1)
    assert taken(log) == {}, "a CLAIM that is repeated raises nothing"
    claim(log, 2)
    prepare(log, "new", epoch=2)
    assert log.state.claims.overtaken.waiting
    assert taken(log) == {"alone": index, "with it": index}
    assert not log.state.claims.overtaken.waiting
    claim(log, 5)
    assert list(taken(log)) == ["new"]


def test_they_are_taken_in_portions_and_again_if_they_stay_open() -> None:
    log = FedState()
    claim(log, 1), claim(log, 1, OTHER)
    ids = [f"x{n}" for n in range(5)]
    prepare(log, *ids)
    prepare(log, "y", name=OTHER)
    claim(log, 2), claim(log, 2, OTHER)
    portions = [list(taken(log, 2)) for _ in range(4)]
    assert sorted(chain(*portions)) == [*ids, "y"] and [*map(len, portions)] == [2, 2, 2, 0]
    log.add(ops.rollback("app", ids[:4], "claim"))
    log.now_ms += AGAIN_MS
    assert sorted(taken(log)) == ["x4", "y"], "their ROLLBACK is in no log"
    assert taken(log) == {}
    log.state.claims.overtaken.resign()
    assert sorted(taken(log)) == ["x4", "y"], "this replica leads once more"
    log.add(ops.rollback("app", ["x4", "y"], "claim"))
    log.now_ms += AGAIN_MS
    assert taken(log) == {} and not log.state.claims.any_open
    overtaken = log.state.claims.overtaken
    assert not (overtaken._present or overtaken.waiting or overtaken._taken)


def test_one_that_is_prepared_again_belongs_to_whoever_did_it() -> None:
    log = FedState()
    claim(log, 1)
    prepare(log, "x", "y", "z", "w")
    claim(log, 2)
    prepare(log, "x", epoch=2, instance="q")
    prepare(log, "y", name=None, instance="q")
    prepare(log, "z", on_timeout="", epoch=2, instance="q")
    assert list(taken(log)) == ["w"]
    assert sorted(tx_id for _, tx_id in log.state.transactions.unattended) == ["w", "x", "y"]
    claim(log, 3)
    assert list(taken(log)) == ["x"], "beside z a local transaction may be running"
    assert prepare(log, "w", epoch=2) == [[int(Code.FENCED), 3]]


def test_a_local_transaction_that_somebody_has_begun_is_never_forgotten() -> None:
    log = FedState()
    claim(log, 1)
    prepare(log, "x", on_timeout="")
    prepare(log, "x")
    claim(log, 2)
    assert taken(log) == {} and not log.state.transactions.unattended


def test_a_further_part_does_not_say_that_there_is_a_local_transaction() -> None:
    log = FedState()
    claim(log, 1)
    prepare(log, "x")
    assert prepare(log, "x", on_timeout="", part=1) == [[0]] == prepare(log, "x", on_timeout="", part=1)
    claim(log, 2)
    assert list(taken(log)) == ["x"]


def test_what_is_settled_in_time_is_not_rolled_back() -> None:
    log = FedState()
    claim(log, 1)
    prepare(log, "x", "y", "z")
    log.add(ops.Commit("app", ["x"], "producer", 0, [], -1).frame())
    claim(log, 2)
    log.add(ops.Commit("app", ["y"], "producer", 0, [], -1).frame())
    assert list(taken(log)) == ["z"]


def test_a_restart_knows_which_are_overtaken() -> None:
    log = FedState()
    claim(log, 1), claim(log, 1, OTHER)
    prepare(log, "x")
    prepare(log, "y", name=OTHER)
    claim(log, 2)
    prepare(log, "z", epoch=2)
    taken(log)
    log.state = restarted(log)
    assert list(taken(log)) == ["x"]
    claim(log, 3)
    assert list(taken(log)) == ["z"]


def test_what_is_open_under_a_forgotten_name_is_left_to_its_time_out() -> None:
    log = FedState()
    log.state.claims = claims.Claims(kept=1)
    claim(log, 1)
    prepare(log, "x", "y")
    claim(log, 2)
    assert len(taken(log, 1)) == 1
    prepare(log, "z", epoch=2)
    log.now_ms += claims.KEPT_MS + 60_000
    claim(log, 1, OTHER)
    assert log.state.claims.rows() == [] == list(taken(log))
    assert len(log.state.transactions.unattended) == 3
    restarted(log)


_IDS = st.sampled_from("abcdef")
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("claim"), st.sampled_from((NAME, OTHER))),
        st.tuples(
            st.just("prepare"), _IDS, st.sampled_from((NAME, OTHER, None)), st.sampled_from(("", ROLLBACK))
        ),
        st.tuples(st.just("settle"), _IDS),
        st.tuples(st.just("take"), st.integers(1, 3)),
        st.tuples(st.just("pass time")),
        st.tuples(st.just("resign")),
        st.tuples(st.just("restart")),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(_STEPS)
def test_exactly_what_is_overtaken_is_rolled_back(steps: list[tuple[Any, ...]]) -> None:
    """Against a model: id -> name and epoch of its last PREPARE, or None if somebody is asked."""
    log, epochs = FedState(), {NAME: 1, OTHER: 1}
    claim(log, 1), claim(log, 1, OTHER)
    opened: dict[str, tuple[str, int] | None] = {}
    asked: set[str] = set()
    number = 0
    ids: dict[str, str] = {}
    for what, *told in steps:
        if what == "claim":
            epochs[told[0]] += 1
            claim(log, epochs[told[0]], told[0])
        elif what == "prepare":
            letter, name, on_timeout = told
            if letter not in ids:
                ids[letter] = f"{letter}{(number := number + 1)}"
            tx_id = ids[letter]
            assert prepare(
                log, tx_id, epoch=epochs[name] if name else 0, name=name, on_timeout=on_timeout
            ) == [[0]]
            if not on_timeout:
                asked.add(tx_id)
            opened[tx_id] = None if name is None or tx_id in asked else (name, epochs[name])
        elif what == "settle" and told[0] in ids:
            tx_id = ids.pop(told[0])
            log.add(ops.rollback("app", [tx_id]))
            del opened[tx_id]
        elif what == "take":
            overtaken = {tx_id for tx_id, under in opened.items() if under and under[1] < epochs[under[0]]}
            assert set(taken(log, told[0])) <= overtaken
        elif what == "pass time":
            log.now_ms += AGAIN_MS
        elif what == "resign":
            log.state.claims.overtaken.resign()
        elif what == "restart":
            log.state = restarted(log)
    log.now_ms += AGAIN_MS
    wanted = {tx_id for tx_id, under in opened.items() if under and under[1] < epochs[under[0]]}
    assert set(taken(log)) == wanted
    left = log.state.claims.overtaken
    assert left.of.keys() == {("app", tx_id) for tx_id, under in opened.items() if under}
