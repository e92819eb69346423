"""Code and commands in the documentation exist as written; the README's twenty lines run."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import sqlite3
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import escrowmq
from escrowmq.cluster.cli.app import app
from escrowmq.testing import InMemoryCluster

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
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
