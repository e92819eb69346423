"""Rules of the repository that no linter checks: sizes, words, links (for imports see test_rooms.py).

Each failure names the file and the line, so that the fix needs no search.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import escrowmq

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("replication", "feedback", "actors", "cluster", "spark_integration")
SKIPPED = {".venv", ".git", "build", "dist", "artifacts", "node_modules", ".demo"}
TEXT = {".py", ".md", ".toml", ".yaml", ".yml", ".txt", ".svg", ".cfg", ".sh", ""}

#: A longer file is a reason to look for a second subject. (At 500, one subject was cut in five.)
LINES_MAX = 900
FUNCTION_LINES_MAX = 75
#: Of an entry of docs/decisions.md: more is the story of how it came about.
DECISION_WORDS_MAX = 150
#: A function or class of at most this many lines needs no docstring.
OBVIOUS_LINES = 6
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
#: Built from halves, so that this file does not break its own rule.
UNFINISHED = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK")) + r")\b")
HOSTS = {"www.w3.org", "www.apache.org", "json-schema.org", "localhost", "127.0.0.1"}
HOST = re.compile(r"\w+://([^/\s\"'`)>\]:]+)")
SOMEBODYS_PATH = re.compile(r"(?<![\w.])/(?:root|home/\w+|Users/\w+)/")


def _files(*folders: str, suffixes: set[str] = frozenset({".py"})) -> Iterator[Path]:  # type: ignore[assignment]
    for folder in folders or (".",):
        for path in sorted((ROOT / folder).rglob("*")):
            parts = path.relative_to(ROOT).parts
            hidden = any(p in SKIPPED or p.endswith((".egg-info", "_cache")) for p in parts)
            linked = parts[0] == "escrowmq" and len(parts) > 2
            if path.is_file() and path.suffix in suffixes and not hidden and not linked:
                yield path


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _length(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


PACKAGE_FILES = list(_files(*PACKAGES, "escrowmq"))


def test_a_module_has_one_subject_and_says_which() -> None:
    wrong = []
    for path in PACKAGE_FILES:
        source = path.read_text()
        tree = ast.parse(source)
        if (lines := source.count("\n")) > LINES_MAX:
            wrong.append(f"{_name(path)} has {lines} lines: part its subjects")
        if tree.body and not ast.get_docstring(tree):
            wrong.append(f"{_name(path)} does not say what it is")
        for node in ast.walk(tree):
            if isinstance(node, FUNCTIONS) and (length := _length(node)) > FUNCTION_LINES_MAX:
                wrong.append(f"{_name(path)}:{node.lineno} {node.name} has {length} lines")
    assert not wrong, "\n".join(wrong)


def test_public_classes_and_functions_say_what_they_are() -> None:
    wrong = []
    for path in PACKAGE_FILES:
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, (ast.ClassDef, *FUNCTIONS)) or node.name.startswith("_"):
                continue
            if _length(node) > OBVIOUS_LINES and not ast.get_docstring(node):
                wrong.append(f"{_name(path)}:{node.lineno} {node.name} has no docstring")
    assert not wrong, "\n".join(wrong)


def test_nothing_is_left_unfinished_and_nothing_points_to_one_machine() -> None:
    wrong = []
    for path in _files(suffixes=TEXT):
        try:
            lines = path.read_text().splitlines()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(lines, start=1):
            hosts = {host for host in HOST.findall(line) if "." in host and "{" not in host} - HOSTS
            if UNFINISHED.search(line) or SOMEBODYS_PATH.search(line) or hosts:
                wrong.append(f"{_name(path)}:{number}: {line.strip()[:100]}")
    assert not wrong, "unfinished, a path of one machine, or a host nobody agreed on:\n" + "\n".join(wrong)


def test_links_between_the_documents_lead_somewhere() -> None:
    broken = []
    for path in _files(suffixes={".md"}):
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text()):
            if "://" not in target and not (path.parent / target).exists():
                broken.append(f"{_name(path)} -> {target}")
    assert not broken, "\n".join(broken)


def test_a_target_takes_as_long_on_every_page_as_make_help_says() -> None:
    makefile = (ROOT / "Makefile").read_text()
    takes = dict(re.findall(r"^([a-z-]+):.*## .*?(\d+) minutes", makefile, re.MULTILINE))
    assert "test" in takes
    wrong = []
    for page in ("README.md", "CONTRIBUTING.md"):
        for number, line in enumerate((ROOT / page).read_text().splitlines(), start=1):
            for target, minutes in re.findall(r"\bmake ([a-z-]+)\b.*?\b(\d+) minutes", line):
                if takes.get(target) != minutes:
                    wrong.append(f"{page}:{number}: make {target} takes {takes.get(target)} minutes")
    assert not wrong, "\n".join(wrong)


def test_no_test_is_skipped_for_good() -> None:
    for path in _files("tests"):
        source = path.read_text()
        for mark in ("pytest.mark." + "skip(", "pytest.mark." + "skip\n", "pytest.mark." + "xfail"):
            assert mark not in source, f"{_name(path)} uses {mark.strip()}: mend it or remove it"


def test_no_test_file_is_another_ones_helper() -> None:
    """A helper that two test files need belongs in tests/support."""
    imported = re.compile(
        r"^from tests\.(?:\w+\.)*test_\w+ import|^import tests\.(?:\w+\.)*test_\w+", re.MULTILINE
    )
    assert not [_name(path) for path in _files("tests") if imported.search(path.read_text())]


def test_a_decision_takes_at_most_150_words() -> None:
    """What was decided, why, what it costs. How it came about is in the log of commits."""
    sections = re.split(r"^## (\d+)\. .*$", (ROOT / "docs/decisions.md").read_text(), flags=re.MULTILINE)[1:]
    words = {number: len(body.split()) for number, body in zip(sections[::2], sections[1::2], strict=True)}
    assert words
    long = [f"entry {number} has {count}" for number, count in words.items() if count > DECISION_WORDS_MAX]
    assert not long, (
        f"docs/decisions.md: at most {DECISION_WORDS_MAX} words, without the heading: " + ", ".join(long)
    )


def test_no_file_or_class_has_a_word_that_the_glossary_has_retired() -> None:
    table = (ROOT / "docs" / "concepts.md").read_text().split("### Words of the code")[1].split("\n## ")[0]
    retired = {
        word.strip()
        for line in re.findall(r"^\| ([a-z, ]+) \| [a-z, ]+ \|$", table, re.MULTILINE)
        for word in line.split(",")
        if word.strip() != "not"
    }
    assert {"lobby", "desk", "wishing"} <= retired
    found = []
    for path in PACKAGE_FILES:
        tree = ast.parse(path.read_text())
        classes = [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        for name in (path.stem, *classes):
            words = re.findall(r"[A-Z]?[a-z]+", name)
            found += [f"{_name(path)}: {name}" for word in words if word.lower() in retired]
    assert found == []


def test_the_name_of_a_public_class_names_nothing_else() -> None:
    defined: dict[str, list[str]] = {}
    for path in PACKAGE_FILES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                defined.setdefault(node.name, []).append(_name(path))
    assert {"Producer", "LeaseLost", "Message"} <= defined.keys() & set(escrowmq.__all__)
    twice = {name: files for name in escrowmq.__all__ if len(files := defined.get(name, [])) > 1}
    assert twice == {}
