"""What a command ends with, by the error that it meets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from escrowmq import Cluster
from escrowmq.cluster.cli.app import app
from escrowmq.cluster.cli.failing import FAILED, NOT_FOUND, UNAVAILABLE, USAGE, exit_code, explain
from escrowmq.replication.errors import (
    CorruptLog,
    EscrowMQError,
    NotAuthorized,
    OffsetOutOfRange,
    Unavailable,
    UnknownGroup,
    UnknownTopic,
)
from escrowmq.testing import InMemoryCluster


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotAuthorized("wrong secret"), USAGE),
        (UnknownGroup("billing"), NOT_FOUND),
        (UnknownTopic("orders", 17, 2), NOT_FOUND),
        (Unavailable("no leader"), UNAVAILABLE),
        (CorruptLog("a damaged file"), FAILED),
    ],
)
def test_an_error_has_its_exit_code(error: EscrowMQError, code: int) -> None:
    assert exit_code(error) == code


def test_an_offset_out_of_range_is_told_with_the_range() -> None:
    error = OffsetOutOfRange("orders", 0, 99, 3, 7)
    assert exit_code(error) == USAGE
    assert explain(error) == "error: offset 99 of orders/0 is outside [3, 7]\nhint: give one in this range"


def test_an_unknown_partition_is_told_with_those_that_there_are() -> None:
    assert explain(UnknownTopic("orders", 17, 2)) == (
        "error: topic 'orders' has no partition 17 (it has 2)\nhint: choose one of 0 to 1"
    )
    assert "None" not in str(UnknownTopic("orders", 17))


@pytest.mark.parametrize("directory", ["{file}", "{file}/below"])
def test_a_file_that_cannot_be_used_is_one_line(tmp_path: Path, directory: str) -> None:
    file = tmp_path / "file"
    file.write_text("")
    done = CliRunner().invoke(app, ["demo", "--directory", directory.format(file=file)])
    assert done.exit_code == FAILED, done.exception
    assert done.stderr.startswith(f"error: {file}") and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("url", "code", "text"),
    [
        ("sqlite:////no/such/folder/shop.db", USAGE, "there is no SQLite file /no/such/folder/shop.db"),
        ("sqlite:///file:/no/such.db?uri=true", UNAVAILABLE, "the database cannot be used: unable to open"),
        ("postgresql+psycopg://127.0.0.1:1/shop", UNAVAILABLE, "the database cannot be used: "),
        ("sqlite:///{file}", FAILED, "the database refused a statement: file is not a database"),
    ],
    ids=["no folder", "no file of a URI", "no server", "a file that is no database"],
)
@pytest.mark.parametrize("command", ["audit", "purge"])
def test_a_database_that_cannot_be_used_is_one_line(
    tmp_path: Path, commands_join: Callable[[Cluster], None], command: str, url: str, code: int, text: str
) -> None:
    file = tmp_path / "file"
    file.write_text("not a database" * 100)
    with InMemoryCluster() as cluster:
        commands_join(cluster)
        done = CliRunner().invoke(app, ["db", command, url.format(file=file), "--app", "shop"])
    assert done.exit_code == code, done.exception
    assert done.stderr.startswith(f"error: {text}") and len(done.stderr.splitlines()) <= 2, done.stderr
