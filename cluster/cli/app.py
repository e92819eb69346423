"""The top-level Typer application, which collects all commands.

Only the module of the command named on the command line is loaded, because loading all of them takes longer
than a command that only reads. Help, completion and usage errors load all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer

from escrowmq.cluster.cli.failing import Commands

if TYPE_CHECKING:
    app: typer.Typer

#: Command -> module of this folder and what it is called there, in the order of --help.
_COMMANDS = {
    "up": ("lifecycle", "up"),
    "down": ("lifecycle", "down"),
    "status": ("status", "status"),
    "leftovers": ("replica_dirs", "leftovers"),
    "demo": ("lifecycle", "demo"),
    "produce": ("producing", "produce"),
    "consume": ("consuming", "consume"),
    "settings": ("settings", "settings"),
    "exporter": ("exporting", "exporter"),
}
#: Commands with commands of their own, whose ``app`` has them -> their module.
_GROUPS = {
    "topic": "topics",
    "txn": "transactions",
    "message": "messages",
    "schedule": "scheduled",
    "group": "groups",
    "dead": "dead",
    "members": "members",
    "node": "nodes",
    "rebalance": "rebalance",
    "profile": "profiles",
    "db": "database",
    "outbox": "outboxes",
}


def app_for(arguments: Iterable[str]) -> typer.Typer:
    """What runs this command line: the command that its first argument names, or all of them."""
    first = next(iter(arguments), "")
    return _made([first]) if first in _COMMANDS or first in _GROUPS else _all()


@functools.cache
def _all() -> typer.Typer:
    return _made([*_COMMANDS, *_GROUPS])


def _made(names: Iterable[str]) -> typer.Typer:
    made = typer.Typer(
        name="escrowmq",
        cls=Commands,
        no_args_is_help=True,
        pretty_exceptions_show_locals=False,  # locals may hold a secret
        context_settings={"help_option_names": ["-h", "--help"]},
        help="EscrowMQ: a transactional message broker on Ray.",
        epilog="Exit codes: 0 done, 1 failed, 2 wrong usage, setting or secret, 3 not available (try again), "
        "4 unknown topic, group or transaction, 5 conflict, 6 outcome unknown.",
    )
    made.callback()(_top)
    for name in names:
        if name in _COMMANDS:
            module, attribute = _COMMANDS[name]
            made.command(name)(getattr(_module(module), attribute))
        else:
            made.add_typer(_module(_GROUPS[name]).app, name=name)
    return made


def _module(name: str) -> Any:
    return import_module(f"escrowmq.cluster.cli.{name}")


def _version(asked: bool) -> None:
    if asked:
        import escrowmq

        print(escrowmq.__version__)
        raise typer.Exit


def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """EscrowMQ: a transactional message broker on Ray."""


def __getattr__(name: str) -> Any:
    """``app``, with all commands, is made when it is first asked for."""
    if name == "app":
        return _all()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
