"""Tables of many rows, drawn as rich draws them but without rich's work for each cell.

A table of 10,000 topics takes rich ten seconds, and this module a tenth of a second. The terminal wraps lines
that are wider than the screen. Short tables, which people read as a whole, are folded by rich (output.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from rich.cells import cell_len

#: Rows above which rich would take more than a tenth of a second.
LONG = 100


def width(text: str) -> int:
    """Width of a text in terminal columns."""
    return len(text) if text.isascii() else cell_len(text)


def long_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]) -> str:
    """The whole table as text. ``right``: for each column, whether it is aligned right (numbers)."""
    columns = [list(column) for column in zip(heads, *rows, strict=True)]
    columns = [_padded(column, to_right) for column, to_right in zip(columns, right, strict=True)]
    head, *body = zip(*columns, strict=True)
    wide = [width(text) + 2 for text in head]
    lines = [
        _ruler("┏", "━", "┳", "┓", wide),
        "┃ " + " ┃ ".join(head) + " ┃",
        _ruler("┡", "━", "╇", "┩", wide),
    ]
    drawn = ("│ " + " │ ".join(row) + " │" for row in body)
    above = [title] if title else []
    return "\n".join(chain(above, lines, drawn, [_ruler("└", "─", "┴", "┘", wide)])) + "\n"


def _padded(column: Sequence[str], to_right: bool) -> list[str]:
    texts = [" ".join(text.splitlines()) if "\n" in text else text for text in column]
    widths = [width(text) for text in texts]
    widest = max(widths)
    pads = (" " * (widest - wide) for wide in widths)
    return [pad + text if to_right else text + pad for text, pad in zip(texts, pads, strict=True)]


def _ruler(left: str, line: str, between: str, right: str, wide: Sequence[int]) -> str:
    return left + between.join(line * columns for columns in wide) + right
