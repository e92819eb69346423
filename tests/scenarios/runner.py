"""Plays a scenario: which commands there are in a text, and the text with what they say now."""

from __future__ import annotations

import difflib
from pathlib import Path
from textwrap import wrap

from tests.scenarios.commands import Scene

FOLDER = Path(__file__).parent
NAMES = sorted(path.stem for path in FOLDER.glob("*.txt"))
REWRITE = "--rewrite-scenarios"
INDENT = "    "


def play(text: str) -> str:
    """The same text, with what each command says now."""
    scene, lines = Scene(), list[str]()
    for line in text.splitlines():
        if line.startswith(INDENT):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            for said in scene.obey(line):
                lines += wrap(said, 110, initial_indent=INDENT, subsequent_indent=INDENT * 2) or [INDENT]
    return "\n".join(lines) + "\n"


def difference(name: str, *, rewrite: bool = False, folder: Path = FOLDER) -> str:
    """Where scenario ``name`` says something else than its file; "": nowhere. ``rewrite``: write it down."""
    path = folder / f"{name}.txt"
    text = path.read_text()
    now = play(text)
    if rewrite and now != text:
        path.write_text(now)
        return ""
    lines = difflib.unified_diff(text.splitlines(), now.splitlines(), "expected", "said", lineterm="", n=4)
    return "\n".join(lines)
