"""Application ids over several groups: a refusal neither uses an id up nor takes it from someone else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from escrowmq.actors.client.failures import Failure, FailureKind
from escrowmq.actors.producer.batcher import GroupBatcher
from escrowmq.actors.producer.bulk.bulk_blocks import BlockUnit, SpreadUnit
from escrowmq.actors.producer.encoding.blocks import Block, InquireBlock, Outcome, PrepareBlock
from escrowmq.actors.producer.encoding.encoder import TxPlan
from escrowmq.actors.producer.transactions import across_groups
from escrowmq.replication.errors import OutcomeUnknown, TooManyOpenTransactions
from escrowmq.replication.format import ops
from escrowmq.replication.model import ResultCode
from tests.support.several_groups import APP, TOPIC, Client, SeveralGroups

Sent = list[tuple[int, str]]


def forgetful(groups: int = 2) -> SeveralGroups:
    """Every group has forgotten ids: a PREPARE is stale if its client has heard nothing since."""
    world = SeveralGroups(groups)
    for group in world.groups:
        group.forget_settled()
        assert group.state.forgotten_ms > 0
    return world


def watched(client: Client, also: Callable[[int, Block], None] = lambda gid, block: None) -> Sent:
    """What the client sends, as (group, kind of block); ``also`` is called before each."""
    sent: Sent = []

    def look(gid: int, block: Block) -> bool:
        sent.append((gid, type(block).__name__))
        also(gid, block)
        return False

    client.dies_before = look
    return sent


@pytest.mark.parametrize("given", [False, True])
def test_the_first_transaction_of_a_producer_is_prepared_where_ids_were_forgotten(given: bool) -> None:
    world = forgetful()
    client = Client(world)
    heard: list[int] = []
    sent = watched(client, lambda gid, block: heard.append(getattr(block, "heard_ms", -1)))
    plan = client.plan("order-42", given=given)
    refused_at = world.groups[1].state.now_ms
    assert client.prepare(plan) == {} and world.outcomes("order-42") == ["PREPARE"] * 2
    assert sent == [(0, "PrepareBlock"), (1, "PrepareBlock"), (0, "InquireBlock"), (1, "PrepareBlock")]
    assert heard[-1] > refused_at, "what the refusal told, whatever is heard later"
    assert client.settle(plan) == {} and world.outcomes("order-42") == ["COMMITTED"] * 2


@pytest.mark.parametrize("given", [False, True])
def test_a_branch_is_not_repeated_if_home_has_decided_meanwhile(given: bool) -> None:
    """A check was quicker. The branch may have been settled, and forgotten: it must not be opened."""
    world = forgetful()
    client = Client(world)

    def check(gid: int, block: Block) -> None:
        if isinstance(block, InquireBlock):
            world.groups[0].submit(ops.rollback(APP, ["order-42"], "feedback"))

    sent = watched(client, check)
    plan = client.plan("order-42", given=given)
    outcome = client.prepare(plan)
    assert outcome and not isinstance(outcome, Failure), "not prepared"
    assert outcome[0] == (ResultCode.DUPLICATE, "ROLLBACK")
    assert sent.count((1, "PrepareBlock")) == 1 and world.groups[1].outcome("order-42") != "PREPARE"


def test_asking_home_is_what_keeps_it_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(again: across_groups._Again, chosen: list[int], heard_ms: int) -> None:
        again._left += 1
        again._home_said(chosen, heard_ms, {})

    monkeypatch.setattr(across_groups._Again, "_ask_home", at_once)
    world = forgetful()
    client = Client(world)
    prepares = 0

    def check(gid: int, block: Block) -> None:
        nonlocal prepares
        prepares += gid == 1 and isinstance(block, PrepareBlock)
        if prepares == 2:
            world.groups[0].submit(ops.rollback(APP, ["order-42"], "feedback"))

    watched(client, check)
    assert client.prepare(client.plan("order-42", given=True)) == {}, "and its local transaction runs in vain"
    assert world.outcomes("order-42") == ["ROLLBACK", "PREPARE"]


def between_home_and_branch(world: SeveralGroups) -> tuple[Client, TxPlan, Callable[[], Outcome | None]]:
    """An instance that knows both groups; its transaction is open at home, and its branch is under way. Also
    a function that lets the branch continue, and returns the outcome."""
    client = Client(world, instance="first")
    for batcher, group in zip(client.batchers, world.groups, strict=True):
        batcher.heard(group.state.now_ms)
    plan, told = client.plan("order-42", given=True), list[Outcome]()
    held: list[tuple[int, Block]] = []
    enqueue = client.enqueue

    def hold(gid: int, block: Block) -> None:
        if gid == 1 and isinstance(block, PrepareBlock):
            held.append((gid, block))
        else:
            enqueue(gid, block)

    client.enqueue = hold  # type: ignore[method-assign]
    across_groups.prepare(client, plan, told.append)
    client.run()
    assert world.outcomes("order-42") == ["PREPARE", "UNKNOWN"] and not told

    def go_on() -> Outcome | None:
        client.enqueue = enqueue  # type: ignore[method-assign]
        for gid, block in held:
            enqueue(gid, block)
        client.run()
        return told[0] if told else None

    return client, plan, go_on


def limit(world: SeveralGroups, gid: int, open_max: int) -> None:
    world.groups[gid].single.replica.admission._open_max = open_max


def refused_second(world: SeveralGroups) -> Outcome | None:
    """While one instance is between home and branch, another one prepares the id and is refused there."""
    limit(world, 1, 0)
    second = Client(world, instance="second")
    outcome = second.prepare(second.plan("order-42", given=True))
    limit(world, 1, 100)
    return outcome


def test_who_is_refused_does_not_roll_back_what_another_instance_has_opened() -> None:
    world = SeveralGroups()
    first, plan, go_on = between_home_and_branch(world)
    outcome = refused_second(world)
    assert isinstance(outcome, Failure) and outcome.kind is FailureKind.UNKNOWN
    assert go_on() == {}, "prepared: the first one runs its local transaction"
    assert first.settle(plan) == {} and world.outcomes("order-42") == ["COMMITTED"] * 2


def refused_at_home() -> tuple[SeveralGroups, Sent, list[TxPlan]]:
    """Home refuses one instance's PREPARE. Before anything else of it arrives, another instance prepares the
    transaction. What the first one sent, and the other one's plan."""
    world = SeveralGroups()
    limit(world, 0, 0)
    first, second = Client(world, instance="first"), Client(world, instance="second")
    taken_up: list[TxPlan] = []

    def take_up(gid: int, block: Block) -> None:
        if not isinstance(block, PrepareBlock) and not taken_up:
            limit(world, 0, 100)
            taken_up.append(second.plan("order-42", given=True))
            assert second.prepare(taken_up[0]) == {}, "it runs its local transaction"

    sent = watched(first, take_up)
    outcome = first.prepare(first.plan("order-42", given=True))
    assert outcome and not isinstance(outcome, Failure) and outcome[0][0] == ResultCode.TOO_MANY_OPEN
    return world, sent, taken_up


