"""The operations in docs/log-format-operations.md: a table of all of them, and what each one's class says.

``python -m tests.support.format_page`` writes what stands between the page's two marks. Everything comes from
the classes in replication/format: names, numbers, columns and their types, senders, levels, docstrings. A
test compares, so an operation that changes without the page fails.
"""

from __future__ import annotations

import inspect
import re
import textwrap
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import msgspec

from escrowmq.replication.format.codec import OPERATIONS
from escrowmq.replication.format.operation import MapColumn, Operation, Sender, columns_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "log-format-operations.md"
BEGIN = "<!-- Made from the classes by `python -m tests.support.format_page`: do not edit. -->"
END = "<!-- The end of what is made from the code. -->"
WIDTH = 120
HEAD = ("number", "name", "columns", "sender", "level")
#: One value of a type, and several of them.
PLAIN: Mapping[Any, tuple[str, str]] = {
    int: ("number", "numbers"),
    str: ("text", "texts"),
    bool: ("true or false", "truths"),
    bytes: ("bytes", "byte strings"),
}
SENDERS: Mapping[Sender, str] = {
    Sender.CLIENT: "client",
    Sender.REWRITTEN: "client, rewritten",
    Sender.LEADER: "leader",
}


def operations() -> list[type[Operation]]:
    """All of them, by their numbers."""
    return sorted(OPERATIONS, key=lambda operation: (operation.KIND, operation.VERSION))


def generated() -> str:
    """What stands between the marks."""
    rows = [HEAD, ("---:", *["---"] * (len(HEAD) - 1)), *map(_row, operations())]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return "\n\n".join((table, *map(_section, operations())))


def renewed(page: str) -> str:
    """The page with what the classes say now. Raises ValueError if it has not both marks, in this order."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name} needs the marks {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{generated()}\n\n{END}{after}"


def _row(operation: type[Operation]) -> tuple[str, ...]:
    columns = "; ".join(f"`{name}` {in_words(kind)}" for name, kind in columns_of(operation))
    version = "" if operation.VERSION == 1 else f", version {operation.VERSION}"
    sender = "client, behind a PREPARE" if operation.ATTACHED else SENDERS[operation.SENDER]
    return f"{operation.KIND}{version}", f"`{operation.KIND.name}`", columns, sender, str(operation.LEVEL)


def in_words(kind: Any) -> str:
    """A column's type."""
    if kind in PLAIN:
        return PLAIN[kind][0]
    if _is_map(kind):
        return "map"
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join("nil" if one is type(None) else in_words(one) for one in inner)
    if origin is tuple:
        return f"array ({', '.join(map(in_words, inner))})"
    if origin in (list, Sequence):
        return PLAIN[inner[0]][1]
    if origin is Mapping:
        return f"map of {in_words(inner[0])} to {in_words(inner[1])}"
    raise TypeError(f"no words for {kind}: add them here")


def _section(operation: type[Operation]) -> str:
    parts = [f"### {operation.KIND.name}", told(operation)]
    parts += [
        f"{_fields(name, kind)}\n\n{told(kind)}" for name, kind in columns_of(operation) if _is_map(kind)
    ]
    return "\n\n".join(parts)


def _is_map(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _fields(name: str, kind: type[msgspec.Struct]) -> str:
    """The fields of a column that is a map."""
    levels = kind.LEVELS if issubclass(kind, MapColumn) else {}
    each = [
        f"`{one.name}` {in_words(one.type)} ({_default(one)})"
        + (f" from level {levels[one.name]} on" if one.name in levels else "")
        for one in msgspec.structs.fields(kind)
    ]
    begin = (
        f"The map `{name}` has these fields and no others; one with its default, in brackets, is left out:"
    )
    return _wrapped(f"{begin} {'; '.join(each)}.")


def _default(one: msgspec.structs.FieldInfo) -> str:
    value = one.default if one.default_factory is msgspec.NODEFAULT else one.default_factory()
    if value is None:
        return "nil"
    return str(value).lower() if isinstance(value, int) else "empty"


def told(kind: type[Any]) -> str:
    """A class's docstring for the page, paragraph by paragraph."""
    text = (inspect.getdoc(kind) or "").replace("``PrepareExtra``", "below").replace("``", "`")
    return "\n\n".join(map(_wrapped, re.split(r"\n\s*\n", text)))


def _wrapped(paragraph: str) -> str:
    one = " ".join(paragraph.split())
    return textwrap.fill(one, WIDTH, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
