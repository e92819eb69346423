"""What ``send_many`` and ``send_table`` refuse: the row is named, and nothing is sent."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import escrowmq
from escrowmq import Closed, InvalidMessage, MessageTooLarge, NotSupported, SentMany, UnknownTopic
from escrowmq.testing import InMemoryCluster
from tests.support.many import producer_of_memory, values_of

BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"values": b"bytes"}, InvalidMessage, "values must be a list"),
    ({"values": 7}, InvalidMessage, "values must be a list"),
    ({"values": [b"a", "b"]}, InvalidMessage, "row 1: value must be bytes, not str"),
    ({"values": [b"a", None]}, InvalidMessage, "row 1: value must be bytes, not NoneType"),
    ({"values": [b"a", bytearray(b"b")]}, InvalidMessage, "row 1: value must be bytes, not bytearray"),
    ({"values": [b"a"], "keys": [b"1", b"2"]}, InvalidMessage, "1 values, but 2 keys"),
    ({"values": [b"a"], "keys": [1]}, InvalidMessage, "row 0: key must be bytes or None, not int"),
    ({"values": [b"a"], "keys": "k"}, InvalidMessage, "keys must be a list"),
    ({"values": [b"a"], "headers": {1: b""}}, InvalidMessage, "headers must map str to bytes"),
    ({"values": [b"a"], "headers": {"\ud800": b""}}, InvalidMessage, "headers cannot be encoded"),
    ({"values": [b"a", b"b"], "headers": [None, {"h": "x"}]}, InvalidMessage, "row 1: headers"),
    ({"values": [b"a", b"b"], "headers": [None, 7]}, InvalidMessage, "row 1: headers"),
    ({"values": [b"a"], "headers": []}, InvalidMessage, "1 values, but 0 headers"),
    ({"values": [b"a"], "partition": -1}, InvalidMessage, "partition must be"),
    ({"values": [b"a"], "partition": True}, InvalidMessage, "partition must be"),
    ({"values": [b"a"], "partition": 4}, UnknownTopic, "no partition 4"),
    ({"values": [b"a", b"x" * 2_000]}, MessageTooLarge, "row 1: message of 2"),
    ({"values": [b"a", b"x"], "keys": [None, b"x" * 2_000]}, MessageTooLarge, "row 1: message of 2"),
    (
        {"values": [b"a", b"x"], "headers": [{"h": b"x" * 2_000}, None]},
        MessageTooLarge,
        "row 0: message of 2",
    ),
    ({"values": [b"a"], "topic": ""}, InvalidMessage, "topic must be"),
    ({"values": [b"a"], "topic": "no-such"}, UnknownTopic, "create it"),
]


@pytest.mark.parametrize(("arguments", "error", "text"), BAD)
def test_a_wrong_row_is_named_and_nothing_is_sent(
    cluster: InMemoryCluster, arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    producer = producer_of_memory(cluster, message_bytes_max=2_000)
    with pytest.raises(error, match=text):
        producer.send_many(**{"topic": "t", **arguments})
    assert producer.flush(1.0) and values_of(cluster) == []


BAD_TABLES: list[tuple[Callable[[], Any], dict[str, Any], type[Exception], str]] = [
    (lambda: pa.table({"value": [b"a", None]}), {}, InvalidMessage, "row 1: column 'value' is null"),
    (
        lambda: pa.table({"value": pa.chunked_array([[b"a"], [b"b", None]])}),
        {},
        InvalidMessage,
        "row 2: column 'value' is null",
    ),
    (lambda: pd.DataFrame({"value": [b"a", None]}), {}, InvalidMessage, "row 1: column 'value' is null"),
    (lambda: pa.table({"value": [1, 2]}), {}, InvalidMessage, "column 'value' has type int64"),
    (
        lambda: pa.table({"value": [b"a"], "k": [1.5]}),
        {"key": "k"},
        InvalidMessage,
        "column 'k' has type double",
    ),
    (lambda: pa.table({"v": [b"a"]}), {}, InvalidMessage, "needs one column 'value'; it has: v"),
    (lambda: pa.table([[b"a"], [b"b"]], ["value", "value"]), {}, InvalidMessage, "needs one column 'value'"),
    (lambda: pa.table({"value": [b"a"]}), {"key": "k"}, InvalidMessage, "needs one column 'k'"),
    (lambda: pd.DataFrame({"value": [b"a", "b", 3]}), {}, InvalidMessage, "column 'value'"),
    (lambda: [b"a"], {}, InvalidMessage, "not list"),
    (lambda: {"value": [b"a"]}, {}, InvalidMessage, "not dict"),
    (lambda: None, {}, InvalidMessage, "not NoneType"),
    (lambda: pa.table({"value": [b"a", b"x" * 2_000]}), {}, MessageTooLarge, "row 1: message of 2007 bytes"),
    (
        lambda: pa.table({"value": [b"a", b"x"], "k": [None, b"x" * 2_000]}),
        {"key": "k"},
        MessageTooLarge,
        "row 1: message of 2009 bytes",
    ),
    (lambda: pa.table({"value": [b"a"]}), {"partition": 9}, UnknownTopic, "no partition 9"),
]


@pytest.mark.parametrize(("table", "options", "error", "text"), BAD_TABLES)
def test_a_wrong_table_is_named_and_nothing_is_sent(
    cluster: InMemoryCluster,
    table: Callable[[], Any],
    options: dict[str, Any],
    error: type[Exception],
    text: str,
) -> None:
    producer = producer_of_memory(cluster, message_bytes_max=2_000)
    with pytest.raises(error, match=text):
        producer.send_table("t", table(), **options)
    assert producer.flush(1.0) and values_of(cluster) == []


def test_a_closed_producer_refuses_them(cluster: InMemoryCluster) -> None:
    producer = producer_of_memory(cluster)
    producer.close()
    for work in (
        lambda: producer.send_many("t", [b""]),
        lambda: producer.send_table("t", pa.table({"value": [b""]})),
    ):
        with pytest.raises(Closed):
            work()


def test_without_the_libraries_it_says_what_to_install(
    cluster: InMemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = producer_of_memory(cluster)
    sent = producer.send_many("t", [b"x"]).result(1.0)
    monkeypatch.setitem(sys.modules, "numpy", None)
    monkeypatch.delitem(sys.modules, "escrowmq.actors.producer.encoding.table_rows")
    with pytest.raises(NotSupported, match="numpy"):
        _ = sent.offsets
    assert sent[0].offset == 0
    with pytest.raises(NotSupported, match="pyarrow and numpy"):
        producer.send_table("t", pa.table({"value": [b"x"]}))


def test_it_is_a_public_name() -> None:
    assert escrowmq.SentMany is SentMany and "SentMany" in escrowmq.__all__