def test_whom_home_refuses_sends_no_roll_back() -> None:
    """Nothing of this attempt is open, so a rollback could only hit another one's."""
    _, sent, _ = refused_at_home()
    assert sent == [(0, "PrepareBlock")]


class Repeating(Client):
    """The first answer to each PREPARE is lost, and the topic is deleted before it is sent again."""

    def _send(self, gid: int, batcher: GroupBatcher) -> bool:
        built = batcher.build()
        if built is None:
            return False
        self._answer(gid, built)  # it arrives, and the answer does not
        if gid == 0 and TOPIC in self.world.groups[0].state.topics.topics:
            self.world.groups[0].submit(ops.delete_topic(TOPIC))
        batcher.answered(built, self._answer(gid, built), True)
        return True


@pytest.mark.parametrize("given", [True, False])
def test_a_refused_repetition_is_no_proof_that_nothing_is_open(given: bool) -> None:
    """The first copy may have opened the transaction. An id of the application stays open for the next
    caller, or the check, and the caller is told so; one of ours is rolled back."""
    world = SeveralGroups()
    client = Repeating(world, instance="first")
    sent = watched(client)
    outcome = client.prepare(client.plan("order-42", given=given))
    kinds = [kind for _, kind in sent]
    if given:
        assert isinstance(outcome, Failure) and outcome.kind is FailureKind.UNKNOWN
        assert world.groups[0].outcome("order-42") == "PREPARE" and "DecisionBlock" not in kinds
    else:
        assert outcome == {0: (ResultCode.UNKNOWN_TOPIC, [TOPIC, 1])} and "DecisionBlock" in kinds
        assert world.groups[0].outcome("order-42") == "ROLLBACK"


