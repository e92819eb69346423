"""Answers on their way between processes of different versions: by name, never by position or by class alone.

Replicas, supervisor and clients are upgraded one after the other, so each meets answers of earlier and of
later versions. msgspec pickles a struct as its class with all of its values: a receiver whose class has a
field less, or that lacks the class of a value, cannot read it, and takes who sent it for silent. So a
``Carried`` is pickled as a map of plain values and what makes it of that: ``msgspec.convert``, which every
version has. Names that the receiver does not know are passed over, and so are classes that only they need;
missing ones have its defaults.

Hence the rules for a class once it is released: its name and module stay, a new field has a default, and no
field goes or changes its type or meaning: another meaning takes another name.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Carried(msgspec.Struct, frozen=True):
    """A struct that processes of other versions read, too."""

    def __reduce__(self) -> tuple[Any, ...]:
        return msgspec.convert, (msgspec.to_builtins(self), type(self))
