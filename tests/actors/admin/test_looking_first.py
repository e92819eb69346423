"""An operator's COMMIT looks first: what was never prepared everywhere is not published in part."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from escrowmq import TransactionState
from escrowmq.actors.admin.admin import Admin
from escrowmq.replication.calling.answers import FoundTransaction
from escrowmq.replication.errors import NotFullyPrepared
from escrowmq.replication.format import ops
from escrowmq.replication.format.ops import PrepareExtra
from tests.support.brokers import Brokers

COMMITTED, ROLLBACK = TransactionState.COMMITTED, TransactionState.ROLLBACK
APP, TOPIC = "shop", "orders"
AdminOf = Callable[[Brokers], Admin]


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    running = Brokers(tmp_path_factory.mktemp("looking"), groups=2, replicas=1)
    running.topic(TOPIC, 2)
    yield running
    running.close()


def open_at_home(brokers: Brokers, tx_id: str, parts: int = 1) -> int:
    """In group 0, with a branch in group 1 to come; returns the log index of home's record."""
    home = PrepareExtra(participants=[1], parts=parts)
    ((code, index),) = brokers.groups[0].submit(
        ops.prepare(APP, TOPIC, [tx_id], None, 60_000, 0, [1], -1, 0, home)
    )
    assert code == 0
    return int(index)


def open_branch(brokers: Brokers, tx_id: str, home_index: int, parts: int = 1) -> None:
    branch = PrepareExtra(home_index=[home_index], parts=parts)
    request = ops.prepare(APP, TOPIC, [tx_id], None, 60_000, 0, [1], 0, 0, branch)
    assert brokers.groups[1].submit(request) == [[0]]


def branch_is_missing(brokers: Brokers, tx_id: str) -> str:
    open_at_home(brokers, tx_id)
    return "not prepared in group 1"


def branch_lacks_a_part(brokers: Brokers, tx_id: str) -> str:
    open_branch(brokers, tx_id, open_at_home(brokers, tx_id), parts=2)
    return "group 1 has 1 of 2 parts"


def home_lacks_a_part(brokers: Brokers, tx_id: str) -> str:
    open_branch(brokers, tx_id, open_at_home(brokers, tx_id, parts=2))
    return "group 0 has 1 of 2 parts"


def branch_is_of_an_earlier_transaction(brokers: Brokers, tx_id: str) -> str:
    open_branch(brokers, tx_id, 1)
    open_at_home(brokers, tx_id)
    return "not prepared in group 1"


def home_knows_nothing(brokers: Brokers, tx_id: str) -> str:
    open_branch(brokers, tx_id, 1)
    return "its home group 0 has no record of it"


STORIES = [
    branch_is_missing,
    branch_lacks_a_part,
    home_lacks_a_part,
    branch_is_of_an_earlier_transaction,
    home_knows_nothing,
]


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_what_is_not_prepared_everywhere_is_rolled_back_and_never_committed(
    wide: Brokers, admin_of: AdminOf, unique: Callable[[str], str], story: Callable[[Brokers, str], str]
) -> None:
    admin, tx_id = admin_of(wide), unique("x")
    lacking = story(wide, tx_id)
    with pytest.raises(NotFullyPrepared, match=lacking):
        admin.resolve_transaction(tx_id, COMMITTED, app=APP)
    assert admin.show_transaction(tx_id, app=APP).state is TransactionState.PREPARE, "nothing was decided"
    shown = admin.resolve_transaction(tx_id, ROLLBACK, app=APP)
    assert shown.state is ROLLBACK and shown.open == {}


def test_what_is_prepared_everywhere_is_committed(
    wide: Brokers, admin_of: AdminOf, unique: Callable[[str], str]
) -> None:
    admin, tx_id = admin_of(wide), unique("x")
    open_branch(wide, tx_id, open_at_home(wide, tx_id))
    assert admin.resolve_transaction(tx_id, COMMITTED, app=APP).open == {}


def asked_before_its_prepare(brokers: Brokers, admin: Admin, tx_id: str, patch: pytest.MonkeyPatch) -> None:
    """Prepared everywhere. But the first answer of home's leader does not have it, as that of a leader which
    was deposed and does not know it."""
    transactions = admin._transactions
    before = transactions._find(tx_id, APP)[0]
    open_branch(brokers, tx_id, open_at_home(brokers, tx_id))
    answers = iter([before])
    find = transactions._find

    def find_late(tx_id: str, app: str | None) -> list[list[FoundTransaction]]:
        home, *others = find(tx_id, app)
        return [next(answers, home), *others]

    patch.setattr(transactions, "_find", find_late)


@pytest.mark.parametrize("decision", [COMMITTED, ROLLBACK])
def test_a_branch_is_never_decided_alone_while_home_is_open(
    wide: Brokers,
    admin_of: AdminOf,
    unique: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    decision: TransactionState,
) -> None:
    admin, tx_id = admin_of(wide), unique("x")
    asked_before_its_prepare(wide, admin, tx_id, monkeypatch)
    shown = admin.resolve_transaction(tx_id, decision, app=APP)
    assert shown.state is decision and shown.open == {}
    for group in wide.groups:
        states = group.leader().parts.inspection.tx_states(APP, [tx_id])
        assert states == ("ok", [decision.value])
