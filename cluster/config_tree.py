"""Walks the dataclasses of the configuration: paths, defaults, reasons, and suggestions for misspelt keys.

The reason of a default is the ``#:`` comment above it in the source, so whoever changes the value sees it.
Settings on consecutive lines may share one comment.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import re
import textwrap
import typing
from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, cast

_FIELD = re.compile(r"    ([a-z_][a-z0-9_]*)\s*:\s*\S")


@dataclass(frozen=True, slots=True)
class Leaf:
    """One setting: its path below the section, its type and default, and the class that defines it."""

    path: str
    type_name: str
    default: Any
    owner: type[Any]
    field: str

    def under(self, section: str) -> Leaf:
        """A copy with ``section`` put in front of its path."""
        return dataclasses.replace(self, path=f"{section}.{self.path}")


def leaves(section: type[Any]) -> Iterator[Leaf]:
    """The settings of a dataclass and of the dataclasses nested in it, in source order."""
    types = typing.get_type_hints(section)
    for item in dataclasses.fields(section):
        kind = types[item.name]
        if dataclasses.is_dataclass(kind):
            assert isinstance(kind, type)
            for leaf in leaves(kind):
                yield leaf.under(item.name)
        else:
            yield Leaf(item.name, _type_name(kind), _default(item), section, item.name)


def nearest(wrong: str, known: Collection[str], groups: Collection[str] = ()) -> str:
    """``did you mean …?`` for a misspelt name, or where all names are listed."""
    everything = [*known, *groups]
    found = difflib.get_close_matches(wrong, everything, n=1, cutoff=0.6)
    if not found:  # perhaps the key is right and its section is not
        last = wrong.rsplit(".", 1)[-1]
        found = [path for path in everything if path.rsplit(".", 1)[-1] == last][:1]
    if found:
        return f"did you mean {found[0]!r}?"
    return "docs/configuration.md lists all of them"


def _default(item: dataclasses.Field[Any]) -> Any:
    if item.default_factory is not dataclasses.MISSING:
        return item.default_factory()
    return item.default


def _type_name(kind: Any) -> str:
    text = kind.__name__ if isinstance(kind, type) else str(kind)
    return re.sub(r"[a-z_]+\.", "", text).replace("SecretStr", "str").replace("Path", "path")


def reason(leaf: Leaf) -> str:
    """Why the default has its value; empty if the source has no comment."""
    return _reasons(cast(Hashable, leaf.owner)).get(leaf.field, "")


@functools.cache
def _reasons(section: Any) -> dict[str, str]:
    """Field -> the comment block above it; consecutive fields share the block above the first."""
    found: dict[str, str] = {}
    block: list[str] = []
    open_block = False
    for line in textwrap.dedent(inspect.getsource(section)).splitlines():
        text = line.strip()
        if text.startswith("#:"):
            if not open_block:
                block = []
            block.append(text[2:].strip())
            open_block = True
            continue
        field = _FIELD.match(line)
        if field:
            found[field[1]] = " ".join(block)
        elif not text or text.startswith(("def ", "@", '"""')):
            block = []
        open_block = False
    return found
