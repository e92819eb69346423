"""``escrowmq outbox``: what a person sees of an outbox and does with it, on a database in a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from escrowmq import Message
from escrowmq.cluster.cli.app import app
from escrowmq.feedback.database.outbox import Outbox
from escrowmq.feedback.database.relaying import Step
from tests.support.relays import World

Said = Callable[..., tuple[int, str]]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'shop.db'}"


@pytest.fixture
def world(url: str) -> World:
    engine = sa.create_engine(url)
    outbox = Outbox(engine)
    outbox.create_table()
    return World(outbox, engine.connect, lambda db: db.commit())


def said(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["outbox", *map(str, arguments)])
    return done.exit_code, done.output


def read(*arguments: object) -> Any:
    code, output = said(*arguments, "--format", "json")
    assert code == 0, output
    return json.loads(output)


def test_rows_are_listed_shown_retried_and_dropped(world: World, url: str) -> None:
    assert said("list", url) == (0, "no rows\n") and "nothing was ever sent" in said("shards", url)[1]
    world.send(Message("unknown", b"v" * 60, key=b"k", headers={"a": b"b"}), Message("t", b"with it"))
    world.send(Message("t", b"2", partition=1))
    assert world.relay().step() is Step.REFUSED
    rows = read("list", url)
    assert [(row["state"], row["topic"], row["error"]) for row in rows] == [
        ("dead", "unknown", "unknown topic"), ("dead", "t", "unknown topic"), ("waiting", "t", ""),
    ]  # fmt: skip
    first, _, last = (row["id"] for row in rows)
    assert [row["id"] for row in read("list", url, "--waiting")] == [last]
    assert len(read("list", url, "--dead")) == 2 and len(read("list", url, "--after-id", first)) == 2
    code, text = said("list", url, "--limit", 1)
    assert code == 0 and "v" * 40 + "..." in text and f"continue with --after-id {first}" in text
    shown = read("show", url, first)
    assert (shown["value"], shown["key"], shown["headers"]) == ("v" * 60, "k", "a=b")
    (shard,) = read("shards", url)
    assert (shard["waiting"], shard["dead"], shard["stopped"]) == (1, 2, "") and shard["oldest_ms"] > 0
    assert read("retry", url, first) == {"retried": 2}
    assert said("drop", url, first)[0] == 1, "not without an answer"
    assert read("drop", url, first, "--yes") == {"dropped": 2}
    code, text = said("drop", url, first, "--yes")
    assert code == 4 and f"the outbox has no row {first}" in text and "hint: 'escrowmq outbox list'" in text


def test_a_row_that_nobody_can_read_is_listed_shown_retried_and_dropped(world: World, url: str) -> None:
    world.send(Message("t", b"1"))
    with world.connect() as db:
        db.execute(sa.text("update escrowmq_outbox set content = :content"), {"content": b"\x97damaged"})
        db.commit()
    assert world.relay().step() is Step.REFUSED
    (row,) = read("list", url, "--dead")
    assert (row["topic"], row["value"]) == (None, None) and "cannot be read" in row["error"]
    assert read("show", url, row["id"])["content_hex"] == b"\x97damaged".hex()
    for shown in ("list", "show"):
        code, text = said(shown, url, *([row["id"]] if shown == "show" else []))
        assert code == 0 and "cannot be read" in " ".join(text.split())
    assert read("retry", url, row["id"]) == {"retried": 1}
    assert read("drop", url, row["id"], "--yes") == {"dropped": 1}


def test_what_is_being_sent_or_cannot_work_ends_with_a_line_that_says_what_to_do(
    world: World, url: str
) -> None:
    world.send(Message("t", b"1"))
    world.broker.away = True
    assert world.relay().step() is Step.AWAY
    (row,) = read("list", url)
    assert row["state"] == "in batch 1"
    code, text = said("drop", url, row["id"], "--yes")
    assert code == 5 and "hint: try again in a moment" in text
    assert said("list", url, "--dead", "--waiting")[0] == 2
    code, text = said("adopt", url, 0, "--app", "shop")
    assert code == 2 and "--hold to decide on each" in text
    code, text = said("list", url, "--table", "other")
    assert code == 2 and "outbox.create_table()" in text
    code, text = said("list", "nosuch://x")
    assert code == 2 and "SQLAlchemy cannot make an engine" in text


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql", "mariadb"])
def test_the_schema_is_that_of_the_outbox(dialect: str) -> None:
    done = CliRunner().invoke(app, ["db", "schema", "--outbox", "--dialect", dialect])
    assert done.exit_code == 0
    for name in ("escrowmq_outbox ", "escrowmq_outbox_shards "):
        assert f"CREATE TABLE IF NOT EXISTS {name}" in done.output
    assert done.output.count(";") == done.output.count("CREATE")
