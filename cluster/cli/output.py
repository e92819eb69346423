"""How results are shown: tables or JSON on standard output, notes and progress on standard error.

There is one function for each kind of output, so that every command supports both formats. A table that is
written to a pipe is not cut to the width of a screen.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import Annotated, Any

import msgspec
import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

# ------------------------------------------------------------------------------------------------------------
# The option ``--format`` of the commands that print results.


class Format(enum.StrEnum):
    """Output formats."""

    table = "table"
    json = "json"


Shown = Annotated[Format, typer.Option("--format", help="Tables for people, JSON for programs.")]


# ------------------------------------------------------------------------------------------------------------
# Tables of many rows, drawn as rich draws them but without rich's work for each cell.
#
# A table of 10,000 topics takes rich ten seconds, and this module a tenth of a second. The terminal wraps
# lines that are wider than the screen. Short tables, which people read as a whole, are folded by rich
# (output.py).

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


_PIPE_WIDTH = 500
_PLAIN = frozenset((str, int, float, bool))


def console() -> Console:
    """The console that tables are written to. A new one for each use, since tests replace the streams."""
    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False)


def note(text: str) -> None:
    """Print a remark to standard error, for the user; it is never part of the result."""
    print(text, file=sys.stderr)


def show_json(value: Any) -> None:
    """Print any result as one JSON document."""
    print(json.dumps(plain(value), indent=2, ensure_ascii=False))


def show_rows(
    shown: Format,
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    *,
    title: str = "",
    empty: str = "",
) -> None:
    """Print a list: as a table of ``columns``, or as JSON with all keys."""
    if shown is Format.json:
        show_json(rows)
        return
    if not rows:
        note(empty or "nothing to show")
        return
    heads = [column.replace("_", " ") for column in columns]
    numeric = [all(isinstance(row.get(column), int | float | None) for row in rows) for column in columns]
    if len(rows) > LONG:
        texts = [[shown_text(row.get(column)) for column in columns] for row in rows]
        sys.stdout.write(long_table(title, heads, texts, numeric))
        return
    table = Table(title=title or None, title_justify="left", header_style="bold")
    for head, numbers in zip(heads, numeric, strict=True):
        table.add_column(head, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(cell(row.get(column)) for column in columns))
    console().print(table)


def show_pairs(shown: Format, value: Any, pairs: Mapping[str, Any]) -> None:
    """Print one object: its ``pairs``, one per line, or ``value`` as JSON."""
    if shown is Format.json:
        show_json(value)
        return
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, entry in pairs.items():
        table.add_row(name.replace("_", " "), cell(entry))
    console().print(table)


def cell(value: Any) -> Text:
    """A value as text for a rich table, which finds neither markup nor emoji in it."""
    return Text(shown_text(value))


def shown_text(value: Any) -> str:
    """A value as text for people. Control characters, which terminals obey, are shown as Python writes
    them: a table has what came in messages."""
    text = _text(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, enum.Enum):
        return str(value.value)
    return str(value)


def when(ts_ms: int) -> str:
    """Milliseconds since the epoch as a date and time in UTC."""
    return datetime.fromtimestamp(ts_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"


def duration(ms: float) -> str:
    """A time span for people: ``12.0 s``, ``3.5 h``."""
    for size, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min")):
        if ms >= 2 * size:
            return f"{ms / size:.1f} {unit}"
    return f"{ms / 1000:.1f} s"


def plain(value: Any) -> Any:
    """Convert dataclasses, structs, enums and bytes to JSON's types."""
    if value is None or type(value) in _PLAIN:  # the common case, checked first: there may be a million
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, msgspec.Struct):
        return plain(msgspec.structs.asdict(value))
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(entry) for entry in value]
    if isinstance(value, bytes):
        return text_or_base64(value)
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def text_or_base64(value: bytes) -> str | dict[str, str]:
    """Bytes as text if they are valid UTF-8, else as ``{"base64": ...}``."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
