"""What the site shows of the sources.

Docstrings: ``:class:`Name``` becomes plain code, and ``::`` before an indented block goes. Constructors: only
those that users call; what calls of ours return is made from parts that are nobody's business.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|meth|func|attr|data|mod|exc|obj):`~?([^`]+)`")
_BLOCK = re.compile(r"^(.*?)::$(?=\n\n? {4})", re.MULTILINE)


#: Classes that applications make by themselves, besides settings and other dataclasses.
MADE_BY_USERS = frozenset(
    (
        "AsyncFence",
        "AsyncInbox",
        "DjangoDatabase",
        "Fence",
        "InMemoryCluster",
        "Inbox",
        "Outbox",
        "OutboxRelay",
    )
)


class Roles(griffe.Extension):
    """An extension of Griffe, which reads the sources for mkdocstrings."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every module, class, function and attribute."""
        if obj.docstring is not None:
            text = _ROLE.sub(r"`\1`", obj.docstring.value)
            obj.docstring.value = _BLOCK.sub(lambda found: f"{found[1]}:" if found[1] else "", text)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Called for every class, with its members."""
        if cls.name not in MADE_BY_USERS and not cls.has_labels("dataclass"):
            cls.members.pop("__init__", None)
