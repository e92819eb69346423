"""Fence and inbox on Django's own connections and ``atomic`` blocks, with real Django."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.db import IntegrityError, ProgrammingError, connection, connections, transaction

from escrowmq import Message, OutcomeUnknown, TransactionState
from escrowmq.integrations import (
    AlreadyDone,
    DatabaseMisused,
    DjangoDatabase,
    Fence,
    FenceLost,
    Inbox,
    NoDatabaseTransaction,
    Outbox,
    OutboxRelay,
)
from tests.support.database_servers import Server
from tests.support.django_shop import Order, django_database
from tests.support.inboxes import record
from tests.support.relay_clusters import ClusterBroker
from tests.support.shops import Tx
from tests.support.waiting import wait_until

COMMITTED, ROLLBACK, UNKNOWN = TransactionState.COMMITTED, TransactionState.ROLLBACK, TransactionState.UNKNOWN
FENCE, INBOX, OUTBOX = "django_fence", "django_inbox", "django_outbox"


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def alias(
    request: pytest.FixtureRequest, server_of: Callable[[str], Server | None], tmp_path: Path
) -> Iterator[str]:
    with django_database(
        server_of(request.param), tmp_path, FENCE, INBOX, OUTBOX, f"{OUTBOX}_shards"
    ) as found:
        yield found


@pytest.fixture
def fence(alias: str) -> Fence:
    made = Fence(DjangoDatabase(alias), app="shop", table=FENCE, lock_timeout_s=0.3)
    made.create_table()
    return made


@pytest.fixture
def inbox(alias: str) -> Inbox:
    made = Inbox(DjangoDatabase(alias), group="billing", table=INBOX)
    made.create_table()
    return made


def store(alias: str, name: str) -> None:
    Order.objects.using(alias).create(id=name)


def stored(alias: str) -> set[str]:
    return set(Order.objects.using(alias).values_list("id", flat=True))


def elsewhere(work: Callable[[], Any]) -> Any:
    """The result of a call in another thread, which has other connections."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    return found[0]


def test_both_orders_and_a_check_while_the_block_runs(fence: Fence, alias: str) -> None:
    with fence.local(Tx("1")) as db:
        assert db is connections[alias]
        store(alias, "1")
        assert elsewhere(lambda: fence.query_status("1", "")) is UNKNOWN
    assert fence.query_status("1", "") is COMMITTED
    with pytest.raises(AlreadyDone), fence.local(Tx("1")):
        raise AssertionError("not reached")
    assert fence.query_status("2", "") is ROLLBACK
    with pytest.raises(FenceLost), fence.local(Tx("2")):
        raise AssertionError("not reached")
    with pytest.raises(ZeroDivisionError), fence.local(Tx("3")):
        store(alias, "3")
        raise ZeroDivisionError
    assert fence.query_status("3", "") is ROLLBACK
    assert stored(alias) == {"1"} and connections[alias].get_autocommit()


