"""``escrowmq schedule`` against a cluster in memory: both formats, exit codes, errors as one line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest
from typer.testing import CliRunner, Result

from escrowmq import Cluster, Message
from escrowmq.cluster.cli.app import app
from escrowmq.cluster.cli.failing import CONFLICT, NOT_FOUND, USAGE
from escrowmq.testing import InMemoryCluster

START = datetime(2026, 7, 1, tzinfo=UTC)


@pytest.fixture
def cluster(commands_join: Callable[[Cluster], None]) -> Iterator[InMemoryCluster]:
    with InMemoryCluster(start=START) as made:
        made.admin.create_topic("orders")
        commands_join(made)
        yield made


@pytest.fixture
def ids(cluster: InMemoryCluster) -> list[str]:
    with cluster.producer("shop") as producer:
        sent = [producer.send(Message("orders", b"x", delay_s=60 * n)).result(0) for n in (1, 2, 3)]
    return [str(one.schedule_id) for one in sent]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["schedule", *arguments])


def test_list_shows_what_waits_in_order_of_time(cluster: InMemoryCluster, ids: list[str]) -> None:
    told = json.loads(run("list", "orders", "--format", "json").stdout)
    assert [message["schedule_id"] for message in told] == ids
    assert [message["readable_from"] for message in told] == [
        f"2026-07-01 00:0{n}:00.000Z" for n in (1, 2, 3)
    ]
    table = run("list", "orders").stdout
    assert all(text in table for text in (*ids, "2026-07-01 00:03:00.000Z", "readable from"))


def test_list_can_be_limited(cluster: InMemoryCluster, ids: list[str]) -> None:
    told = run("list", "orders", "--limit", "2")
    assert ids[1] in told.stdout and ids[2] not in told.stdout
    assert "these are the first 2; --limit shows more" in told.stderr
    for before in ("2026-07-01T00:02Z", str(round(START.timestamp() * 1000) + 120_000)):
        told = run("list", "orders", "--readable-before", before)
        assert ids[0] in told.stdout and ids[1] not in told.stdout


def test_an_empty_list_says_so(cluster: InMemoryCluster) -> None:
    told = run("list", "orders")
    assert told.exit_code == 0 and "no delayed messages wait in topic 'orders'" in told.stderr
    assert json.loads(run("list", "orders", "--format", "json").stdout) == []


def test_cancel_says_whether_it_is_cancelled(cluster: InMemoryCluster, ids: list[str]) -> None:
    told = run("cancel", ids[0], "--format", "json")
    assert json.loads(told.stdout) == {"schedule_id": ids[0], "cancelled": True}
    assert run("cancel", ids[0]).exit_code == 0
    cluster.clock.advance(120)
    told = run("cancel", ids[1])
    assert told.exit_code == CONFLICT and "it can be read already" in told.stderr
    assert ids[2] in run("list", "orders").stdout


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("list", "no-such"), NOT_FOUND, "unknown topic 'no-such'"),
        (("list", "orders", "--limit", "0"), USAGE, "limit must be 1 to 100000"),
        (("list", "orders", "--readable-before", "soon"), USAGE, "must be ISO 8601"),
        (("list", "orders", "--readable-before", "1800000000"), USAGE, "before is in ms"),
        (("cancel", "soon"), USAGE, "'soon' is no schedule id"),
        (("cancel", "orders/0/1/2/3/4"), USAGE, "was mistyped, or comes from another cluster"),
    ],
)
def test_what_is_wrong_is_one_line_with_a_hint(
    cluster: InMemoryCluster, arguments: tuple[str, ...], code: int, text: str
) -> None:
    told = run(*arguments)
    assert told.exit_code == code, told.output
    what, *hint = told.stderr.splitlines()
    assert what.startswith("error: ") and text in told.stderr and len(hint) <= 1


@pytest.mark.parametrize("arguments", [("--help",), ("list", "--help"), ("cancel", "--help")])
def test_every_command_has_help(arguments: tuple[str, ...]) -> None:
    told = run(*arguments)
    assert told.exit_code == 0 and "delayed message" in told.stdout.replace("\n", " ")
