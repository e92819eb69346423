"""Answers on their way between processes of different versions: by name, never by position or by class alone.

Replicas, supervisor and clients are upgraded one after the other, so each meets answers from earlier and from
later versions. msgspec pickles a struct as its class with all of its values: a receiver whose class has one
field fewer, or that lacks the class of a value, cannot read it, and concludes that the sender is silent. So a
``Carried`` is pickled as a map of plain values together with the function that converts it back:
``msgspec.convert``, which every version has. Names that the receiver does not know are ignored, and so are
classes that only those fields need; missing names get the receiver's defaults.

Hence the rules for a class once it is released: its name and module stay, a new field has a default, and no
field is removed or changes its type or meaning. A new meaning needs a new name.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from escrowmq.replication.carried_settings import prepared


class Carried(msgspec.Struct, frozen=True):
    """A struct that processes of other versions read too. Its module ends with ``prepare(__name__)``."""

    def __reduce__(self) -> tuple[Any, ...]:
        return msgspec.convert, (msgspec.to_builtins(self), type(self))


def prepare(module: str) -> None:
    """``prepared`` for all of a module's classes."""
    for kind in list(vars(sys.modules[module]).values()):
        if isinstance(kind, type) and issubclass(kind, Carried) and kind.__module__ == module:
            prepared(kind)
