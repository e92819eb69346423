"""``produce`` and ``consume`` against a real cluster: text, bytes, files, JSON lines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from escrowmq import Cluster, Message
from tests.support.command_line import good, lines_of, run

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("healthy_again")]

Unique = Callable[[str], str]


def test_messages_go_in_as_arguments_and_come_out_in_order(topic: str) -> None:
    assert "2" in good("produce", topic, "one", "two", "--key", "k", "--header", "from=cli")
    found = lines_of("consume", topic)
    assert [record["value"] for record in found] == ["one", "two"]
    assert found[0]["key"] == "k" and found[0]["headers"] == {"from": "cli"} and found[0]["tx_id"] is None
    assert [record["offset"] for record in found] == [0, 1]
    assert "one" in good("consume", topic).splitlines()[0]
    assert set(good("consume", topic, "-f", "%v;").split(";")) > {record["value"] for record in found}


def test_messages_come_from_the_standard_input_a_file_and_json_lines(topic: str, tmp_path: Path) -> None:
    good("produce", topic, stdin="a\nb\n")
    file = tmp_path / "lines"
    file.write_text("k1:v1\nk2:v:2\n")
    good("produce", topic, "--file", str(file), "--key-separator", ":")
    entries = [{"value": "ü", "key": "j", "headers": {"h": "x"}}, {"value": "", "partition": 1}]
    good("produce", topic, "--json", stdin="".join(json.dumps(entry) + "\n" for entry in entries))
    found = {(record["key"], record["value"]) for record in lines_of("consume", topic)}
    assert found == {(None, "a"), (None, "b"), ("k1", "v1"), ("k2", "v:2"), ("j", "ü"), (None, "")}


def test_ten_thousand_lines_go_in_and_come_out(topic: str, tmp_path: Path) -> None:
    file = tmp_path / "many"
    file.write_text("".join(f"{n}\n" for n in range(10_000)))
    assert "10000" in good("produce", topic, "--file", str(file))
    assert sorted(int(record["value"]) for record in lines_of("consume", topic)) == list(range(10_000))


def test_a_topic_is_copied(cluster: Cluster, topic: str, unique: Unique) -> None:
    cluster.admin.create_topic(copy := unique("copy"), partitions=2)
    with cluster.producer(app="bytes") as producer, producer.transaction() as tx:
        tx.send(Message(topic, b"\xff\x00", key=b"\xfe", headers={"h": b"\x80"}, partition=1))
        tx.send(Message(topic, "ü\n".encode(), partition=0))
    good("produce", copy, "--json", stdin=good("consume", topic, "--format", "json"))
    told = ("partition", "offset", "key", "value", "headers")
    source, copied = (
        sorted(json.dumps([record[name] for name in told]) for record in lines_of("consume", of))
        for of in (topic, copy)
    )
    assert len(source) == 2 and source == copied


def test_a_transaction_goes_in_whole_and_shows_its_id(topic: str) -> None:
    sent = json.loads(good("produce", topic, "x", "y", "--transaction", "--format", "json"))
    found = lines_of("consume", topic)
    assert sorted(record["value"] for record in found) == ["x", "y"]
    assert {record["tx_id"] for record in found} == {sent["tx_id"]}


def test_bytes_that_are_no_text_come_out_as_base64(cluster: Cluster, topic: str) -> None:
    with cluster.producer(app="bytes") as producer:
        producer.send(Message(topic, b"\xff\x00")).result(20)
    assert lines_of("consume", topic)[0]["value"] == {"base64": "/wA="}


def test_where_to_begin_and_where_to_end_can_be_said(cluster: Cluster, topic: str) -> None:
    with cluster.producer(app="bounds", linger_ms=0) as producer:
        stored = [producer.send(Message(topic, b"%d" % n, partition=0)).result(20) for n in range(4)]
    assert [r["value"] for r in lines_of("consume", topic, "--max", "2")] == ["0", "1"]
    assert lines_of("consume", topic, "--from", "latest") == []
    since = lines_of("consume", topic, "--from", str(stored[2].timestamp))
    assert [r["value"] for r in since][-2:] == ["2", "3"]
    assert lines_of("consume", topic, "--partition", "1") == []
    followed = lines_of("consume", topic, "--follow", "--from", "earliest", "--max", "4")
    assert [r["value"] for r in followed] == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("produce", "t", "x", "--file", "f"), "give only one of them"),
        (("produce", "t", "--file", "/no/such/file"), "cannot read"),
        (("produce", "t", "x", "--header", "novalue"), "a header must be name=value"),
        (("produce", "t", "x", "--json", "--key", "k"), "with --json, each line"),
        (("consume", "t", "--from", "yesterday"), "--from must be"),
        (("consume", "t", "--group", "g", "--partition", "0"), "with --group"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(arguments: tuple[str, ...], complaint: str) -> None:
    done = run(*arguments)
    assert done.exit_code in (2, 4) and complaint in done.stderr


@pytest.mark.parametrize(
    "line",
    ["{", '{"key": "k"}', '{"value": 3}', '{"value": "v", "topic": "t"}', '{"value": "v", "headers": 1}'],
)
def test_a_json_line_that_does_not_fit_is_refused_with_its_number(topic: str, line: str) -> None:
    done = run("produce", topic, "--json", stdin='{"value": "fine"}\n' + line + "\n")
    assert done.exit_code == 2 and "line 2" in done.stderr
