"""Claims at one replica: what a relay's repetitions, restarts and a zombie's requests leave in the log."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import encode_command, encode_row
from escrowmq.replication.format.ops import ROLLBACK, PrepareExtra
from escrowmq.replication.model import ResultCode as Code
from escrowmq.replication.replica.replica import UNASKED_AGAIN_MS, UNASKED_MAX, Limits
from escrowmq.replication.state.transactions import COMMITTED, ROLLED_BACK
from tests.support.single import Single
from tests.support.storage import take

NAME = "outbox.shop.0"
HOUR_MS = 3_600_000


def numbered(tx_id: str, epoch: int, number: int, value: str, now_ms: int) -> bytes:
    """One attempt at a batch: its messages are the same in all, its id is not."""
    row = encode_row(None, value.encode(), None, None)
    claim = (NAME, epoch, number, value.encode().ljust(16, b"."))
    extra = PrepareExtra("relay", heard_ms=now_ms, claim=claim)
    return ops.prepare("shop", "t", [tx_id], None, 0, 0, [1], -1, 1, extra) + ops.pre_message(
        "t", 0, [0], [len(row)], [row]
    )


class Group(Single):
    """One that has a topic ``t`` and takes claims."""

    claimants = itertools.count()

    def begin(self) -> Group:
        self.topic(partitions=1)
        return self

    def pass_time(self, ms: int) -> None:
        for _ in range(max(ms // 250, 1)):
            self.now_ms += 250
            self.replica.on_timer(self.now_ms)
            self.send()

    def claim(self) -> int:
        """As a new claimant does: an epoch above the newest."""
        epoch, told = 1, [1, 0]
        while told[0]:
            epoch = max(epoch, told[1] + 1)
            (told,) = self.submit(ops.claim(NAME, epoch, f"claimant {next(self.claimants)}"))
        return epoch

    def prepare(self, tx_id: str, epoch: int, number: int, value: str) -> Any:
        return self.submit(numbered(tx_id, epoch, number, value, self.now_ms))[0]

    def ship(self, tx_id: str, epoch: int, number: int, value: str) -> None:
        """As a relay does: prepare, commit, and out of the way with what an earlier claimant has left."""
        while (result := self.prepare(tx_id, epoch, number, value))[0] == Code.CLAIM_OPEN:
            app, left = result[1]
            self.submit(ops.rollback(app, [left]))
        if result == [0]:
            assert self.submit(ops.commit("shop", [tx_id])) == [[0]]
        else:
            assert result == [int(Code.PARTIAL), [[0, int(Code.DUPLICATE), "COMMITTED"]]]


def test_a_batch_is_readable_once_whatever_is_repeated(tmp_path: Path) -> None:
    group = Group(tmp_path).begin()
    first = group.claim()
    group.ship("1.0", first, 1, "a")
    group.ship("1.1", first, 1, "a")
    assert group.prepare("2.0", first, 2, "b") == [0], "and the relay is killed before it commits"
    group.close()
    group = Group(tmp_path)
    second = group.claim()
    group.ship("2.1", second, 2, "b")
    group.ship("2.2", second, 2, "b")
    assert group.prepare("3.0", first, 3, "zombie") == [int(Code.FENCED), second]
    assert group.submit(ops.commit("shop", ["2.0"]))[0] != [0], "its commit comes too late"
    assert group.texts() == ["a", "b"]
    group.close()


def test_a_zombie_that_commits_first_has_done_the_next_ones_work(tmp_path: Path) -> None:
    group = Group(tmp_path).begin()
    first = group.claim()
    assert group.prepare("1.0", first, 1, "a") == [0]
    second = group.claim()
    assert group.submit(ops.commit("shop", ["1.0"])) == [[0]]
    group.fail_over()
    group.ship("1.1", second, 1, "a")
    group.ship("2.0", second, 2, "b")
    assert group.texts() == ["a", "b"]
    group.close()


def test_two_attempts_of_one_entry_are_not_both_open(tmp_path: Path) -> None:
    group = Group(tmp_path).begin()
    epoch = group.claim()
    attempts = [numbered(f"1.{n}", epoch, 1, "a", group.now_ms) for n in range(2)]
    assert [answer[1][0][0] for answer in group.send(*attempts)] == [0, int(Code.CLAIM_OPEN)]
    group.close()


# ------------------------------------------------------------------ what an earlier claimant has left open


def alone(tx_id: str, epoch: int, group: Group, *, on_timeout: str = ROLLBACK, branch: bool = False) -> Any:
    """A transaction with one message, whose time-out is far away; by default nobody is asked about it."""
    row = encode_row(None, tx_id.encode(), None, None)
    home, index = (1, [7]) if branch else (-1, [])
    extra = PrepareExtra(
        "p", home_index=index, heard_ms=group.now_ms, claim=(NAME, epoch, 0, b""), on_timeout=on_timeout
    )
    frame = ops.prepare("shop", "t", [tx_id], None, HOUR_MS, 0, [1], home, 1, extra)
    return group.submit(frame + ops.pre_message("t", 0, [0], [len(row)], [row]))


def states(group: Group, *tx_ids: str) -> list[Any]:
    """None: open."""
    table = group.state.transactions.look("shop")
    return [None if tx_id in table.open else table.outcome(tx_id) for tx_id in tx_ids]


def test_a_claim_rolls_back_what_nobody_is_asked_about(tmp_path: Path) -> None:
    group = Group(tmp_path, groups=2).begin()
    first = group.claim()
    alone("alone", first, group)
    alone("local", first, group, on_timeout="")
    alone("branch", first, group, on_timeout="", branch=True)
    alone("committed", first, group)
    assert group.submit(ops.commit("shop", ["committed"])) == [[0]]
    group.claim()
    group.send()
    assert states(group, "alone", "local", "branch", "committed") == [ROLLED_BACK, None, None, COMMITTED]
    late = group.submit(ops.commit("shop", ["alone"]))[0]
    assert late[1][0][1:] == [int(Code.TX_CONFLICT), "ROLLBACK"]
    assert group.submit(ops.commit("shop", ["local"])) == [[0]]
    assert not group.state.transactions.audit, "no operator has done it"
    assert group.replica.led.decided[ROLLED_BACK, "claim"] == 1
    (settling,) = (one for one in group.state.transactions.lives.copy()[1] if one.by == "claim")
    assert list(settling.tx_ids) == ["alone"]
    group.close()


def test_a_commit_that_waits_already_comes_first(tmp_path: Path) -> None:
    group = Group(tmp_path).begin()
    alone("x", group.claim(), group)
    answers = group.send(ops.claim(NAME, 2, "next"), ops.commit("shop", ["x"]))
    assert answers == [("ok", [[0, [2, 0]]]), ("ok", [[0]])]
    group.send()
    assert group.texts() == ["x"]
    group.close()


@pytest.mark.parametrize("how", ["another leader", "restart", "restart from a snapshot"])
def test_whoever_leads_next_rolls_back_what_was_overtaken(how: str, tmp_path: Path) -> None:
    group = Group(tmp_path).begin()
    alone("x", group.claim(), group)
    entry = encode_command([ops.claim(NAME, 2, "next")], 1, group.now_ms)
    group.node.propose(entry, lambda results, outcome: None)
    group.node.held = []
    group.pass_time(500)
    assert len(group.node.held) == 1, "its rollback, which gets into no log"
    ((_, done),), group.node.held = group.node.held, None
    if how == "another leader":
        group.node.ready = False
        done(None, None)
        group.pass_time(250)
        group.fail_over()
    else:
        if how == "restart from a snapshot":
            take(group.checkpoints, group.state)
        group.close()
        group = Group(tmp_path)
        assert group.redone == 0 or how == "restart"
    assert states(group, "x") == [None]
    group.send(), group.send()
    assert states(group, "x") == [ROLLED_BACK]
    group.close()


def test_a_rollback_that_finds_no_room_is_written_later(tmp_path: Path) -> None:
    group = Group(tmp_path, limits=Limits(queue_bytes_max=1)).begin()
    alone("x", group.claim(), group)
    group.claim()
    group.publish("fills the queue")
    group.pass_time(UNASKED_AGAIN_MS - 500)
    assert states(group, "x") == [None]
    group.pass_time(1_000)
    assert states(group, "x") == [ROLLED_BACK]
    group.close()


def test_many_are_rolled_back_in_portions(tmp_path: Path) -> None:
    group = Group(tmp_path).begin()
    ids = [f"x{n}" for n in range(2 * UNASKED_MAX + 1)]
    extra = PrepareExtra("p", heard_ms=group.now_ms, claim=(NAME, group.claim(), 0, b""), on_timeout=ROLLBACK)
    frame = ops.prepare("shop", "t", ids, None, HOUR_MS, 0, [1] * len(ids), -1, 0, extra)
    assert group.submit(frame) == [[0]]
    group.claim()
    left = []
    for _ in range(4):
        group.send()
        left.append(states(group, *ids).count(None))
    assert left == [UNASKED_MAX + 1, 1, 0, 0]
    group.close()


def test_one_that_is_prepared_again_meanwhile_stays_open(tmp_path: Path) -> None:
    group = Group(tmp_path).begin()
    alone("x", group.claim(), group)
    second = group.claim()
    group.node.held = []
    group.send()  # its ROLLBACK is under way
    held, group.node.held = group.node.held, None
    assert len(held) == 1
    row = encode_row(None, b"x", None, None)
    extra = PrepareExtra("q", heard_ms=group.now_ms + 1, claim=(NAME, second, 0, b""), on_timeout=ROLLBACK)
    again = ops.prepare("shop", "t", ["x"], None, HOUR_MS, 0, [1], -1, 1, extra)
    again += ops.pre_message("t", 0, [0], [len(row)], [row])
    assert group.submit(again) == [[0]]
    for command, done in held:
        group.node.propose(command, done)
    group.pass_time(3 * UNASKED_AGAIN_MS)
    assert states(group, "x") == [None], "it is the new claimant's"
    assert group.submit(ops.commit("shop", ["x"])) == [[0]]
    group.close()


def test_no_batch_is_stored_twice_and_a_zombie_that_goes_on_writes_nothing(tmp_path: Path) -> None:
    group = Group(tmp_path).begin()
    first = group.claim()
    group.ship("1.0", first, 1, "a")
    group.prepare("2.0", first, 2, "b")
    second = group.claim()
    group.ship("1.1", second, 1, "a")
    group.ship("2.1", second, 2, "b")
    for late in ("2.0", "3.0"):  # the paused one goes on
        if group.prepare(late, first, int(late[0]), "zombie" if late == "3.0" else "b") == [0]:
            group.submit(ops.commit("shop", [late]))
    group.submit(ops.commit("shop", ["2.0"]))
    assert group.texts() == ["a", "b"]
    group.close()
