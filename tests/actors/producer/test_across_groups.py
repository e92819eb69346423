"""Preparing over two broker groups when one of them refuses: what is undone, and what the caller is told."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from escrowmq.actors.client.failures import Failure, FailureKind
from escrowmq.actors.producer.config import ProducerConfig
from escrowmq.actors.producer.encoding.blocks import Block, DecisionBlock, Outcome, PrepareBlock
from escrowmq.actors.producer.encoding.encoder import Encoder, TxPlan
from escrowmq.actors.producer.transactions.across_groups import PASSING, prepare
from escrowmq.replication.model import Message, ResultCode
from tests.support.places import by_name

NO_LEADER = Failure(FailureKind.UNAVAILABLE, "no leader")


#: Where home opens each transaction.
HOME_INDEX = 7


class TwoGroups:
    """Two broker groups in a dict. PREPAREs are answered at once; decisions arrive when the test says so."""

    def __init__(self) -> None:
        self.open: dict[int, set[str]] = {0: set(), 1: set()}
        self.refusing: dict[int, Outcome] = {}
        self.late: list[tuple[int, DecisionBlock]] = []
        self.now = 0.0

    def enqueue(self, gid: int, block: Block) -> None:
        if isinstance(block, DecisionBlock):
            self.late.append((gid, block))
        elif failure := self.refusing.get(gid):
            block.done(failure)
        else:
            if isinstance(block, PrepareBlock):
                self.open[gid].update(block.tx_ids)
                if block.participants:
                    block.opened_at = block.newest_at = [HOME_INDEX] * len(block.tx_ids)
            self.now += 1.0
            block.done({})

    def deliver(self) -> None:
        """Delivers all decisions, and those that they bring about."""
        while self.late:
            gid, block = self.late.pop(0)
            self.open[gid] -= set(block.tx_ids)
            block.done({})

    def call_later(self, delay_s: float, work: Callable[[], None]) -> None:
        self.now += delay_s
        work()

    def clock(self) -> float:
        return self.now

    def timeout_s(self, block: PrepareBlock) -> float:
        return 6.0


def plan(given_id: bool) -> TxPlan:
    """A transaction with a message in each of two groups."""
    encoder = Encoder(
        ProducerConfig(), lambda topic: 8, lambda topic, partition: by_name(topic, partition, 2)
    )
    one_of = {by_name("orders", partition, 2): partition for partition in range(8)}
    messages = [Message("orders", b"a", partition=one_of[0]), Message("orders", b"b", partition=one_of[1])]
    encoded, size = encoder.encode(messages, "tx")
    return encoder.plan("tx", "tx", encoded, size, 0, given_id)


def attempt(groups: TwoGroups, given_id: bool = True) -> Outcome:
    """Prepares; returns what the caller is told."""
    told: list[Outcome] = []
    prepare(groups, plan(given_id), told.append)
    (outcome,) = told
    return outcome


@pytest.mark.parametrize("refusing", [0, 1])
def test_a_callers_own_id_that_comes_back_is_not_rolled_back_by_the_attempt_before(refusing: int) -> None:
    groups = TwoGroups()
    groups.refusing = {refusing: NO_LEADER}
    assert attempt(groups), "refused"
    groups.refusing = {}
    assert attempt(groups) == {}, "prepared: the caller runs its local transaction now"
    groups.deliver()
    assert groups.open == {0: {"tx"}, 1: {"tx"}}


def test_a_callers_own_id_that_may_be_open_is_told_as_unknown() -> None:
    groups = TwoGroups()
    home, other = plan(True).groups
    groups.refusing = {other: NO_LEADER}
    outcome = attempt(groups)
    assert (
        isinstance(outcome, Failure) and outcome.kind is FailureKind.UNKNOWN and outcome.detail == "no leader"
    )
    assert groups.open[home] == {"tx"} and not groups.late, "the check asks, unless the caller comes back"


def test_where_nothing_was_done_the_caller_is_told_so() -> None:
    groups = TwoGroups()
    groups.refusing = {plan(True).groups[0]: NO_LEADER}
    assert attempt(groups) is NO_LEADER and not groups.late
    assert attempt(groups, given_id=False) is NO_LEADER and not groups.late


def test_a_generated_id_is_rolled_back_everywhere() -> None:
    groups = TwoGroups()
    groups.refusing = {plan(False).groups[1]: NO_LEADER}
    assert attempt(groups, given_id=False) is NO_LEADER
    groups.deliver()
    assert groups.open == {0: set(), 1: set()}


def test_a_refusal_is_told_once_its_roll_back_has_ended_and_as_unknown_if_nobody_knows_how() -> None:
    groups = TwoGroups()
    home, other = plan(True).groups
    refusal = {0: (ResultCode.UNKNOWN_TOPIC, ["orders"])}
    groups.refusing = {other: refusal}
    told: list[Outcome] = []
    prepare(groups, plan(True), told.append)
    assert not told, "the rollback is under way"
    groups.deliver()
    assert told == [refusal] and groups.open[home] == set()
    told.clear()
    prepare(groups, plan(True), told.append)
    ((_, roll_back),) = groups.late
    roll_back.done(Failure(FailureKind.UNKNOWN))
    assert told == [Failure(FailureKind.UNKNOWN)]


@pytest.mark.parametrize("code", PASSING)
def test_a_refusal_that_passes_uses_up_no_id_of_the_callers(code: ResultCode) -> None:
    groups = TwoGroups()
    home, other = plan(True).groups
    groups.refusing = {other: {0: (code, 7)}}
    outcome = attempt(groups)
    assert isinstance(outcome, Failure) and outcome.kind is FailureKind.UNKNOWN
    assert groups.open[home] == {"tx"} and not groups.late, "it may come again, or the check asks"
    groups.refusing = {}
    assert attempt(groups) == {}


def test_a_generated_id_is_rolled_back_for_a_refusal_that_passes() -> None:
    groups = TwoGroups()
    home, other = plan(False).groups
    groups.refusing = {other: {0: (ResultCode.TOO_MANY_OPEN, 7)}}
    told: list[Outcome] = []
    prepare(groups, plan(False), told.append)
    groups.deliver()
    assert told == [{0: (ResultCode.TOO_MANY_OPEN, 7)}] and groups.open[home] == set()