@pytest.mark.parametrize("perhaps_open", [True, False])
def test_many_in_one_group_that_are_refused_when_repeated(perhaps_open: bool) -> None:
    """The same where a block has transactions of one group alone."""
    client = Client(SeveralGroups(1), instance="first")
    sent = watched(client)
    client.release = lambda size: None  # type: ignore[attr-defined]
    column = [0, 1, 2], [1] * 3, [b"x"] * 3
    ids = ["order-42", "ours", "settled"]
    block = PrepareBlock(TOPIC, -1, 0, 0, ids, ids, [1] * 3, {(TOPIC, 0): column}, 3)
    block.perhaps_open = perhaps_open
    unit = BlockUnit(client, 0, block, [0, 1, 2], {"order-42"})  # type: ignore[arg-type]
    refused = int(ResultCode.TOO_MANY_OPEN), 5
    unit._prepared({0: refused, 1: refused, 2: (int(ResultCode.DUPLICATE), "COMMITTED")}, lambda unit: None)
    errors = [type(unit.exceptions[i].error) for i in (0, 1)]
    assert errors == [OutcomeUnknown if perhaps_open else TooManyOpenTransactions, TooManyOpenTransactions]
    assert unit.exceptions[2].error is None
    assert [kind for _, kind in sent] == ["DecisionBlock"] * perhaps_open


def test_who_has_opened_it_does_not_roll_back_what_another_instance_has_taken_up() -> None:
    world = SeveralGroups()
    _, _, go_on = between_home_and_branch(world)
    second = Client(world, instance="second")
    plan = second.plan("order-42", given=True)
    assert second.prepare(plan) == {}, "it runs its local transaction"
    # The first one's branch has other content now: a refusal that does not pass.
    table = world.groups[1].state.transactions.look(APP).open
    table.replace("order-42", table["order-42"]._replace(digests=(1,)))
    outcome = go_on()
    assert isinstance(outcome, Failure) and outcome.kind is FailureKind.UNKNOWN
    assert world.groups[0].outcome("order-42") == "PREPARE"
    assert second.settle(plan) == {} and world.groups[0].outcome("order-42") == "COMMITTED"


def test_a_limit_at_a_branch_does_not_use_an_id_up() -> None:
    world = SeveralGroups()
    client = Client(world)
    limit(world, 1, 0)
    outcome = client.prepare(client.plan("order-42", given=True))
    assert isinstance(outcome, Failure) and outcome.kind is FailureKind.UNKNOWN
    limit(world, 1, 100)
    plan = client.plan("order-42", given=True)
    assert client.prepare(plan) == {} and client.settle(plan) == {}
    assert world.outcomes("order-42") == ["COMMITTED"] * 2


