"""What a command says to input that it cannot take, and when its output goes nowhere: one line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from escrowmq import Cluster
from escrowmq.cluster.cli.failing import FAILED, USAGE
from escrowmq.cluster.cli.options import number_or_date
from escrowmq.cluster.reading_client import NotAnswered, ask
from escrowmq.replication.errors import ConfigError
from escrowmq.testing import InMemoryCluster
from tests.support.command_line import good, run

HUGE = str(1 << 70)


@pytest.fixture
def cluster(commands_join: Callable[[Cluster], None]) -> Iterator[InMemoryCluster]:
    with InMemoryCluster() as made:
        made.admin.create_topic("orders", partitions=4)
        commands_join(made)
        yield made


@pytest.mark.parametrize(
    "line",
    [
        ("txn", "list", "--limit", HUGE),
        ("schedule", "list", "orders", "--readable-before", HUGE),
        ("schedule", "list", "orders", "--limit", HUGE),
        ("message", "show", "orders", HUGE, "0"),
        ("message", "show", "orders", "0", HUGE),
        ("message", "trace", "orders", "0", HUGE),
        ("message", "find", "orders", "--key", "k", "--since", HUGE),
        ("message", "find", "orders", "--key", "k", "--limit", HUGE),
        ("consume", "orders", "--max", HUGE),
        ("consume", "orders", "--from", HUGE),
        ("consume", "orders", "--partition", HUGE),
        ("produce", "orders", "a value", "--partition", HUGE),
        ("topic", "create", "more", "--partitions", HUGE),
        ("topic", "trim", "orders", "--before", HUGE),
        ("topic", "trim", "orders", "--before", "9" * 5000),
        ("dead", "list", "billing", "--since", HUGE),
        ("group", "reset", "billing", "--to", HUGE),
        ("settings", f"remember_ids_s={HUGE}"),
    ],
    ids=lambda line: " ".join(line)[:40],
)
def test_a_number_that_fits_into_no_request_is_refused_in_one_line(
    cluster: InMemoryCluster, line: tuple[str, ...]
) -> None:
    done = run(*line)
    assert done.exit_code in (USAGE, 4) and isinstance(done.exception, SystemExit), done.exception
    assert "Traceback" not in done.output and done.stderr.strip()


def test_a_number_that_no_request_takes_is_not_sent_to_an_exporter(tmp_path: Path) -> None:
    """The cluster's own client refuses it then, and names the argument."""
    for argument in (1 << 70, "\udcff"):
        with pytest.raises(NotAnswered, match="cannot be sent"):
            ask("auto", None, None, "transactions", [None, None, None, argument], where=[tmp_path])


def test_text_that_is_not_utf_8_is_refused_by_its_name(cluster: InMemoryCluster) -> None:
    for line in (
        ("topic", "describe", "\udcff"),
        ("produce", "\udcff", "v"),
        ("consume", "orders", "\udcff"),
        ("topic", "list", "--namespace", "\udcff"),
    ):
        done = run(*line)
        assert done.exit_code == USAGE and "UTF-8" in done.stderr, (line, done.output, done.exception)


@pytest.mark.parametrize("line", [("--help",), ("db", "schema", "--dialect", "sqlite"), ("--version",)])
def test_a_full_disk_under_the_output_is_told_in_one_line(line: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", "from escrowmq.cluster.cli import main; main()", *line],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == FAILED
    assert done.stderr == "error: input or output: No space left on device\n"


def test_a_topic_that_is_created_again_matches_what_is_not_given(cluster: InMemoryCluster) -> None:
    assert "4" in good("topic", "create", "orders")
    assert cluster.admin.create_topic("orders").partitions == 4
    assert cluster.admin.create_topic("new").partitions == 1
    done = run("topic", "create", "orders", "--partitions", "1")
    assert done.exit_code == 5 and "partitions is 4, not 1" in done.stderr


@pytest.mark.parametrize("setting", ["retention-ms", "retention-bytes"])
@pytest.mark.parametrize("command", [("create", "new"), ("alter", "orders")])
def test_a_retention_of_nothing_is_refused(
    cluster: InMemoryCluster, command: tuple[str, str], setting: str
) -> None:
    done = run("topic", *command, f"--{setting}", "0")
    assert done.exit_code == USAGE and "-1 keeps them without a limit" in done.stderr
    assert cluster.admin.describe_topic("orders").info.retention_ms == -1


@pytest.mark.parametrize("line", [("db", "purge"), ("db", "audit"), ("outbox", "list")])
def test_a_mistyped_sqlite_file_is_not_created(
    cluster: InMemoryCluster, tmp_path: Path, line: tuple[str, str]
) -> None:
    file = tmp_path / "shpo.db"
    done = run(*line, f"sqlite:///{file}", *(("--app", "shop") if line[0] == "db" else ()))
    assert done.exit_code == USAGE and f"there is no SQLite file {file}" in done.stderr, done.output
    assert not file.exists()


def test_a_date_or_a_number_is_all_that_an_option_for_both_takes() -> None:
    assert number_or_date("--to", "17", "an offset") == 17
    with pytest.raises(ConfigError, match="--to must be an offset, not 'soon'"):
        number_or_date("--to", "soon", "an offset")
