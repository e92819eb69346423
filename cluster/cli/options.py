"""Options that many commands share, and joining the cluster that they name."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from escrowmq.cluster.handle import Cluster

AUTO = "auto"


class Format(enum.StrEnum):
    """How results are shown."""

    table = "table"
    json = "json"


Address = Annotated[
    str,
    typer.Option(
        help="Ray cluster, host:port. 'auto': RAY_ADDRESS, else the only one on this machine.",
        show_default=True,
        rich_help_panel="Connection",
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option(help="Ray namespace of the EscrowMQ cluster ('escrowmq').", rich_help_panel="Connection"),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", help="YAML file with settings; see docs/configuration.md.", rich_help_panel="Connection"
    ),
]
Shown = Annotated[Format, typer.Option("--format", help="Tables for people, JSON for programs.")]
App = Annotated[str | None, typer.Option("--app", help="App that the transaction belongs to.")]


@contextlib.contextmanager
def joined(address: str, namespace: str | None, config: Path | None = None) -> Iterator[Cluster]:
    """The cluster that the options name; left at the end."""
    from escrowmq.cluster.connecting import connect

    with connect(address, namespace, config=config) as cluster:
        yield cluster
