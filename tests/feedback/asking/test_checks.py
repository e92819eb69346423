"""The pure parts: rules, and the table of checks under random histories."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escrowmq.feedback.asking.checks import WANTED_MAX, CheckTable, Stage
from escrowmq.feedback.asking.live_producers import CheckKey
from escrowmq.feedback.config import AnswererConfig, FeedbackConfig
from escrowmq.feedback.policy import (
    RETRY,
    Route,
    Trouble,
    Verdict,
    judge,
    lock_pause_s,
    pick,
    route,
)
from escrowmq.feedback.states import TransactionState, feedback_name
from escrowmq.replication.calling.answers import LockedRow
from escrowmq.replication.errors import ConfigError

COMMITTED, ROLLBACK = TransactionState.COMMITTED, TransactionState.ROLLBACK
UNKNOWN, PREPARE = TransactionState.UNKNOWN, TransactionState.PREPARE


@pytest.mark.parametrize("trouble", list(Trouble))
@pytest.mark.parametrize("others", [True, False])
def test_only_an_answer_decides(trouble: Trouble, others: bool) -> None:
    assert judge(COMMITTED, trouble, others=others) is Verdict.COMMIT
    assert judge(ROLLBACK, trouble, others=others) is Verdict.ROLLBACK
    for state in (UNKNOWN, PREPARE):
        verdict = judge(state, trouble, others=others)
        assert verdict in (Verdict.COUNT, Verdict.ASK_ANOTHER, Verdict.RELEASE, Verdict.PUT_OFF)


def test_an_honest_unknown_counts_and_trouble_is_taken_elsewhere_first() -> None:
    assert judge(UNKNOWN, Trouble.NONE, others=True) is Verdict.COUNT
    assert judge(UNKNOWN, Trouble.RAISED, others=True) is Verdict.ASK_ANOTHER
    assert judge(UNKNOWN, Trouble.TIMED_OUT, others=False) is Verdict.COUNT
    assert judge(UNKNOWN, Trouble.BUSY, others=False) is Verdict.RELEASE
    assert judge(UNKNOWN, Trouble.RUNNING, others=True) is Verdict.PUT_OFF


def test_a_topics_policy_takes_the_place_of_producers() -> None:
    assert route(LockedRow("t", "q", 0, 99, -1, False)) is Route.PRODUCER
    assert route(LockedRow("t", "q", 0, 15, -1, True)) is Route.TOPIC_POLICY


@dataclass
class Somebody:
    instance: str
    room: int = 1
    parked: bool = True
    last_seen: float = 0.0
    load: int = 0


def test_the_least_loaded_and_latest_seen_producer_is_picked() -> None:
    a, b = Somebody("a", load=3), Somebody("b", last_seen=1.0)
    c = Somebody("c", last_seen=2.0)
    assert pick([a, b, c], set()) is c
    assert pick([a, b, c], {"c"}) is b
    assert pick([a, b, c], {"b", "c"}) is a
    assert pick([a, b, c], {"a", "b", "c"}) is c, "all were tried: begin again"


def test_a_fresh_producer_that_is_about_to_park_is_waited_for() -> None:
    tried, fresh = Somebody("tried"), Somebody("fresh", parked=False)
    assert pick([tried, fresh], {"tried"}) is None
    assert pick([], set()) is None


def test_pauses_grow_and_end() -> None:
    assert lock_pause_s(0, 0.0, 5.0) == 0 and lock_pause_s(3, 4.9, 5.0) == 0
    pauses = [lock_pause_s(n, 0.0, 5.0) for n in range(1, 100)]
    assert pauses[0] == 0.1 and pauses == sorted(pauses) and pauses[-1] == 1.0
    assert RETRY.pause_s(0) == 0.1 and RETRY.pause_s(1000) == 2.0


def test_checks_of_a_producer_that_leaves_go_back_in_their_order_and_first() -> None:
    table, order = CheckTable(FeedbackConfig()), [f"t{n}" for n in range(20)]
    table.locked(0, [LockedRow(tx_id, "q", 0, 0) for tx_id in order], 0.0)

    def handed(instance: str) -> list[str]:
        seat = table.arrive(instance, 20, (), 0.0)
        assert seat is not None
        seat.parked = True
        return [check.row.tx_id for check in table.assign(0.0).get(instance, [])]

    assert handed("first") == order
    table.locked(0, [LockedRow("later", "q", 0, 0)], 0.0)
    table.leave("first", idle=True)
    assert handed("second") == order, "the oldest first, and before what came later"


def test_names_are_unambiguous() -> None:
    pairs = [("a-b", "c"), ("a", "b-c"), ("a%2Db", "c"), ("a", "-b-c"), ("a-", "b-c"), ("é/ ", "x")]
    assert len({feedback_name(*pair) for pair in pairs}) == len(pairs)
    assert feedback_name("shop", "orders") == "feedback-shop-orders"


@pytest.mark.parametrize("bad", [0, -1.0, "5", True, None])
def test_a_nonsensical_setting_is_refused_where_it_is_written(bad: object) -> None:
    with pytest.raises(ConfigError, match="answer_s"):
        FeedbackConfig(answer_s=bad)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="query_threads"):
        AnswererConfig(query_threads=bad)  # type: ignore[arg-type]


# -------------------------------------------------------------------- random histories


class Model:
    """What must hold, checked by simple means after every step."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.config = FeedbackConfig(checks_per_group_max=12, lock_batch=5, producers_max=4)
        self.table = CheckTable(self.config)
        self.now = 0.0
        self.dead: set[str] = set()
        self.prepared: dict[
            CheckKey, tuple[str, int]
        ] = {}  # owner and newest PREPARE; the others have no owner
        self.last_poll: dict[str, float] = {}

    def step(self) -> None:
        rng, table, now = self.rng, self.table, self.now
        name = f"p{rng.randrange(6)}"
        match rng.randrange(9):
            case 0 | 1:
                gid = rng.randrange(2)
                ids = {f"t{rng.randrange(30)}" for _ in range(table.room(gid, now))}
                table.locked(gid, [self.row((gid, tx_id)) for tx_id in sorted(ids)], now)
            case 2 | 3 if name not in self.dead:
                seat = table.seats.get(name)
                holding = [(key, self.index(key)) for key in seat.holding] if seat else []
                seat = table.arrive(
                    name, rng.randrange(5), rng.sample(holding, rng.randint(0, len(holding))), now
                )
                self.last_poll[name] = now
                if seat is not None:
                    seat.parked = True
            case 4:
                self.assign()
            case 5:
                key = (rng.randrange(2), f"t{rng.randrange(30)}")
                index = self.index(key) - rng.choice((0, 0, 0, 1))
                self.answer(name, key, rng.choice(list(TransactionState)), rng.choice(list(Trouble)), index)
            case 6:
                if (seat := table.seats.get(name)) is not None and seat.parked:
                    table.unparked(name, now)
                    self.last_poll[name] = now
                what = rng.choice(("leaves", "dies", "lives"))
                if what == "leaves":
                    table.leave(name, idle=False)
                else:
                    (self.dead.add if what == "dies" else self.dead.discard)(name)
            case 7:
                key = (rng.randrange(2), f"t{rng.randrange(30)}")
                self.prepared[key] = name, self.index(key) + 1
            case _:
                self.now += rng.choice([0.01, 0.5, 3.0, 20.0])
                table.expire(self.now)
                table.settled(rng.randrange(2), [f"t{n}" for n in range(rng.randrange(30))])
        for _, wait_s in table.take_put_off():
            assert 0 < wait_s <= 30

    def index(self, key: CheckKey) -> int:
        return self.prepared.get(key, ("", 1))[1]

    def row(self, key: CheckKey) -> LockedRow:
        owner, index = self.prepared.get(key, ("", 1))
        return LockedRow(key[1], "q", 0, 0, -1, False, owner, index, 1_000)

    def assign(self) -> None:
        before = {key: check.idle for key, check in self.table._checks.items()}
        for instance, checks in self.table.assign(self.now).items():
            seat = self.table.seats.get(instance)
            assert seat is not None and seat.parked and checks
            for check in checks:
                others = check.owner not in ("", instance) and not before[check.key]
                assert not others or self.is_gone(check.owner), "the owner's alone while it is there"
            self.table.unparked(instance, self.now)
            self.last_poll[instance] = self.now

    def answer(self, name: str, key: CheckKey, state: TransactionState, trouble: Trouble, index: int) -> None:
        check = self.table._checks.get(key)
        was_idle = check is not None and check.idle
        verdict = self.table.answer(name, key, state, trouble, index, self.now)
        if verdict is Verdict.ROLLBACK and check is not None and check.row.newest_index == index:
            owner = check.owner
            assert owner in ("", name) or was_idle or self.is_gone(owner), "not under a live owner"

    def is_gone(self, owner: str) -> bool:
        seat = self.table.seats.get(owner)
        if seat is not None and seat.parked:
            return False
        return self.now - self.last_poll.get(owner, 0.0) >= self.config.owner_gone_s - 1e-6

    def check(self) -> None:
        table = self.table
        on_hand = {0: 0, 1: 0}
        for key, check in table._checks.items():
            on_hand[key[0]] += 1
            waits = key in table._queue if check.free else key in table._own.get(check.owner, ())
            assert waits == (check.stage is Stage.QUEUED)
            assert check.free or check.owner
            assert (check.instance is not None) == (check.stage is Stage.HANDED)
            if check.instance is not None:
                seat = table.seats.get(check.instance)
                assert seat is not None and key in seat.holding, "held by whom it was handed to"
        lines = [*table._queue, *(key for line in table._own.values() for key in line)]
        assert len(lines) == len(set(lines)) and all(table._own.values())
        held = [key for n in range(6) if (s := table.seats.get(f"p{n}")) for key in s.holding]
        assert len(held) == len(set(held)), "held by one producer at most"
        assert all(table._checks[key].stage is Stage.HANDED for key in held)
        assert {gid: table._on_hand[gid] for gid in on_hand} == on_hand
        assert max(on_hand.values()) <= self.config.checks_per_group_max
        assert len(table.seats) <= self.config.producers_max + WANTED_MAX


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_invariants_hold_after_every_step_of_any_history(seed: int) -> None:
    model = Model(seed)
    for step in range(120):
        try:
            model.step()
            model.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, step {step}: {error}") from error