def test_a_refusal_that_lasts_rolls_back_what_this_call_has_opened() -> None:
    world = SeveralGroups()
    world.groups[1].submit(ops.prepare(APP, "orders", ["order-42"], None, 0, 0, [1], -1, 0))  # someone else's
    client = Client(world)
    outcome = client.prepare(client.plan("order-42", given=True))
    assert outcome == {0: (ResultCode.TX_CONFLICT, "PREPARE")}
    assert world.outcomes("order-42") == ["ROLLBACK", "PREPARE"], "and somebody's stays as it was"


def test_home_that_has_another_transaction_of_the_id_is_not_told_to_roll_it_back() -> None:
    world = SeveralGroups()
    one = Client(world, instance="first")
    plan = one.plan("order-42", given=True)
    assert one.prepare(plan) == {}
    other = Client(world, instance="second")
    for batcher, group in zip(other.batchers, world.groups, strict=True):
        batcher.heard(group.state.now_ms)
    another = other.plan("order-42", given=True)
    assert another.parts is not None
    for blocks in another.parts.values():
        blocks[0].digests = (1,)
    assert other.prepare(another) == {0: (ResultCode.TX_CONFLICT, "PREPARE")}
    assert one.settle(plan) == {} and world.outcomes("order-42") == ["COMMITTED"] * 2


def test_many_at_once_leave_alone_what_another_instance_has_opened() -> None:
    """The same in a bulk: of two ids one is new, and the other is open at home for an instance under way."""
    world = SeveralGroups()
    _, _, go_on = between_home_and_branch(world)
    bulk = Client(world, instance="second")
    plans = [bulk.plan(tx_id, given=True) for tx_id in ("order-42", "order-43")]
    blocks: dict[int, PrepareBlock] = {}
    for gid in (0, 1):
        (one,), (two,) = (plan.parts[gid] for plan in plans if plan.parts is not None)
        columns = {
            name: ([0] * len(rows) + [1] * len(more[2]), [*sizes, *more[1]], [*rows, *more[2]])
            for (name, (_, sizes, rows)), more in zip(one.columns.items(), two.columns.values(), strict=True)
        }
        ids, digests = [*one.tx_ids, *two.tx_ids], [*one.digests, *two.digests]
        blocks[gid] = PrepareBlock("orders", one.home_group, 0, 0, ids, ids, digests, columns, 9, True)
        blocks[gid].participants = one.participants
    bulk.release = lambda size: None  # type: ignore[attr-defined]
    given = {"order-42", "order-43"}
    unit = SpreadUnit(bulk, (0, 1), blocks, [0, 1], given, 0.0)  # type: ignore[arg-type]
    table = world.groups[1].single.state.transactions.app(APP).settled
    table.young.update({"order-42": 2, "order-43": 2})  # settled there: a refusal for good
    told: list[object] = []
    unit.prepare(told.append)
    bulk.run()
    assert told == [unit]
    assert world.groups[0].outcome("order-43") == "ROLLBACK", "opened by this call"
    assert world.groups[0].outcome("order-42") == "PREPARE", "opened by another one"
    del table.young["order-42"]
    assert go_on() == {}


@pytest.mark.parametrize("given", [True, False])
def test_many_at_once_that_home_refuses_send_no_roll_back_for_ids_of_the_application(given: bool) -> None:
    """As one transaction does. An id that the producer made is nobody else's: its rollback hurts nobody."""
    world = SeveralGroups()
    limit(world, 0, 0)
    bulk = Client(world, instance="second")
    sent = watched(bulk)
    parts = bulk.plan("order-42", given=given).parts
    assert parts is not None
    bulk.release = lambda size: None  # type: ignore[attr-defined]
    blocks = {gid: blocks[0] for gid, blocks in parts.items()}
    ids = {"order-42"} if given else set[str]()
    unit = SpreadUnit(bulk, (0, 1), blocks, [0], ids, 0.0)  # type: ignore[arg-type]
    told: list[object] = []
    unit.prepare(told.append)
    bulk.run()
    assert told == [unit]
    assert [kind for _, kind in sent] == ["PrepareBlock"] + ["DecisionBlock"] * (not given)
