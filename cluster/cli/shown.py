"""The option ``--format`` of the commands that print results."""

from __future__ import annotations

import enum
from typing import Annotated

import typer


class Format(enum.StrEnum):
    """Output formats."""

    table = "table"
    json = "json"


Shown = Annotated[Format, typer.Option("--format", help="Tables for people, JSON for programs.")]
