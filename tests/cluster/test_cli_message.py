"""``escrowmq message`` against a cluster in memory: both formats, exit codes, errors with hints."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest
from typer.testing import CliRunner, Result

from escrowmq import Cluster, Message
from escrowmq.cluster.cli.app import app
from escrowmq.cluster.cli.failing import NOT_FOUND, USAGE
from escrowmq.testing import InMemoryCluster

START = datetime(2026, 7, 1, tzinfo=UTC)


@pytest.fixture
def cluster(commands_join: Callable[[Cluster], None]) -> Iterator[InMemoryCluster]:
    with InMemoryCluster(start=START) as made:
        made.admin.create_topic("orders")
        with made.producer("shop") as producer:
            for n in range(5):
                headers = {"who": b"kim" if n % 2 else b"\xff"}
                message = Message("orders", b"value %d" % n, b"key", headers, keys=[f"order-{n}"])
                producer.send(message).result(0)
                made.clock.advance(60)
            with producer.transaction(tx_id="tx-1") as transaction:
                transaction.send(Message("orders", b"\x00\xff"))
                transaction.prepare()
        commands_join(made)
        yield made


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["message", *arguments])


def test_show_prints_a_message_and_json_has_all_of_it(cluster: InMemoryCluster) -> None:
    told = run("show", "orders", "0", "0")
    assert told.exit_code == 0
    for text in ("key", "value 0", "2026-07-01 00:00:00.000Z", "header who", r"b'\xff'", "header keys"):
        assert text in told.stdout
    told = json.loads(run("show", "orders", "0", "5", "--format", "json").stdout)
    assert told["tx_id"] == "tx-1" and told["timestamp"] == round(START.timestamp() * 1000) + 300_000
    assert told["value"] == {"base64": base64.b64encode(b"\x00\xff").decode()}


def test_find_shows_what_it_found(cluster: InMemoryCluster) -> None:
    for option, value, found in (
        ("--key", "key", [0, 1, 2, 3, 4]),
        ("--business-key", "order-3", [3]),
        ("--tx-id", "tx-1", [5]),
        ("--header", "who=kim", [1, 3]),
        ("--header", "who=lee", []),
    ):
        told = json.loads(run("find", "orders", option, value, "--format", "json").stdout)
        assert [message["offset"] for message in told["messages"]] == found and told["after"] is None
    told = run(
        "find", "orders", "--key", "key", "--since", "2026-07-01T00:01Z", "--until", "2026-07-01T00:02Z"
    )
    assert "value 1" in told.stdout and "value 2" not in told.stdout
    told = run("find", "orders", "--key", "nothing", "--partition", "0")
    assert told.exit_code == 0 and "nothing found in topic 'orders'" in told.stderr


def test_find_says_how_to_continue(cluster: InMemoryCluster) -> None:
    told = run("find", "orders", "--key", "key", "--limit", "3")
    assert "value 2" in told.stdout and "value 3" not in told.stdout
    after = told.stderr.split("--after ")[1].strip()
    told = run("find", "orders", "--key", "key", "--limit", "3", "--after", after)
    assert "value 3" in told.stdout and "value 2" not in told.stdout and "--after" not in told.stderr


def test_trace_tells_the_life_of_a_message(cluster: InMemoryCluster) -> None:
    with cluster.consumer("billing", ["orders"], auto_offset_reset="earliest") as consumer:
        consumer.poll()
        consumer.commit()
    told = run("trace", "orders", "0", "5")
    for text in ("its transaction was committed", "shop", "producer", "billing", "passed", "tx-1"):
        assert text in told.stdout, text
    told = run("trace", "orders", "0", "0")
    assert "it was sent" in told.stdout and "decided" not in told.stdout
    traced = json.loads(run("trace", "orders", "0", "5", "--format", "json").stdout)
    assert traced["decided_by"] == "producer" and traced["groups"][0]["state"] == "passed"


def test_wrong_questions_have_exit_codes_and_say_what_is_wrong(cluster: InMemoryCluster) -> None:
    for code, *arguments in (
        (NOT_FOUND, "show", "nothing", "0", "0"),
        (NOT_FOUND, "trace", "orders", "9", "0"),
        (USAGE, "find", "orders"),
        (USAGE, "find", "orders", "--key", "a", "--tx-id", "b"),
        (USAGE, "find", "orders", "--header", "who"),
        (USAGE, "find", "orders", "--key", "a", "--since", "yesterday"),
        (USAGE, "find", "orders", "--key", "a", "--limit", "0"),
        (USAGE, "find", "orders", "--key", "a", "--after", "x"),
    ):
        told = run(*map(str, arguments))
        assert told.exit_code == code, (arguments, told.stderr)
        assert [line.split(":")[0] for line in told.stderr.splitlines()] in (["error"], ["error", "hint"])
    told = run("show", "orders", "0", "6")
    assert told.exit_code != 0 and "[0, 6]" in told.stderr
