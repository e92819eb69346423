"""Old rows are deleted in slices; what an open transaction may still need stays."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from escrowmq import OpenTransaction
from escrowmq.feedback.database import statements
from escrowmq.feedback.database.purging import OPEN_MAX
from escrowmq.integrations import DatabaseMisused
from tests.support.shops import ShopMaker, Tx

DAY_S = 86_400.0


@dataclass
class Admin:
    """``cluster.admin``, as far as a purge uses it."""

    prepared_ms: list[int] = field(default_factory=list)
    tx_id: str = "x"

    def list_transactions(self, *, app: str | None = None, limit: int = 1000) -> list[OpenTransaction]:
        assert app == "shop"
        return [
            OpenTransaction("shop", self.tx_id, "x", "t", ms, 0, 0, False, 1, 0) for ms in self.prepared_ms
        ][:limit]


def test_rows_that_are_old_go_and_others_stay(make_shop: ShopMaker) -> None:
    shop, now = make_shop(), [100 * DAY_S]
    fence, other = shop.make_fence(clock=lambda: now[0]), shop.make_fence(app="other", clock=lambda: now[0])
    for number in range(25):
        local = shop.begin()
        fence.enter(local.connection, *(Tx(f"{number}-{part}") for part in range(4)))
        local.commit()
        now[0] += DAY_S / 2
    other.query_status("theirs", "")
    now[0] = 110 * DAY_S
    purged = fence.purge(Admin(), slice_rows=16, pause_s=0.0)
    assert (purged.removed, purged.read, shop.count()) == (4 * 6, 101, 101 - 24)
    assert purged.before_ms == int(103 * DAY_S * 1000)
    assert fence.purge(Admin(), pause_s=0.0).removed == 0
    local = shop.begin()
    fence.enter(local.connection, Tx("after"))
    local.commit()
    assert fence.query_status("24-0", "").value == "COMMITTED", "the database is still known by its name"


def test_what_was_written_since_the_oldest_open_transaction_stays(make_shop: ShopMaker) -> None:
    shop, now = make_shop(), [100 * DAY_S]
    fence = shop.make_fence(clock=lambda: now[0])
    for _ in range(10):
        fence.query_status(f"{now[0]}", "")
        now[0] += DAY_S
    now[0] = 130 * DAY_S
    oldest = int(103.5 * DAY_S * 1000)
    assert fence.purge(Admin([oldest, oldest + 5]), pause_s=0.0).removed == 4
    for wrong in ({"keep_s": 60.0}, {"slice_rows": 0}, {"slice_rows": 5000}):
        with pytest.raises(DatabaseMisused):
            fence.purge(Admin(), **wrong)  # type: ignore[arg-type]


def test_the_row_of_an_open_transaction_that_was_prepared_again_stays(make_shop: ShopMaker) -> None:
    """A service that was away for days comes back, and runs an id of its own once more: what its first run
    has committed must be found."""
    shop, now = make_shop(), [100 * DAY_S]
    fence = shop.make_fence(clock=lambda: now[0])
    for tx_id in ("42", "43"):
        local = shop.begin()
        fence.enter(local.connection, Tx(tx_id))
        local.commit()
    now[0] = 130 * DAY_S
    again = Admin([int(now[0] * 1000)], tx_id="42")
    assert fence.purge(again, pause_s=0.0).removed == 1
    assert fence.query_status("42", "").value == "COMMITTED"


def test_nothing_goes_where_more_is_open_than_is_listed(make_shop: ShopMaker) -> None:
    shop, now = make_shop(), [100 * DAY_S]
    fence = shop.make_fence(clock=lambda: now[0])
    fence.query_status("x", "")
    now[0] = 130 * DAY_S
    today = int(now[0] * 1000)
    assert fence.purge(Admin([today] * OPEN_MAX), pause_s=0.0).removed == 0
    assert fence.purge(Admin([today], tx_id="y"), pause_s=0.0).removed == 1


def test_keys_of_no_two_pairs_are_the_same() -> None:
    pairs = [(app, tx) for app in ("a", "a:", "1:a", "aa") for tx in ("a", ":a", "a:", "aa", "")]
    assert len({statements.key_of(*pair) for pair in pairs}) == len(pairs)
    assert all(len(statements.key_of(*pair)) == 32 != statements.IDENTITY_KEY for pair in pairs)


def test_clocks_that_differ_cost_no_row() -> None:
    day_ms = 86_400_000
    assert statements.before_ms(30 * day_ms, 7 * DAY_S, None) == 23 * day_ms
    assert (
        statements.before_ms(30 * day_ms, 7 * DAY_S, 20 * day_ms) == 20 * day_ms - statements.CLOCKS_DIFFER_MS
    )
    assert statements.before_ms(30 * day_ms, 7 * DAY_S, 29 * day_ms) == 23 * day_ms
