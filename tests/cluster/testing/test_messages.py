"""Single messages in a cluster in memory: shown, found, traced; and every wrong question."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from escrowmq import ConfigError, InvalidMessage, Message, OffsetOutOfRange, TransactionState, UnknownTopic
from escrowmq.actors.admin import messages as asking
from escrowmq.testing import InMemoryCluster

START = datetime(2026, 7, 1, tzinfo=UTC)
START_MS = round(START.timestamp() * 1000)


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    with InMemoryCluster(start=START) as made:
        made.admin.create_topic("orders", partitions=3)
        yield made


def offsets(found: Any) -> list[tuple[int, int]]:
    return [(message.partition, message.offset) for message in found.messages]


def send(cluster: InMemoryCluster, *messages: Message) -> list[tuple[int, int]]:
    with cluster.producer("shop") as producer:
        sent = [producer.send(message).result(0) for message in messages]
    return [(one.partition, one.offset) for one in sent]


def prepare(cluster: InMemoryCluster, tx_id: str, *messages: Message) -> None:
    with cluster.producer("shop") as producer, producer.transaction(tx_id=tx_id) as transaction:
        for message in messages:
            transaction.send(message)
        transaction.prepare()


def test_a_message_is_shown_as_it_was_sent(cluster: InMemoryCluster) -> None:
    ((partition, offset),) = send(cluster, Message("orders", b"value", b"key", {"h": b"1"}))
    shown = cluster.admin.message("orders", partition, offset)
    assert (shown.key, shown.value, shown.headers, shown.tx_id) == (b"key", b"value", {"h": b"1"}, None)
    assert shown.timestamp == START_MS


def test_a_key_is_looked_for_where_the_producer_puts_it(cluster: InMemoryCluster) -> None:
    sent = send(cluster, *(Message("orders", str(n).encode(), b"k%d" % (n % 7)) for n in range(50)))
    for n in range(7):
        found = cluster.admin.find("orders", key=f"k{n}")
        assert offsets(found) == sent[n::7] and found.after is None
        assert [message.value for message in found.messages] == [str(m).encode() for m in range(n, 50, 7)]
    assert not cluster.admin.find("orders", key="k7").messages


def test_a_message_with_a_partition_of_its_own_is_found_there(cluster: InMemoryCluster) -> None:
    send(cluster, *(Message("orders", b"", b"k", partition=n) for n in range(3)))
    assert len(cluster.admin.find("orders", key=b"k").messages) == 1
    assert offsets(cluster.admin.find("orders", key=b"k", partitions=range(3))) == [(0, 0), (1, 0), (2, 0)]


def test_a_transaction_is_found_in_all_partitions(cluster: InMemoryCluster) -> None:
    send(cluster, *(Message("orders", b"other", partition=n) for n in range(3)))
    prepare(cluster, "tx-1", *(Message("orders", b"", partition=n) for n in range(3)))
    assert offsets(cluster.admin.find("orders", tx_id="tx-1")) == [(0, 1), (1, 1), (2, 1)]
    assert not cluster.admin.find("orders", key="tx-1", partitions=[0, 1, 2]).messages


def test_business_keys_are_found_each_by_itself(cluster: InMemoryCluster) -> None:
    (first, other) = send(
        cluster,
        Message("orders", b"", keys=["order-17", "kim"], headers={"h": b"x"}),
        Message("orders", b"", headers={"keys": b" kim\torder-18 "}),
    )
    assert offsets(cluster.admin.find("orders", business_key="order-17")) == [first]
    assert offsets(cluster.admin.find("orders", business_key="kim")) == sorted([first, other])
    assert not cluster.admin.find("orders", business_key="order").messages
    assert cluster.admin.message("orders", *first).headers == {"h": b"x", "keys": b"order-17 kim"}


def test_headers_are_looked_through_up_to_a_limit(
    cluster: InMemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = send(
        cluster,
        *(
            Message("orders", b"", headers={"who": b"kim" if n % 5 else b"lee"}, partition=1)
            for n in range(50)
        ),
    )
    monkeypatch.setattr(asking, "SCANNED_MAX", 20)
    found, after, calls = list[tuple[int, int]](), None, 0
    while after is not None or not calls:
        answer = cluster.admin.find("orders", header=("who", b"lee"), after=after)
        found, after, calls = found + offsets(answer), answer.after, calls + 1
    assert found == sent[::5] and calls == 3
    assert not cluster.admin.find("orders", header=("lee", "who"), partitions=[1]).messages


def test_a_search_goes_on_where_it_ended(cluster: InMemoryCluster) -> None:
    send(cluster, *(Message("orders", b"", b"k", partition=n % 3) for n in range(30)))
    found, after = list[tuple[int, int]](), None
    while True:
        answer = cluster.admin.find("orders", key="k", partitions=[0, 2], limit=3, after=after)
        assert len(answer.messages) <= 3
        found, after = found + offsets(answer), answer.after
        if after is None:
            break
    assert found == [(partition, offset) for partition in (0, 2) for offset in range(10)]


def test_times_narrow_a_search(cluster: InMemoryCluster) -> None:
    for _ in range(5):
        send(cluster, Message("orders", b"", b"k", partition=0))
        cluster.clock.advance(10)
    where = {"key": "k", "partitions": [0]}
    since, until = START + timedelta(seconds=10), START_MS + 30_000
    assert offsets(cluster.admin.find("orders", **where, since=since)) == [(0, n) for n in (1, 2, 3, 4)]
    assert offsets(cluster.admin.find("orders", **where, until=until)) == [(0, n) for n in (0, 1, 2)]
    assert offsets(cluster.admin.find("orders", **where, since=since, until=until)) == [(0, 1), (0, 2)]
    naive = since.replace(tzinfo=None)
    assert offsets(cluster.admin.find("orders", **where, since=naive, until=naive)) == []


def test_what_comes_later_is_found_later(cluster: InMemoryCluster) -> None:
    for count in range(1, 6):
        send(cluster, Message("orders", b"", b"k", partition=0))
        assert len(cluster.admin.find("orders", key="k", partitions=[0]).messages) == count


def test_an_earlier_topic_of_that_name_is_not_found(cluster: InMemoryCluster) -> None:
    send(cluster, *(Message("orders", b"", b"k", partition=0) for _ in range(5)))
    answer = cluster.admin.find("orders", key="k", partitions=[0], limit=2)
    cluster.admin.delete_topic("orders")
    cluster.admin.create_topic("orders", partitions=3)
    send(cluster, Message("orders", b"new", b"k", partition=0))
    assert [m.value for m in cluster.admin.find("orders", key="k", partitions=[0]).messages] == [b"new"]
    with pytest.raises(ConfigError, match="created again"):
        cluster.admin.find("orders", key="k", partitions=[0], limit=2, after=answer.after)


def test_the_trace_of_a_plain_message(cluster: InMemoryCluster) -> None:
    ((partition, offset),) = send(cluster, Message("orders", b"x"))
    traced = cluster.admin.trace("orders", partition, offset)
    assert (traced.how, traced.readable_ms, traced.stored_ms) == ("sent", START_MS, START_MS)
    assert traced.app is traced.decided_by is traced.transaction is None and traced.groups == ()
    assert traced.message == cluster.admin.message("orders", partition, offset)


@pytest.mark.parametrize("size", [1, 1_000])  # a small row is copied by the COMMIT, a large one referred to
def test_the_trace_of_a_transaction_names_who_decided_it(cluster: InMemoryCluster, size: int) -> None:
    send(cluster, Message("orders", b"before", partition=0))
    with cluster.producer("shop") as producer:
        transaction = producer.transaction(tx_id="tx-1")
        transaction.send(Message("orders", b"x" * size, partition=0))
        transaction.send(Message("orders", b"y" * size, partition=0))
        transaction.prepare()
        cluster.clock.advance(3)
        cluster.admin.resolve_transaction("tx-1", TransactionState.COMMITTED, by="kim")
    for offset in (1, 2):
        traced = cluster.admin.trace("orders", 0, offset)
        assert (traced.how, traced.app, traced.decided_by) == ("committed", "shop", "operator:kim")
        assert traced.readable_ms == START_MS + 3_000
        assert traced.stored_ms == (None if size == 1 else START_MS)
        assert traced.transaction is not None and traced.transaction.tx_id == "tx-1"


def test_the_trace_of_a_delayed_message(cluster: InMemoryCluster) -> None:
    with cluster.producer("shop") as producer:
        producer.send(Message("orders", b"x" * 1_000, partition=0, delay_s=60)).result(0)
    with pytest.raises(OffsetOutOfRange):
        cluster.admin.trace("orders", 0, 1)
    cluster.clock.advance(61)
    traced = cluster.admin.trace("orders", 0, 0)
    assert (traced.how, traced.stored_ms) == ("released", START_MS)
    assert traced.readable_ms >= START_MS + 60_000


def test_transactions_of_one_moment_are_told_apart(cluster: InMemoryCluster) -> None:
    for n in range(20):
        prepare(cluster, f"tx-{n}", Message("orders", b"x" * 100 * (n % 3), partition=0))
        send(cluster, Message("orders", b"plain", partition=0))
    for n in range(20):
        traced = cluster.admin.trace("orders", 0, 2 * n)
        assert traced.message.tx_id == f"tx-{n}" and traced.how == "committed"
        assert cluster.admin.trace("orders", 0, 2 * n + 1).how == "sent"


def test_the_trace_says_which_groups_have_passed(cluster: InMemoryCluster) -> None:
    send(cluster, *(Message("orders", b"", partition=0) for _ in range(5)))
    for group, take in (("billing", 5), ("mail", 2)):
        with cluster.consumer(group, ["orders"], auto_offset_reset="earliest") as consumer:
            assert len(consumer.poll(take, timeout_s=1.0)) == take
            consumer.commit()
    told = {one.group: (one.kind, one.state, one.place) for one in cluster.admin.trace("orders", 0, 2).groups}
    assert told == {"billing": ("stream", "passed", 5), "mail": ("stream", "ahead", 2)}


WRONG: list[dict[str, Any]] = [
    {},
    {"key": "k", "tx_id": "t"},
    {"key": 5},
    {"key": "\ud800"},
    {"tx_id": b"t"},
    {"header": "name"},
    {"header": ("name",)},
    {"header": (b"name", b"value")},
    {"header": ("name", 5)},
    {"key": "k", "limit": 0},
    {"key": "k", "limit": asking.FIND_MAX + 1},
    {"key": "k", "limit": True},
    {"key": "k", "since": "today"},
    {"key": "k", "until": -1},
    {"key": "k", "since": 2, "until": 1},
    {"key": "k", "partitions": []},
    {"key": "k", "partitions": "0"},
    {"key": "k", "after": "here"},
    {"key": "k", "after": "0:0:00000000"},
    {"key": "k", "after": 5},
]


@pytest.mark.parametrize("question", WRONG, ids=repr)
def test_a_wrong_question_is_refused(cluster: InMemoryCluster, question: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        cluster.admin.find("orders", **question)


def test_a_continuation_of_another_question_is_refused(cluster: InMemoryCluster) -> None:
    send(cluster, *(Message("orders", b"", b"k", partition=0) for _ in range(5)))
    answer = cluster.admin.find("orders", key="k", partitions=[0], limit=2)
    with pytest.raises(ConfigError, match="another question"):
        cluster.admin.find("orders", key="l", partitions=[0], limit=2, after=answer.after)


@pytest.mark.parametrize("key", ["", "a b", "a\n", "x" * 1_025, "\ud800", 5, None])
def test_what_is_no_business_key_is_refused(cluster: InMemoryCluster, key: Any) -> None:
    with pytest.raises(InvalidMessage):
        Message("orders", keys=[key])
    if key is not None:
        with pytest.raises(InvalidMessage):
            cluster.admin.find("orders", business_key=key)


def test_business_keys_are_a_list_of_at_most_64_and_the_only_header_of_that_name() -> None:
    for wrong in ({"keys": "abc"}, {"keys": ["k"] * 65}, {"keys": ["a"], "headers": {"keys": b"b"}}):
        with pytest.raises(InvalidMessage):
            Message("orders", **wrong)  # type: ignore[arg-type]
    assert Message("orders", keys=[]).headers == {}


def test_unknown_offsets_are_named(cluster: InMemoryCluster) -> None:
    admin = cluster.admin
    for ask in (admin.message, admin.trace):
        with pytest.raises(UnknownTopic):
            ask("nothing", 0, 0)
        with pytest.raises(UnknownTopic, match="0 to 2"):
            ask("orders", 3, 0)
        with pytest.raises(OffsetOutOfRange, match=r"\[0, 0\]"):
            ask("orders", 0, 0)
        for wrong in ((-1, 0), (0, -1), ("0", 0), (0, 1.5), (True, 0)):
            with pytest.raises(ConfigError):
                ask("orders", *wrong)  # type: ignore[arg-type]
    with pytest.raises(UnknownTopic):
        admin.find("nothing", key="k")
    with pytest.raises(UnknownTopic):
        admin.find("orders", key="k", partitions=[3])
