"""The owner of a transaction is asked first whether it runs the local part, and no one else is asked while it
does.

A querier without a fence says ROLLBACK when it finds no row, which means no more than "not yet" while the
local transaction runs in another process. Virtual time, the real table and the real replicated state.
"""

from __future__ import annotations

import asyncio

import pytest

from escrowmq.feedback.asking.checks import CheckTable
from escrowmq.feedback.asking.live_producers import Owners
from escrowmq.feedback.config import FeedbackConfig
from escrowmq.feedback.policy import Trouble, Verdict, absent_pause_s, running_pause_s
from escrowmq.replication.calling.answers import LockedRow
from escrowmq.replication.errors import ConfigError
from escrowmq.replication.format import ops
from escrowmq.replication.model import TransactionState
from tests.support.clock import hold_loop, until
from tests.support.feedback_producers import ORDERS, Producer, World, always, play, silent

COMMITTED, ROLLBACK = TransactionState.COMMITTED, TransactionState.ROLLBACK
UNKNOWN = TransactionState.UNKNOWN
GONE_S = FeedbackConfig().owner_gone_s


class Shop:
    """An app of several instances over one database of rows. Its querier has no fence."""

    def __init__(self, w: World) -> None:
        self.w, self.rows = w, set[str]()

    def look_up(self, tx_id: str, query_id: str) -> str:
        return "COMMITTED" if tx_id in self.rows else "ROLLBACK"

    def instance(self, name: str, *, room: int = 64) -> Producer:
        return self.w.producer(name, self.look_up, room=room)

    def begin(self, owner: Producer | str, tx_id: str, timeout_ms: int = 6_000) -> None:
        """Prepares a transaction; its local transaction runs from here on."""
        name = owner if isinstance(owner, str) else owner.name
        self.w.group.prepare(tx_id, timeout_ms=timeout_ms, instance=name)
        if isinstance(owner, Producer):
            owner.running.add(tx_id)

    def end(self, owner: Producer, tx_id: str) -> str:
        """Commits its local transaction, then the messages; returns what became of them."""
        self.rows.add(tx_id)
        owner.running.discard(tx_id)
        self.w.group.submit(ops.commit("shop", [tx_id]))
        return self.w.group.outcome(tx_id)


def test_a_slow_local_transaction_is_not_rolled_back_by_another_instance() -> None:
    """Formerly, five of ten such transactions ended with their row but without their message."""

    async def scene(w: World) -> None:
        shop = Shop(w)
        first = shop.instance("p1")
        other = shop.instance("p2")
        await asyncio.sleep(0.1)
        for n in range(10):
            shop.begin(first, f"t{n}")
        await asyncio.sleep(10)
        assert [shop.end(first, f"t{n}") for n in range(10)] == ["COMMITTED"] * 10
        assert other.asked == [] and w.group.checked == {}
        assert 10 <= first.told["running"] <= 20, "asked at 6 s and at 9 s"

    play(scene)


def test_an_owner_without_room_still_says_whether_it_runs() -> None:
    async def scene(w: World) -> None:
        shop = Shop(w)
        first, other = shop.instance("p1", room=0), shop.instance("p2")
        await asyncio.sleep(0.1)
        shop.begin(first, "slow", timeout_ms=500)
        shop.begin("p1", "over", timeout_ms=500)  # left undecided
        shop.rows.add("over")
        await until(lambda: w.group.outcome("over") == "COMMITTED", 3)
        assert first.told["running"] >= 1 and first.told["busy"] == 1
        assert [tx_id for _, tx_id in other.asked] == ["over"]
        await asyncio.sleep(5)
        assert shop.end(first, "slow") == "COMMITTED"

    play(scene)


def test_a_long_local_transaction_is_asked_about_ever_more_rarely() -> None:
    async def scene(w: World) -> None:
        shop = Shop(w)
        first = shop.instance("p1")
        shop.begin(first, "t", timeout_ms=1_000)
        await asyncio.sleep(600)
        assert first.told["running"] <= 10 + 600 / 30, "half of its age later, then one in 30 s"
        assert w.group.checked == {} and shop.end(first, "t") == "COMMITTED"

    play(scene)


