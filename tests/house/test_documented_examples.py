"""Code and commands in the documentation exist as written; the README's twenty lines run."""

from __future__ import annotations

import ast
import contextlib
import importlib
import random
import re
import shlex
import sqlite3
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.main import get_command

import escrowmq
from escrowmq import DiskFull, OutcomeUnknown, Overloaded, TransactionState, TxStatusQuerier, Unavailable
from escrowmq.cluster.cli.app import app
from escrowmq.testing import InMemoryCluster

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md"),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs/guide").glob("*.md")),
]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> Iterator[str]:
    for found in _BLOCK.finditer(page.read_text()):
        if found[1] == language:
            yield textwrap.dedent(found[2])


def parsed(page: Path) -> Iterator[ast.Module]:
    for block in blocks(page, "python"):
        try:
            yield compile(block, str(page), "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        except SyntaxError as error:
            raise AssertionError(f"{page.name}: {error}\n{block}") from error


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_in_the_documentation_names_what_exists(page: Path) -> None:
    for block in parsed(page):
        for node in ast.walk(block):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "escrowmq":
                module = importlib.import_module(node.module or "")
                for name in node.names:
                    assert hasattr(module, name.name), f"{page.name}: {node.module}.{name.name}"
            elif (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "escrowmq"
            ):
                assert hasattr(escrowmq, node.attr), f"{page.name}: escrowmq.{node.attr}"


def commands(page: Path) -> Iterator[str]:
    """Each command line; alternatives (``topic list | describe``) one by one, as whole commands."""
    for language in ("", "bash", "sh", "console"):
        for block in blocks(page, language):
            for line in block.replace("\\\n", " ").splitlines():
                first = ""
                for part in line.removeprefix("$ ").partition(" #")[0].split(" | "):
                    words = part.split()
                    if words[:1] == ["escrowmq"]:
                        first = words[1] if len(words) > 1 else ""
                        yield part
                    elif first and words:
                        yield f"escrowmq {first} {part}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_the_documentation_exist_with_their_options(page: Path) -> None:
    top: Any = get_command(app)
    for line in commands(page):
        command, words = top, shlex.split(line)[1:]
        while words and getattr(command, "commands", None) and not words[0].startswith("-"):
            assert words[0] in command.commands, f"{page.name}: {line}"
            command = command.commands[words.pop(0)]
        known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
        used = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert used <= known | {"--help"}, f"{page.name}: {line}: {used - known}"


def test_the_twenty_lines_of_the_readme_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (lines,) = (block for block in blocks(ROOT / "README.md", "python") if "one teapot" in block)
    assert len([line for line in lines.splitlines() if line.strip()]) <= 20
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(escrowmq, "start_local", InMemoryCluster)
    for _ in range(2):  # in the same folder: the database is there the second time
        exec(compile(lines, "README.md", "exec"), {})  # noqa: S102
        assert re.fullmatch(r"orders [0-3] 0 b'one teapot'\n", capsys.readouterr().out)
    with sqlite3.connect("shop.db") as db:
        assert db.execute("select item from orders").fetchall() == [("teapot",)] * 2
    db.close()


class Killed(BaseException):
    """The process ends here."""


class Service(TxStatusQuerier):
    """An application that places its orders with the loop printed in errors.md, over a real SQLite."""

    def __init__(self, path: Path, cluster: InMemoryCluster, rng: random.Random) -> None:
        self.path, self.cluster, self.rng = path, cluster, rng
        with self.database() as db:
            db.execute("create table orders (id text primary key)")
        (code,) = (block for block in blocks(ROOT / "docs" / "errors.md", "python") if "def place" in block)
        self.printed: dict[str, Any] = {"database": self.database}
        exec(compile(code, "errors.md", "exec"), self.printed)  # noqa: S102
        self.printed["time"] = SimpleNamespace(sleep=cluster.clock.advance, monotonic=cluster.clock.time)
        self.insert, self.printed["insert"] = self.printed["insert"], self.disturbed
        self.deaths, self.nested = 0, 0

    def database(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path)

    def rows(self) -> list[str]:
        return [row for (row,) in self.database().execute("select id from orders order by id")]

    def query_status(self, tx_id: str, query_id: str) -> TransactionState:
        return TransactionState.COMMITTED if query_id in self.rows() else TransactionState.ROLLBACK

    def disturbed(self, order: SimpleNamespace) -> Callable[[], None]:
        """The printed local transaction, with what may happen before and after its database's commit."""
        local = self.insert(order)

        def run() -> None:
            self.strike(order)
            local()
            self.strike(order)

        return run

    def strike(self, order: SimpleNamespace) -> None:
        chance = self.rng.random()
        if chance < 0.15:
            self.deaths += 1
            raise Killed
        if chance < 0.3 and self.nested < 2:
            self.nested += 1
            self.process(order)
            self.nested -= 1
        elif chance < 0.4:
            for each in self.cluster.admin.list_transactions():
                self.cluster.admin.resolve_transaction(each.tx_id, TransactionState.ROLLBACK, app="shop")
        self.cluster.clock.advance(self.rng.choice((0, 0.001, 1, 10)))

    def process(self, order: SimpleNamespace) -> None:
        """One process that places the order. It may die."""
        if self.rng.random() < 0.6:
            what = self.rng.choice(("prepare", "commit"))
            error = self.rng.choice((OutcomeUnknown, OutcomeUnknown, Unavailable, Overloaded, DiskFull))
            carried_out = error is OutcomeUnknown and self.rng.random() < 0.5
            self.cluster.fail_next(what, error, carried_out=carried_out)
        with contextlib.suppress(Killed), self.cluster.producer("shop", tx_status_querier=self) as producer:
            messages = [escrowmq.Message("orders", order.id.encode())]
            assert self.printed["place"](producer, order, messages) is TransactionState.COMMITTED


@pytest.mark.parametrize("seed", range(8))
def test_the_loop_of_the_errors_page_keeps_rows_and_messages_together(seed: int, tmp_path: Path) -> None:
    """Under lost answers, refusals, deaths, restarts, second instances, and an operator who rolls back."""
    with InMemoryCluster() as cluster:
        cluster.admin.create_topic("orders")
        service = Service(tmp_path / "shop.db", cluster, random.Random(seed))
        orders = [f"{number:02}" for number in range(8)]
        for order in orders:
            while True:
                deaths = service.deaths
                service.process(SimpleNamespace(id=order))
                if service.deaths == deaths:
                    break
        cluster.clock.advance(60)
        assert cluster.admin.list_transactions() == []
        with cluster.consumer("audit", ["orders"], auto_offset_reset="earliest") as consumer:
            read = [record.value.decode() for record in consumer.poll(timeout_s=1)]
        assert sorted(read) == service.rows() == orders, f"seed {seed}"
