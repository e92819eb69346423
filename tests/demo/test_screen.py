"""The picture of the terminal: every line once, and nothing that a browser would load from elsewhere."""

from __future__ import annotations

import html
import io
import re
from pathlib import Path
from xml.etree import ElementTree

from rich.progress import Progress, TextColumn
from rich.table import Table

from escrowmq.cluster.demo.screen import recording_console, save_screen


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
    ElementTree.parse(path)
    texts = re.findall(r"<text[^>]*>([^<]*)", path.read_text())
    shown = html.unescape("".join(texts)).replace("\N{NO-BREAK SPACE}", " ")
    for once in ("orders 3", "leader killed", "orders placed", "make demo"):
        assert shown.count(once) == 1, shown
    assert "orders 2" not in shown
    assert not re.search(r"url\((?!#)|href=", path.read_text())