def test_another_instance_is_asked_once_the_owner_has_said_that_it_does_not_run() -> None:
    async def scene(w: World) -> None:
        w.producer("p1", always("UNKNOWN", "raised"))
        other = w.producer("p2", always("COMMITTED"))
        w.group.prepare("t", instance="p1")
        await until(lambda: w.group.outcome("t") == "COMMITTED", 2)
        assert other.times_asked("t") == 1 and w.group.checked == {}

    play(scene)


def test_an_owner_whose_querier_hangs_has_said_that_it_does_not_run() -> None:
    async def scene(w: World) -> None:
        w.producer("p1", silent)
        other = w.producer("p2", always("ROLLBACK"))
        w.group.prepare("t", instance="p1")
        took = await until(lambda: w.group.outcome("t") == "ROLLBACK", 20)
        assert took < w.config.answer_s + 2 and other.times_asked("t") == 1

    play(scene)


@pytest.mark.parametrize("parked", [True, False], ids=["died with its poll parked", "never seen here"])
def test_the_others_are_asked_when_the_owner_is_gone_and_not_before(parked: bool) -> None:
    async def scene(w: World) -> None:
        shop = Shop(w)
        other = shop.instance("p2")
        if parked:
            first = shop.instance("p1")
            await asyncio.sleep(0.1)
            shop.begin(first, "t", timeout_ms=1_000)
            first.die()
        else:
            shop.begin("p1", "t", timeout_ms=1_000)
        await asyncio.sleep(GONE_S - 0.5)
        assert w.group.outcome("t") == "PREPARE" and other.asked == []
        took = await until(lambda: w.group.outcome("t") == "ROLLBACK", 5)
        assert took < 3 and w.group.checked == {}
        assert w.pair.counts["put_off"] < 10, "the leader is asked now and then"

    play(scene)


def test_a_feedback_actor_that_was_restarted_gives_owners_time_to_find_it() -> None:
    async def scene(w: World) -> None:
        shop = Shop(w)
        first = shop.instance("p1")
        shop.begin(first, "t", timeout_ms=30_000)
        await asyncio.sleep(29.5)
        first.die()
        await w.restart()
        w.producer("p2", shop.look_up)
        await asyncio.sleep(5)  # it is due, and its owner is on its way
        back = w.producer("p1", shop.look_up)
        back.running.add("t")
        await asyncio.sleep(60)
        assert shop.end(back, "t") == "COMMITTED"

    play(scene)


def test_a_feedback_process_that_stood_still_has_heard_nobody_meanwhile() -> None:
    """A live owner's polls wait in front of a stopped process; the silence is the process's fault."""

    async def scene(w: World) -> None:
        shop = Shop(w)
        other = shop.instance("p2")
        shop.begin("p1", "t", timeout_ms=3_000)
        await asyncio.sleep(2.8)
        await w.feedback.poll("p1", 5, [], 0.1)  # the next one finds the process stopped
        hold_loop(30.0)
        await asyncio.sleep(5)
        assert other.asked == [] and w.group.outcome("t") == "PREPARE"
        back = shop.instance("p1")
        back.running.add("t")
        await asyncio.sleep(60)
        assert shop.end(back, "t") == "COMMITTED"

    play(scene)


def test_an_owner_that_closes_with_nothing_running_need_not_be_waited_for() -> None:
    async def scene(w: World) -> None:
        shop = Shop(w)
        first = shop.instance("p1")
        shop.instance("p2")
        await asyncio.sleep(0.1)
        shop.begin("p1", "t", timeout_ms=1_000)
        first.die()
        w.feedback.leave("p1", True)
        await until(lambda: w.group.outcome("t") == "ROLLBACK", 2)

    play(scene)


def test_an_owner_that_closes_while_it_runs_is_waited_for() -> None:
    async def scene(w: World) -> None:
        shop = Shop(w)
        first = shop.instance("p1")
        shop.instance("p2")
        await asyncio.sleep(0.1)
        shop.begin(first, "t", timeout_ms=1_000)
        first.die()
        w.feedback.leave("p1", False)
        await asyncio.sleep(GONE_S - 1)
        assert shop.end(first, "t") == "COMMITTED"

    play(scene)


