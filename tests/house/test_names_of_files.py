"""Docstrings and comments name only files that there are.

A file that is renamed or folded into another one leaves its name in the prose of others, where no tool looks.
Strings of programs are not looked at, only docstrings and comments: a test may name files that it makes.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("replication", "feedback", "actors", "cluster", "spark_integration")
FOLDERS = (*PRODUCT, "tests", "benchmarks", "examples")
FILES = {path.relative_to(ROOT).as_posix() for top in FOLDERS for path in (ROOT / top).rglob("*.py")}
ROOMS = {folder.as_posix() for file in FILES for folder in Path(file).parents}
#: Ends of the paths of files and rooms, from each folder on; and files' names, with their top folder.
TAILS = {
    "/".join(parts[i:]) for path in FILES | ROOMS for parts in [path.split("/")] for i in range(len(parts))
}
TOPS = {(file.split("/")[0], Path(file).name) for file in FILES}
#: Of packages that we use, named where we depend on their text.
FOREIGN = {"syncobj.py"}
#: In docstrings of rooms: no modules, but arguments and words of Python, and the command.
NO_MODULES = {"now", "now_ms", "type", "escrowmq"}

_FILE = re.compile(r"(?<![\w./*<{-])[\w/]*\w\.py\b")
_PATH = re.compile(r"``?([a-z_]+(?:/[a-z_]+)+)/?``?")
_MODULE = re.compile(r"``([a-z_]+)``")


def prose(source: str) -> Iterator[tuple[int, str]]:
    """The lines of docstrings and comments, with their numbers."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str() as text)):
                yield from enumerate(text.splitlines(), start=node.lineno)


def is_ours(name: str, top: str) -> bool:
    """Whether a ``.py`` file is there. A name without its room means a file of the same top folder: one of
    another would be searched for in vain."""
    return name in FOREIGN or (name in TAILS if "/" in name else (top, name) in TOPS)


def is_path_of_nothing(path: str) -> bool:
    """Whether ``path`` begins with a folder of ours, and is neither a folder nor a module."""
    return path.split("/")[0] in TAILS and path not in TAILS and f"{path}.py" not in TAILS


def names_of_nothing(file: str, source: str) -> Iterator[str]:
    """What the prose of a file names and is not there, with the line."""
    for line, text in prose(source):
        for name in _FILE.findall(text):
            if not is_ours(name, file.split("/")[0]):
                yield f"{file}:{line}: {name}"
        for path in _PATH.findall(text):
            if is_path_of_nothing(path):
                yield f"{file}:{line}: {path}"


def modules_of_nothing(room: str, docstring: str) -> Iterator[str]:
    """What the docstring of a room names in small letters: modules of its top folder, and rooms."""
    for name in _MODULE.findall(docstring):
        if name not in TAILS | NO_MODULES and (room.split("/")[0], f"{name}.py") not in TOPS:
            yield f"{room}/__init__.py: {name}"


def test_files_that_docstrings_and_comments_name_are_there() -> None:
    wrong = [found for file in sorted(FILES) for found in names_of_nothing(file, (ROOT / file).read_text())]
    assert not wrong, "no file of ours (from another folder name it with its room):\n" + "\n".join(wrong)


def test_modules_that_a_room_names_are_in_it() -> None:
    wrong = []
    for top in PRODUCT:
        for path in sorted((ROOT / top).rglob("__init__.py")):
            docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
            wrong += modules_of_nothing(path.parent.relative_to(ROOT).as_posix(), docstring)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see torn.py", ["torn.py"]),
        ("see log/torn.py", ["log/torn.py"]),
        ("as ``log/torn`` says", ["log/torn"]),
        ("see fence.py", ["fence.py"]),  # it is there, but in feedback
        ("see recovery.py, log/recovery.py and feedback/database/fence.py", []),
        ("``log/recovery``, ``bin/java``, ``topic/partition``, a *_scenario.py, <name>.py", []),
    ],
)
def test_what_counts_as_a_name(text: str, found: list[str]) -> None:
    for source in (f'"""{text}"""\n', f"x = 1  # {text}\n"):
        said = [each.rpartition(" ")[2] for each in names_of_nothing("replication/log/x.py", source)]
        assert said == found
    assert list(names_of_nothing("replication/log/x.py", f"x = '{text}'\n")) == []
