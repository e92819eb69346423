"""A picture of the terminal after a run of the demo: what the command printed, as SVG.

The recording console is not a terminal, so progress bars are printed once, when they are complete. A terminal
would record every step of them.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TextIO

from rich.console import Console

#: Fits the README's column on GitHub without shrinking below what one can read.
WIDTH = 100
#: rich's format loads a font from a server. A picture in the documentation loads nothing.
_FONT = re.compile(r"@font-face \{.*?\}\n", re.DOTALL)


def recording_console(file: TextIO | None = None) -> Console:
    """Prints to ``file`` (standard output), and keeps what it printed for ``save_screen``."""
    return Console(file=file or sys.stdout, width=WIDTH, record=True, force_terminal=False)


def save_screen(console: Console, path: Path, command: str) -> None:
    """Write everything that a recording console printed to ``path``. ``command``: the window's title."""
    path.write_text(_FONT.sub("", console.export_svg(title=command, unique_id="screen")))