def test_an_owner_that_is_sent_away_is_let_in_when_checks_wait_for_it() -> None:
    async def scene(w: World) -> None:
        shop = Shop(w)
        for n in range(3):
            shop.instance(f"a{n}")
        await asyncio.sleep(0.5)
        first = shop.instance("p1")
        shop.begin(first, "t", timeout_ms=500)
        await until(lambda: first.told["running"] >= 1, GONE_S)
        assert w.shard.counts["polls_refused"] > 0
        await asyncio.sleep(20)
        assert shop.end(first, "t") == "COMMITTED"

    play(scene, polls_parked_max=3, producers_max=3)


def test_an_id_that_another_instance_took_up_is_not_rolled_back_under_it() -> None:
    """The check began under the PREPARE of an instance that died; its answer is about that PREPARE."""

    async def scene(w: World) -> None:
        shop = Shop(w)
        asked = w.producer("p2", silent)
        shop.begin("p1", "t", timeout_ms=1_000)
        await until(lambda: asked.times_asked("t") == 1, GONE_S + 5)
        index = w.group.open("t").newest_index
        successor = shop.instance("p3")
        shop.begin(successor, "t")  # prepared again
        assert w.group.open("t").instance == "p3" and w.group.open("t").newest_index > index
        w.feedback.answer("p2", [(ORDERS, "t", "ROLLBACK", "", index)])
        await asyncio.sleep(10)
        assert shop.end(successor, "t") == "COMMITTED"
        counts = w.pair.status()["groups"][0]["counts"]
        assert counts["prepared_again"] == 1

    play(scene)


def test_an_answer_about_an_older_prepare_never_settles_a_newer_check() -> None:
    table = CheckTable(FeedbackConfig())
    seat = table.arrive("p2", 5, (), 0.0)
    assert seat is not None
    seat.parked = True
    table.locked(0, [LockedRow("t", "q", 0, 0, -1, False, "", 7)], 0.0)
    assert list(table.assign(0.0)) == ["p2"]
    table.locked(0, [LockedRow("t", "q", 0, 0, -1, False, "p1", 9)], 1.0)
    assert table.answer("p2", (0, "t"), ROLLBACK, Trouble.NONE, 7, 1.0) is Verdict.ROLLBACK, "under 7 only"
    assert table.answer("p2", (0, "t"), ROLLBACK, Trouble.NONE, 9, 1.0) is None, "nobody asked it under 9"


def test_a_rollback_of_another_instance_counts_no_more_when_the_owner_is_back() -> None:
    config = FeedbackConfig()
    table = CheckTable(config)

    def parks(name: str, now: float) -> None:
        seat = table.arrive(name, 5, (), now)
        assert seat is not None
        seat.parked = True

    row = LockedRow("t", "q", 0, 0, -1, False, "p1", 7)
    table.owners.gone_in_s("p1", 0.0)  # met
    now = config.owner_gone_s + 1
    parks("p2", now)
    table.locked(0, [row], now)
    assert list(table.assign(now)) == ["p2"], "gone"
    parks("p1", now + 1)
    assert table.answer("p2", (0, "t"), ROLLBACK, Trouble.NONE, 7, now + 1) is None
    assert list(table.assign(now + 1)) == ["p1"], "the owner is asked after all"
    table.locked(0, [row], now + 2)
    assert table.answer("p1", (0, "t"), UNKNOWN, Trouble.RUNNING, 7, now + 2) is None
    assert [key for key, _ in table.take_put_off()] == [(0, "t")]
    assert table.answer("p2", (0, "t"), ROLLBACK, Trouble.NONE, 7, now + 3) is None, (
        "late, and the owner runs it"
    )
    assert table.answer("p2", (0, "t"), COMMITTED, Trouble.NONE, 7, now + 3) is Verdict.COMMIT, (
        "a row is a row"
    )


