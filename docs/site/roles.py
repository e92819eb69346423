"""Docstrings for the site: ``:class:`Name``` becomes plain code, and ``::`` before an indented block goes."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|meth|func|attr|data|mod|exc|obj):`~?([^`]+)`")
_BLOCK = re.compile(r"^(.*?)::$(?=\n\n? {4})", re.MULTILINE)


class Roles(griffe.Extension):
    """An extension of Griffe, which reads the sources for mkdocstrings."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every module, class, function and attribute."""
        if obj.docstring is not None:
            text = _ROLE.sub(r"`\1`", obj.docstring.value)
            obj.docstring.value = _BLOCK.sub(lambda found: f"{found[1]}:" if found[1] else "", text)
