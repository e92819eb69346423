"""The picture of the terminal: every line once, and nothing that a browser would load from elsewhere."""

from __future__ import annotations

import html
import io
import re
from pathlib import Path
from xml.etree import ElementTree

from rich.progress import Progress, TextColumn
from rich.table import Table

from escrowmq.cluster.demo.screen import LINES_FIRST, LINES_LAST, recording_console, save_screen


def texts(path: Path) -> str:
    ElementTree.parse(path)
    found = re.findall(r"<text[^>]*>([^<]*)", path.read_text())
    return html.unescape("".join(found)).replace("\N{NO-BREAK SPACE}", " ")


def test_what_was_printed_is_in_the_picture_once(tmp_path: Path) -> None:
    console, path = recording_console(io.StringIO()), tmp_path / "screen.svg"
    with Progress(TextColumn("{task.description} {task.completed}"), console=console) as progress:
        bar = progress.add_task("orders", total=3)
        for done in range(4):
            progress.update(bar, completed=done, refresh=True)
        console.print("leader killed")
    table = Table(show_header=False)
    table.add_row("orders placed", "15,000")
    console.print(table)
    save_screen(console, path, "make demo")
    shown = texts(path)
    for once in ("orders 3", "leader killed", "orders placed", "make demo"):
        assert shown.count(once) == 1, shown
    assert "orders 2" not in shown
    assert not re.search(r"url\((?!#)|href=|https:", path.read_text())


def test_a_long_output_is_shortened_to_one_screen_and_says_so(tmp_path: Path) -> None:
    console, path = recording_console(io.StringIO()), tmp_path / "screen.svg"
    for number in range(LINES_FIRST + LINES_LAST + 50):
        console.print(f"[green]line {number}.[/]")
    save_screen(console, path, "make demo")
    shown = texts(path)
    assert f"line {LINES_FIRST - 1}." in shown and f"line {LINES_FIRST}." not in shown
    assert "... 50 more lines ..." in shown and f"line {LINES_FIRST + 50}." in shown
