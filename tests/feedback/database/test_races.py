"""A check against a slow local transaction, both orders, at every isolation level, on real databases."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from escrowmq import TransactionState
from escrowmq.integrations import AlreadyDone, FenceLost
from tests.support.fence_races import splits
from tests.support.shops import LEVELS, Shop, ShopMaker

COMMITTED, ROLLBACK, UNKNOWN = TransactionState.COMMITTED, TransactionState.ROLLBACK, TransactionState.UNKNOWN
#: After this long, a statement of another thread is surely waiting.
SOON_S = 0.1


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


def check(shop: Shop, tx_id: str = "1") -> TransactionState:
    return shop.fence.query_status(tx_id, tx_id)


def test_a_check_that_comes_first_keeps_the_local_transaction_out(shop: Shop) -> None:
    assert check(shop) is ROLLBACK
    local = shop.begin()
    with pytest.raises(FenceLost):
        local.enter("1")
    local.rollback()
    assert check(shop) is ROLLBACK and shop.stored() == set()


def test_a_local_transaction_that_comes_first_is_seen(shop: Shop) -> None:
    shop.begin().enter("1").order("1").commit()
    assert check(shop) is COMMITTED and shop.stored() == {"1"}
    again = shop.begin()
    with pytest.raises(AlreadyDone):
        again.enter("1")
    again.rollback()


def test_while_the_local_transaction_runs_the_check_does_not_know(shop: Shop) -> None:
    local = shop.begin().enter("1").order("1")
    began = time.monotonic()
    assert check(shop) is UNKNOWN
    assert time.monotonic() - began < 10.0, "a moment, not the database's own patience"
    local.commit()
    assert check(shop) is COMMITTED


def test_a_check_that_waits_sees_the_commit(make_shop: ShopMaker, pool: ThreadPoolExecutor) -> None:
    shop = make_shop(lock_timeout_s=20.0)
    local = shop.begin().enter("1").order("1")
    asked = pool.submit(check, shop)
    time.sleep(SOON_S)
    assert not asked.done()
    local.commit()
    assert asked.result(timeout=20) is COMMITTED


def test_a_check_that_waits_sees_the_roll_back_and_keeps_a_second_try_out(
    make_shop: ShopMaker, pool: ThreadPoolExecutor
) -> None:
    shop = make_shop(lock_timeout_s=20.0)
    local = shop.begin().enter("1").order("1")
    asked = pool.submit(check, shop)
    time.sleep(SOON_S)
    assert not asked.done()
    local.rollback()
    assert asked.result(timeout=20) is ROLLBACK
    again = shop.begin()
    with pytest.raises(FenceLost):
        again.enter("1")
    again.rollback()
    assert shop.stored() == set()


def test_two_local_transactions_of_one_id_do_not_both_commit(shop: Shop, pool: ThreadPoolExecutor) -> None:
    first, second = shop.begin().enter("1").order("1"), shop.begin()
    late = pool.submit(second.enter, "1")
    time.sleep(SOON_S)
    assert not late.done()
    first.commit()
    with pytest.raises(AlreadyDone):
        late.result(timeout=20)
    second.rollback()
    assert shop.stored() == {"1"}


def test_every_isolation_level_keeps_both_orders(shop: Shop, kind: str) -> None:
    for level in LEVELS[kind]:
        first, late, slow = (f"{level.lower()}-{name}" for name in ("first", "late", "slow"))
        shop.begin(level).enter(first).order(first).commit()
        assert check(shop, first) is COMMITTED, level

        assert check(shop, late) is ROLLBACK
        local = shop.begin(level)
        with pytest.raises(FenceLost):
            local.enter(late)
        local.rollback()

        local = shop.begin(level).enter(slow).order(slow)
        assert check(shop, slow) is UNKNOWN, level
        local.commit()
        assert check(shop, slow) is COMMITTED, level


def test_a_snapshot_from_before_the_check_does_not_hide_it(shop: Shop, kind: str) -> None:
    if kind == "sqlite":
        return  # SQLite itself refuses a reader that begins to write after another writer
    for level in LEVELS[kind][1:]:
        local = shop.begin(level)
        assert local.execute(f"select count(*) from {shop.orders}").fetchall()[0][0] == 0
        assert check(shop, level) is ROLLBACK
        with pytest.raises(FenceLost):
            local.enter(level)
        local.rollback()


def test_many_checks_are_held_up_by_none_that_is_locked(shop: Shop) -> None:
    for number in range(20):
        shop.begin().enter(f"done-{number}").commit()
    checks = [f"done-{number}" for number in range(20)] + [f"never-{number}" for number in range(20)]
    running = shop.begin().enter("runs")
    asked = [*checks[:25], "runs", *checks[25:]]
    # The clock is stopped, so that a busy machine does not shorten the fence's patience.
    fence = shop.make_fence(lock_timeout_s=0.3, clock=lambda: 1e9)
    said = dict(zip(asked, fence.query_statuses([(tx, tx) for tx in asked]), strict=True))
    assert said["runs"] is UNKNOWN
    assert all(said[f"done-{number}"] is COMMITTED for number in range(20)), "what is there needs no waiting"
    if shop.kind != "sqlite":  # SQLite has a single lock
        assert all(said[f"never-{number}"] is ROLLBACK for number in range(20))
    running.commit()
    said = dict(zip(asked, shop.fence.query_statuses([(tx, tx) for tx in asked]), strict=True))
    assert said["runs"] is COMMITTED and said["never-7"] is ROLLBACK


def test_a_thousand_checks_take_two_statements(shop: Shop) -> None:
    for number in range(0, 1000, 100):
        shop.begin().enter(f"{number}").commit()
    began = time.thread_time()
    states = shop.fence.query_statuses([(f"{number}", "") for number in range(1000)])
    print(f"{shop.kind}: {time.thread_time() - began:.3f} s of a processor for 1,000 checks")
    assert [at for at, state in enumerate(states) if state is COMMITTED] == list(range(0, 1000, 100))
    assert states.count(ROLLBACK) == 990


def test_a_drawn_race_never_gives_two_answers(make_shop: ShopMaker) -> None:
    shop = make_shop(lock_timeout_s=5.0)
    assert splits(shop, seed=7) == []
    assert shop.stored(), "some were committed"
