"""A picture of the terminal after a run of the demo: what the command printed, as SVG.

The recording console is not a terminal, so progress bars are printed once, when they are complete. A terminal
would record every step of them. A picture is one screen: of a longer output it has the beginning and the end,
and between them the number of lines that it leaves out.
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.text import Text

#: Fits the README's column on GitHub without shrinking below what one can read.
WIDTH = 100
#: The story, the table of what happened, and the first rows of the comparison; then the verdict.
LINES_FIRST, LINES_LAST = 39, 2
#: rich's format loads a font from a server, and names its maker's. A picture in the documentation names none.
_FROM_ELSEWHERE = re.compile(r"@font-face \{.*?\}\n|<!--.*?-->\n", re.DOTALL)


def recording_console(file: TextIO | None = None) -> Console:
    """Prints to ``file`` (standard output), and keeps what it printed for ``save_screen``."""
    return Console(file=file or sys.stdout, width=WIDTH, record=True, force_terminal=False)


def save_screen(console: Console, path: Path, command: str) -> None:
    """Write what a recording console printed to ``path``. ``command``: the window's title."""
    lines = console.export_text(styles=True).splitlines()
    left_out = len(lines) - LINES_FIRST - LINES_LAST
    if left_out > 1:
        lines[LINES_FIRST:-LINES_LAST] = ["", f"... {left_out} more lines ...", ""]
    screen = recording_console(io.StringIO())
    for line in lines:
        screen.print(Text.from_ansi(line), highlight=False)
    path.write_text(_FROM_ELSEWHERE.sub("", screen.export_svg(title=command, unique_id="screen")))