def test_a_hand_out_that_is_not_confirmed_unseats_nobody() -> None:
    config = FeedbackConfig()
    table = CheckTable(config)
    seat = table.arrive("p", 5, (), 0.0)
    assert seat is not None
    seat.parked = True
    table.locked(0, [LockedRow("t1", "q", 0, 0), LockedRow("t2", "q", 0, 0)], 0.0)
    (handed,) = table.assign(0.0).values()
    assert len(handed) == 2
    table.arrive("p", 3, [((0, "t1"), 0)], 0.1)  # it has one of them; the other was lost on its way
    seat.parked = True
    expired = table.expire(config.confirm_s + 0.1)
    assert expired.lost_producers == [] and expired.returned == 1
    assert list(seat.holding) == [(0, "t1")], "it still works on the other one"
    assert [check.row.tx_id for check in table.assign(config.confirm_s + 0.1)["p"]] == ["t2"]


def test_when_an_owner_is_gone() -> None:
    owners = Owners(20.0, started=100.0)
    assert owners.gone_in_s("never seen", 105.0) == 20.0, "met now"
    assert owners.gone_in_s("never seen", 125.0) == 0.0
    owners.heard("p", 130.0)
    assert owners.gone_in_s("p", 140.0) == 10.0 and owners.silent_s("p", 140.0) == 10.0
    owners.closed("p")
    assert owners.gone_in_s("p", 140.0) == 0.0
    owners.heard("p", 141.0)  # an older poll of it, or it took its answer back
    assert owners.gone_in_s("p", 141.0) == 20.0
    early = Owners(20.0, started=100.0)
    early.heard("p", 90.0)
    assert early.gone_in_s("p", 111.0) == 9.0, "counted from the start"


def test_owners_are_forgotten_only_in_the_safe_direction() -> None:
    owners = Owners(20.0, started=0.0, limit=3)
    for n in range(3):
        assert owners.gone_in_s(f"o{n}", float(n)) == 20.0
    assert owners.gone_in_s("o3", 10.0) == 20.0 and len(owners) == 3
    assert owners.gone_in_s("o3", 19.0) == 20.0, "not met yet: there is no room"
    assert owners.gone_in_s("o3", 21.0) == 20.0, "in the place of one that is gone"
    assert owners.gone_in_s("o1", 22.0) == 0.0 and owners.gone_in_s("o3", 41.0) == 0.0
    for n in range(10):
        owners.heard(f"live{n}", 50.0)
    assert len(owners) == 6, "three of each kind"
    assert owners.gone_in_s("live0", 51.0) == 20.0, "forgotten, so waited for again"


def test_however_many_owners_are_there_one_that_is_not_is_gone_at_last() -> None:
    """More owners poll than are remembered. Of two that ended, both were known and one had been heard of."""
    owners, silent = Owners(20.0, started=0.0, limit=3), ("died", "died before")
    owners.heard("died", 1.0)
    for second in range(2, 30):
        for n in range(10):
            owners.heard(f"live{n}", float(second))
        assert owners.gone_in_s("live0", float(second)) > 0, "it polled, and was forgotten"
        for name in silent:
            owners.gone_in_s(name, float(second))
    assert [owners.gone_in_s(name, 30.0) for name in silent] == [0.0, 0.0]
    owners.heard("died", 31.0)
    assert owners.gone_in_s("died", 31.0) == 20.0, "it was only silent"


def test_pauses_of_checks_that_wait_for_their_owner() -> None:
    assert [running_pause_s(age) for age in (0.0, 6.0, 9.0, 3_600.0)] == [1.0, 3.0, 4.5, 30.0]
    assert [absent_pause_s(silent, gone) for silent, gone in ((0, 20), (4, 16), (16, 4), (20, 0.1))] == [
        1,
        4,
        4,
        0.1,
    ]


def test_an_owner_must_not_be_gone_while_it_was_only_sent_away() -> None:
    with pytest.raises(ConfigError, match="owner_gone_s"):
        FeedbackConfig(owner_gone_s=17.0)
    with pytest.raises(ConfigError, match="owner_gone_s"):
        FeedbackConfig(owner_gone_s=1.9, poll_wait_max_s=5.0)
    assert FeedbackConfig(owner_gone_s=2.1, poll_wait_max_s=5.0).sent_away_max_s == 1.5
