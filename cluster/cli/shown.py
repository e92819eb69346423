"""The option ``--format`` of commands that show something."""

from __future__ import annotations

import enum
from typing import Annotated

import typer


class Format(enum.StrEnum):
    """How results are shown."""

    table = "table"
    json = "json"


Shown = Annotated[Format, typer.Option("--format", help="Tables for people, JSON for programs.")]