def test_inner_blocks_and_functions_on_commit_work_in_a_block(
    fence: Fence, alias: str, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[str] = []

    def fails() -> None:
        raise IntegrityError("not the commit's")

    with fence.local(Tx("1")):
        store(alias, "1")
        with pytest.raises(IntegrityError), transaction.atomic(using=alias):
            store(alias, "1")
        transaction.on_commit(fails, using=alias)
        transaction.on_commit(lambda: called.append("1"), using=alias)
        assert called == []
    assert called == ["1"] and "on_commit() failed" in caplog.text
    with pytest.raises(ZeroDivisionError), fence.local(Tx("2")):
        transaction.on_commit(lambda: called.append("2"), using=alias)
        raise ZeroDivisionError
    with fence.local(Tx("3")):
        pass
    assert called == ["1"] and fence.query_status("1", "") is COMMITTED


def test_a_block_that_can_only_be_rolled_back_is_not_told_as_committed(fence: Fence, alias: str) -> None:
    with pytest.raises(DatabaseMisused, match="only be rolled back"), fence.local(Tx("1")):
        store(alias, "1")
        transaction.set_rollback(True, using=alias)
    with pytest.raises(DatabaseMisused, match="only be rolled back"), fence.local(Tx("2")):
        connections[alias].close()
    assert stored(alias) == set()
    assert list(fence.query_statuses([("1", ""), ("2", "")])) == [ROLLBACK, ROLLBACK]


def test_a_lost_answer_to_the_commit_is_unknown(
    fence: Fence, alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def commit() -> None:
        real()
        raise ProgrammingError("the answer is lost")

    real = connections[alias].commit
    with pytest.raises(OutcomeUnknown), fence.local(Tx("1")):
        monkeypatch.setattr(connections[alias], "commit", commit)
        store(alias, "1")
    assert fence.query_status("1", "") is COMMITTED and stored(alias) == {"1"}


def test_by_hand_in_an_atomic_block_of_the_application(fence: Fence, alias: str) -> None:
    db = connections[alias]
    with transaction.atomic(using=alias):
        fence.enter(db, Tx("1"), Tx("2"))
        store(alias, "1")
    assert fence.query_status("2", "") is COMMITTED
    with pytest.raises(NoDatabaseTransaction, match="atomic"):
        fence.enter(db, Tx("3"))
    atomic = lambda: transaction.atomic(using=alias)  # noqa: E731
    with atomic():
        transaction.set_rollback(True, using=alias)  # as after a statement that has failed
        with pytest.raises(NoDatabaseTransaction, match="only be rolled back"):
            fence.enter(db, Tx("3"))
    with pytest.raises(DatabaseMisused, match="outermost"), atomic(), atomic():
        fence.enter(db, Tx("3"))
    with pytest.raises(DatabaseMisused, match="ATOMIC_REQUESTS"), atomic(), fence.local(Tx("3")):
        raise AssertionError("not reached")
    with pytest.raises(DatabaseMisused, match=r"fence\.local"), transaction.atomic(using=alias):
        fence.enter(db, Tx("3"))
        fence.commit(db, Tx("3"))
    assert fence.query_status("3", "") is ROLLBACK


def test_an_inbox_in_atomic_blocks(inbox: Inbox, alias: str) -> None:
    db = connections[alias]
    for number in (1, 2, 1, 2):
        with transaction.atomic(using=alias), inbox.once(db, record(number)) as first:
            if first:
                store(alias, str(number))
    with pytest.raises(ZeroDivisionError), transaction.atomic(using=alias), inbox.once(db, record(3)):
        store(alias, "3")
        raise ZeroDivisionError
    caught = pytest.raises(ZeroDivisionError)
    with transaction.atomic(using=alias), caught, inbox.once(db, record(3)):  # and committed all the same
        raise ZeroDivisionError
    with transaction.atomic(using=alias), inbox.once(db, record(3)) as first:
        assert first
    with pytest.raises(NoDatabaseTransaction), inbox.once(db, record(4)):
        raise AssertionError("not reached")
    only_back = pytest.raises(NoDatabaseTransaction, match="inner atomic block")
    with transaction.atomic(using=alias), only_back, inbox.once(db, record(4)):
        transaction.set_rollback(True, using=alias)  # as after a statement that has failed
    assert stored(alias) == {"1", "2"}
    assert inbox.purge(None, keep_s=3600.0).read == 3


def test_an_outbox_in_atomic_blocks_and_its_relay(alias: str) -> None:
    outbox = Outbox(DjangoDatabase(alias), table=OUTBOX)
    outbox.create_table()
    db = connections[alias]
    broker = ClusterBroker()
    with OutboxRelay(outbox, broker.cluster, app="shop", poll_s=60) as relay:
        wait_until(relay.status, what="the relay has taken its shard")
        for number in (1, 2):
            with transaction.atomic(using=alias):
                store(alias, str(number))
                outbox.send(db, Message("t", b"%d" % number, key=b"k"))
            wait_until(partial(has_sent, relay, number), what=f"on_commit wakes the relay for row {number}")
        with pytest.raises(ZeroDivisionError), transaction.atomic(using=alias):
            outbox.send(db, Message("t", b"never"))
            raise ZeroDivisionError
        with pytest.raises(NoDatabaseTransaction, match="atomic"):
            outbox.send(db, Message("t", b"never"))
        with transaction.atomic(using=alias):
            transaction.set_rollback(True, using=alias)
            with pytest.raises(NoDatabaseTransaction, match="only be rolled back"):
                outbox.send(db, Message("t", b"never"))
    assert [message.value for message in broker.log] == [b"1", b"2"] and outbox.rows() == []
    assert stored(alias) == {"1", "2"}
    broker.close()


def has_sent(relay: OutboxRelay, rows: int) -> bool:
    return relay.rows_sent == rows


def test_what_is_not_djangos_is_refused(tmp_path: Path) -> None:
    with django_database(None, tmp_path) as alias:
        fence = Fence(DjangoDatabase(alias), app="shop", table=FENCE)
        fence.create_table()
        for wrong in (None, "default", object()):
            with pytest.raises(DatabaseMisused, match=r"django\.db\.connection"):
                fence.enter(wrong, Tx("1"))
        with transaction.atomic():
            fence.enter(connection, Tx("1"))  # the proxy that everybody imports
        assert fence.query_status("1", "") is COMMITTED
        memory = connections.configure_settings(
            {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
        )
        connections.settings["memory"] = memory["default"]
        with pytest.raises(DatabaseMisused, match="in-memory"):
            DjangoDatabase("memory")
