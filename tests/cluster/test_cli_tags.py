"""``escrowmq produce --tag`` and ``escrowmq consume --tag`` against a cluster in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from typer.testing import CliRunner, Result

from escrowmq import Cluster
from escrowmq.cluster.cli.app import app
from escrowmq.cluster.cli.failing import USAGE
from escrowmq.testing import InMemoryCluster


@pytest.fixture
def cluster(commands_join: Callable[[Cluster], None]) -> Iterator[InMemoryCluster]:
    with InMemoryCluster() as made:
        made.admin.create_topic("orders")
        commands_join(made)
        yield made


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize("group", [[], ["--group", "billing"]])
def test_messages_are_sent_and_selected_by_tag(cluster: InMemoryCluster, group: list[str]) -> None:
    for value, options in (
        ("one", ["--tag", "paid", "--header", "h=1"]),
        ("two", []),
        ("three", ["--tag", "x"]),
    ):
        assert run("produce", "orders", value, *options).exit_code == 0
    told = run("consume", "orders", "--from", "earliest", "--tag", "paid", "--tag", "x", "-f", "%v;", *group)
    assert (told.exit_code, told.stdout) == (0, "one;three;"), told


def test_a_bad_tag_is_wrong_usage(cluster: InMemoryCluster) -> None:
    assert run("produce", "orders", "one", "--tag", "x" * 300).exit_code == USAGE
    assert run("consume", "orders", "--tag", "").exit_code == USAGE
    assert run("produce", "orders", "{}", "--json", "--tag", "x").exit_code == USAGE
